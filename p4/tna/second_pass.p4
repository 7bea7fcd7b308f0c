/* Packets that carry a round's words, and a parent's results (leaf.p4), pass twice. With two words in each register (sums.p4)
 * one pass returns only half of them, the lower word of each pair; the second pass fetches the upper ones. Only then is the
 * packet multicast, or sent to the worker that it answers.
 *
 * Between the passes it goes through egress unchanged, with `again` in front, and returns by the recirculation port. A worker
 * that still needs the packet gets both halves of one round, whatever happens meanwhile: the entry is written again by the
 * round H = S_max + 2 later, which opens only after every live worker has contributed the base that follows, and no worker
 * contributes that without this result (docs/slot-machine.md, *Agreement*). A packet lost between the passes is a lost
 * result: the workers that wait for it ask again. */
#ifndef FANIN_TNA_SECOND_PASS_P4
#define FANIN_TNA_SECOND_PASS_P4

#include "types.p4"

control SecondPass(inout headers_t hdr, inout metadata_t meta) {
    action pass_again(bit<9> port) {
        hdr.again.setValid();
        hdr.again.way = meta.way;
        hdr.again.sent_to = meta.sent_to;
        hdr.again.port_out = meta.port_out;
        hdr.again.unused = 0;
        WITH_LEAF(hdr.again.contributors = 0;)
#if STALE
        hdr.again.late_base = meta.late_base;
        hdr.again.late_bitmap = meta.late_bitmap;
#endif
        meta.way = AGAIN;
        meta.sent_to = 0;
        meta.port_out = port;
    }
    /* Stays in the pipe of the packet's ingress port, whose registers hold the job. */
#define OF_PIPE(N) (1, N): pass_again(N << 7 | RECIRCULATION_PORT);
    table second_pass {
        key = {
            CARRIES_WORDS: exact @name("carries_words");
            meta.port_in[8:7]: exact @name("pipe");
        }
        actions = { pass_again; NoAction; }
        const default_action = NoAction;
        CONST_SIZE(4)
        const entries = { OF_PIPE(0) OF_PIPE(1) OF_PIPE(2) OF_PIPE(3) }
    }
#undef OF_PIPE

    apply {
        second_pass.apply();
    }
}

#endif
