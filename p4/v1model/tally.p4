/* Counters, by row of the job (row 0: no job): what `fanin stats` shows. Drops are counted by reason as well. */
#ifndef FANIN_TALLY_P4
#define FANIN_TALLY_P4

#include "types.p4"

#define REASONS 32

control Tally(inout metadata_t meta) {
    counter(JOB_ROWS * REASONS, CounterType.packets) drops;      /* row * REASONS + reason */
    counter(JOB_ROWS, CounterType.packets_and_bytes) packets;
    counter(JOB_ROWS, CounterType.packets) contributions;
    counter(JOB_ROWS, CounterType.packets) passes;
    counter(JOB_ROWS, CounterType.packets) duplicates;
    counter(JOB_ROWS, CounterType.packets) rounds;
    counter(JOB_ROWS, CounterType.packets) answers;
    counter(JOB_ROWS, CounterType.packets) notices;

    apply {
        bit<32> row = (bit<32>)meta.job.row;
        if (meta.poke == 0) {
            packets.count(row);
        }
        if (meta.reason != 0) {
            drops.count(row * REASONS + (bit<32>)meta.reason);
        }
        if (meta.fate == Fate.NOTICE) {
            notices.count(row);
        }
        if (meta.duplicate == 1 && meta.reason == 0) {
            duplicates.count(row);
        } else if (meta.accepted == 1 && meta.passes == 1) {
            passes.count(row);
        } else if (meta.accepted == 1) {
            contributions.count(row);
        }
        if (meta.closes == 1) {
            rounds.count(row);
        }
        if (meta.fate == Fate.ANSWER || meta.fate == Fate.RESULT_AND_BARE) {
            answers.count(row);
        }
    }
}

/* Counts packets that leave, copy by copy, in egress; also copies for no worker, which consistent entries do not cause. */
control Departures(inout metadata_t meta) {
    counter(JOB_ROWS, CounterType.packets) sent;

    apply {
        sent.count((bit<32>)meta.job.row);
    }
}

#endif
