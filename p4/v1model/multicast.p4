/* Egress: every copy of a result gets the addresses of its worker, so that an ordinary socket receives it.
 *
 * The instance number of a replica names its worker (shared/sizes.p4); its port comes from the multicast group. A copy
 * with BARE_INSTANCE acknowledges a late contribution and has no words. */
#ifndef FANIN_MULTICAST_P4
#define FANIN_MULTICAST_P4

#include "checksum.p4"
#include "result.p4"

control Multicast(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Lengths() lengths;
    Strip() strip;
    HeaderChecksum() checksum;

    action to_worker(mac_t mac, ipv4_address_t address, bit<16> port) {
        hdr.ethernet.destination = mac;
        hdr.ipv4.destination = address;
        hdr.udp.destination = port;
    }
    action nobody() {
        mark_to_drop(standard);
    }
    table workers {
        key = {
            hdr.fanin.job: exact @name("job");
            standard.egress_rid: exact @name("instance");
        }
        actions = { to_worker; nobody; }
        default_action = nobody;
        size = MEMBER_COUNT;
    }

    apply {
        bit<16> instance = standard.egress_rid;
        if (instance >= BARE_INSTANCE) {
            hdr.fanin.kind = KIND_ANSWER;
            hdr.fanin.worker = (bit<8>)(instance - BARE_INSTANCE);
            hdr.fanin.flags = FLAG_BARE | (hdr.fanin.flags & FLAG_CHECKSUM);
            hdr.fanin.base = meta.late_base;
            hdr.fanin.bitmap = meta.late_bitmap;
            hdr.fanin.contributors = 0;
            hdr.fanin.signature = 0;
            hdr.fanin.code_count = 0;
            hdr.fanin.checksum = 0;
            strip.apply(hdr);
            if ((hdr.fanin.flags & FLAG_CHECKSUM) != 0) {
                bit<32> computed;
                checksum.apply(hdr, computed);
                hdr.fanin.checksum = computed;
            }
            lengths.apply(hdr, meta, 0);
        }
        workers.apply();
    }
}

#endif
