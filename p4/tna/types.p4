/* Headers and metadata of the Tofino program, and its sizes.
 *
 * One build is either synchronous (RING_BITS 1: S = 0, so that the open round is the base) or bounded-stale
 * (RING_BITS 2: S_max <= 2). A ring has 2^RING_BITS entries, at least S_max + 2, so that its index is the low bits of a base or
 * round, and entry number slot * 2^RING_BITS + index needs no arithmetic.
 *
 * A build with PAIRS holds two words per register, and packets that carry a round's words pass twice (second_pass.p4). One with
 * LEAF can be a leaf of a tree as well (leaf.p4); it is synchronous and has pairs. */
#ifndef FANIN_TNA_TYPES_P4
#define FANIN_TNA_TYPES_P4

#include "../shared/headers.p4"
#include "target.p4"

/* Most words per packet: a multiple of 4 (parser.p4). */
#ifndef WORDS
#define WORDS 16
#endif
#ifndef RING_BITS
#define RING_BITS 2
#endif
#define STALE (RING_BITS > 1)
#ifndef PAIRS
#define PAIRS 0
#endif
/* Expands to its arguments in a build with pairs, else to nothing; for parts of a list. */
#if PAIRS
#define WITH_PAIRS(...) __VA_ARGS__
#else
#define WITH_PAIRS(...)
#endif
#ifndef LEAF
#define LEAF 0
#endif
/* Expands to its arguments in a build that can be a leaf, else to nothing; for parts of a list. */
#if LEAF
#define WITH_LEAF(...) __VA_ARGS__
#else
#define WITH_LEAF(...)
#endif
/* Matches any value of a row's last key `closed`, which only such a build has. */
#define ANY_CLOSED WITH_LEAF(, _)
#if LEAF && (STALE || !PAIRS)
#error "a leaf is synchronous, RING_BITS=1, and its parent's packets pass twice, PAIRS=1"
#endif
/* Slots of all jobs together, as a power of two. */
#ifndef SLOT_BITS
#define SLOT_BITS 12
#endif
#define ENTRY_BITS (SLOT_BITS + RING_BITS)
#define SLOTS_HELD (1 << SLOT_BITS)
#define ENTRIES_HELD (1 << ENTRY_BITS)

#include "words.p4"

@noWarn("unused") typedef bit<SLOT_BITS> slot_t;
typedef bit<ENTRY_BITS> entry_t;

#ifndef FANIN_MODEL
typedef PortId_t port_t;
#else
typedef bit<9> port_t;
#endif

/* Entry of a ring: of slot `meta.slot`, for this base or round. */
#define ENTRY(NUMBER) (meta.slot[SLOT_BITS - 1:0] ++ NUMBER[RING_BITS - 1:0])
#define SLOT meta.slot[SLOT_BITS - 1:0]

header word_t {
    bit<32> data;
}

/* One scale code, in the upper half, and its padding, which is 0: compared as one number. */
header code_t {
    bit<32> both;
}

@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;     /* port for the rest of the packet; ignored if `clean` */
    bit<1> clean;           /* resets a slot's registers, and those of one ring entry, to their state at power-on */
    bit<6> unused;
}

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> unused;
}

/* Metadata that ingress passes to egress. */
header bridge_t {
    bit<8> way;             /* one of the constants below */
    bit<9> ingress_port;    /* with `unused` as in packet_in_t, so that both are copied as a whole */
    bit<7> unused;
    bit<7> also_unused;
    bit<9> came_by;         /* the same port, aligned so that it can be compared with an egress port */
    bit<32> late_base;      /* for the bare answer that goes out with a result */
    bit<32> late_bitmap;
}
@noWarn("unused") const bit<8> FORWARDED = 0;
const bit<8> FLOODED = 1;
const bit<8> TO_CONTROLLER = 2;
const bit<8> TO_SENDER = 3;
const bit<8> TO_WORKERS = 4;
const bit<8> REPLIED = 6;       /* an ARP request, now its reply */
#if LEAF
const bit<8> TO_PARENT = 7;
/* In header `again` only: the second pass takes the packet as one from the parent of the job that it names. */
const bit<8> DOWN = 8;
#endif
#if PAIRS
const bit<8> AGAIN = 5;

