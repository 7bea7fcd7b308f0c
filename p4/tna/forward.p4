/* All other traffic: forwarded by destination address, unchanged; and ARP requests for the switch's own addresses. */
#ifndef FANIN_TNA_FORWARD_P4
#define FANIN_TNA_FORWARD_P4

#include "types.p4"

control Forward(inout headers_t hdr, inout metadata_t meta) {
    action to_port(bit<9> port) {
        meta.port_out = port;
    }
    /* To every port of the group but the one that the packet came in by (egress drops that copy). */
    action flood(bit<16> group) {
        meta.sent_to = group;
        meta.way = FLOODED;
    }
    action discard() {
        meta.drop = 1;
    }
    table hosts {
        key = { hdr.ethernet.destination: exact @name("mac"); }
        actions = { to_port; flood; discard; }
        default_action = discard;
        size = HOST_COUNT;
    }

    action reply(mac_t mac) {
        hdr.arp.operation = ARP_REPLY;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        ipv4_address_t asked = hdr.arp.target;
        hdr.arp.target = hdr.arp.sender;
        hdr.arp.sender = asked;
        hdr.arp.sender_mac = mac;
        meta.way = REPLIED;
        meta.port_out = meta.port_in;
        meta.answered = 1;
    }
    table addresses {
        key = {
            hdr.arp.operation: exact @name("operation");
            hdr.arp.target: exact @name("address");
        }
        actions = { reply; NoAction; }
        default_action = NoAction;
        size = 16;
    }

    apply {
        if (hdr.arp.isValid()) {
            addresses.apply();
        }
        if (meta.answered == 0) {
            hosts.apply();
        }
    }
}

#endif
