/* A leaf of a tree: a job whose rounds close at a parent, where this switch is one worker. docs/slot-machine.md, "Trees".
 *
 *   from          packet                                       first pass                  second pass
 *   a worker      a duplicate, once the parent has closed      lower words                 upper words; is the answer
 *                 the last contribution of a round, or a       lower words                 upper words; goes up as a
 *                 duplicate while the parent is awaited                                    contribution
 *   the parent    a result                                     gets the job index and      replaces the round and is
 *                                                              generation that the job     multicast, if it is the first
 *                                                              has here
 *                 an answer without a result                   goes back as zeros (ASK)    none
 *                 an answer to HELLO or BYE                    goes to the controller      none
 *
 * A packet from the parent names the job by the parent's index, and passes the slot machine only after it is renamed: in one
 * pass the registers' indices and inputs would have to come from either of two tables, which does not fit.
 *
 * A contribution to the parent may get its lower words before the parent's result and its upper ones after. Nobody reads these
 * words: the parent has accepted this switch's contribution before it has the result, so the packet is a duplicate to it. */
#ifndef FANIN_TNA_LEAF_P4
#define FANIN_TNA_LEAF_P4

#include "types.p4"

/* Finds whether the packet is from the parent of a job here, to this switch or to all workers (two entries for each job). The
 * generation distinguishes jobs whose index a restarted parent uses again. */
control Parents(in headers_t hdr, inout metadata_t meta) {
    action from_parent(bit<16> index) {
        meta.found = meta.found | FROM_PARENT;
        meta.index = index;
    }
    action not_from_parent() { }
    table parents {
        key = {
            hdr.fanin.job: exact @name("job");
            hdr.fanin.generation: exact @name("generation");
            hdr.fanin.worker: exact @name("worker");
            hdr.ipv4.source: exact @name("address");
            hdr.udp.source: exact @name("port");
        }
        actions = { from_parent; not_from_parent; }
        default_action = not_from_parent;
        size = 2 * JOB_ROWS;
    }
    apply {
        parents.apply();
    }
}

/* Ring by base (R-LEAF-3): an entry holds 1 + the last of its bases that the parent has closed. */
control Closed(in headers_t hdr, inout metadata_t meta) {
    WORD_REGISTER(ENTRIES_HELD, closed)
    ON_WORD(entry_t, predicate_t, closed, close,
            REPORT(held < meta.claim, held == meta.claim) if (held < meta.claim) { held = meta.claim; })
    ON_WORD(entry_t, predicate_t, closed, look, REPORT(held == meta.claim, held < meta.claim))
    ON_WORD(entry_t, predicate_t, closed, wipe, held = 0;)
    action descend() { RUN(meta.closed, close, ENTRY(hdr.fanin.base)) }
    action ask() { RUN(meta.closed, look, ENTRY(hdr.fanin.base)) }
    action clean() {
        predicate_t unused_report;
        RUN(unused_report, wipe, ENTRY(hdr.fanin.base))
    }
    action nothing() { }
/* Live worker W is missing, so the base is incomplete here, and the parent cannot have closed it. */
#define MISSING_ROW(W) (DESCENDED, 0 &&& 32w1 << W, 32w1 << W &&& 32w1 << W): nothing();
    table closed_bases {
        key = {
            meta.sealed: ternary @name("sealed");
            meta.before: ternary @name("before");
            meta.live: ternary @name("live");
        }
        actions = { descend; ask; clean; nothing; }
        const default_action = nothing;
        CONST_SIZE(64)
        const entries = {
            (0, _, _): nothing();           /* not admitted */
            (CLEANED, _, _): clean();
            EACH_WORKER(MISSING_ROW)
            (DESCENDED, _, _): descend();
            (_, _, _): ask();
        }
    }
#undef MISSING_ROW
    apply {
        closed_bases.apply();
    }
}

/* Keeps the signature of the parent's result, to answer a pass: if all workers of this switch have passed, the round has no
 * seal here. */
control ParentSignature(inout headers_t hdr, in metadata_t meta) {
    WORD_REGISTER(ENTRIES_HELD, signatures)
    ON_WORD(entry_t, bit<32>, signatures, keep, held = hdr.fanin.signature; result = held;)
    ON_WORD(entry_t, bit<32>, signatures, look, result = held;)
    action descend() { RUN(hdr.fanin.signature, keep, ENTRY(hdr.fanin.base)) }
    action show() { RUN(hdr.fanin.signature, look, ENTRY(hdr.fanin.base)) }
    action nothing() { }
    table signatures_of_parent {
        key = {
            meta.sealed: ternary @name("sealed");
            meta.passes: ternary @name("passes");
            meta.closed: ternary @name("closed");
        }
        actions = { descend; show; nothing; }
        const default_action = nothing;
        CONST_SIZE(4)
        const entries = {
            (DESCENDED, _, FIRST): descend();
            (FIRST, 1, _): show();
        }
    }
    apply {
        signatures_of_parent.apply();
    }
}

/* Last in ingress: gives a packet from the parent what it needs of the job here. A result gets this switch's job index and
 * generation, for its second pass. A bare answer, to a pass without words, becomes a contribution with room for all words. */
control Descents(inout headers_t hdr, inout metadata_t meta) {
    action descend(bit<32> generation, bit<9> port) {
        hdr.again.setValid();
        hdr.again.way = DOWN;
        hdr.again.sent_to = 0;
        hdr.again.port_out = 0;
        hdr.again.unused = 0;
        hdr.again.contributors = (bit<32>)hdr.fanin.contributors;
        hdr.fanin.job = meta.index;
        hdr.fanin.generation = generation;
        hdr.fanin.worker = SWITCH_WORKER;
        meta.way = AGAIN;
        meta.port_out = port;
    }
    action ask(bit<8> worker, bit<8> codes, bit<16> udp_bytes, bit<16> ipv4_bytes) {
        hdr.fanin.worker = worker;
        hdr.fanin.code_count = codes;
        hdr.udp.bytes = udp_bytes;
        hdr.ipv4.total_bytes = ipv4_bytes;
    }
    table descents {
        key = {
            meta.fate: exact @name("fate");
            meta.index: exact @name("job");
        }
        actions = { descend; ask; NoAction; }
        default_action = NoAction;
        size = 2 * JOB_ROWS;
    }
    apply {
        descents.apply();
    }
}

/* R-LEAF-1, in egress: sends a complete round to the parent, as a contribution of the parent's worker that this switch is. */
control Ascent(inout ethernet_t ethernet, inout ipv4_t ipv4, inout udp_t udp, inout fanin_t fanin, inout bit<1> drop) {
    action to_parent(bit<16> job, bit<32> generation, bit<8> worker, mac_t mac, ipv4_address_t address, bit<16> port) {
        fanin.job = job;
        fanin.generation = generation;
        fanin.worker = worker;
        ethernet.source = ethernet.destination;
        ethernet.destination = mac;
        ipv4.destination = address;
        udp.destination = port;
    }
    action no_parent() {
        drop = 1;
    }
    table uplinks {
        key = { fanin.job: exact @name("job"); }
        actions = { to_parent; no_parent; }
        default_action = no_parent;
        size = JOB_ROWS;
    }
    apply {
        if (fanin.contributors == 0) {
            fanin.flags = FLAG_PASS;
        }
        uplinks.apply();
    }
}

#endif
