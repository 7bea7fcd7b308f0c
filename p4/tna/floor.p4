/* `floor`: the number of bases that every live worker has contributed, stored with S added: rounds below that may close.
 *
 * R-SLOT-8: bases become complete in order, so base b is complete exactly if floor is at least b + 1, and setting floor
 * twice does no harm. A duplicate of a base that an eviction made complete advances it too, so this target needs no poke.
 *
 * The same table selects what `open` does one stage later (`turn`). */
#ifndef FANIN_TNA_FLOOR_P4
#define FANIN_TNA_FLOOR_P4

#include "types.p4"

control Floor(in headers_t hdr, inout metadata_t meta) {
    WORD_REGISTER(SLOTS_HELD, floors)
    ON_WORD(slot_t, bit<32>, floors, advance, if (held < meta.reach) { held = meta.reach; } result = held;)
    ON_WORD(slot_t, bit<32>, floors, stay, if (held < meta.staleness) { held = meta.staleness; } result = held;)

    action complete() {
        RUN(meta.limit, advance, SLOT)
        meta.turn = COUNT;
    }
    action incomplete() {
        RUN(meta.limit, stay, SLOT)
        meta.turn = COUNT;
    }
    action complete_late_pass() {
        RUN(meta.limit, advance, SLOT)
        meta.turn = PASS_BY;
        meta.needed = meta.quorum;
    }
    action incomplete_late_pass() {
        RUN(meta.limit, stay, SLOT)
        meta.turn = PASS_BY;
        meta.needed = meta.quorum;
    }
    action complete_duplicate() {
        bit<32> unused_limit;
        RUN(unused_limit, advance, SLOT)
        meta.limit = hdr.fanin.base;
        meta.turn = CLOSE_IF_DUE;
        meta.needed = meta.quorum;
    }
    action incomplete_duplicate() {
        meta.limit = hdr.fanin.base;
        meta.turn = LOOK;
        meta.needed = NEVER;
    }
    ON_WORD(slot_t, bit<32>, floors, wipe, held = 0;)
    action clean() {
        bit<32> unused_limit;
        RUN(unused_limit, wipe, SLOT)
        meta.turn = CLEAN_UP;
    }
    action nothing() { }
    table floor {
        key = {
            meta.verdict: ternary @name("verdict");
            meta.missing: ternary @name("missing");
            hdr.fanin.flags[3:3]: ternary @name("late");
        }
        actions = {
            complete; incomplete; complete_late_pass; incomplete_late_pass; complete_duplicate; incomplete_duplicate;
            clean; nothing;
        }
        const default_action = nothing;
        CONST_SIZE(8)
        const entries = {
            (NEW, 0, 0): complete();
            (NEW, _, 0): incomplete();
            (NEW, 0, 1): complete_late_pass();      /* R-SLOT-10 */
            (NEW, _, 1): incomplete_late_pass();    /* R-SLOT-10 */
            (DUPLICATE, 0, _): complete_duplicate();    /* R-SLOT-13 */
            (DUPLICATE, _, _): incomplete_duplicate();
            (CLEAN, _, _): clean();
        }
    }

    apply {
        floor.apply();
    }
}

#endif
