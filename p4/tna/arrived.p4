/* `arrived`: a ring by base; an entry is (tag, bitmap of the workers whose contribution of base `tag` was accepted).
 *
 * The register exists twice, with the same contents: a stateful ALU returns one result, and two are needed, the bitmap
 * before the packet and the age of the entry. */
#ifndef FANIN_TNA_ARRIVED_P4
#define FANIN_TNA_ARRIVED_P4

#include "admission.p4"

/* R-SLOT-7: sets the worker's bit in the entry of its base; an entry of an older base is overwritten. */
#define MARK                                                                                                           \
    if (held.low == hdr.fanin.base) { held.high = held.high | meta.worker_bit; }                                       \
    else if (held.low < hdr.fanin.base) { held.high = meta.worker_bit; held.low = hdr.fanin.base; }
/* Clears an entry for a new job: tags of the slot's last job would make the first bases of the new one look ancient. */
#define WIPE held.low = 0; held.high = 0;

#if STALE

control ArrivedBefore(in headers_t hdr, inout metadata_t meta) {
    PAIR_REGISTER(ENTRIES_HELD, arrived)
    ON_PAIR(entry_t, bit<32>, arrived, mark, if (held.low == hdr.fanin.base) { result = held.high; } MARK)
    ON_PAIR(entry_t, bit<32>, arrived, wipe, WIPE)
    action contribute() { RUN(meta.before, mark, ENTRY(hdr.fanin.base)) }
    action clean() { RUN(meta.before, wipe, ENTRY(hdr.fanin.base)) }
    action pass_by() { }
#define ROW(W) (ADMITTED(WITH_WORDS, W)): contribute(); (ADMITTED(WITHOUT, W)): contribute();
    table before {
        key = { ADMITTED_KEY }
        actions = { contribute; clean; pass_by; }
        const default_action = pass_by;
        CONST_SIZE(128)
        const entries = { (NO_SLOT): pass_by(); (CLEANING): clean(); EACH_WORKER(ROW) }
    }
    apply {
        before.apply();
    }
}

control ArrivedAge(in headers_t hdr, inout metadata_t meta) {
    PAIR_REGISTER(ENTRIES_HELD, arrived)
    ON_PAIR(entry_t, predicate_t, arrived, mark, REPORT(held.low == hdr.fanin.base, held.low < hdr.fanin.base) MARK)
    ON_PAIR(entry_t, predicate_t, arrived, wipe, WIPE)
    action contribute() { RUN(meta.age, mark, ENTRY(hdr.fanin.base)) }
    action clean() {
        predicate_t unused_age;
        RUN(unused_age, wipe, ENTRY(hdr.fanin.base))
        meta.age = CLEANED;
    }
    action pass_by() { }
    table age {
        key = { ADMITTED_KEY }
        actions = { contribute; clean; pass_by; }
        const default_action = pass_by;
        CONST_SIZE(128)
        const entries = { (NO_SLOT): pass_by(); (CLEANING): clean(); EACH_WORKER(ROW) }
    }
    apply {
        age.apply();
    }
}
#undef ROW

#else

/* A synchronous contribution whose seal is not the base's (seal.p4) sets no bit; it only looks, as it may be a duplicate. */
#define ACTIONS                                                                                                        \
    action pass_by() { }                                                                                               \
    table marks {                                                                                                      \
        key = { meta.sealed: exact @name("sealed"); }                                                                  \
        actions = { contribute; peek; clean; pass_by; }                                                                \
        const default_action = pass_by;     /* not admitted */                                                         \
        CONST_SIZE(8)                                                                                                  \
        const entries = {                                                                                              \
            FIRST: contribute();                                                                                       \
            SECOND: contribute();                                                                                      \
            BOTH: contribute();                                                                                        \
            NEITHER: peek();                                                                                           \
            WITH_LEAF(DESCENDED: peek();)                                                                              \
            CLEANED: clean();                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    apply { marks.apply(); }

control ArrivedBefore(in headers_t hdr, inout metadata_t meta) {
    PAIR_REGISTER(ENTRIES_HELD, arrived)
    ON_PAIR(entry_t, bit<32>, arrived, mark, if (held.low == hdr.fanin.base) { result = held.high; } MARK)
    ON_PAIR(entry_t, bit<32>, arrived, look, if (held.low == hdr.fanin.base) { result = held.high; })
    ON_PAIR(entry_t, bit<32>, arrived, wipe, WIPE)
    action contribute() { RUN(meta.before, mark, ENTRY(hdr.fanin.base)) }
    action peek() { RUN(meta.before, look, ENTRY(hdr.fanin.base)) }
    action clean() { RUN(meta.before, wipe, ENTRY(hdr.fanin.base)) }
    ACTIONS
}

control ArrivedAge(in headers_t hdr, inout metadata_t meta) {
    PAIR_REGISTER(ENTRIES_HELD, arrived)
    ON_PAIR(entry_t, predicate_t, arrived, mark, REPORT(held.low == hdr.fanin.base, held.low < hdr.fanin.base) MARK)
    ON_PAIR(entry_t, predicate_t, arrived, look, REPORT(held.low == hdr.fanin.base, held.low < hdr.fanin.base))
    ON_PAIR(entry_t, predicate_t, arrived, wipe, WIPE)
    action contribute() { RUN(meta.age, mark, ENTRY(hdr.fanin.base)) }
    action peek() { RUN(meta.age, look, ENTRY(hdr.fanin.base)) }
    action clean() { RUN(meta.age, wipe, ENTRY(hdr.fanin.base)) }
    ACTIONS
}
#undef ACTIONS

#endif
#undef MARK
#undef WIPE

/* Table key, and rows that match if the worker's bit was set already (R-SLOT-3). */
#define VERDICT_KEY                                                                                                    \
    meta.age: ternary @name("age");                                                                                    \
    hdr.fanin.worker: ternary @name("worker");                                                                         \
    meta.before: ternary @name("before");
#define WAS_THERE(W) FIRST, W, 32w1 << W &&& 32w1 << W

control Verdict(in headers_t hdr, inout metadata_t meta) {
    action judge(verdict_t verdict) {
        meta.verdict = verdict;
        meta.missing = meta.others & ~meta.before;
    }
#define ROW(W) (WAS_THERE(W)): judge(DUPLICATE);
    table verdict {
        key = { VERDICT_KEY }
        actions = { judge; }
        const default_action = judge(NEW);
        CONST_SIZE(64)
        const entries = {
            (0, _, _): judge(NONE);             /* not admitted */
            (CLEANED, _, _): judge(CLEAN);
            (NEITHER, _, _): judge(ANCIENT);    /* R-SLOT-2 */
            WITH_LEAF((_, SWITCH_WORKER, _): judge(NONE);)      /* the parent's result; outcome.p4 decides */
            EACH_WORKER(ROW)
            /* otherwise NEW: R-SLOT-6 */
        }
    }
#undef ROW
    apply {
        verdict.apply();
    }
}

#endif
