/* Headers and destinations of the packets that leave: results, answers, notices, echoes. */
#ifndef FANIN_TNA_RESULT_P4
#define FANIN_TNA_RESULT_P4

#include "types.p4"

/* A pass may leave as a result: so its words become valid headers before the registers write them, and zeros where the
 * registers add them. */
control Unfold(inout headers_t hdr, in metadata_t meta) {
#if PAIRS
#define SHOW_WORD(I, NEXT) hdr.word ## I.setValid(); hdr.word ## I.data = 0;
#else
#define SHOW_WORD(I, NEXT) hdr.word ## I.setValid();
#endif
    action unfold() {
        hdr.code.setValid();
        EACH_WORD(SHOW_WORD)
    }
#undef SHOW_WORD
    apply {
        if (meta.found == WITHOUT WITH_LEAF(|| meta.found == FROM_PARENT | BARE_ANSWER)) {
            unfold();
        }
    }
}

/* Sets the lengths of a result from the round's shape. Words beyond them stay behind as padding (see Finish). The shape is
 * a parameter of the entry, since an action cannot slice it from `held` and use it at once.
 *
 * Whether words are sent is a key here and in Signature, not a condition around them: the tables of a block are placed
 * together, and the sums would then find no room beside them. */
control Fold(inout headers_t hdr, inout metadata_t meta) {
    action coded(bit<16> bytes, bit<16> total, bit<32> shape) {
        meta.shape = shape;
        hdr.fanin.code_count = 1;
        hdr.udp.bytes = bytes;
        hdr.ipv4.total_bytes = total;
    }
    action plain(bit<16> bytes, bit<16> total, bit<32> shape) {
        meta.shape = shape;
        hdr.fanin.code_count = 0;
        hdr.udp.bytes = bytes;
        hdr.ipv4.total_bytes = total;
        hdr.code.setInvalid();
    }
#define BYTES(N) UDP_BYTES + HEADER_BYTES + N, IPV4_BYTES + UDP_BYTES + HEADER_BYTES + N
#define WORDS_ROWS(N)                                                                                                  \
    (1, N): plain(BYTES(4 * (N)), (N) << 24); (1, 0x80 | N): coded(BYTES(4 * (N) + 4), WITH_CODE | ((N) << 24));
#define ROWS(I, NEXT) WORDS_ROWS(I)
    table lengths {
        key = {
            CARRIES_WORDS: exact @name("carries_words");
            meta.held[31:24]: exact @name("shape");
        }
        actions = { plain; coded; NoAction; }
        const default_action = NoAction;
        CONST_SIZE(2 * WORDS + 2)
        const entries = {
            EACH_WORD(ROWS)
            WORDS_ROWS(WORDS)
        }
    }
    apply {
        lengths.apply();
    }
}

/* Sets the signature of the round whose result is sent, since the packet may have another one, or none; 0 if nobody has
 * contributed to the round. (A synchronous build does not read the seal for a packet that has it.) */
control Signature(inout headers_t hdr, in metadata_t meta) {
    action of_round() {
        hdr.fanin.signature = meta.held_seal ^ meta.shape;
    }
    action none() {
        hdr.fanin.signature = 0;
    }
    action own() { }
    table signature {
        actions = { of_round; none; own; }
        const default_action = own;
        CONST_SIZE(8)
#if STALE
        key = {
            CARRIES_WORDS: ternary @name("carries_words");
            meta.step: ternary @name("step");
        }
        const entries = {
            (1, SHOW): of_round();
            (1, CLEAR): of_round();
        }
#else
        key = {
            CARRIES_WORDS: ternary @name("carries_words");
            meta.held[15:0]: ternary @name("contributors");
            meta.passes: ternary @name("passes");
            WITH_LEAF(meta.closed: ternary @name("closed");)
        }
        const entries = {
            WITH_LEAF((_, _, _, FIRST): own();)     /* the parent's, which the packet has already (leaf.p4) */
            (1, 0, _ ANY_CLOSED): none();
            (1, _, 1 ANY_CLOSED): of_round();
        }
#endif
    }
    apply {
        signature.apply();
    }
}

/* Rewrites the packet as its fate requires. Egress swaps its Ethernet addresses (multicast.p4): fields that ingress does not
 * compute with take none of the containers that it can compute with, which words fill. Words beyond the length that IPv4 says
 * stay behind the packet, as padding to its receiver (RFC 894), because a pipeline of this kind cannot truncate a
 * packet. */
