/* Headers as the v1model program sees them, and what the controls of one packet tell each other.
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

/* What the controller's packets begin with. */
@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;     /* where to send the rest; ignored when it is a poke */
    bit<1> poke;            /* ask the slot that the packet names whether its round can close now (slot_machine.p4) */
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
    bit<32> live;           /* workers that a base must have come from before it counts for the floor */
    bit<8> quorum;          /* arrivals to close: K, or the number of live workers if that is less */
    bit<32> staleness;      /* S, now */
    bit<32> history;        /* H = S_max + 2, the depth of its rings */
    bit<32> slots;
    bit<32> first_slot;     /* of its pool */
    bit<32> first_entry;    /* of its pool's ring entries; each slot has H */
    bit<8> codes;           /* scale codes per packet */
    bit<16> words;          /* most words per packet */
    bit<16> group;          /* multicast group of its results; group + 1 + w also sends a bare answer to worker w */
    bit<32> lost;           /* for NOTICE */
    bit<32> left;
    bit<1> checksum;        /* its packets carry a CRC-32 (checksum.p4) */
    bit<1> branches;        /* its workers are switches: a contribution says how many it holds */
}

/* Of a job whose rounds close at a parent switch: as whom, and where, this switch contributes there (tree.p4). */
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

/* One entry of the ring of sums, without the sums: what makes the header of a result. */
struct round_t {
    bit<32> signature;
    bit<16> contributors;
    bit<8> codes;
    bit<16> words;
}

/* What the admission table, or the verdict table, decides about a packet of ours. */
enum bit<8> Fate {
    DROP = 0,
    NOTICE = 1,             /* dropped, and its sender is told why */
    ECHO = 2,
    CONTROLLER = 3,
    AGGREGATE = 4,          /* to the slot machine */
    RESULT = 5,             /* to all */
    RESULT_AND_BARE = 6,    /* to all, and an acknowledgement to the sender */
    ANSWER = 7,             /* to the sender */
    SILENT = 8,             /* accepted, or a duplicate that the result will answer */
    ASCEND = 9,             /* a round that is complete here, as a contribution to the parent's */
    DESCEND = 10,           /* from the parent */
    ASK = 11                /* back to the parent, which has closed the round, as zeros that its result fits in */
}

struct metadata_t {
    /* parser */
    bit<16> code_words;         /* words that the codes take, padding included */
    bit<16> word_bytes;         /* bytes behind them */
    bit<16> word_count;
    bit<1> whole;               /* all of the datagram was parsed */
    /* job.p4 */
    bit<16> index;              /* of the job, at this switch; hdr.fanin.job is the parent's in what comes from it */
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
    bit<32> result_entry;       /* ring entry of what goes out */
    bit<32> floor;
    bit<32> open;               /* V before this packet */
    bit<8> count;
    bit<32> tag;
    bit<32> bitmap;             /* arrived[base], this packet included once it is accepted */
    bit<1> fresh;               /* the slot's registers are another generation's */
    bit<1> full;                /* a base became complete */
    bit<1> duplicate;
    bit<1> accepted;
    bit<1> complete;            /* the open round held, before this packet, all that it waits for: at a leaf */
    bit<1> due;                 /* ... and holds it now */
    bit<1> closes;              /* the open round did */
    bit<1> adds;                /* the blocks take the packet in */
    bit<1> starts;              /* ... as the first contribution of its round */
    bit<1> shows;               /* the blocks put result_entry into the packet */
    round_t round;              /* the open round, then the one that goes out */
    bit<32> out_round;
    bit<32> out_bitmap;
    bit<1> rewritten;           /* the IPv4 header is ours now */
    bit<1> flooded;             /* to a multicast group, as other traffic */
    /* ingress to egress */
    bit<32> late_base;
    bit<32> late_bitmap;
}

/* The ring entry of a base or round: ring + number mod H. P4 has no division by what it learns at run time, but a hash has a
 * range, and the identity is a hash. */
#define RING_ENTRY(ENTRY, NUMBER) hash(ENTRY, HashAlgorithm.identity, meta.ring, { NUMBER }, meta.job.history);

#endif
