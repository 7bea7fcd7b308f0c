/* A round's seal identifies its collective: signature and shape in one word. The first contribution with words sets it;
 * one with another seal is a MISMATCH (R-SLOT-5).
 *
 * In a synchronous build a base is a round, so the seal is checked before any other register changes, and a MISMATCH leaves
 * no trace. With staleness a round is known only once the contribution has been counted in; so a MISMATCH then counts as a
 * pass: it adds nothing, and `contributors` does not count it. Either way its sender is told, and fails.
 *
 * A pass reads the seal, in case a result leaves in its place. */
#ifndef FANIN_TNA_SEAL_P4
#define FANIN_TNA_SEAL_P4

#include "admission.p4"

control Seal(in headers_t hdr, inout metadata_t meta) {
#if STALE
    WORD_REGISTER(ENTRIES_HELD, seals)
    ON_WORD(entry_t, bit<32>, seals, set, held = meta.seal; result = held;)
    ON_WORD(entry_t, bit<32>, seals, unset, held = 0;)
    ON_WORD(entry_t, predicate_t, seals, compare,
            REPORT(held == 0, held == meta.seal) if (held == 0) { held = meta.seal; })
    ON_WORD(entry_t, bit<32>, seals, look, result = held;)
    action start() {
        RUN(meta.held_seal, set, ENTRY(meta.round))
        meta.sealed = BOTH;
    }
    action clear() { RUN(meta.held_seal, unset, ENTRY(meta.round)) }
    action check() { RUN(meta.sealed, compare, ENTRY(meta.round)) }
    action show() { RUN(meta.held_seal, look, ENTRY(meta.round)) }
    action nothing() { }
    table seal {
        key = {
            meta.turn: ternary @name("turn");
            meta.passes: ternary @name("passes");
            meta.count: ternary @name("count");
        }
        actions = { start; clear; check; show; nothing; }
        const default_action = nothing;
        CONST_SIZE(8)
        const entries = {
            (0, _, _): nothing();
            (COUNT, 0, 0): start();
            (COUNT, 1, 0): clear();
            (COUNT, 0, _): check();
            (_, _, _): show();
        }
    }
#else
    /* Entries: (base + 1, seal of that base). */
    PAIR_REGISTER(ENTRIES_HELD, seals)
    ON_PAIR(entry_t, predicate_t, seals, compare,
            REPORT(held.low < meta.claim, held.high == meta.seal)
            if (held.low < meta.claim) { held.low = meta.claim; held.high = meta.seal; })
    ON_PAIR(entry_t, bit<32>, seals, look, if (held.low == meta.claim) { result = held.high; })
    ON_PAIR(entry_t, bit<32>, seals, wipe, held.low = 0; held.high = 0;)
    action check() { RUN(meta.sealed, compare, ENTRY(hdr.fanin.base)) }
    action show() {
        RUN(meta.held_seal, look, ENTRY(hdr.fanin.base))
        meta.sealed = FIRST;
    }
    action clean() {
        RUN(meta.held_seal, wipe, ENTRY(hdr.fanin.base))
        meta.sealed = CLEANED;
    }
    /* The parent's result is not compared: it answers what this switch has sent up. */
    WITH_LEAF(action descend() { meta.sealed = DESCENDED; })
    action nothing() { }
#define ROW(W) (ADMITTED(WITH_WORDS, W)): check(); (ADMITTED(WITHOUT, W)): show();
    table seal {
        key = { ADMITTED_KEY }
        actions = { check; show; clean; WITH_LEAF(descend;) nothing; }
        const default_action = nothing;
        CONST_SIZE(128)
        const entries = {
            (NO_SLOT): nothing();
            WITH_LEAF((DESCENDING): descend();)
            (CLEANING): clean();
            EACH_WORKER(ROW)
        }
    }
#undef ROW
#endif
    apply {
        seal.apply();
    }
}

#endif
