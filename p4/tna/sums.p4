/* `sum`: a ring by round, a register for each word of a packet. Words wrap around at 32 bits. */
#ifndef FANIN_TNA_SUMS_P4
#define FANIN_TNA_SUMS_P4

#include "round.p4"

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
