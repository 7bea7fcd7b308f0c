/* fanin for v1model: BMv2's simple_switch and simple_switch_grpc, and fanin's own emulator of its JSON.
 *
 *   ingress   from the controller ------------------------------------------> out of the port it names
 *             to the switch's address: jobs, admission --> refused ---------> counted; some senders get a NOTICE
 *                                                     --> HELLO, BYE -------> to the controller
 *                                                     --> PROBE ------------> ECHO to the sender
 *                                                     --> the slot machine -> result to all, answer to the sender
 *                                                                             up to the parent, in a tree
 *             anything else: forwarded
 *   egress    copies of a result get their worker's addresses
 */
#include <core.p4>
#include <v1model.p4>

#include "admission.p4"
#include "checksum.p4"
#include "forward.p4"
#include "job.p4"
#include "multicast.p4"
#include "parser.p4"
#include "result.p4"
#include "slot_machine.p4"
#include "tally.p4"
#include "types.p4"

control FaninIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Jobs() job;
    Admission() admission;
    SlotMachine() slot_machine;
    ResultHeader() result_header;
    Notice() notice;
    Ascent() ascent;
    Zeros() zeros;
    Seal() seal;
    FromSwitch() from_switch;
    Reflect() reflect;
    Tally() tally;
    Forward() forward;

    action ours() { }
    /* The addresses and ports that workers send to; one port for each flow. */
    table services {
        key = {
            hdr.ipv4.destination: exact @name("address");
            hdr.udp.destination: exact @name("port");
        }
        actions = { ours; NoAction; }
        default_action = NoAction;
        size = 64;
    }

    apply {
        if (hdr.packet_out.isValid() && meta.poke == 0) {
            standard.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
            return;
        }
        hdr.packet_out.setInvalid();
        if (!hdr.udp.isValid() || !services.apply().hit) {
            forward.apply(hdr, meta, standard);
            return;
        }

        if (hdr.fanin.isValid()) {
            job.apply(hdr, meta);
        }
        admission.apply(hdr, meta, standard);
        if (meta.fate == Fate.AGGREGATE) {
            slot_machine.apply(hdr, meta);
        }
        tally.apply(meta);

        if (meta.fate == Fate.CONTROLLER) {
            standard.egress_spec = CPU_PORT;
        } else if (meta.fate == Fate.RESULT) {
            result_header.apply(hdr, meta);
            from_switch.apply(hdr);
            standard.mcast_grp = meta.job.group;
        } else if (meta.fate == Fate.RESULT_AND_BARE) {
            bit<16> sender = (bit<16>)hdr.fanin.worker;
            result_header.apply(hdr, meta);
            from_switch.apply(hdr);
            standard.mcast_grp = meta.job.group + 1 + sender;
        } else if (meta.fate == Fate.ANSWER) {
            result_header.apply(hdr, meta);
            reflect.apply(hdr, meta, standard);
        } else if (meta.fate == Fate.ASCEND) {
            from_switch.apply(hdr);
            ascent.apply(hdr, meta, standard);
        } else if (meta.fate == Fate.ASK) {
            zeros.apply(hdr, meta.round.codes, meta.round.words);
            from_switch.apply(hdr);
            ascent.apply(hdr, meta, standard);
        } else if (meta.fate == Fate.NOTICE) {
            notice.apply(hdr, meta);
            reflect.apply(hdr, meta, standard);
        } else if (meta.fate == Fate.ECHO) {
            hdr.fanin.kind = KIND_ECHO;
            reflect.apply(hdr, meta, standard);
        } else {
            mark_to_drop(standard);
        }
        if (meta.rewritten == 1) {
            seal.apply(hdr);
        }
    }
}

control FaninEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Multicast() multicast;
    Departures() departures;
    apply {
        if (standard.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = standard.ingress_port;
            hdr.packet_in.unused = 0;
        } else if (meta.closes == 1) {
            multicast.apply(hdr, meta, standard);
            departures.apply(meta);
        } else if (meta.rewritten == 1) {
            departures.apply(meta);
        } else if (meta.flooded == 1 && standard.egress_port == standard.ingress_port) {
            mark_to_drop(standard);         /* a flooded packet does not go back */
        }
    }
}

V1Switch(FaninParser(), FaninVerifyChecksum(), FaninIngress(), FaninEgress(), FaninComputeChecksum(),
         FaninDeparser()) main;
