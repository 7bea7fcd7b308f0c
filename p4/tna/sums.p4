/* `sum` (R-SLOT-9): a ring by round, a register for each word of a packet or, with PAIRS, for two. Words wrap at 32 bits. */
#ifndef FANIN_TNA_SUMS_P4
#define FANIN_TNA_SUMS_P4

#include "round.p4"

#if PAIRS

/* Both words are added in one access, but a stateful ALU has one result of 32 bits: the lower word. The second pass fetches
 * the upper one. The words of a pass are zeros (Unfold), so that CLEAR is done by START. */
control Sum(inout word_t low, inout word_t high, in headers_t hdr, in metadata_t meta) {
    PAIR_REGISTER(ENTRIES_HELD, pairs)
    ON_PAIR(entry_t, bit<32>, pairs, set, held.low = low.data; held.high = high.data; result = held.low;)
    ON_PAIR(entry_t, bit<32>, pairs, increase,
            held.low = held.low + low.data; held.high = held.high + high.data; result = held.low;)
    ON_PAIR(entry_t, bit<32>, pairs, look, result = held.low;)
    ON_PAIR(entry_t, bit<32>, pairs, look_above, result = held.high;)
    action start() { RUN(low.data, set, ENTRY(ROUND)) }
    action add() { RUN(low.data, increase, ENTRY(ROUND)) }
    action show() { RUN(low.data, look, ENTRY(ROUND)) }
    action fetch() { RUN(high.data, look_above, ENTRY(ROUND)) }
    action nothing() { }
    table sum {
        key = { STEP_KEY }
        actions = { start; add; show; fetch; nothing; }
        const default_action = nothing;
        CONST_SIZE(8)
        const entries = { SUM_ROWS }
    }
    apply {
        sum.apply();
    }
}

#else

control Sum(inout word_t word, in headers_t hdr, in metadata_t meta) {
    WORD_REGISTER(ENTRIES_HELD, sums)
    ON_WORD(entry_t, bit<32>, sums, set, held = word.data; result = held;)
    ON_WORD(entry_t, bit<32>, sums, unset, held = 0; result = held;)
    ON_WORD(entry_t, bit<32>, sums, increase, held = held + word.data; result = held;)
    ON_WORD(entry_t, bit<32>, sums, look, result = held;)
    action start() { RUN(word.data, set, ENTRY(ROUND)) }
    action clear() { RUN(word.data, unset, ENTRY(ROUND)) }
    action add() { RUN(word.data, increase, ENTRY(ROUND)) }
    action show() { RUN(word.data, look, ENTRY(ROUND)) }
    action nothing() { }
    table sum {
        key = { STEP_KEY }
        actions = { start; clear; add; show; nothing; }
        const default_action = nothing;
        CONST_SIZE(8)
        const entries = { STEP_ROWS }
    }
    apply {
        sum.apply();
    }
}

#endif
#endif
