/* `floor`: the number of bases that every live worker has contributed; they become complete in order (docs/slot-machine.md). */
#ifndef FANIN_FLOOR_P4
#define FANIN_FLOOR_P4

#include "types.p4"

control FloorRead(inout metadata_t meta, register<bit<32>> floors) {
    apply {
        floors.read(meta.floor, meta.slot);
        if (meta.fresh == 1) {
            meta.floor = 0;
        }
    }
}

control FloorAdvance(inout metadata_t meta, register<bit<32>> floors) {
    apply {
        meta.floor = meta.floor + (bit<32>)meta.full;  /* R-SLOT-8 */
        floors.write(meta.slot, meta.floor);
    }
}

#endif
