/* Counters, by row of the job (row 0: no job): what `fanin stats` shows. Drops are counted by reason as well. */
#ifndef FANIN_TNA_TALLY_P4
#define FANIN_TNA_TALLY_P4

#include "types.p4"

#ifdef FANIN_MODEL
#define COUNTER(BITS, NAME) counter(1 << BITS, CounterType.packets) NAME;
#define COUNT_IN(NAME, INDEX) NAME.count((bit<32>)(INDEX));
#else
#define COUNTER(BITS, NAME) Counter<bit<32>, bit<BITS>>(1 << BITS, CounterType_t.PACKETS) NAME;
#define COUNT_IN(NAME, INDEX) NAME.count(INDEX);
#endif
/* An index has as many bits as JOB_ROWS = 64 needs, and 5 more for the 32 reasons. */
#define ROW meta.row[5:0]

control Tally(inout metadata_t meta) {
    COUNTER(11, drops)          /* row * 32 + reason */
    COUNTER(6, packets)
    COUNTER(6, contributions)
    COUNTER(6, passes)
    COUNTER(6, duplicates)
    COUNTER(6, rounds)
    COUNTER(6, answers)
    COUNTER(6, notices)

    apply {
#if PAIRS
        if (meta.clean == 0 && meta.step != FETCH WITH_LEAF(&& meta.fate != TURN_IN)) {
#else
        if (meta.clean == 0) {
#endif
            COUNT_IN(packets, ROW)
        }
        if (meta.reason != 0) {
            COUNT_IN(drops, ROW ++ meta.cause)
        }
        if (meta.fate == NOTICE) {
            COUNT_IN(notices, ROW)
        }
        if (meta.verdict == DUPLICATE) {
            COUNT_IN(duplicates, ROW)
        }
        if (meta.verdict == NEW && meta.passes == 1) {
            COUNT_IN(passes, ROW)
        }
        if (meta.verdict == NEW && meta.passes == 0 && meta.reason == 0) {
            COUNT_IN(contributions, ROW)
        }
        if (meta.fate == RESULT || meta.fate == RESULT_AND_BARE WITH_LEAF(|| meta.fate == HAND_DOWN)) {
            COUNT_IN(rounds, ROW)
        }
        if (meta.fate == ANSWER || meta.fate == BARE || meta.fate == RESULT_AND_BARE) {
            COUNT_IN(answers, ROW)
        }
    }
}

#endif
