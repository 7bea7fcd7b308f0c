/* Headers and metadata of the v1model program.
 *
 * Words and codes are parsed in blocks whose lengths are powers of two, as many as the binary digits of their number say:
 * 100 words are one block of 64, one of 32 and one of 4. So a packet of any length, up to WORDS_PER_PACKET, is held by a
 * dozen wide fields, and one addition adds 64 words (blocks.p4). p4c takes fields of up to 2,048 bits, hence 64. */
#ifndef FANIN_TYPES_P4
#define FANIN_TYPES_P4

#include "../shared/headers.p4"

#define WHOLE_BLOCKS (WORDS_PER_PACKET / 64)

header block1_t { bit<32> data; }
header block2_t { bit<64> data; }
header block4_t { bit<128> data; }
header block8_t { bit<256> data; }
header block16_t { bit<512> data; }
header block32_t { bit<1024> data; }
header block64_t { bit<2048> data; }

/* Precedes each packet from the controller (P4Runtime packet-out). */
@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;     /* port for the rest of the packet; ignored in a poke */
    bit<1> poke;            /* ask the packet's slot whether its round can close now (slot_machine.p4) */
    bit<6> unused;
}

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> unused;
}

struct headers_t {
    packet_out_t packet_out;
    packet_in_t packet_in;
    ethernet_t ethernet;
    arp_t arp;
    ipv4_t ipv4;
    udp_t udp;
    fanin_t fanin;
    absent_t absent;
    block32_t codes32;
    block16_t codes16;
    block8_t codes8;
    block4_t codes4;
    block2_t codes2;
    block1_t codes1;
    block64_t[WHOLE_BLOCKS] words64;
    block32_t words32;
    block16_t words16;
    block8_t words8;
    block4_t words4;
    block2_t words2;
    block1_t words1;
}

/* A job's facts: the parameters of its entry in table `jobs`. */
struct job_t {
    bit<1> known;
    bit<16> row;            /* index of its counters, 1.. */
    bit<32> generation;
    bit<8> workers;         /* N */
    bit<32> live;           /* bitmap of the workers that must have contributed a base before it counts for the floor */
    bit<8> quorum;          /* arrivals to close: K, or the number of live workers if that is less */
    bit<32> staleness;      /* S, as currently set */
    bit<32> history;        /* H = S_max + 2, the depth of its rings */
    bit<32> slots;
    bit<32> first_slot;     /* first slot of the job's pool */
    bit<32> first_entry;    /* first ring entry of the job's pool; each slot has H */
    bit<8> codes;           /* scale codes per packet */
    bit<16> words;          /* most words per packet */
    bit<16> group;          /* multicast group of its results; group + 1 + w also sends a bare answer to worker w */
    bit<32> lost;           /* bitmap of lost workers, for NOTICE */
    bit<32> left;
    bit<1> checksum;        /* its packets carry a CRC-32 (checksum.p4) */
    bit<1> branches;        /* its workers are switches: a contribution says how many it holds */
}

/* Uplink of a job whose rounds close at a parent switch: this switch's identity there, and the way to it (tree.p4). */
struct uplink_t {
    bit<1> known;
    bit<16> job;
    bit<32> generation;
    bit<8> worker;          /* this switch's number among the parent's workers */
    mac_t mac;
    ipv4_address_t address;
    bit<16> port;           /* UDP */
    bit<9> egress_port;
}

/* Facts of one round, for the header of its result: an entry of the ring of sums, without the sums. */
struct round_t {
    bit<32> signature;
    bit<16> contributors;
    bit<8> codes;
    bit<16> words;
}

/* Decision of the admission, verdict or descent table about a packet of ours. */
enum bit<8> Fate {
    DROP = 0,
    NOTICE = 1,             /* dropped, and its sender is told why */
    ECHO = 2,
    CONTROLLER = 3,
    AGGREGATE = 4,          /* to the slot machine, which decides */
    RESULT = 5,             /* the round closes: multicast to all workers */
    RESULT_AND_BARE = 6,    /* to all workers, and an acknowledgement to the sender */
    ANSWER = 7,             /* a closed round's result, to the sender */
    SILENT = 8,             /* accepted, or a poke: nothing to send so far */
    ASCEND = 9,             /* to the parent: a round complete here, as a contribution */
    DESCEND = 10,           /* from the parent: tree.p4 decides */
    ASK = 11                /* to the parent, which has closed the round: zeros, with room for its result */
}

struct metadata_t {
    /* parser */
    bit<16> code_words;         /* words that the codes take, padding included */
    bit<16> word_bytes;         /* bytes after the codes */
    bit<16> word_count;
    bit<1> whole;               /* all of the datagram was parsed */
    /* job.p4 */
    bit<16> index;              /* the job's index at this switch; in a packet from the parent, hdr.fanin.job is the parent's */
    job_t job;
    uplink_t uplink;
    bit<1> down;                /* the parent sent it */
    bit<1> member;              /* the source is the registered address of that worker of that job */
    bit<32> worker_bit;
    bit<1> passes;
    bit<1> poke;
    /* admission.p4, verdict.p4 */
    Fate fate;
    bit<16> reason;
    /* the slot machine */
    bit<32> slot;               /* index of the slot's registers */
    bit<32> ring;               /* index of its first ring entry */
    bit<32> base_entry;         /* ring entry of the contribution's base */
    bit<32> open_entry;         /* ring entry of the open round */
    bit<32> round_entry;        /* ring entry that RoundRead reads */
    bit<32> result_entry;       /* ring entry of the round that is sent */
    bit<32> floor;
    bit<32> open;               /* V before this packet */
    bit<8> count;
    bit<32> tag;
    bit<32> bitmap;             /* arrived[base], this packet included once it is accepted */
    bit<1> fresh;               /* the slot's registers hold another generation, so read as zero */
    bit<1> full;                /* a base became complete */
    bit<1> duplicate;
    bit<1> accepted;
    bit<1> complete;            /* at a leaf: the open round was due before this packet, and waits for the parent's result */
    bit<1> due;                 /* the open round is due with this packet */
    bit<1> closes;              /* the open round closes with this packet */
    bit<1> adds;                /* the blocks add the packet's codes and words */
    bit<1> starts;              /* the packet is the first of its round: the blocks overwrite the entry */
    bit<1> shows;               /* the blocks copy entry `result_entry` into the packet */
    round_t round;              /* facts of the open round, later of the round that is sent */
    bit<32> out_round;
    bit<32> out_bitmap;
    bit<1> rewritten;           /* the switch has rewritten the IPv4 header */
    bit<1> flooded;             /* other traffic, sent to a multicast group */
    /* ingress to egress */
    bit<32> late_base;
    bit<32> late_bitmap;
}

/* The ring entry of a base or round: ring + number mod H. P4 cannot divide by a number known only at run time, but hash()
 * reduces modulo such a number, and `identity` is one of its algorithms. */
#define RING_ENTRY(ENTRY, NUMBER) hash(ENTRY, HashAlgorithm.identity, meta.ring, { NUMBER }, meta.job.history);

#endif