/* State that the first pass hands to the second: where the packet goes. Precedes the frame between the passes. */
header again_t {
    bit<8> way;             /* TO_SENDER or TO_WORKERS, at a leaf TO_PARENT or DOWN too */
    bit<16> sent_to;
    bit<9> port_out;
    bit<7> unused;
#if LEAF
    bit<32> contributors;   /* of the parent's result; as wide as the facts of the round that it becomes part of */
#endif
#if STALE
    bit<32> late_base;
    bit<32> late_bitmap;
#endif
}
/* Tofino's own port for packets that pass again, in every pipe; the upper two bits of a port's number are its pipe. */
const bit<9> RECIRCULATION_PORT = 68;
#endif

#define WORD_HEADER(I, NEXT) word_t word ## I;
struct headers_t {
#ifdef FANIN_MODEL
    packet_in_t packet_in;
#else
    bridge_t bridge;
#endif
    packet_out_t packet_out;
#if PAIRS
    again_t again;
#endif
    ethernet_t ethernet;
    arp_t arp;
    ipv4_t ipv4;
    udp_t udp;
    fanin_t fanin;
    absent_t absent;
    code_t code;
    EACH_WORD(WORD_HEADER)
}
#undef WORD_HEADER

/* Bit of a shape: the packet has a code. */
const bit<32> WITH_CODE = 0x80000000;

/* Findings of the parser, in the order in which it looks for them. */
typedef bit<8> found_t;
const found_t TOO_SHORT = 0;
const found_t BAD_MAGIC = 1;
const found_t OTHER_VERSION = 2;
const found_t CHECKSUMMED = 3;
const found_t ILLEGAL = 4;          /* no legal length, flags or reserved bits */
const found_t HEADER = 5;           /* another kind than a contribution */
const found_t WITH_WORDS = 6;       /* a contribution */
const found_t WITHOUT = 7;          /* a pass */
#if PAIRS
const found_t PASSED_ONCE = 16;       /* bit, with WITH_WORDS: a packet of the switch itself, in its second pass */
#endif
#if LEAF
const found_t BARE_ANSWER = 8;
const found_t FROM_PARENT = 32;     /* bit, with another value: from the parent of a job here (leaf.p4) */
#endif

/* Decision about a packet of ours. */
typedef bit<8> fate_t;
const fate_t DROP = 0;
const fate_t NOTICE = 1;            /* dropped, and its sender is told why */
const fate_t ECHO = 2;
const fate_t CONTROLLER = 3;
const fate_t AGGREGATE = 4;
const fate_t BARE = 5;              /* an acknowledgement to the sender */
const fate_t SILENT = 6;            /* nothing to send: accepted, or a duplicate that the result will answer */
#if PAIRS
const fate_t RELEASE = 7;           /* has passed twice: goes where its first pass said */
#endif
/* Fates with bit 3 set carry a round's words. */
const fate_t RESULT = 8;            /* multicast to all workers */
const fate_t RESULT_AND_BARE = 9;   /* to all workers, and an acknowledgement to the sender */
const fate_t ANSWER = 10;           /* to the sender */
#if LEAF
const fate_t ASCEND = 11;           /* a complete round, as a contribution to the parent */
/* Packets from the parent carry their own words, not a round's. */
const fate_t TURN_IN = 16;          /* the parent's result: becomes DESCEND in a second pass */
const fate_t DESCEND = 17;          /* the parent's result in its second pass: the slot machine decides */
const fate_t HAND_DOWN = 18;        /* the parent's result, multicast to all workers */
const fate_t ASK = 19;              /* zeros to the parent, to get the result that its bare answer lacks */
#endif
#define CARRIES_WORDS meta.fate[3:3]

/* Verdict of `arrived` on a contribution. */
typedef bit<8> verdict_t;
const verdict_t NONE = 0;
const verdict_t NEW = 1;
const verdict_t DUPLICATE = 2;
const verdict_t ANCIENT = 3;
const verdict_t CLEAN = 4;

