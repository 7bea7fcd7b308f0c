/* A round's facts beside its seal and sums: contributors and shape, the largest scale code, and the contributors' bitmap.
 *
 * STEP_KEY and STEP_ROWS (SUM_ROWS for sums in pairs) select what a round's registers do with a packet. A default action may
 * not touch a register, hence each table's last row. In a synchronous build the facts are a stage before the sums, which
 * leaves the sums all eight stages behind; so the facts match the bitmap itself, as `step` does. */
#ifndef FANIN_TNA_ROUND_P4
#define FANIN_TNA_ROUND_P4

#include "arrived.p4"

#if STALE
#define ROUND meta.round
#define STEP_KEY meta.step: ternary @name("step"); meta.sealed: ternary @name("sealed");
/* A MISMATCH counts as a pass. */
#define STEP_ROWS                                                                                                      \
    (NOTHING, _): nothing(); (START, _): start(); (CLEAR, _): clear(); (ADD, NEITHER): show(); (ADD, _): add();        \
    (_, _): show();
#if PAIRS
#define SUM_ROWS                                                                                                       \
    (NOTHING, _): nothing(); (START, _): start(); (CLEAR, _): start(); (ADD, NEITHER): show(); (ADD, _): add();        \
    (FETCH, _): fetch(); (_, _): show();
#define EARLY_ROWS (FETCH, _): nothing(); STEP_ROWS
#else
#define EARLY_ROWS STEP_ROWS
#endif
#define EARLY_KEY STEP_KEY
#else
#define ROUND hdr.fanin.base
#define STEP_KEY meta.step: ternary @name("step");
#define STEP_ROWS NOTHING: nothing(); START: start(); CLEAR: clear(); ADD: add(); _: show();
#define SUM_ROWS NOTHING: nothing(); START: start(); CLEAR: start(); ADD: add(); FETCH: fetch(); _: show();
#define SYNCHRONOUS_KEY VERDICT_KEY meta.sealed: ternary @name("sealed"); meta.passes: ternary @name("passes");
#if LEAF
/* R-LEAF-3: the parent's first result of a round replaces it. */
#define EARLY_KEY SYNCHRONOUS_KEY meta.closed: ternary @name("closed");
#define LEAF_ROWS (_, _, _, DESCENDED, _, FIRST): start(); (_, _, _, DESCENDED, _, _): nothing();
#else
#define EARLY_KEY SYNCHRONOUS_KEY
#define LEAF_ROWS
#endif
#define WAS_THERE_ROW(W) (WAS_THERE(W), _, _ ANY_CLOSED): show();
#define EARLY_ROWS                                                                                                     \
    LEAF_ROWS                                                                                                          \
    (0, _, _, _, _ ANY_CLOSED): nothing(); (NEITHER, _, _, _, _ ANY_CLOSED): nothing();                                \
    EACH_WORKER(WAS_THERE_ROW)                                                                                         \
    (_, _, _, NEITHER, _ ANY_CLOSED): nothing();        /* a MISMATCH */                                               \
    (_, _, 0, _, 0 ANY_CLOSED): start(); (_, _, 0, _, 1 ANY_CLOSED): clear(); (_, _, _, _, 0 ANY_CLOSED): add();       \
    (_, _, _, _, _ ANY_CLOSED): show();
#endif
/* Facts of a round that this packet starts. */
#if LEAF
#define BROUGHT meta.facts
#else
#define BROUGHT meta.shape + 1
#endif

/* Sets the step, in the stage behind `arrived` or `open`. */
control Step(in headers_t hdr, inout metadata_t meta) {
    action nothing() { meta.step = NOTHING; }
    action start() { meta.step = START; }
    action clear() { meta.step = CLEAR; }
    action add() { meta.step = ADD; }
    action show() { meta.step = SHOW; }
    table step {
        actions = { start; clear; add; show; nothing; }
        const default_action = show;
#if STALE
        key = {
            meta.turn: ternary @name("turn");
            meta.passes: ternary @name("passes");
            meta.count: ternary @name("count");
        }
        CONST_SIZE(8)
        const entries = {
            (0, _, _): nothing();
            (COUNT, 0, 0): start();
            (COUNT, 1, 0): clear();
            (COUNT, 0, _): add();
        }
#else
        key = { EARLY_KEY }
        CONST_SIZE(64)
        const entries = { EARLY_ROWS }
#endif
    }
    apply {
#if PAIRS
        if (meta.step != FETCH) {       /* in a second pass the parser has set it */
            step.apply();
        }
#else
        step.apply();
#endif
#if STALE
        meta.behind = meta.round - hdr.fanin.base;
#endif
    }
}

