/* Parses Ethernet, ARP, IPv4 without options, UDP, our header, and the code and words of a contribution. A short last
 * chunk needs no padding: the length says how many words there are, and state words_n compares it with what a packet of n to
 * n + 3 words has, with and without a code, which takes 4 bytes.
 *
 * Words are parsed by fours, because a Tofino's parser has 256 rows, of which this takes some three for each word, and enters
 * one state per clock, so that a long chain takes longer than the packet's port. For the same reason two fields are
 * looked at in one state wherever they fit.
 *
 * The parser only classifies the packet (`found`); admission.p4 refuses it. */
#ifndef FANIN_TNA_PARSER_P4
#define FANIN_TNA_PARSER_P4

#include "types.p4"

#define PLAIN_BYTES (UDP_BYTES + HEADER_BYTES)
#define CODED_BYTES (PLAIN_BYTES + 4)

/* The states in which I to I + 3 words have been extracted, and those that they lead to. Fields that several states set
 * are ORed, as a Tofino's parser does. */
#define LENGTH_OF(N) (0, PLAIN_BYTES + 4 * (N)): end ## N; (1, CODED_BYTES + 4 * (N)): end ## N;
#define END_STATE(N, EXTRACT)                                                                                          \
    state end ## N {                                                                                                   \
        EXTRACT                                                                                                        \
        meta.shape = meta.shape | (N << 24);                                                                           \
        meta.words = N;                                                                                                \
        meta.found = meta.found | WITH_WORDS;                                                                          \
        transition accept;                                                                                             \
    }
#define WORD(I) packet.extract(hdr.word ## I);
#define WORDS_STATES(I, I1, I2, I3, NEXT)                                                                              \
    state words ## I {                                                                                                 \
        transition select(hdr.fanin.code_count, hdr.udp.bytes) {                                                       \
            LENGTH_OF(I) LENGTH_OF(I1) LENGTH_OF(I2) LENGTH_OF(I3)                                                     \
            default: more ## I;                                                                                        \
        }                                                                                                              \
    }                                                                                                                  \
    END_STATE(I, )                                                                                                     \
    END_STATE(I1, WORD(I))                                                                                             \
    END_STATE(I2, WORD(I) WORD(I1))                                                                                    \
    END_STATE(I3, WORD(I) WORD(I1) WORD(I2))                                                                           \
    state more ## I {                                                                                                  \
        WORD(I) WORD(I1) WORD(I2) WORD(I3)                                                                             \
        transition words ## NEXT;                                                                                      \
    }