/* Operation of a round's registers, its sums among them, on a packet. */
typedef bit<8> step_t;
const step_t NOTHING = 0;
const step_t START = 1;             /* overwrite the entry */
const step_t CLEAR = 2;             /* overwrite the entry with zeros: a pass comes first */
const step_t ADD = 3;
const step_t SHOW = 4;              /* read only */
#if PAIRS
const step_t FETCH = 5;             /* read the other word of each pair */
#endif

struct metadata_t {
    /* parser */
    found_t found;
    bit<1> passes;
    bit<1> clean;
    bit<1> damaged;         /* the IPv4 checksum is wrong */
    bit<32> shape;          /* code_count << 31 | words << 24: the upper byte of a round's facts */
    bit<8> words;
    /* ingress.p4, forward.p4 */
    bit<1> addressed;       /* to the switch */
    bit<1> answered;        /* an ARP request, turned into its reply */
    /* job.p4 */
    bit<1> known;
    bit<1> member;
#if LEAF
    bit<16> index;          /* index here of the job whose parent sent the packet */
    bit<1> leaf;            /* the job's rounds close at a parent, behind port `parent_port` */
    port_t parent_port;
    bit<32> brought;        /* contributors that this packet adds: 1, or those of the parent's result */
    bit<32> facts;          /* `brought` and the shape, in the layout of a round's facts */
    predicate_t closed;     /* FIRST: the parent has closed this base, or does so now */
#endif
    bit<16> row;
    bit<32> generation;     /* 0: the packet's generation is the job's */
    bit<8> worker_range;    /* N - worker, once worker < 128 */
    bit<32> slot_range;     /* slots - slot, once slot < 2^31 */
    bit<8> word_room;       /* top bit: more words than the job has per packet */
    bit<8> code_room;
    bit<32> live;
    bit<32> slot;
    bit<32> worker_bit;
    bit<16> worker_number;  /* worker + 1 */
    bit<32> dead;           /* the worker's bit, if it is evicted */
    bit<32> others;         /* bitmap of the other live workers */
    bit<16> group;
    bit<16> late_group;
    bit<32> lost;
    bit<32> left;
    /* admission.p4, outcome.p4 */
    fate_t fate;
    bit<16> reason;
    bit<5> cause;           /* `reason` for a counter's index: a slice of `reason` would split that field */
    /* the slot machine */
    bit<32> seal;           /* signature and shape in one word */
    predicate_t sealed;     /* FIRST: the round has no seal yet, or an older one; SECOND: it has this one; CLEANED;
                             * DESCENDED: the parent's result is not compared */
    bit<32> before;         /* arrived[base] before this packet; 0 if it belonged to an older base */
    predicate_t age;        /* FIRST: the entry is this base's; SECOND: an older one's; NEITHER: a newer one's; CLEANED */
    verdict_t verdict;
    bit<32> missing;        /* live workers, without this packet's, that have not contributed base yet */
    step_t step;
    bit<32> held_seal;
    bit<32> held;           /* a round's shape and, in the lower half, its contributors */
    bit<32> bitmap;
    bit<32> round;          /* the open round, or a duplicate's base */
#if STALE
    bit<32> quorum;
    bit<32> needed;         /* count that lets the round close: K - 1 for an arrival, else K */
    bit<32> staleness;
    bit<32> reach;          /* floor + S, if this packet's base becomes complete */
    bit<32> limit;          /* rounds below this floor + S may close; for a duplicate, its base */
    bit<8> turn;            /* COUNT, PASS_BY, CLOSE_IF_DUE, LOOK, CLEAN_UP: what `open` does */
    predicate_t closing;
    bit<32> count;
    bit<32> behind;         /* open round - base: 0 unless the contribution is late */
#else
    bit<32> claim;          /* base + 1, since 0 marks an entry without a seal */
#endif
    /* to egress */
    bit<8> way;
    bit<1> drop;
    bit<16> sent_to;        /* multicast group, if not 0 */
    port_t port_in;
    port_t port_out;
    bit<32> late_base;
    bit<32> late_bitmap;
}

#if STALE
const bit<8> COUNT = 1;
const bit<8> PASS_BY = 2;
const bit<8> CLOSE_IF_DUE = 3;
const bit<8> LOOK = 4;
const bit<8> CLEAN_UP = 5;
/* More arrivals than any round holds. */
const bit<32> NEVER = 0x7FFFFFFF;
#endif

#endif
