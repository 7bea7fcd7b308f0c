/* Finds the job that a packet names, and whether its source is the registered worker (R-MEMBER-2). The tables are v1model's.
 *
 * An action of the first stage subtracts or XORs the packet's field and its entry's number, so that the next stage can
 * compare: two numbers are equal if their XOR is 0, and a > b if the top bit of b - a is set (both below 2^31). An entry's
 * number can only be the one that is subtracted from; so a < b is tested as "b - a is neither 0 nor negative". */
#ifndef FANIN_TNA_JOB_P4
#define FANIN_TNA_JOB_P4

#include "types.p4"

control Jobs(in headers_t hdr, inout metadata_t meta) {
    /* v1model's, without parameters that this program does not use: all rings have one depth, and jobs with checksums or
     * branches are not supported, as the missing parameters tell the controller. A synchronous build has fixed K and S. */
    @noWarn("unused")
    action job(bit<16> row, bit<32> generation, bit<8> workers, bit<32> live, bit<8> quorum, bit<32> staleness,
               bit<32> slots, bit<32> first_slot, bit<8> codes, bit<16> words, bit<16> group, bit<32> lost, bit<32> left
               WITH_LEAF(, bit<1> leaf, bit<9> parent_port)) {
        meta.known = 1;
        meta.row = row;
        meta.generation = generation ^ hdr.fanin.generation;
        meta.worker_range = workers - hdr.fanin.worker;
        meta.live = live;
        meta.slot_range = slots - hdr.fanin.slot;
        meta.slot = hdr.fanin.slot + first_slot;
        meta.code_room = codes - hdr.fanin.code_count;
        meta.word_room = words[7:0] - meta.words;
        meta.group = group;
        meta.lost = lost;
        meta.left = left;
        meta.seal = hdr.fanin.signature ^ meta.shape;
#if STALE
        meta.quorum = (bit<32>)quorum;
        meta.staleness = staleness;
        meta.reach = hdr.fanin.base + staleness;
#else
        meta.claim = hdr.fanin.base + 1;
#endif
#if LEAF
        meta.leaf = leaf;
        meta.parent_port = parent_port;
#endif
    }
    action unknown() { }
    table jobs {
        key = { hdr.fanin.job: exact @name("job"); }
        actions = { job; unknown; }
        default_action = unknown;
        size = JOB_ROWS;
    }

    action registered() {
        meta.member = 1;
    }
    action stranger() { }
    table members {
        key = {
            hdr.fanin.job: exact @name("job");
            hdr.fanin.worker: exact @name("worker");
            hdr.ipv4.source: exact @name("address");
            hdr.udp.source: exact @name("port");
        }
        actions = { registered; stranger; }
        default_action = stranger;
        size = MEMBER_COUNT;
    }

    action number(bit<32> only, bit<16> following) {
        meta.worker_bit = only;
        meta.worker_number = following;
    }
    action nobody() { }
#define NUMBER(W) W: number(32w1 << W, W + 1);
    table numbers {
        key = { hdr.fanin.worker: exact @name("worker"); }
        actions = { number; nobody; }
        const default_action = nobody;
        CONST_SIZE(32)
        const entries = { EACH_WORKER(NUMBER) }
    }
#undef NUMBER

    apply {
        jobs.apply();
        members.apply();
        numbers.apply();
    }
}

/* Values that take one more operation on the job's numbers. */
control Prepare(in headers_t hdr, inout metadata_t meta) {
    apply {
        meta.dead = meta.worker_bit & ~meta.live;
        meta.others = meta.live & ~meta.worker_bit;
        meta.late_group = meta.group + meta.worker_number;
        WITH_LEAF(meta.facts = meta.shape + meta.brought;)
#if STALE
        meta.reach = meta.reach + 1;
        meta.needed = meta.quorum - 1;
#endif
    }
}

#endif
