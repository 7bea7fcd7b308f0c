/* The same controls for v1model (BMv2 and fanin's own emulator), so that their decisions can be run and compared without a
 * Tofino. What differs is in target.p4 (an action reads, changes and writes a register) and here: v1model recirculates a packet
 * with its original ingress port, and marks it in instance_type. */
#define FANIN_MODEL
#include "ingress.p4"
#include "multicast.p4"
#include "parser.p4"

#if PAIRS
/* standard_metadata.instance_type, as BMv2 numbers it. */
const bit<32> PASSED_BEFORE = 4;
#endif

@noWarn("uninitialized-use")     /* only egress sets hdr.packet_in */
parser FaninParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    PacketParser() rest;
    bit<9> came_by = standard.ingress_port;
    state start {
        meta.port_in = standard.ingress_port;
#if PAIRS
        transition select(standard.instance_type) {
            PASSED_BEFORE: parse_second_pass;
            default: parse_rest;
        }
    }
    state parse_second_pass {
        came_by = RECIRCULATION_PORT;
        transition parse_rest;
    }
    state parse_rest {
#endif
        rest.apply(packet, hdr, meta, came_by);
        transition accept;
    }
}

#define IPV4_FIELDS                                                                                                    \
    { hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.service, hdr.ipv4.total_bytes, hdr.ipv4.identification,               \
      hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.source, hdr.ipv4.destination }

control FaninVerifyChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.udp.isValid(), IPV4_FIELDS, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control FaninIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    INGRESS_PARTS
    apply {
        meta.damaged = standard.checksum_error;
        INGRESS
        if (meta.drop == 1 || standard.parser_error != error.NoError) {
            mark_to_drop(standard);
        } else if (meta.sent_to != 0) {
            standard.mcast_grp = meta.sent_to;
        } else {
            standard.egress_spec = meta.port_out;
        }
    }
}

control FaninEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Multicast() multicast;
    TurnRound() turn_round;
    AddressReply() address_reply;
    WITH_LEAF(Ascent() ascent;)
    apply {
        bit<1> drop = 0;
        bridge_t bridge = { meta.way, meta.port_in, 0, 0, meta.port_in, meta.late_base, meta.late_bitmap };
        if (meta.way == TO_WORKERS) {
            multicast.apply(hdr.ethernet, hdr.ipv4, hdr.udp, hdr.fanin, bridge, standard.egress_rid, drop);
#if LEAF
        } else if (meta.way == TO_PARENT) {
            ascent.apply(hdr.ethernet, hdr.ipv4, hdr.udp, hdr.fanin, drop);
#endif
        } else if (meta.way == TO_SENDER) {
            turn_round.apply(hdr.ethernet);
        } else if (meta.way == REPLIED) {
            address_reply.apply(hdr.ethernet, hdr.arp);
        } else if (meta.way == TO_CONTROLLER) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = standard.ingress_port;
            hdr.packet_in.unused = 0;
        } else if (meta.way == FLOODED && standard.egress_port == standard.ingress_port) {
            drop = 1;
        }
        if (drop == 1) {
            mark_to_drop(standard);
        }
#if PAIRS
        if (meta.way == AGAIN) {
            recirculate_preserving_field_list(0);
        }
#endif
    }
}

control FaninComputeChecksum(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.way == TO_SENDER || meta.way == TO_WORKERS WITH_LEAF(|| meta.way == TO_PARENT), IPV4_FIELDS,
                        hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control FaninDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(FaninParser(), FaninVerifyChecksum(), FaninIngress(), FaninEgress(), FaninComputeChecksum(),
         FaninDeparser()) main;
