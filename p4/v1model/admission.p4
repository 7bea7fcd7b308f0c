/* Decides about a packet that is addressed to the switch, by the table at the top of switch/machine/switch_machine.py.
 *
 * The rows are tried from top to bottom. The controller checks length and token of a HELLO or BYE; verdict.p4 checks the
 * base of a contribution. */
#ifndef FANIN_ADMISSION_P4
#define FANIN_ADMISSION_P4

#include "checksum.p4"
#include "tree.p4"
#include "types.p4"

control Admission(in headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    FromParent() from_parent;
    Checksum() compute;

    action drop(bit<16> reason) {
        meta.fate = Fate.DROP;
        meta.reason = reason;
    }
    action notice(bit<16> reason) {
        meta.fate = Fate.NOTICE;
        meta.reason = reason;
    }
    action go(Fate fate) {
        meta.fate = fate;
    }

    bit<1> intact;
    bit<1> magic;
    bit<1> version;
    bit<1> length;
    bit<1> damaged;
    bit<1> unsealed;
    bit<1> known;
    bit<1> generation;
    bit<1> worker;
    bit<1> live;
    bit<1> shape;
    bit<1> slot;

    table admission {
        key = {
            intact: ternary;                /* 36 bytes or more, undamaged on the way */
            magic: ternary;
            version: ternary;
            hdr.fanin.kind: ternary @name("kind");
            length: ternary;                /* a length and bits that are legal for any job */
            damaged: ternary;               /* the packet's own checksum is wrong */
            meta.down: ternary @name("down");   /* comes from the parent: tree.p4 decides */
            meta.poke: ternary @name("poke");
            known: ternary;                 /* the job exists at this switch */
            unsealed: ternary;              /* has no checksum, though the job requires one */
            generation: ternary;            /* the packet's generation is the job's */
            worker: ternary;                /* < N */
            live: ternary;                  /* the worker is not evicted */
            meta.member: ternary @name("member");
            shape: ternary;                 /* fits the job */
            slot: ternary;                  /* < slots */
        }
        actions = { drop; notice; go; }
        const default_action = go(Fate.AGGREGATE);
        const entries = {
            /* head magic ver kind               len sum down poke known none gen wkr live memb shape slot */
            (0, _, _, _,                  _, _, _, _, _, _, _, _, _, _, _, _): drop(REASON_TOO_SHORT);
            (_, 0, _, _,                  _, _, _, _, _, _, _, _, _, _, _, _): drop(REASON_BAD_MAGIC);
            (_, _, 0, KIND_CONTRIBUTION,  _, _, _, _, _, _, _, _, _, _, _, _): notice(REASON_VERSION);
            (_, _, 0, KIND_HELLO,         _, _, _, _, _, _, _, _, _, _, _, _): notice(REASON_VERSION);
            (_, _, 0, KIND_BYE,           _, _, _, _, _, _, _, _, _, _, _, _): notice(REASON_VERSION);
            (_, _, 0, KIND_PROBE,         _, _, _, _, _, _, _, _, _, _, _, _): notice(REASON_VERSION);
            (_, _, 0, _,                  _, _, _, _, _, _, _, _, _, _, _, _): drop(REASON_VERSION);
            (_, _, _, 0,                  _, _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _, _, 0x10 &&& 0xF0,      _, _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _, _, 0x20 &&& 0xE0,      _, _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _, _, 0x40 &&& 0xC0,      _, _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _, _, 0x80 &&& 0x80,      _, _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _, _, 0x0A &&& 0xFE,      _, _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _, _, 0x0C &&& 0xFC,      _, _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _, _, _,                  0, _, _, _, _, _, _, _, _, _, _, _): drop(REASON_LENGTH);
            (_, _, _, _,                  _, 1, _, _, _, _, _, _, _, _, _, _): drop(REASON_CHECKSUM);
            (_, _, _, _,                  _, _, 1, _, _, _, _, _, _, _, _, _): go(Fate.DESCEND);
            (_, _, _, KIND_PROBE,         _, _, _, _, _, _, _, _, _, _, _, _): go(Fate.ECHO);
            (_, _, _, KIND_RESULT,        _, _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _, _, KIND_ANSWER,        _, _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _, _, KIND_WELCOME,       _, _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _, _, KIND_NOTICE,        _, _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _, _, KIND_ECHO,          _, _, _, _, _, _, _, _, _, _, _, _): drop(REASON_KIND);
            (_, _, _, _,                  _, _, _, _, 0, _, _, _, _, _, _, _): notice(REASON_UNKNOWN_JOB);
            (_, _, _, _,                  _, _, _, _, _, 1, _, _, _, _, _, _): drop(REASON_CHECKSUM);
            (_, _, _, _,                  _, _, _, _, _, _, 0, _, _, _, _, _): notice(REASON_GENERATION);
            /* A poke comes from the controller and names no worker. */
            (_, _, _, KIND_CONTRIBUTION,  _, _, _, 1, _, _, _, _, _, _, _, 1): go(Fate.AGGREGATE);
            (_, _, _, _,                  _, _, _, _, _, _, _, 0, _, _, _, _): drop(REASON_WORKER_RANGE);
            (_, _, _, KIND_HELLO,         _, _, _, _, _, _, _, _, _, _, _, _): go(Fate.CONTROLLER);
            (_, _, _, KIND_BYE,           _, _, _, _, _, _, _, _, _, _, _, _): go(Fate.CONTROLLER);
            (_, _, _, _,                  _, _, _, _, _, _, _, _, 0, _, _, _): notice(REASON_EVICTED);
            (_, _, _, _,                  _, _, _, _, _, _, _, _, _, 0, _, _): notice(REASON_STRANGER);
            (_, _, _, _,                  _, _, _, _, _, _, _, _, _, _, 0, _): drop(REASON_LENGTH);
            (_, _, _, _,                  _, _, _, _, _, _, _, _, _, _, _, 0): drop(REASON_SLOT_RANGE);
        }
    }

    apply {
        bit<16> payload_bytes = hdr.udp.bytes - UDP_BYTES;
        bit<16> tail_bytes = payload_bytes - HEADER_BYTES;
        intact = (bit<1>)(hdr.udp.bytes >= UDP_BYTES + HEADER_BYTES
            && hdr.udp.bytes + IPV4_BYTES <= hdr.ipv4.total_bytes
            && standard.parser_error == error.NoError && standard.checksum_error == 0);
        magic = (bit<1>)hdr.fanin.isValid();
        version = (bit<1>)(hdr.fanin.version == VERSION);
        length = (bit<1>)(hdr.fanin.code_count <= MAX_CODES && (meta.code_words << 2) <= tail_bytes
            && meta.word_bytes[1:0] == 0 && (hdr.fanin.flags & ~KNOWN_FLAGS) == 0 && hdr.fanin.reserved == 0);
        damaged = 0;
        if (magic == 1 && (hdr.fanin.flags & FLAG_CHECKSUM) != 0 && meta.whole == 1) {
            bit<32> computed;
            compute.apply(hdr, computed);
            damaged = (bit<1>)(computed != hdr.fanin.checksum);
        }
        if (hdr.fanin.kind == KIND_PROBE && (hdr.fanin.flags & FLAG_CHECKSUM) != 0) {
            damaged = 1;                    /* a PROBE's payload is not parsed, so the ECHO's checksum could not be computed */
        }
        unsealed = (bit<1>)(meta.job.checksum == 1 && (hdr.fanin.flags & FLAG_CHECKSUM) == 0);
        known = meta.job.known;
        generation = (bit<1>)(hdr.fanin.generation == meta.job.generation);
        worker = (bit<1>)(hdr.fanin.worker < meta.job.workers);
        live = (bit<1>)((meta.job.live & meta.worker_bit) != 0);
        slot = (bit<1>)(hdr.fanin.slot < meta.job.slots);
        if (meta.passes == 1) {
            shape = (bit<1>)(hdr.fanin.code_count == 0 && meta.word_bytes == 0);
        } else {
            shape = (bit<1>)((hdr.fanin.code_count == 0 || hdr.fanin.code_count == meta.job.codes)
                && meta.word_count <= meta.job.words && (hdr.fanin.flags & FLAG_LATE) == 0);
        }
        admission.apply();
        if (meta.fate == Fate.DESCEND) {
            from_parent.apply(hdr, meta);
        }
    }
}

#endif
