/* Decides about a contribution to a slot, by the table at the top of switch/machine/slot_machine.py, row by row. */
#ifndef FANIN_VERDICT_P4
#define FANIN_VERDICT_P4

#include "types.p4"

control Verdict(in headers_t hdr, inout metadata_t meta) {
    action refuse(Fate fate, bit<16> reason) {
        meta.fate = fate;
        meta.reason = reason;
    }
    action go(Fate fate) {
        meta.fate = fate;
    }

    bit<1> future;
    bit<1> gone;
    bit<1> over;
    bit<1> stale;
    bit<1> differs;

    table verdict {
        key = {
            future: ternary;        /* b > V */
            gone: ternary;          /* V - b >= H: result b is no longer kept */
            meta.duplicate: ternary @name("duplicate");     /* tag = b and w's bit is set */
            over: ternary;          /* b < V */
            stale: ternary;         /* V - b > S_max */
            differs: ternary;       /* another shape than the open round's */
            meta.complete: ternary @name("complete");       /* at a leaf: the open round waits for the parent's result */
        }
        actions = { refuse; go; }
        const default_action = go(Fate.SILENT);
        const entries = {
            (1, _, _, _, _, _, _): refuse(Fate.DROP, REASON_FUTURE);       /* R-SLOT-1 */
            (_, 1, _, _, _, _, _): refuse(Fate.DROP, REASON_ANCIENT);      /* R-SLOT-2 */
            (_, _, 1, 1, _, _, _): go(Fate.ANSWER);                        /* R-SLOT-3: answered with result b */
            (_, _, 1, 0, _, _, 1): go(Fate.ASCEND);                        /* R-LEAF-2: contribute again to the parent */
            (_, _, 1, 0, _, _, _): refuse(Fate.DROP, 0);                   /* R-SLOT-3: the open round's result answers */
            (_, _, _, _, 1, _, _): refuse(Fate.DROP, REASON_ANCIENT);      /* R-SLOT-4 */
            (_, _, _, _, _, 1, _): refuse(Fate.NOTICE, REASON_MISMATCH);   /* R-SLOT-5 */
            /* otherwise ACCEPTED (R-SLOT-6) */
        }
    }

    apply {
        bit<32> age = meta.open - hdr.fanin.base;
        future = (bit<1>)(hdr.fanin.base > meta.open || hdr.fanin.base == MAX_BASE);
        gone = (bit<1>)(age >= meta.job.history);
        meta.duplicate = (bit<1>)(meta.tag == hdr.fanin.base && (meta.bitmap & meta.worker_bit) != 0);
        over = (bit<1>)(age != 0);
        stale = (bit<1>)(age + 2 > meta.job.history);
        differs = (bit<1>)(meta.passes == 0 && meta.count != 0 && meta.round.contributors != 0
            && (meta.round.signature != hdr.fanin.signature || meta.round.codes != hdr.fanin.code_count
                || meta.round.words != meta.word_count));
        verdict.apply();
        meta.accepted = (bit<1>)(meta.fate == Fate.SILENT);
    }
}

#endif
