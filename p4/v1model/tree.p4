/* Trees: a job whose rounds close at a parent switch, where this switch is one worker. docs/slot-machine.md, "Trees".
 *
 * A complete round goes to the parent as a contribution; the parent's result replaces the round and closes it. The
 * controller handles HELLO, BYE and their answers, with the parent as with the workers. */
#ifndef FANIN_TREE_P4
#define FANIN_TREE_P4

#include "types.p4"

/* Tells whether the packet comes from the parent of a job here, and finds the job's uplink to its parent. */
control Uplinks(in headers_t hdr, inout metadata_t meta) {
    action from_parent(bit<16> index) {
        meta.down = 1;
        meta.index = index;
    }
    action not_from_parent() { }
    /* A restarted parent reuses its job indices while jobs of its previous run are still here; so the generation selects
     * the job. A packet with a generation that no job here has goes to any job with that index, which refuses it. */
    table parents {
        key = {
            hdr.fanin.job: exact @name("job");
            hdr.ipv4.source: exact @name("address");
            hdr.udp.source: exact @name("port");
            hdr.fanin.generation: optional @name("generation");
        }
        actions = { from_parent; not_from_parent; }
        default_action = not_from_parent;
        size = 2 * JOB_ROWS;
    }

    action to_parent(bit<16> job, bit<32> generation, bit<8> worker, mac_t mac, ipv4_address_t address, bit<16> port,
                     bit<9> egress_port) {
        meta.uplink = { 1, job, generation, worker, mac, address, port, egress_port };
    }
    action no_parent() { }
    table uplinks {
        key = { meta.index: exact @name("job"); }
        actions = { to_parent; no_parent; }
        default_action = no_parent;
        size = JOB_ROWS;
    }

    apply {
        meta.index = hdr.fanin.job;
        parents.apply();
        uplinks.apply();
    }
}

/* Decides about a packet from the parent, by the table at the top of switch/machine/leaf_side.py. */
control FromParent(in headers_t hdr, inout metadata_t meta) {
    action drop(bit<16> reason) {
        meta.fate = Fate.DROP;
        meta.reason = reason;
    }
    action go(Fate fate) {
        meta.fate = fate;
    }

    bit<1> unsealed;
    bit<1> generation;
    bit<1> worker;
    bit<1> slot;
    bit<1> shape;

    table from_parent {
        key = {
            unsealed: ternary;              /* has no checksum, though the job requires one */
            generation: ternary;            /* the packet's generation is the uplink's */
            worker: ternary;                /* this switch, or all workers */
            hdr.fanin.kind: ternary @name("kind");
            slot: ternary;                  /* < slots */
            shape: ternary;                 /* fits the job */
        }
        actions = { drop; go; }
        const default_action = drop(REASON_KIND);
        const entries = {
            (1, _, _, _,            _, _): drop(REASON_CHECKSUM);
            (_, 0, _, _,            _, _): drop(REASON_GENERATION);
            (_, _, 0, _,            _, _): drop(REASON_WORKER_RANGE);
            (_, _, _, KIND_WELCOME, _, _): go(Fate.CONTROLLER);
            (_, _, _, KIND_NOTICE,  _, _): go(Fate.CONTROLLER);
            (_, _, _, KIND_BYE,     _, _): go(Fate.CONTROLLER);
            (_, _, _, KIND_RESULT,  0, _): drop(REASON_SLOT_RANGE);
            (_, _, _, KIND_ANSWER,  0, _): drop(REASON_SLOT_RANGE);
            (_, _, _, KIND_RESULT,  _, 0): drop(REASON_LENGTH);
            (_, _, _, KIND_ANSWER,  _, 0): drop(REASON_LENGTH);
            (_, _, _, KIND_RESULT,  _, _): go(Fate.AGGREGATE);
            (_, _, _, KIND_ANSWER,  _, _): go(Fate.AGGREGATE);
        }
    }

    apply {
        unsealed = (bit<1>)(meta.job.checksum == 1 && (hdr.fanin.flags & FLAG_CHECKSUM) == 0);
        generation = (bit<1>)(hdr.fanin.generation == meta.uplink.generation);
        worker = (bit<1>)(hdr.fanin.worker == meta.uplink.worker || hdr.fanin.worker == SWITCH_WORKER);
        slot = (bit<1>)(hdr.fanin.slot < meta.job.slots);
        shape = (bit<1>)((hdr.fanin.code_count == 0 || hdr.fanin.code_count == meta.job.codes)
            && meta.word_count <= meta.job.words);
        from_parent.apply();
    }
}

/* Decides about a result, or an answer, from the parent. */
control Descent(in headers_t hdr, inout metadata_t meta) {
    action close() {
        meta.fate = Fate.RESULT;
        meta.closes = 1;
    }
    action ascend() {
        meta.fate = Fate.ASCEND;
    }
    action ask() {
        meta.fate = Fate.ASK;
        meta.round = { 0, 0, meta.job.codes, meta.job.words };
    }
    action ignore() {
        meta.fate = Fate.DROP;
    }
    action duplicate() {
        meta.fate = Fate.DROP;
        meta.duplicate = 1;
    }
    action drop(bit<16> reason) {
        meta.fate = Fate.DROP;
        meta.reason = reason;
    }

    bit<1> bare;
    bit<1> passed;
    bit<1> over;
    bit<1> is_open;

    table descent {
        key = {
            bare: ternary;                  /* an answer without a result */
            passed: ternary;                /* the open round has no contributors; if complete, all workers here have passed */
            meta.complete: ternary @name("complete");
            is_open: ternary;               /* base = V */
            over: ternary;                  /* base < V */
        }
        actions = { close; ascend; ask; ignore; duplicate; drop; }
        const default_action = drop(REASON_FUTURE);  /* R-LEAF-5 */
        const entries = {
            (1, 1, 1, 1, _): ask();         /* R-LEAF-3: closed there, but the result does not fit a pass: ask with zeros */
            (1, _, 1, 1, _): ascend();      /* R-LEAF-3: closed there: contribute again, to be answered with the result */
            (1, _, _, _, _): ignore();
            (_, _, 1, 1, _): close();       /* R-LEAF-3 */
            (_, _, _, _, 1): duplicate();   /* R-LEAF-4 */
        }
    }

    apply {
        bare = (bit<1>)(hdr.fanin.kind == KIND_ANSWER && (hdr.fanin.flags & FLAG_BARE) != 0);
        passed = (bit<1>)(meta.round.contributors == 0);
        is_open = (bit<1>)(hdr.fanin.base == meta.open);
        over = (bit<1>)(hdr.fanin.base < meta.open);
        descent.apply();
    }
}

#endif
