/* Parsers and deparsers. A contribution is parsed word by word, so that a short last chunk needs no padding.
 *
 * The length says how many words there are: state word_I compares it with what a packet of I + 1 words has. A code
 * takes 4 bytes, hence two chains of states. */
#ifndef FANIN_TNA_PARSER_P4
#define FANIN_TNA_PARSER_P4

#include "types.p4"

#define PLAIN_BYTES (UDP_BYTES + HEADER_BYTES)
#define CODED_BYTES (PLAIN_BYTES + 4)

#define WORD_STATE(CHAIN, BYTES, I, NEXT)                                                                              \
    state CHAIN ## I {                                                                                                 \
        packet.extract(hdr.word[I]);                                                                                   \
        transition select(hdr.udp.bytes) { BYTES + 4 * (I + 1): accept; default: NEXT; }                               \
    }

parser IngressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                     out ingress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        meta.ours = 0;
        meta.member = 0;
        meta.paged = 0;
        meta.duplicate = 0;
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
        transition select(hdr.ipv4.words, hdr.ipv4.fragment, hdr.ipv4.protocol) {
            (5, 0, PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }
    state parse_udp {
        packet.extract(hdr.udp);
        transition select(packet.lookahead<bit<16>>()) {
            MAGIC: parse_fanin;
            default: accept;
        }
    }
    state parse_fanin {
        packet.extract(hdr.fanin);
        transition select(hdr.fanin.version, hdr.fanin.kind, hdr.fanin.code_count) {
            (VERSION, KIND_CONTRIBUTION, 0): parse_plain;
            (VERSION, KIND_CONTRIBUTION, 1): parse_coded;
            default: accept;
        }
    }
    state parse_plain {
        meta.ours = 1;
        transition select(hdr.udp.bytes) {
            PLAIN_BYTES: accept;
            default: plain0;
        }
    }
    state parse_coded {
        meta.ours = 1;
        packet.extract(hdr.code);
        transition select(hdr.udp.bytes) {
            CODED_BYTES: accept;
            default: coded0;
        }
    }
    /* More words than there are states for: no packet of a job that this program was told of. */
    state too_long {
        meta.ours = 0;
        transition accept;
    }

#define CHAIN_8(CHAIN, BYTES, NEXT)                                                                                    \
    WORD_STATE(CHAIN, BYTES, 0, CHAIN ## 1)                                                                            \
    WORD_STATE(CHAIN, BYTES, 1, CHAIN ## 2)                                                                            \
    WORD_STATE(CHAIN, BYTES, 2, CHAIN ## 3)                                                                            \
    WORD_STATE(CHAIN, BYTES, 3, CHAIN ## 4)                                                                            \
    WORD_STATE(CHAIN, BYTES, 4, CHAIN ## 5)                                                                            \
    WORD_STATE(CHAIN, BYTES, 5, CHAIN ## 6)                                                                            \
    WORD_STATE(CHAIN, BYTES, 6, CHAIN ## 7)                                                                            \
    WORD_STATE(CHAIN, BYTES, 7, NEXT)
#define CHAIN_16(CHAIN, BYTES, NEXT)                                                                                   \
    WORD_STATE(CHAIN, BYTES, 8, CHAIN ## 9)                                                                            \
    WORD_STATE(CHAIN, BYTES, 9, CHAIN ## 10)                                                                           \
    WORD_STATE(CHAIN, BYTES, 10, CHAIN ## 11)                                                                          \
    WORD_STATE(CHAIN, BYTES, 11, CHAIN ## 12)                                                                          \
    WORD_STATE(CHAIN, BYTES, 12, CHAIN ## 13)                                                                          \
    WORD_STATE(CHAIN, BYTES, 13, CHAIN ## 14)                                                                          \
    WORD_STATE(CHAIN, BYTES, 14, CHAIN ## 15)                                                                          \
    WORD_STATE(CHAIN, BYTES, 15, NEXT)
#if WORDS == 8
    CHAIN_8(plain, PLAIN_BYTES, too_long)
    CHAIN_8(coded, CODED_BYTES, too_long)
#elif WORDS == 16
    CHAIN_8(plain, PLAIN_BYTES, plain8)
    CHAIN_16(plain, PLAIN_BYTES, too_long)
    CHAIN_8(coded, CODED_BYTES, coded8)
    CHAIN_16(coded, CODED_BYTES, too_long)
#else
#error "WORDS is 8 or 16"
#endif
}

control IngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                        in ingress_intrinsic_metadata_for_deparser_t for_deparser) {
    apply {
        packet.emit(hdr);
    }
}

#endif
