/* Headers and addresses of the packets that leave: results, answers, notices, echoes. */
#ifndef FANIN_RESULT_P4
#define FANIN_RESULT_P4

#include "types.p4"

#define ZERO(BLOCK, THERE)                                                                                             \
    if (THERE) {                                                                                                       \
        BLOCK.setValid();                                                                                              \
        BLOCK.data = 0;                                                                                                \
    }

/* Removes codes and words from the packet. */
control Strip(inout headers_t hdr) {
    apply {
        hdr.codes32.setInvalid();
        hdr.codes16.setInvalid();
        hdr.codes8.setInvalid();
        hdr.codes4.setInvalid();
        hdr.codes2.setInvalid();
        hdr.codes1.setInvalid();
        hdr.words64[0].setInvalid();
#if WHOLE_BLOCKS > 1
        hdr.words64[1].setInvalid();
#if WHOLE_BLOCKS > 2
        hdr.words64[2].setInvalid();
        hdr.words64[3].setInvalid();
#endif
#endif
        hdr.words32.setInvalid();
        hdr.words16.setInvalid();
        hdr.words8.setInvalid();
        hdr.words4.setInvalid();
        hdr.words2.setInvalid();
        hdr.words1.setInvalid();
    }
}

/* Replaces the packet's codes and words by `codes` and `words` zeros. */
control Zeros(inout headers_t hdr, in bit<8> codes, in bit<16> words) {
    Strip() strip;
    apply {
        strip.apply(hdr);
        bit<8> code_words = (codes + 1) >> 1;
        bit<3> whole = words[8:6];
        ZERO(hdr.codes32, code_words[5:5] == 1)
        ZERO(hdr.codes16, code_words[4:4] == 1)
        ZERO(hdr.codes8, code_words[3:3] == 1)
        ZERO(hdr.codes4, code_words[2:2] == 1)
        ZERO(hdr.codes2, code_words[1:1] == 1)
        ZERO(hdr.codes1, code_words[0:0] == 1)
        ZERO(hdr.words64[0], whole > 0)
#if WHOLE_BLOCKS > 1
        ZERO(hdr.words64[1], whole > 1)
#if WHOLE_BLOCKS > 2
        ZERO(hdr.words64[2], whole > 2)
        ZERO(hdr.words64[3], whole > 3)
#endif
#endif
        ZERO(hdr.words32, words[5:5] == 1)
        ZERO(hdr.words16, words[4:4] == 1)
        ZERO(hdr.words8, words[3:3] == 1)
        ZERO(hdr.words4, words[2:2] == 1)
        ZERO(hdr.words2, words[1:1] == 1)
        ZERO(hdr.words1, words[0:0] == 1)
    }
}

/* Lengths in IPv4 and UDP for a payload of our header and `tail_bytes` more. */
control Lengths(inout headers_t hdr, inout metadata_t meta, in bit<16> tail_bytes) {
    apply {
        hdr.udp.bytes = UDP_BYTES + HEADER_BYTES + tail_bytes;
        hdr.udp.checksum = 0;
        hdr.ipv4.total_bytes = IPV4_BYTES + hdr.udp.bytes;
        hdr.ipv4.ttl = 64;
        meta.rewritten = 1;
    }
}

/* Header of a result or an answer, from the facts of its round; the blocks set codes and words. */
control ResultHeader(inout headers_t hdr, inout metadata_t meta) {
    Lengths() lengths;
    apply {
        if (meta.fate == Fate.ANSWER) {
            hdr.fanin.kind = KIND_ANSWER;
        } else {
            hdr.fanin.kind = KIND_RESULT;
            hdr.fanin.worker = SWITCH_WORKER;
        }
        hdr.fanin.job = meta.index;
        hdr.fanin.generation = meta.job.generation;
        hdr.fanin.flags = 0;
        if (meta.job.checksum == 1) {
            hdr.fanin.flags = FLAG_CHECKSUM;
        }
        hdr.fanin.base = meta.out_round;
        hdr.fanin.signature = meta.round.signature;
        hdr.fanin.bitmap = meta.out_bitmap;
        hdr.fanin.contributors = meta.round.contributors;
        hdr.fanin.code_count = meta.round.codes;
        hdr.fanin.checksum = 0;
        bit<16> code_words = ((bit<16>)meta.round.codes + 1) >> 1;
        lengths.apply(hdr, meta, (code_words + meta.round.words) << 2);
    }
}

