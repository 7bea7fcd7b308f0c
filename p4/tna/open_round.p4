/* `open`: (V, how many contributions it holds). A round closes when it holds K and V < floor + S.
 *
 * Three copies with the same contents, since a stateful ALU returns one result: V, the count, or whether the round closed.
 *
 *   turn           when                                       count           closes if                    reports
 *   COUNT          a new contribution                         + 1             V < limit, count >= K - 1    both conditions
 *   PASS_BY        a new pass that is late                                    V < limit, count >= K        both conditions
 *   CLOSE_IF_DUE   a duplicate of a base that is complete                     V = base, count >= K         both conditions
 *   LOOK           another duplicate                                                                       V = base
 *   CLEAN_UP       the controller, for a new job              0, as is V
 *
 * CLOSE_IF_DUE closes a round only after an eviction, or when K has been lowered: R-SLOT-13, without a poke. If base b = V is
 * complete then V < floor, so that the staleness bound holds. Workers that wait for such a round send again, and all of them
 * have contributed base V, so a duplicate of theirs closes it. `limit` is the base of a duplicate. */
#ifndef FANIN_TNA_OPEN_ROUND_P4
#define FANIN_TNA_OPEN_ROUND_P4

#include "types.p4"

/* The two conditions of a turn (R-SLOT-11); RESULT derives a copy's result from them or from the old entry. */
#define BELOW held.low < meta.limit
#define IS_BASE held.low == meta.limit
#define ENOUGH held.high >= meta.needed
#define CLOSE_OR(ONE, OTHERWISE)                                                                                       \
    if ((ONE) && (ENOUGH)) { held.low = held.low + 1; held.high = 0; } else { OTHERWISE }
#define TURNS(RESULT_T, RESULT, RESULT_OF_DUPLICATE)                                                                   \
    PAIR_REGISTER(SLOTS_HELD, open)                                                                                    \
    ON_PAIR(slot_t, RESULT_T, open, arrive, RESULT CLOSE_OR(BELOW, held.high = held.high + 1;))                        \
    ON_PAIR(slot_t, RESULT_T, open, pass_by, RESULT CLOSE_OR(BELOW, ))                                                 \
    ON_PAIR(slot_t, RESULT_T, open, close_if_due, RESULT_OF_DUPLICATE CLOSE_OR(IS_BASE, ))                             \
    ON_PAIR(slot_t, RESULT_T, open, wipe, held.low = 0; held.high = 0;)                                                \
    action clean_up() {                                                                                                \
        RESULT_T unused_result;                                                                                        \
        RUN(unused_result, wipe, SLOT)                                                                                 \
    }
#define TABLE                                                                                                          \
    table open_round {                                                                                                 \
        key = { meta.turn: exact @name("turn"); }                                                                      \
        actions = { on_arrival; on_late_pass; on_complete; on_duplicate; clean_up; nothing; }                          \
        const default_action = nothing;                                                                                \
        CONST_SIZE(8)                                                                                                  \
        const entries = {                                                                                              \
            COUNT: on_arrival();                                                                                       \
            PASS_BY: on_late_pass();                                                                                   \
            CLOSE_IF_DUE: on_complete();                                                                               \
            LOOK: on_duplicate();                                                                                      \
            CLEAN_UP: clean_up();                                                                                      \
        }                                                                                                              \
    }                                                                                                                  \
    apply { open_round.apply(); }

/* Sets meta.round: the open round, or a duplicate's base. */
control OpenRound(in headers_t hdr, inout metadata_t meta) {
    TURNS(bit<32>, result = held.low;, result = held.low;)
    action on_arrival() { RUN(meta.round, arrive, SLOT) }
    action on_late_pass() { RUN(meta.round, pass_by, SLOT) }
    action on_complete() {
        bit<32> unused_round;
        RUN(unused_round, close_if_due, SLOT)
        meta.round = hdr.fanin.base;
    }
    action on_duplicate() { meta.round = hdr.fanin.base; }
    action nothing() { WITH_PAIRS(meta.round = hdr.fanin.base;) }   /* the base of a result in its second pass */
    TABLE
}

control OpenCount(in headers_t hdr, inout metadata_t meta) {
    TURNS(bit<32>, result = held.high;, result = held.high;)
    action on_arrival() { RUN(meta.count, arrive, SLOT) }
    action on_late_pass() { RUN(meta.count, pass_by, SLOT) }
    action on_complete() { RUN(meta.count, close_if_due, SLOT) }
    action on_duplicate() { }
    action nothing() { }
    TABLE
}

control OpenCloses(in headers_t hdr, inout metadata_t meta) {
    TURNS(predicate_t, REPORT(BELOW, ENOUGH), REPORT(IS_BASE, ENOUGH))
    action on_arrival() { RUN(meta.closing, arrive, SLOT) }
    action on_late_pass() { RUN(meta.closing, pass_by, SLOT) }
    action on_complete() { RUN(meta.closing, close_if_due, SLOT) }
    action on_duplicate() { RUN(meta.closing, close_if_due, SLOT) }     /* `needed` is NEVER: nothing closes */
    action nothing() { }
    TABLE
}

#undef BELOW
#undef IS_BASE
#undef ENOUGH
#undef CLOSE_OR
#undef TURNS
#undef TABLE

#endif