/* A packet with more than WORDS words is illegal, because no job has such packets. */
#define LAST_STATE(N)                                                                                                  \
    state words ## N {                                                                                                 \
        transition select(hdr.fanin.code_count, hdr.udp.bytes) {                                                       \
            LENGTH_OF(N)                                                                                               \
            default: illegal;                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    END_STATE(N, )
#define AT_END(M, I) M(I)

/* A byte of our header that is still to be extracted. */
#define VERSION_AHEAD packet.lookahead<bit<24>>()[7:0]
#define KIND_AHEAD packet.lookahead<bit<32>>()[7:0]
#define FLAGS_AHEAD packet.lookahead<bit<64>>()[7:0]
#define CODE_COUNT_AHEAD packet.lookahead<bit<248>>()[7:0]
#define RESERVED_AHEAD packet.lookahead<bit<256>>()[7:0]

parser PacketParser(packet_in packet, inout headers_t hdr, inout metadata_t meta, in bit<9> came_by) {
#ifndef FANIN_MODEL
    Checksum() sum;
#endif
    state start {
        meta.found = TOO_SHORT;
        meta.shape = 0;
        transition select(came_by) {
            CPU_PORT: from_controller;
#if PAIRS
            RECIRCULATION_PORT &&& 0x7F: second_pass;
#endif
            default: frame;
        }
    }
    state from_controller {
        packet.extract(hdr.packet_out);
        meta.clean = hdr.packet_out.clean;
        transition frame;
    }
#if PAIRS
    /* A packet from the first pass, with `again` in front. */
    state second_pass {
        packet.extract(hdr.again);
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        meta.found = meta.found | PASSED_ONCE;
        meta.addressed = 1;
#if LEAF
        transition select(hdr.again.way) {
            DOWN: result_of_parent;
            default: other_half;
        }
    }
    state result_of_parent {
        meta.found = meta.found | FROM_PARENT;
        meta.brought = hdr.again.contributors;
        transition with_words;
    }
    state other_half {
#endif
        meta.step = FETCH;
        transition with_words;
    }
#endif
    state frame {
        WITH_LEAF(meta.brought = 1;)
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_ARP: parse_arp;
            default: accept;
        }
    }
    state parse_arp {
        packet.extract(hdr.arp);
        transition accept;
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
#ifndef FANIN_MODEL
        sum.add(hdr.ipv4);
        meta.damaged = (bit<1>)sum.verify();
#endif
        transition select(hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.flags[0:0], hdr.ipv4.fragment, hdr.ipv4.protocol) {
            (4, 5, 0, 0, PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }
    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.bytes) {
            0 .. PLAIN_BYTES - 1: accept;
            default: find_magic;
        }
    }
    state find_magic {
        transition select(packet.lookahead<bit<16>>()) {
            MAGIC: parse_fanin;
            default: foreign;
        }
    }
    state foreign {
        meta.found = BAD_MAGIC;
        transition accept;
    }
    /* Matches the header two bytes at a time before extracting it: the parser of a Tofino 1 matches at most 16 + 8 + 8 bits,
     * and the 16 hold the length for the words' states. */
    state parse_fanin {
        transition select(VERSION_AHEAD, RESERVED_AHEAD) {
            (VERSION, 0): look_at_kind;
            (VERSION, _): illegal_header;
            default: other_version;
        }
    }
    state look_at_kind {
        transition select(KIND_AHEAD, FLAGS_AHEAD) {
            (_, FLAG_CHECKSUM &&& (~KNOWN_FLAGS | FLAG_CHECKSUM)): checksummed;
            (KIND_CONTRIBUTION, 0 &&& (~KNOWN_FLAGS | FLAG_PASS | FLAG_LATE)): look_at_codes;
            (KIND_CONTRIBUTION, FLAG_PASS &&& (~KNOWN_FLAGS | FLAG_PASS)): look_at_pass;
            (KIND_CONTRIBUTION, _): illegal_header;
            WITH_LEAF((KIND_ANSWER, FLAG_BARE &&& (~KNOWN_FLAGS | FLAG_BARE)): bare_answer;)
            (_, 0 &&& ~KNOWN_FLAGS): other_kind;
            default: illegal_header;
        }
    }
    state look_at_codes {
        transition select(CODE_COUNT_AHEAD) {
            0 &&& 0xFE: with_words;
            default: illegal_header;
        }
    }
    state look_at_pass {
        transition select(CODE_COUNT_AHEAD) {
            0: without;
            default: illegal_header;
        }
    }
    state other_version {
        packet.extract(hdr.fanin);
        meta.found = OTHER_VERSION;
        transition accept;
    }
    state checksummed {
        packet.extract(hdr.fanin);
        meta.found = CHECKSUMMED;
        transition accept;
    }
    state illegal_header {
        packet.extract(hdr.fanin);
        transition illegal;
    }
    state illegal {
        meta.found = meta.found | ILLEGAL;
        transition accept;
    }
    state other_kind {
        packet.extract(hdr.fanin);
        meta.found = HEADER;
        transition accept;
    }
#if LEAF
    state bare_answer {
        packet.extract(hdr.fanin);
        meta.found = BARE_ANSWER;
        transition accept;
    }
#endif
    state with_words {
        packet.extract(hdr.fanin);
        transition select(hdr.fanin.code_count) {
            0: words0;
            default: code;
        }
    }
    state code {
        packet.extract(hdr.code);
        meta.shape = meta.shape | WITH_CODE;
        transition words0;
    }
    state without {
        packet.extract(hdr.fanin);
        transition select(hdr.udp.bytes) {
            PLAIN_BYTES: pass;
            default: illegal;
        }
    }
    state pass {
        meta.passes = 1;
        meta.found = WITHOUT;
        transition accept;
    }
    EACH_FOUR(WORDS_STATES)
    AT_END(LAST_STATE, WORDS)
}

#endif
