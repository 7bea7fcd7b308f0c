/* A packet's path through ingress, for both main files. Each register array is touched once, in this order:
 *
 *   stage      0      1          2          3                     4        5              6 ...
 *   stale      job    arrived    verdict    floor                 open     seal, step     facts, code, presence, sums
 *   S = 0      job    seal       arrived    step, facts, code     sums
 *   leaf       job    seal       arrived    closed                step, facts, code   sums
 *
 * A packet in its second pass (second_pass.p4) takes the same path, but touches the sums only.
 *
 * These are macros, so that each main file's control FaninIngress, whose name the controller knows, owns the parts. */
#ifndef FANIN_TNA_INGRESS_P4
#define FANIN_TNA_INGRESS_P4

#include "admission.p4"
#include "arrived.p4"
#include "forward.p4"
#include "job.p4"
#include "outcome.p4"
#include "result.p4"
#include "round.p4"
#include "seal.p4"
#include "sums.p4"
#include "tally.p4"

#if LEAF
#include "leaf.p4"
#define LEAF_PARTS                                                                                                     \
    Parents() parents;                                                                                                 \
    Closed() closed;                                                                                                   \
    ParentSignature() parent_signature;                                                                                \
    Descents() descents;
#define PARENTS parents.apply(hdr, meta);
#define CLOSED                                                                                                         \
    closed.apply(hdr, meta);                                                                                           \
    parent_signature.apply(hdr, meta);
#define DESCENTS descents.apply(hdr, meta);
#else
#define LEAF_PARTS
#define PARENTS
#define CLOSED
#define DESCENTS
#endif

#if PAIRS
#include "second_pass.p4"
#define EACH_SUM EACH_PAIR
#define APPLY_SUM(I, NEXT) sum ## I.apply(hdr.word ## I, hdr.word ## NEXT, hdr, meta);
#define SECOND_PASS_PART SecondPass() second_pass;
#define SECOND_PASS second_pass.apply(hdr, meta);
#else
#define EACH_SUM EACH_WORD
#define APPLY_SUM(I, NEXT) sum ## I.apply(hdr.word ## I, hdr, meta);
#define SECOND_PASS_PART
#define SECOND_PASS
#endif
#define SUM(I, NEXT) Sum() sum ## I;

#if STALE
#include "floor.p4"
#include "open_round.p4"
#define SLOT_MACHINE_PARTS                                                                                             \
    Floor() floor;                                                                                                     \
    OpenRound() open_round;                                                                                            \
    OpenCount() open_count;                                                                                            \
    OpenCloses() open_closes;                                                                                          \
    Present() present;
#define SLOT_MACHINE                                                                                                   \
    arrived_before.apply(hdr, meta);                                                                                   \
    arrived_age.apply(hdr, meta);                                                                                      \
    verdict.apply(hdr, meta);                                                                                          \
    floor.apply(hdr, meta);                                                                                            \
    open_round.apply(hdr, meta);                                                                                       \
    open_count.apply(hdr, meta);                                                                                       \
    open_closes.apply(hdr, meta);                                                                                      \
    seal.apply(hdr, meta);                                                                                             \
    step.apply(hdr, meta);                                                                                             \
    present.apply(hdr, meta);
#else
#define SLOT_MACHINE_PARTS
#define SLOT_MACHINE                                                                                                   \
    seal.apply(hdr, meta);                                                                                             \
    arrived_before.apply(hdr, meta);                                                                                   \
    arrived_age.apply(hdr, meta);                                                                                      \
    CLOSED                                                                                                             \
    verdict.apply(hdr, meta);                                                                                          \
    step.apply(hdr, meta);
#endif

#define INGRESS_PARTS                                                                                                  \
    Jobs() job;                                                                                                        \
    Prepare() prepare;                                                                                                 \
    Unfold() unfold;                                                                                                   \
    Admission() admission;                                                                                             \
    Seal() seal;                                                                                                       \
    ArrivedBefore() arrived_before;                                                                                    \
    ArrivedAge() arrived_age;                                                                                          \
    Verdict() verdict;                                                                                                 \
    SLOT_MACHINE_PARTS                                                                                                 \
    Step() step;                                                                                                       \
    Held() held;                                                                                                       \
    Code() code;                                                                                                       \
    EACH_SUM(SUM)                                                                                                      \
    Outcome() outcome;                                                                                                 \
    Fold() fold;                                                                                                       \
    Signature() signature;                                                                                             \
    Finish() finish;                                                                                                   \
    SECOND_PASS_PART                                                                                                   \
    LEAF_PARTS                                                                                                         \
    Tally() tally;                                                                                                     \
    Forward() forward;                                                                                                 \
    action ours() { meta.addressed = 1; }                                                                              \
    /* The addresses and ports that workers send to; one port for each flow. */                                        \
    table services {                                                                                                   \
        key = {                                                                                                        \
            hdr.ipv4.destination: exact @name("address");                                                              \
            hdr.udp.destination: exact @name("port");                                                                  \
        }                                                                                                              \
        actions = { ours; NoAction; }                                                                                  \
        default_action = NoAction;                                                                                     \
        size = 64;                                                                                                     \
    }

#define INGRESS                                                                                                        \
    if (hdr.udp.isValid()) {                                                                                           \
        services.apply();                                                                                              \
    }                                                                                                                  \
    if (hdr.fanin.isValid()) {     /* for every destination: these look-ups need not wait for `services` */            \
        job.apply(hdr, meta);                                                                                          \
        PARENTS                                                                                                        \
    }                                                                                                                  \
    if (hdr.packet_out.isValid() && meta.clean == 0) {                                                                 \
        meta.port_out = hdr.packet_out.egress_port;                                                                    \
    } else if (meta.addressed == 1) {                                                                                  \
        prepare.apply(hdr, meta);                                                                                      \
        unfold.apply(hdr, meta);                                                                                       \
        admission.apply(hdr, meta);                                                                                    \
        SLOT_MACHINE                                                                                                   \
        held.apply(hdr, meta);                                                                                         \
        code.apply(hdr, meta);                                                                                         \
        EACH_SUM(APPLY_SUM)                                                                                            \
        meta.late_base = hdr.fanin.base;                                                                               \
        meta.late_bitmap = meta.before | meta.worker_bit;                                                              \
        outcome.apply(hdr, meta);                                                                                      \
        fold.apply(hdr, meta);                                                                                         \
        signature.apply(hdr, meta);                                                                                    \
        tally.apply(meta);                                                                                             \
        finish.apply(hdr, meta);                                                                                       \
        SECOND_PASS                                                                                                    \
        DESCENTS                                                                                                       \
    } else {                                                                                                           \
        forward.apply(hdr, meta);                                                                                      \
    }                                                                                                                  \
    hdr.packet_out.setInvalid();

#endif
