/* `open`: V, the round that is open, and how many contributions it holds. A round closes when it holds K and V - S < floor.
 *
 * A slot belongs to one generation. BMv2's P4Runtime cannot clear a register, so a slot whose registers carry another
 * generation than the packet (whose job the controller has given it since) reads as if it were all zero. */
#ifndef FANIN_OPEN_ROUND_P4
#define FANIN_OPEN_ROUND_P4

#include "types.p4"

#define OPEN register<bit<32>> generations, register<bit<32>> rounds, register<bit<8>> counts

/* Whether a round that holds `COUNT` is to close: V - S < floor, without negative numbers. */
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

/* Counts the packet in (unless it is a late pass, a poke, or from the parent) and closes the round if that is all it waited for. */
control OpenCount(in headers_t hdr, inout metadata_t meta, OPEN) {
    apply {
        bit<8> count = meta.count;
        if (meta.poke == 0 && meta.down == 0 && (hdr.fanin.flags & FLAG_LATE) == 0) {
            count = count + 1;
        }
        DUE(meta.due, count)
        if (meta.uplink.known == 0) {
            meta.closes = meta.due;
        } else if (meta.down == 0) {
            meta.closes = 0;                /* it closes when the parent's result comes: Descent has said so */
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
