/* `open`: V, the round that is open, and how many contributions it holds. A round closes when it holds K and V - S < floor.
 *
 * A slot belongs to one generation. BMv2's P4Runtime cannot clear a register, so a slot whose registers hold another
 * generation than the job's reads as all zero: the controller has since given the slot to this job. */
#ifndef FANIN_OPEN_ROUND_P4
#define FANIN_OPEN_ROUND_P4

#include "types.p4"

#define OPEN register<bit<32>> generations, register<bit<32>> rounds, register<bit<8>> counts

/* Whether a round that holds `COUNT` is due to close (R-SLOT-11): V - S < floor, without negative numbers. */
#define DUE(RESULT, COUNT)                                                                                             \
    RESULT = (bit<1>)(COUNT != 0 && COUNT >= meta.job.quorum && meta.open < meta.floor + meta.job.staleness);

control OpenRead(inout metadata_t meta, OPEN) {
    apply {
        bit<32> generation;
        generations.read(generation, meta.slot);
        rounds.read(meta.open, meta.slot);
        counts.read(meta.count, meta.slot);
        meta.fresh = (bit<1>)(generation != meta.job.generation);
        if (meta.fresh == 1) {
            meta.open = 0;
            meta.count = 0;
        }
        RING_ENTRY(meta.open_entry, meta.open)
    }
}

/* Counts the contribution (not a late pass, a poke, or a packet from the parent) and closes the round if it is due. */
control OpenCount(in headers_t hdr, inout metadata_t meta, OPEN) {
    apply {
        bit<8> count = meta.count;
        if (meta.poke == 0 && meta.down == 0 && (hdr.fanin.flags & FLAG_LATE) == 0) {  /* R-SLOT-10 */
            count = count + 1;
        }
        DUE(meta.due, count)  /* R-SLOT-11 */
        if (meta.uplink.known == 0) {
            meta.closes = meta.due;
        } else if (meta.down == 0) {
            meta.closes = 0;                /* R-LEAF-1: at a leaf only the parent's result closes it */
        }
        if (meta.closes == 1) {
            rounds.write(meta.slot, meta.open + 1);
            counts.write(meta.slot, 0);
        } else {
            rounds.write(meta.slot, meta.open);
            counts.write(meta.slot, count);
        }
        generations.write(meta.slot, meta.job.generation);
    }
}

#endif
