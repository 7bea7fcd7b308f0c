/* Decides about a packet that is addressed to the switch, by the table at the top of switch/machine/switch_machine.py.
 *
 * The conditions are checked in two places. The registers that come first change only if all are met, in the stage after
 * the job's: their tables match ADMITTED, one row for each worker that may be live. One stage later, table `admission`
 * decides about all other packets, with the reason: its rows drop the conditions one by one, from the last to the first. */
#ifndef FANIN_TNA_ADMISSION_P4
#define FANIN_TNA_ADMISSION_P4

#include "types.p4"

#define ADMITTED_KEY                                                                                                   \
    meta.found: ternary @name("found");                                                                                \
    meta.damaged: ternary @name("damaged");                                                                            \
    meta.clean: ternary @name("clean");                                                                                \
    meta.generation: ternary @name("generation");                                                                      \
    hdr.fanin.worker: ternary @name("worker");                                                                         \
    meta.live: ternary @name("live");                                                                                  \
    meta.member: ternary @name("member");                                                                              \
    meta.word_room[7:7]: ternary @name("word_room");                                                                   \
    meta.code_room[7:7]: ternary @name("code_room");                                                                   \
    hdr.fanin.slot[31:31]: ternary @name("slot_top");                                                                  \
    meta.slot_range: ternary @name("slot_range");
#define POSITIVE 0 &&& 0x80000000
/* Must be the first row: for slot = slots the difference is 0, thus not negative, but the packet is refused. */
#define NO_SLOT _, _, _, _, _, _, _, _, _, _, 0
/* A contribution (with or without words) of live worker W. */
#define ADMITTED(FOUND, W) FOUND, 0, 0, 0, W, 32w1 << W &&& 32w1 << W, 1, 0, 0, 0, POSITIVE
/* The parent's result, in its second pass. */
#define DESCENDING RESULT_OF_PARENT, _, _, 0, _, _, _, 0, 0, 0, POSITIVE
#define RESULT_OF_PARENT PASSED_ONCE | FROM_PARENT | WITH_WORDS
#define OF_PARENT_AGAIN PASSED_ONCE | FROM_PARENT &&& PASSED_ONCE | FROM_PARENT
/* The controller cleans a slot of this generation, so that nothing is left of the job that had it before. */
#define CLEANING _, 0, 1, 0, _, _, _, _, _, 0, POSITIVE