control Finish(inout headers_t hdr, inout metadata_t meta) {
    action reflect() {
        ipv4_address_t address = hdr.ipv4.source;
        bit<16> port = hdr.udp.source;
        hdr.ipv4.source = hdr.ipv4.destination;
        hdr.ipv4.destination = address;
        hdr.udp.source = hdr.udp.destination;
        hdr.udp.destination = port;
        hdr.udp.checksum = 0;
        hdr.ipv4.ttl = 64;
        meta.way = TO_SENDER;
        meta.port_out = meta.port_in;
    }
    action from_switch() {
        hdr.ipv4.source = hdr.ipv4.destination;
        hdr.udp.source = hdr.udp.destination;
        hdr.udp.checksum = 0;
        hdr.ipv4.ttl = 64;
        meta.way = TO_WORKERS;
    }
    action facts() {
        hdr.fanin.flags = 0;
        hdr.fanin.checksum = 0;
        hdr.fanin.contributors = meta.held[15:0];
    }
    action result() {
        from_switch();
        facts();
        hdr.fanin.kind = KIND_RESULT;
        hdr.fanin.worker = SWITCH_WORKER;
#if STALE
        hdr.fanin.base = meta.round;
        hdr.fanin.bitmap = meta.bitmap;
#else
        hdr.fanin.bitmap = meta.before | meta.worker_bit;
#endif
        meta.sent_to = meta.group;
    }
    action result_and_bare() {
        result();
        meta.sent_to = meta.late_group;
    }
#if LEAF
    /* Egress sets this switch's job index, generation and worker number at the parent (leaf.p4). */
    action ascend() {
        from_switch();
        facts();
        hdr.fanin.kind = KIND_CONTRIBUTION;
        hdr.fanin.bitmap = 0;
        meta.way = TO_PARENT;
        meta.port_out = meta.parent_port;
    }
    /* The packet has the result's code, words, lengths, signature and contributors already. */
    action hand_down() {
        from_switch();
        hdr.fanin.flags = 0;
        hdr.fanin.checksum = 0;
        hdr.fanin.kind = KIND_RESULT;
        hdr.fanin.bitmap = meta.before;
        meta.sent_to = meta.group;
        hdr.again.setInvalid();
    }
    /* Sends zeros of the job's longest packet, so that the parent's answer has room for its result. */
    action ask() {
        reflect();
        hdr.fanin.kind = KIND_CONTRIBUTION;
        hdr.fanin.flags = 0;
        hdr.fanin.signature = 0;
        hdr.fanin.bitmap = 0;
        hdr.fanin.contributors = 0;
        hdr.fanin.checksum = 0;
    }
    action turn_in() { }        /* Descents does the rest */
#endif
    action answer() {
        reflect();
        facts();
        hdr.fanin.kind = KIND_ANSWER;
        hdr.fanin.bitmap = meta.before | meta.worker_bit;
    }
    action bare() {
        reflect();
        hdr.fanin.kind = KIND_ANSWER;
        hdr.fanin.flags = FLAG_BARE;
        hdr.fanin.signature = 0;
        hdr.fanin.bitmap = meta.before | meta.worker_bit;
        hdr.fanin.contributors = 0;
        hdr.fanin.code_count = 0;
        hdr.fanin.checksum = 0;
        hdr.udp.bytes = UDP_BYTES + HEADER_BYTES;
        hdr.ipv4.total_bytes = IPV4_BYTES + UDP_BYTES + HEADER_BYTES;
    }
    action notice() {
        reflect();
        hdr.fanin.version = VERSION;
        hdr.fanin.kind = KIND_NOTICE;
        hdr.fanin.flags = 0;
        hdr.fanin.signature = 0;
        hdr.fanin.bitmap = 0;
        hdr.fanin.contributors = meta.reason;
        hdr.fanin.code_count = 0;
        hdr.fanin.reserved = 0;
        hdr.fanin.checksum = 0;
        hdr.absent.setValid();
        hdr.absent.lost = meta.lost;
        hdr.absent.left = meta.left;
        hdr.udp.bytes = UDP_BYTES + HEADER_BYTES + 8;
        hdr.ipv4.total_bytes = IPV4_BYTES + UDP_BYTES + HEADER_BYTES + 8;
    }
    action echo() {
        reflect();
        hdr.fanin.kind = KIND_ECHO;
    }
    action to_controller() {
        meta.way = TO_CONTROLLER;
        meta.port_out = CPU_PORT;
    }
    action discard() {
        meta.drop = 1;
    }
#if PAIRS
    action release() {
        meta.way = hdr.again.way;
        meta.sent_to = hdr.again.sent_to;
        meta.port_out = hdr.again.port_out;
#if STALE
        meta.late_base = hdr.again.late_base;
        meta.late_bitmap = hdr.again.late_bitmap;
#endif
        hdr.again.setInvalid();
    }
#endif
    table finish {
        key = { meta.fate: exact @name("fate"); }
        actions = { result; result_and_bare; answer; bare; notice; echo; to_controller; WITH_PAIRS(release;)
                    WITH_LEAF(ascend; hand_down; ask; turn_in;) discard; }
        const default_action = discard;
        CONST_SIZE(8 WITH_LEAF(+ 8))
        const entries = {
            RESULT: result();
            RESULT_AND_BARE: result_and_bare();
            ANSWER: answer();
            BARE: bare();
            NOTICE: notice();
            ECHO: echo();
            CONTROLLER: to_controller();
            WITH_PAIRS(RELEASE: release();)
            WITH_LEAF(ASCEND: ascend(); HAND_DOWN: hand_down(); ASK: ask(); TURN_IN: turn_in();)
        }
    }

    apply {
        finish.apply();
    }
}

#endif