/* Facts of a round: contributors in the lower half, the shape in the upper byte. */
control Held(in headers_t hdr, inout metadata_t meta) {
    WORD_REGISTER(ENTRIES_HELD, facts)
    ON_WORD(entry_t, bit<32>, facts, set, held = BROUGHT; result = held;)
    ON_WORD(entry_t, bit<32>, facts, unset, held = 0; result = held;)
    ON_WORD(entry_t, bit<32>, facts, increase,
            if (held == 0) { held = BROUGHT; } else { held = held + 1; } result = held;)
    ON_WORD(entry_t, bit<32>, facts, look, result = held;)
    action start() { RUN(meta.held, set, ENTRY(ROUND)) }
    action clear() { RUN(meta.held, unset, ENTRY(ROUND)) }
    action add() { RUN(meta.held, increase, ENTRY(ROUND)) }
    action show() { RUN(meta.held, look, ENTRY(ROUND)) }
    action nothing() { }
    table facts_of_round {
        key = { EARLY_KEY }
        actions = { start; clear; add; show; nothing; }
        const default_action = nothing;
        CONST_SIZE(64)
        const entries = { EARLY_ROWS }
    }
    apply {
        facts_of_round.apply();
    }
}

/* Largest scale code of a round (R-SLOT-9); 0 without codes. */
control Code(inout headers_t hdr, inout metadata_t meta) {
    WORD_REGISTER(ENTRIES_HELD, codes)
    ON_WORD(entry_t, bit<32>, codes, set, held = hdr.code.both; result = held;)
    ON_WORD(entry_t, bit<32>, codes, unset, held = 0; result = held;)
    ON_WORD(entry_t, bit<32>, codes, raise, if (held < hdr.code.both) { held = hdr.code.both; } result = held;)
    ON_WORD(entry_t, bit<32>, codes, look, result = held;)
    action start() { RUN(hdr.code.both, set, ENTRY(ROUND)) }
    action clear() { RUN(hdr.code.both, unset, ENTRY(ROUND)) }
    action add() { RUN(hdr.code.both, raise, ENTRY(ROUND)) }
    action show() { RUN(hdr.code.both, look, ENTRY(ROUND)) }
    action nothing() { }
    table largest_code {
        key = { EARLY_KEY }
        actions = { start; clear; add; show; nothing; }
        const default_action = nothing;
        CONST_SIZE(64)
        const entries = { EARLY_ROWS }
    }
    apply {
        largest_code.apply();
    }
}

#if STALE
/* Bitmap of a result (R-SLOT-11): the workers that had contributed base V when round V closed. Only contributions that came
 * while V was open count, so it is kept by round; `arrived` is read by base, before V is known. */
control Present(in headers_t hdr, inout metadata_t meta) {
    WORD_REGISTER(ENTRIES_HELD, present)
    ON_WORD(entry_t, bit<32>, present, first, held = meta.worker_bit; result = held;)
    ON_WORD(entry_t, bit<32>, present, unset, held = 0; result = held;)
    ON_WORD(entry_t, bit<32>, present, enter, held = held | meta.worker_bit; result = held;)
    ON_WORD(entry_t, bit<32>, present, look, result = held;)
    action set_bit() { RUN(meta.bitmap, first, ENTRY(meta.round)) }
    action clear() { RUN(meta.bitmap, unset, ENTRY(meta.round)) }
    action add_bit() { RUN(meta.bitmap, enter, ENTRY(meta.round)) }
    action show() { RUN(meta.bitmap, look, ENTRY(meta.round)) }
    action nothing() { }
    table presence {
        key = {
            meta.turn: ternary @name("turn");
            meta.count: ternary @name("count");
            meta.behind: ternary @name("behind");
        }
        actions = { set_bit; clear; add_bit; show; nothing; }
        const default_action = nothing;
        CONST_SIZE(8)
        const entries = {
            (0, _, _): nothing();
            (COUNT, 0, 0): set_bit();
            (COUNT, 0, _): clear();
            (COUNT, _, 0): add_bit();
            (_, _, _): show();
        }
    }
    apply {
        presence.apply();
    }
}
#endif

#endif
