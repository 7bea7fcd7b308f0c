/* Finds the job that a packet names, and whether its source is the registered worker.
 *
 * The controller fills all tables. A worker is registered once it has said HELLO with its token, which the controller
 * checks; from then on a packet of it counts only from the address that the HELLO came from (R-MEMBER-2). */
#ifndef FANIN_JOB_P4
#define FANIN_JOB_P4

#include "tree.p4"
#include "types.p4"

control Jobs(in headers_t hdr, inout metadata_t meta) {
    action job(bit<16> row, bit<32> generation, bit<8> workers, bit<32> live, bit<8> quorum, bit<32> staleness,
               bit<32> history, bit<32> slots, bit<32> first_slot, bit<32> first_entry, bit<8> codes, bit<16> words, bit<16> group,
               bit<32> lost, bit<32> left, bit<1> checksum, bit<1> branches) {
        meta.job = { 1, row, generation, workers, live, quorum, staleness, history, slots, first_slot, first_entry,
                     codes, words, group, lost, left, checksum, branches };
    }
    action unknown() { }
    table jobs {
        key = { meta.index: exact @name("job"); }
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

    Uplinks() uplinks;

    apply {
        uplinks.apply(hdr, meta);
        jobs.apply();
        members.apply();
        meta.worker_bit = 32w1 << hdr.fanin.worker;
        meta.passes = hdr.fanin.flags[0:0];
    }
}

#endif
