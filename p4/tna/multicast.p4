/* Egress sets the Ethernet addresses of all that the switch itself sends, and the worker's addresses in every copy of a result,
 * so that an ordinary socket receives it.
 *
 * The instance number of a replica names its worker (shared/sizes.p4); its port comes from the multicast group. A copy with
 * BARE_INSTANCE acknowledges a late contribution: the words stay behind it as padding. */
#ifndef FANIN_TNA_MULTICAST_P4
#define FANIN_TNA_MULTICAST_P4

#include "types.p4"

/* Swaps the Ethernet addresses of a packet that returns to its sender. */
control TurnRound(inout ethernet_t ethernet) {
    action turn() {
        mac_t mac = ethernet.source;
        ethernet.source = ethernet.destination;
        ethernet.destination = mac;
    }
    apply {
        turn();
    }
}

/* Addresses an ARP reply to the requester, from the MAC address that the reply holds. */
control AddressReply(inout ethernet_t ethernet, in arp_t arp) {
    action turn() {
        ethernet.destination = ethernet.source;
        ethernet.source = arp.sender_mac;
    }
    apply {
        turn();
    }
}

control Multicast(inout ethernet_t ethernet, inout ipv4_t ipv4, inout udp_t udp, inout fanin_t fanin, in bridge_t bridge,
                  in bit<16> instance, inout bit<1> drop) {
    action to_worker(mac_t mac, ipv4_address_t address, bit<16> port) {
        ethernet.source = ethernet.destination;
        ethernet.destination = mac;
        ipv4.destination = address;
        udp.destination = port;
    }
    action nobody() {
        drop = 1;
    }
    table workers {
        key = {
            fanin.job: exact @name("job");
            instance: exact @name("instance");
        }
        actions = { to_worker; nobody; }
        default_action = nobody;
        size = MEMBER_COUNT;
    }

#if STALE
    /* The worker's number comes from the entry: the low half of `instance` cannot be moved into a header's byte. */
    action bare(bit<8> worker) {
        fanin.kind = KIND_ANSWER;
        fanin.worker = worker;
        fanin.flags = FLAG_BARE;
        fanin.base = bridge.late_base;
        fanin.signature = 0;
        fanin.bitmap = bridge.late_bitmap;
        fanin.contributors = 0;
        fanin.code_count = 0;
        udp.bytes = UDP_BYTES + HEADER_BYTES;
        ipv4.total_bytes = IPV4_BYTES + UDP_BYTES + HEADER_BYTES;
    }
#define BARE_ROW(W) (BARE_INSTANCE + W): bare(W);
    table bares {
        key = { instance: exact @name("instance"); }
        actions = { bare; NoAction; }
        const default_action = NoAction;
        CONST_SIZE(32)
        const entries = { EACH_WORKER(BARE_ROW) }
    }
#undef BARE_ROW
#endif

    apply {
        workers.apply();
#if STALE
        bares.apply();
#endif
    }
}

#endif