/* Header and addresses of a complete round as a contribution to the parent; the blocks, or Zeros, set codes and words. */
control Ascent(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Lengths() lengths;
    apply {
        hdr.fanin.kind = KIND_CONTRIBUTION;
        hdr.fanin.job = meta.uplink.job;
        hdr.fanin.generation = meta.uplink.generation;
        hdr.fanin.worker = meta.uplink.worker;
        hdr.fanin.flags = 0;
        if (meta.round.contributors == 0 && meta.fate == Fate.ASCEND) {
            hdr.fanin.flags = FLAG_PASS;
        }
        if (meta.job.checksum == 1) {
            hdr.fanin.flags = hdr.fanin.flags | FLAG_CHECKSUM;
        }
        hdr.fanin.base = meta.open;
        hdr.fanin.signature = meta.round.signature;
        hdr.fanin.bitmap = 0;
        hdr.fanin.contributors = meta.round.contributors;
        hdr.fanin.code_count = meta.round.codes;
        hdr.fanin.checksum = 0;
        bit<16> code_words = ((bit<16>)meta.round.codes + 1) >> 1;
        lengths.apply(hdr, meta, (code_words + meta.round.words) << 2);
        hdr.ethernet.destination = meta.uplink.mac;
        hdr.ipv4.destination = meta.uplink.address;
        hdr.udp.destination = meta.uplink.port;
        standard.egress_spec = meta.uplink.egress_port;
    }
}

/* Makes the packet a NOTICE with the reason and the workers absent from the job; Reflect returns it. */
control Notice(inout headers_t hdr, inout metadata_t meta) {
    Lengths() lengths;
    Strip() strip;
    apply {
        hdr.fanin.version = VERSION;
        hdr.fanin.kind = KIND_NOTICE;
        hdr.fanin.flags = hdr.fanin.flags & FLAG_CHECKSUM;
        hdr.fanin.signature = 0;
        hdr.fanin.bitmap = 0;
        hdr.fanin.contributors = meta.reason;
        hdr.fanin.code_count = 0;
        hdr.fanin.reserved = 0;
        hdr.fanin.checksum = 0;
        hdr.absent.setValid();
        hdr.absent.lost = meta.job.lost;
        hdr.absent.left = meta.job.left;
        if (meta.reason == REASON_VERSION) {
            hdr.absent.lost = 0;
            hdr.absent.left = 0;
        }
        strip.apply(hdr);
        lengths.apply(hdr, meta, 8);
        /* Drops the part of a longer packet that was not parsed. */
        truncate((bit<32>)(14 + hdr.ipv4.total_bytes));
    }
}

/* Takes the addresses that the packet was sent to as its source addresses. */
control FromSwitch(inout headers_t hdr) {
    apply {
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ipv4.source = hdr.ipv4.destination;
        hdr.udp.source = hdr.udp.destination;
    }
}

/* Sends the packet back to its sender, through its ingress port. */
control Reflect(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        mac_t mac = hdr.ethernet.source;
        ipv4_address_t address = hdr.ipv4.source;
        bit<16> port = hdr.udp.source;
        hdr.ethernet.source = hdr.ethernet.destination;
        hdr.ethernet.destination = mac;
        hdr.ipv4.source = hdr.ipv4.destination;
        hdr.ipv4.destination = address;
        hdr.udp.source = hdr.udp.destination;
        hdr.udp.destination = port;
        hdr.udp.checksum = 0;
        hdr.ipv4.ttl = 64;
        meta.rewritten = 1;
        standard.egress_spec = standard.ingress_port;
    }
}

#undef ZERO

#endif
