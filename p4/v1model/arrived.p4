/* `arrived`: a ring by base; an entry is (tag, bitmap of the workers whose contribution of base `tag` was accepted).
 *
 * An entry of another generation reads as tag 0 with nobody in it, like one that was never written. */
#ifndef FANIN_ARRIVED_P4
#define FANIN_ARRIVED_P4

#include "types.p4"

#define ARRIVED register<bit<32>> generations, register<bit<32>> tags, register<bit<32>> bitmaps

/* The entry of the contribution's base. */
control ArrivedRead(inout metadata_t meta, ARRIVED) {
    apply {
        bit<32> generation;
        generations.read(generation, meta.base_entry);
        tags.read(meta.tag, meta.base_entry);
        bitmaps.read(meta.bitmap, meta.base_entry);
        if (generation != meta.job.generation) {
            meta.tag = 0;
            meta.bitmap = 0;
        }
    }
}

/* Bitmap of the workers that have contributed the base of the closing round; 0 if none (R-SLOT-11). */
control ArrivedOfRound(inout metadata_t meta, ARRIVED) {
    apply {
        bit<32> generation;
        bit<32> tag;
        generations.read(generation, meta.open_entry);
        tags.read(tag, meta.open_entry);
        bitmaps.read(meta.out_bitmap, meta.open_entry);
        if (generation != meta.job.generation || tag != meta.open) {
            meta.out_bitmap = 0;
        }
    }
}

/* R-SLOT-7: sets the worker's bit in the entry of its base; an entry of another base is overwritten. */
control ArrivedSet(in headers_t hdr, inout metadata_t meta, ARRIVED) {
    apply {
        if (meta.tag != hdr.fanin.base) {
            meta.bitmap = 0;
        }
        meta.bitmap = meta.bitmap | meta.worker_bit;
        generations.write(meta.base_entry, meta.job.generation);
        tags.write(meta.base_entry, hdr.fanin.base);
        bitmaps.write(meta.base_entry, meta.bitmap);
        meta.full = (bit<1>)((meta.bitmap & meta.job.live) == meta.job.live);  /* R-SLOT-8 */
    }
}

#endif
