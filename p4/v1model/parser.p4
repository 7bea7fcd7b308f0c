/* Parses Ethernet, ARP, IPv4 without options, UDP, our header, and the codes and words of a
 * contribution, or of a result from a parent.
 *
 * A payload that is too short, has another magic, or no legal shape is not parsed further; admission.p4 refuses it. */
#ifndef FANIN_PARSER_P4
#define FANIN_PARSER_P4

#include "types.p4"

#define MIN_UDP_BYTES (UDP_BYTES + HEADER_BYTES)

/* A block is parsed if its binary digit of the number of words is 1, long blocks first: BLOCK(state, digit, header, next). */
#define BLOCK(STATE, DIGIT, HEADER, NEXT)                                                                              \
    state STATE { transition select(DIGIT) { 1: STATE ## _there; default: NEXT; } }                                    \
    state STATE ## _there { packet.extract(HEADER); transition NEXT; }

parser FaninParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                   inout standard_metadata_t standard) {
    state start {
        transition select(standard.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_ethernet;
        }
    }
    state parse_packet_out {
        packet.extract(hdr.packet_out);
        meta.poke = hdr.packet_out.poke;
        transition parse_ethernet;
    }
    state parse_ethernet {
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
        transition select(hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.flags[0:0], hdr.ipv4.fragment, hdr.ipv4.protocol) {
            (4, 5, 0, 0, PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }
    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.bytes) {
            0 .. MIN_UDP_BYTES - 1: accept;
            default: find_magic;
        }
    }
    state find_magic {
        transition select(packet.lookahead<bit<16>>()) {
            MAGIC: parse_fanin;
            default: accept;
        }
    }
    state parse_fanin {
        packet.extract(hdr.fanin);
        meta.code_words = ((bit<16>)hdr.fanin.code_count + 1) >> 1;
        meta.word_bytes = hdr.udp.bytes - MIN_UDP_BYTES - (meta.code_words << 2);
        meta.word_count = meta.word_bytes >> 2;
        meta.whole = 0;
        transition select(hdr.fanin.version, hdr.fanin.kind, hdr.fanin.code_count, meta.word_bytes[1:0],
                          meta.word_bytes) {
            (VERSION, KIND_CONTRIBUTION .. KIND_ANSWER, 0 .. MAX_CODES, 0, 0 .. WORDS_PER_PACKET * 4): payload;
            default: accept;
        }
    }

    state payload {
        meta.whole = 1;
        transition codes32;
    }
    BLOCK(codes32, meta.code_words[5:5], hdr.codes32, codes16)
    BLOCK(codes16, meta.code_words[4:4], hdr.codes16, codes8)
    BLOCK(codes8, meta.code_words[3:3], hdr.codes8, codes4)
    BLOCK(codes4, meta.code_words[2:2], hdr.codes4, codes2)
    BLOCK(codes2, meta.code_words[1:1], hdr.codes2, codes1)
    BLOCK(codes1, meta.code_words[0:0], hdr.codes1, words64)

    state words64 { transition select(meta.word_count[8:6]) { 0: words32; default: words64_0; } }
    state words64_0 {
        packet.extract(hdr.words64[0]);
#if WHOLE_BLOCKS > 1
        transition select(meta.word_count[8:6]) { 1: words32; default: words64_1; }
    }
    state words64_1 {
        packet.extract(hdr.words64[1]);
#if WHOLE_BLOCKS > 2
        transition select(meta.word_count[8:6]) { 2: words32; default: words64_2; }
    }
    state words64_2 {
        packet.extract(hdr.words64[2]);
        transition select(meta.word_count[8:6]) { 3: words32; default: words64_3; }
    }
    state words64_3 {
        packet.extract(hdr.words64[3]);
#endif
#endif
        transition words32;
    }
    BLOCK(words32, meta.word_count[5:5], hdr.words32, words16)
    BLOCK(words16, meta.word_count[4:4], hdr.words16, words8)
    BLOCK(words8, meta.word_count[3:3], hdr.words8, words4)
    BLOCK(words4, meta.word_count[2:2], hdr.words4, words2)
    BLOCK(words2, meta.word_count[1:1], hdr.words2, words1)
    BLOCK(words1, meta.word_count[0:0], hdr.words1, accept)
}

#undef BLOCK

#define IPV4_FIELDS                                                                                                    \
    { hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.service, hdr.ipv4.total_bytes, hdr.ipv4.identification,               \
      hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.source, hdr.ipv4.destination }

control FaninVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.udp.isValid(), IPV4_FIELDS, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control FaninComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.rewritten == 1, IPV4_FIELDS, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control FaninDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

#endif
