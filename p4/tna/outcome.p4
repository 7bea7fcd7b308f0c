/* Decides what is sent for an aggregated packet, by the table at the top of switch/machine/slot_machine.py. */
#ifndef FANIN_TNA_OUTCOME_P4
#define FANIN_TNA_OUTCOME_P4

#include "types.p4"

control Outcome(in headers_t hdr, inout metadata_t meta) {
    action refuse(fate_t fate, bit<16> reason) {
        meta.fate = fate;
        meta.reason = reason;
        meta.cause = reason[4:0];
    }
    action go(fate_t fate) {
        meta.fate = fate;
    }
#if LEAF
    action repeated() {
        meta.fate = DROP;
        meta.verdict = DUPLICATE;
    }
#endif
    table outcome {
        key = {
            meta.fate: ternary @name("fate");
            meta.verdict: ternary @name("verdict");
#if STALE
            meta.step: ternary @name("step");
            meta.sealed: ternary @name("sealed");
            meta.turn: ternary @name("turn");
            meta.closing: ternary @name("closing");
            meta.behind: ternary @name("behind");
#else
            meta.sealed: ternary @name("sealed");
            meta.missing: ternary @name("missing");
#if LEAF
            meta.leaf: ternary @name("leaf");
            meta.closed: ternary @name("closed");
#endif
#endif
        }
        actions = { refuse; go; WITH_LEAF(repeated;) NoAction; }
        const default_action = NoAction;
        CONST_SIZE(16)
        const entries = {
#if STALE
            /* fate    verdict    step sealed   turn          closing  behind */
            (AGGREGATE, ANCIENT,   _,   _,       _,            _,       _): refuse(DROP, REASON_ANCIENT);
            /* If this packet closes the round, nobody gets the result now; the other workers ask for it. */
            (AGGREGATE, NEW,       ADD, NEITHER, _,            _,       _): refuse(NOTICE, REASON_MISMATCH);
            (AGGREGATE, NEW,       _,   _,       _,            BOTH,    0): go(RESULT);         /* R-SLOT-11 */
            (AGGREGATE, NEW,       _,   _,       _,            BOTH,    _): go(RESULT_AND_BARE);    /* R-SLOT-12 */
            (AGGREGATE, NEW,       _,   _,       _,            _,       0): go(SILENT);
            (AGGREGATE, NEW,       _,   _,       _,            _,       _): go(BARE);           /* R-SLOT-12 */
            (AGGREGATE, DUPLICATE, _,   _,       CLOSE_IF_DUE, BOTH,    _): go(RESULT);         /* R-SLOT-13 */
            (AGGREGATE, DUPLICATE, _,   _,       _,            FIRST,   _): go(SILENT);         /* R-SLOT-3: base = V */
            (AGGREGATE, DUPLICATE, _,   _,       _,            _,       _): go(ANSWER);         /* R-SLOT-3 */
#elif LEAF
            /* fate    verdict    sealed   missing leaf closed */
            (DESCEND,   ANCIENT,   _,       _, _, _):     repeated();       /* R-LEAF-4 */
            (DESCEND,   _,         _,       0, _, FIRST): go(HAND_DOWN);    /* R-LEAF-3 */
            (DESCEND,   _,         _,       0, _, _):     repeated();       /* R-LEAF-4 */
            (DESCEND,   _,         _,       _, _, _):     refuse(DROP, REASON_FUTURE);  /* R-LEAF-5 */
            (AGGREGATE, ANCIENT,   _,       _, _, _):     refuse(DROP, REASON_ANCIENT);
            (AGGREGATE, NEW,       NEITHER, _, _, _):     refuse(NOTICE, REASON_MISMATCH);
            (AGGREGATE, NEW,       _,       0, 0, _):     go(RESULT);
            (AGGREGATE, NEW,       _,       0, 1, _):     go(ASCEND);       /* R-LEAF-1 */
            (AGGREGATE, DUPLICATE, _,       0, 0, _):     go(ANSWER);
            (AGGREGATE, DUPLICATE, _,       0, 1, FIRST): go(ANSWER);
            /* A duplicate with another seal than the round's must not be sent up as the round. */
            (AGGREGATE, DUPLICATE, NEITHER, _, _, _):     go(SILENT);
            (AGGREGATE, DUPLICATE, _,       0, 1, _):     go(ASCEND);       /* R-LEAF-2 */
            (AGGREGATE, _,         _,       _, _, _):     go(SILENT);
#else
            /* fate    verdict    sealed   missing */
            (AGGREGATE, ANCIENT,   _,       _): refuse(DROP, REASON_ANCIENT);
            (AGGREGATE, NEW,       NEITHER, _): refuse(NOTICE, REASON_MISMATCH);
            (AGGREGATE, NEW,       _,       0): go(RESULT);     /* R-SLOT-11 */
            (AGGREGATE, DUPLICATE, _,       0): go(ANSWER);     /* R-SLOT-3 */
            (AGGREGATE, _,         _,       _): go(SILENT);
#endif
        }
    }

    apply {
        outcome.apply();
    }
}

#endif
