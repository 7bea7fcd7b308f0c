/* Handles one contribution, poke, or result from the parent for one slot (docs/slot-machine.md), in the twin's order.
 *
 * All registers are accessed in ingress, which BMv2 runs one packet at a time: a packet sees all effects of the last. */
#ifndef FANIN_SLOT_MACHINE_P4
#define FANIN_SLOT_MACHINE_P4

#include "arrived.p4"
#include "blocks.p4"
#include "floor.p4"
#include "open_round.p4"
#include "round.p4"
#include "tree.p4"
#include "verdict.p4"

control SlotMachine(inout headers_t hdr, inout metadata_t meta) {
    /* Registers with an entry per slot. */
    register<bit<32>>(SLOT_COUNT) open_generation;
    register<bit<32>>(SLOT_COUNT) open_round;
    register<bit<8>>(SLOT_COUNT) open_count;
    register<bit<32>>(SLOT_COUNT) floor;
    /* Registers with an entry per ring entry, by base. */
    register<bit<32>>(ENTRY_COUNT) arrived_generation;
    register<bit<32>>(ENTRY_COUNT) arrived_tag;
    register<bit<32>>(ENTRY_COUNT) arrived_bitmap;
    /* Per ring entry: by round. */
    register<bit<32>>(ENTRY_COUNT) round_signature;
    register<bit<16>>(ENTRY_COUNT) round_contributors;
    register<bit<8>>(ENTRY_COUNT) round_codes;
    register<bit<16>>(ENTRY_COUNT) round_words;

    OpenRead() open_read;
    OpenCount() open_count_in;
    FloorRead() floor_read;
    FloorAdvance() floor_advance;
    ArrivedRead() arrived_read;
    ArrivedSet() arrived_set;
    ArrivedOfRound() arrived_of_round;
    RoundRead() round_read;
    RoundRead() round_read_result;
    RoundAdd() round_add;
    RoundReplace() round_replace;
    Verdict() verdict;
    Descent() descent;
    Exponents() exponents;
    Sums() sums;

    apply {
        meta.slot = meta.job.first_slot + hdr.fanin.slot;
        meta.ring = meta.job.first_entry + hdr.fanin.slot * meta.job.history;
        open_read.apply(meta, open_generation, open_round, open_count);
        floor_read.apply(meta, floor);
        bit<32> base = hdr.fanin.base;
        if (meta.poke == 1) {
            base = meta.floor;
        }
        RING_ENTRY(meta.base_entry, base)
        arrived_read.apply(meta, arrived_generation, arrived_tag, arrived_bitmap);
        meta.round_entry = meta.open_entry;
        round_read.apply(meta, round_signature, round_contributors, round_codes, round_words);
        if (meta.uplink.known == 1) {
            DUE(meta.complete, meta.count)
        }
        if (meta.down == 1) {
            descent.apply(hdr, meta);
        } else if (meta.poke == 1) {  /* R-SLOT-13 */
            meta.fate = Fate.SILENT;
            meta.full = (bit<1>)(meta.tag == base && (meta.bitmap & meta.job.live) == meta.job.live);
        } else {
            verdict.apply(hdr, meta);
        }

        meta.result_entry = meta.base_entry;
        meta.out_round = base;
        if (meta.down == 1 && meta.closes == 1) {
            round_replace.apply(hdr, meta, round_signature, round_contributors, round_codes, round_words);
            open_count_in.apply(hdr, meta, open_generation, open_round, open_count);
            meta.out_round = meta.open;
        } else if (meta.fate == Fate.SILENT) {
            if (meta.poke == 0) {
                arrived_set.apply(hdr, meta, arrived_generation, arrived_tag, arrived_bitmap);
                round_add.apply(hdr, meta, round_signature, round_contributors, round_codes, round_words);
            }
            floor_advance.apply(meta, floor);
            open_count_in.apply(hdr, meta, open_generation, open_round, open_count);
            bit<1> late = (bit<1>)(meta.poke == 0 && base != meta.open);
            if (meta.closes == 1) {
                meta.fate = Fate.RESULT;
                if (late == 1) {
                    meta.fate = Fate.RESULT_AND_BARE;  /* R-SLOT-12 */
                }
                meta.out_round = meta.open;
            } else if (late == 1) {
                meta.fate = Fate.ANSWER;  /* R-SLOT-12 */
            } else if (meta.uplink.known == 1 && meta.due == 1) {
                meta.fate = Fate.ASCEND;  /* R-LEAF-1 */
            }
        }
        if (meta.closes == 1 || meta.fate == Fate.ASCEND) {
            meta.result_entry = meta.open_entry;
        }

        meta.out_bitmap = meta.bitmap;
        if (meta.closes == 1) {
            arrived_of_round.apply(meta, arrived_generation, arrived_tag, arrived_bitmap);
        } else if (meta.fate == Fate.ANSWER) {
            meta.round_entry = meta.base_entry;
            round_read_result.apply(meta, round_signature, round_contributors, round_codes, round_words);
        }
        if (meta.closes == 1 || meta.fate == Fate.ANSWER || meta.fate == Fate.ASCEND) {
            meta.shows = 1;
        }
        meta.late_base = hdr.fanin.base;
        meta.late_bitmap = meta.bitmap;
        exponents.apply(hdr, meta);
        sums.apply(hdr, meta);
    }
}

#endif