control Admission(in headers_t hdr, inout metadata_t meta) {
    action drop(bit<16> reason) {
        meta.fate = DROP;
        meta.reason = reason;
        meta.cause = reason[4:0];
    }
    action notice(bit<16> reason) {
        meta.fate = NOTICE;
        meta.reason = reason;
        meta.cause = reason[4:0];
    }
    action go(fate_t fate) {
        meta.fate = fate;
    }

    table admission {
        key = {
            meta.damaged: ternary @name("damaged");
            meta.found: ternary @name("found");
            hdr.fanin.kind: ternary @name("kind");
            meta.known: ternary @name("known");
            meta.generation: ternary @name("generation");
            meta.clean: ternary @name("clean");
            meta.worker_range: ternary @name("worker_range");
            hdr.fanin.worker[7:7]: ternary @name("worker_top");
            meta.dead: ternary @name("dead");
            meta.member: ternary @name("member");
            meta.word_room[7:7]: ternary @name("word_room");
            meta.code_room[7:7]: ternary @name("code_room");
            meta.slot_range: ternary @name("slot_range");
            hdr.fanin.slot[31:31]: ternary @name("slot_top");
        }
        actions = { drop; notice; go; }
        const default_action = notice(REASON_GENERATION);
        CONST_SIZE(64)
        const entries = {
            /* dmg found        kind               job gen clean worker dead memb shape  slot */
#if LEAF
            /* The parent's result in its second pass; the job may have been removed since the first. */
            (_, RESULT_OF_PARENT, _,               1, 0, _, _, _, _, _, 0, 0, 0, _): drop(REASON_SLOT_RANGE);
            (_, RESULT_OF_PARENT, _,               1, 0, _, _, _, _, _, 0, 0, POSITIVE, 0): go(DESCEND);
            (_, RESULT_OF_PARENT, _,               1, 0, _, _, _, _, _, 0, 0, _, _): drop(REASON_SLOT_RANGE);
            (_, OF_PARENT_AGAIN, _,                1, 0, _, _, _, _, _, _, _, _, _): drop(REASON_LENGTH);
            (_, OF_PARENT_AGAIN, _,                _, _, _, _, _, _, _, _, _, _, _): drop(REASON_GENERATION);
#endif
#if PAIRS
            /* A worker evicted since the first pass gets no answer: the second may fetch another round's words. */
            (_, PASSED_ONCE &&& PASSED_ONCE, _,    1, 0, _, _, _, 0, _, _, _, _, _): go(RELEASE);
            (_, PASSED_ONCE &&& PASSED_ONCE, _,    _, _, _, _, _, _, _, _, _, _, _): drop(REASON_EVICTED);
#endif
            (1, _,              _,                 _, _, _, _, _, _, _, _, _, _, _): drop(REASON_TOO_SHORT);
#if LEAF
            (_, FROM_PARENT | OTHER_VERSION, _,    _, _, _, _, _, _, _, _, _, _, _): drop(REASON_VERSION);
            (_, FROM_PARENT | ILLEGAL, _,          _, _, _, _, _, _, _, _, _, _, _): drop(REASON_LENGTH);
            (_, FROM_PARENT | CHECKSUMMED, _,      _, _, _, _, _, _, _, _, _, _, _): drop(REASON_CHECKSUM);
            (_, FROM_PARENT | BARE_ANSWER, _,      _, _, _, _, _, _, _, _, _, _, _): go(ASK);
            (_, FROM_PARENT | HEADER, KIND_RESULT, _, _, _, _, _, _, _, _, _, _, _): go(TURN_IN);
            (_, FROM_PARENT | HEADER, KIND_ANSWER, _, _, _, _, _, _, _, _, _, _, _): go(TURN_IN);
            (_, FROM_PARENT | HEADER, KIND_WELCOME, _, _, _, _, _, _, _, _, _, _, _): go(CONTROLLER);
            (_, FROM_PARENT | HEADER, KIND_NOTICE, _, _, _, _, _, _, _, _, _, _, _): go(CONTROLLER);
            (_, FROM_PARENT | HEADER, KIND_BYE,    _, _, _, _, _, _, _, _, _, _, _): go(CONTROLLER);
            (_, FROM_PARENT &&& FROM_PARENT, _,    _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
#endif
            (_, TOO_SHORT,      _,                 _, _, _, _, _, _, _, _, _, _, _): drop(REASON_TOO_SHORT);
            (_, BAD_MAGIC,      _,                 _, _, _, _, _, _, _, _, _, _, _): drop(REASON_BAD_MAGIC);
            (_, OTHER_VERSION,  KIND_CONTRIBUTION, _, _, _, _, _, _, _, _, _, _, _): notice(REASON_VERSION);
            (_, OTHER_VERSION,  KIND_HELLO,        _, _, _, _, _, _, _, _, _, _, _): notice(REASON_VERSION);
            (_, OTHER_VERSION,  KIND_BYE,          _, _, _, _, _, _, _, _, _, _, _): notice(REASON_VERSION);
            (_, OTHER_VERSION,  KIND_PROBE,        _, _, _, _, _, _, _, _, _, _, _): notice(REASON_VERSION);
            (_, OTHER_VERSION,  _,                 _, _, _, _, _, _, _, _, _, _, _): drop(REASON_VERSION);
            (_, _,              0,                 _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _,              0x10 &&& 0xF0,     _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _,              0x20 &&& 0xE0,     _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _,              0x40 &&& 0xC0,     _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _,              0x80 &&& 0x80,     _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _,              0x0A &&& 0xFE,     _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _,              0x0C &&& 0xFC,     _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, ILLEGAL,        _,                 _, _, _, _, _, _, _, _, _, _, _): drop(REASON_LENGTH);
            (_, CHECKSUMMED,    _,                 _, _, _, _, _, _, _, _, _, _, _): drop(REASON_CHECKSUM);
            (_, _,              KIND_PROBE,        _, _, _, _, _, _, _, _, _, _, _): go(ECHO);
            (_, _,              KIND_RESULT,       _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _,              KIND_ANSWER,       _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _,              KIND_WELCOME,      _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _,              KIND_NOTICE,       _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _,              KIND_ECHO,         _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _,              _,                 0, _, _, _, _, _, _, _, _, _, _): notice(REASON_UNKNOWN_JOB);
            /* From here on a row lists the conditions that are met; the first that it omits is the one that failed.
             * A cleaning packet returns to the controller, which sends it again if it does not come back. */
            (_, _,              KIND_CONTRIBUTION, 1, 0, 1, _, _, _, _, _, _, _, _): go(CONTROLLER);
            (_, _,              _,                 1, 0, _, 0, _, _, _, _, _, _, _): drop(REASON_WORKER_RANGE);
            (_, _,              KIND_CONTRIBUTION, 1, 0, 0, 0 &&& 0x80, 0, 0, 1, 0, 0, 0, _): drop(REASON_SLOT_RANGE);
            (_, _,              KIND_CONTRIBUTION, 1, 0, 0, 0 &&& 0x80, 0, 0, 1, 0, 0, POSITIVE, 0): go(AGGREGATE);
            (_, _,              KIND_CONTRIBUTION, 1, 0, 0, 0 &&& 0x80, 0, 0, 1, 0, 0, _, _): drop(REASON_SLOT_RANGE);
            (_, _,              KIND_CONTRIBUTION, 1, 0, 0, 0 &&& 0x80, 0, 0, 1, _, _, _, _): drop(REASON_LENGTH);
            (_, _,              KIND_CONTRIBUTION, 1, 0, 0, 0 &&& 0x80, 0, 0, _, _, _, _, _): notice(REASON_STRANGER);
            (_, _,              KIND_CONTRIBUTION, 1, 0, 0, 0 &&& 0x80, 0, _, _, _, _, _, _): notice(REASON_EVICTED);
            (_, _,              _,                 1, 0, _, 0 &&& 0x80, 0, _, _, _, _, _, _): go(CONTROLLER);
            (_, _,              _,                 1, 0, _, _, _, _, _, _, _, _, _): drop(REASON_WORKER_RANGE);
            /* otherwise NOTICE(GENERATION) */
        }
    }

    apply {
        admission.apply();
    }
}

#endif
