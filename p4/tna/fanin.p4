/* fanin for Tofino (TNA) and Tofino 2 (T2NA). A single pass; with PAIRS, a second one for what carries a round's words
 * (second_pass.p4). No hardware has run it: README.md.
 *
 *   ingress   from the controller ------------------------------------------> out of the port it names
 *             to the switch's address: job, admission ----> refused --------> counted; some senders get a NOTICE
 *                                                      --> HELLO, BYE -----> to the controller
 *                                                      --> PROBE ----------> ECHO to the sender
 *                                                      --> the slot machine > result to all, answer to the sender;
 *                                                                             with LEAF up to the parent, in a tree
 *             anything else: forwarded
 *   egress    copies of a result get their worker's addresses
 */
@pragma pa_auto_init_metadata

#include "ingress.p4"
#include "multicast.p4"
#include "parser.p4"

/* Two words of four take a container of 32 bits each, so that the other two take pairs of 16: a state of the parser extracts
 * four of either kind, and four words of one kind would take two states. Left to itself the compiler gives the first words all
 * containers of 32 bits, and the last ones those of 8. */
#define STRING(TEXT) #TEXT
#define IN_ONE_CONTAINER(I) @pa_container_size("ingress", STRING(hdr.word ## I.data), 32)
#define TWO_OF_FOUR(I, I1, I2, I3, NEXT) IN_ONE_CONTAINER(I) IN_ONE_CONTAINER(I1)
EACH_FOUR(TWO_OF_FOUR)
parser IngressParser(packet_in packet, out headers_t hdr, out metadata_t meta,
                     out ingress_intrinsic_metadata_t intrinsic) {
    PacketParser() rest;
    state start {
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        hdr.bridge.setValid();
        hdr.bridge.unused = 0;
        hdr.bridge.also_unused = 0;
        meta.port_in = intrinsic.ingress_port;
        rest.apply(packet, hdr, meta, intrinsic.ingress_port);
        transition accept;
    }
}

control FaninIngress(inout headers_t hdr, inout metadata_t meta, in ingress_intrinsic_metadata_t intrinsic,
                     in ingress_intrinsic_metadata_from_parser_t from_parser,
                     inout ingress_intrinsic_metadata_for_deparser_t for_deparser,
                     inout ingress_intrinsic_metadata_for_tm_t for_traffic_manager) {
    INGRESS_PARTS
    apply {
        INGRESS
        hdr.bridge.way = meta.way;
        hdr.bridge.ingress_port = meta.port_in;
        hdr.bridge.came_by = meta.port_in;
        hdr.bridge.late_base = meta.late_base;
        hdr.bridge.late_bitmap = meta.late_bitmap;
        for_deparser.drop_ctl = 2w0 ++ meta.drop;
        if (meta.sent_to != 0) {
            for_traffic_manager.mcast_grp_a = meta.sent_to;
        } else {
            for_traffic_manager.ucast_egress_port = meta.port_out;
        }
    }
}

control IngressDeparser(packet_out packet, inout headers_t hdr, in metadata_t meta,
                        in ingress_intrinsic_metadata_for_deparser_t for_deparser) {
    apply {
        packet.emit(hdr);
    }
}

struct egress_headers_t {
    packet_in_t packet_in;
    bridge_t bridge;
    ethernet_t ethernet;
    arp_t arp;
    ipv4_t ipv4;
    udp_t udp;
    fanin_t fanin;
}

struct egress_metadata_t {
    bit<1> drop;
}

parser EgressParser(packet_in packet, out egress_headers_t hdr, out egress_metadata_t meta,
                    out egress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        packet.extract(hdr.bridge);
        meta.drop = 0;
        transition select(hdr.bridge.way) {
            TO_SENDER: parse_ours;
            TO_WORKERS: parse_ours;
            WITH_LEAF(TO_PARENT: parse_ours;)
            REPLIED: parse_reply;
            default: accept;
        }
    }
    state parse_reply {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.arp);
        transition accept;
    }
    state parse_ours {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.fanin);
        transition accept;
    }
}

control FaninEgress(inout egress_headers_t hdr, inout egress_metadata_t meta, in egress_intrinsic_metadata_t intrinsic,
                    in egress_intrinsic_metadata_from_parser_t from_parser,
                    inout egress_intrinsic_metadata_for_deparser_t for_deparser,
                    inout egress_intrinsic_metadata_for_output_port_t for_port) {
    Multicast() multicast;
    TurnRound() turn_round;
    AddressReply() address_reply;
    WITH_LEAF(Ascent() ascent;)
    apply {
        if (hdr.bridge.way == TO_WORKERS) {
            multicast.apply(hdr.ethernet, hdr.ipv4, hdr.udp, hdr.fanin, hdr.bridge, intrinsic.egress_rid, meta.drop);
#if LEAF
        } else if (hdr.bridge.way == TO_PARENT) {
            ascent.apply(hdr.ethernet, hdr.ipv4, hdr.udp, hdr.fanin, meta.drop);
#endif
        } else if (hdr.bridge.way == TO_SENDER) {
            turn_round.apply(hdr.ethernet);
        } else if (hdr.bridge.way == REPLIED) {
            address_reply.apply(hdr.ethernet, hdr.arp);
        } else if (hdr.bridge.way == TO_CONTROLLER) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = hdr.bridge.ingress_port;
            hdr.packet_in.unused = hdr.bridge.unused;
        } else if (hdr.bridge.way == FLOODED && hdr.bridge.came_by == intrinsic.egress_port) {
            meta.drop = 1;          /* a flooded packet does not go back */
        }
        hdr.bridge.setInvalid();
        for_deparser.drop_ctl = 2w0 ++ meta.drop;
    }
}

control EgressDeparser(packet_out packet, inout egress_headers_t hdr, in egress_metadata_t meta,
                       in egress_intrinsic_metadata_for_deparser_t for_deparser) {
    Checksum() sum;
    apply {
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.checksum = sum.update({
                hdr.ipv4.version, hdr.ipv4.words, hdr.ipv4.service, hdr.ipv4.total_bytes, hdr.ipv4.identification,
                hdr.ipv4.flags, hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.source,
                hdr.ipv4.destination });
        }
        packet.emit(hdr);
    }
}

Pipeline(IngressParser(), FaninIngress(), IngressDeparser(), EgressParser(), FaninEgress(), EgressDeparser()) fanin;
Switch(fanin) main;
