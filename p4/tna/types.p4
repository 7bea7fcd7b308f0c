/* Headers and metadata of the Tofino program, and its sizes.
 *
 * One build is either synchronous (RING_BITS 1: S = 0, K = N, the round is the base) or bounded-stale (RING_BITS 2:
 * S <= 2). A ring has 2^RING_BITS entries, at least S + 2, so that its index is the low bits of a base or round. */
#ifndef FANIN_TNA_TYPES_P4
#define FANIN_TNA_TYPES_P4

#include "../shared/headers.p4"

#ifndef WORDS
#define WORDS 16
#endif
#ifndef RING_BITS
#define RING_BITS 2
#endif
#define STALE (RING_BITS > 1)

/* Memory is handed out in pages of 64 slots; entries are what 4 registers of 4 bytes in one stage have room for. */
#define PAGE_SLOT_BITS 6
#define PAGE_BITS (9 - RING_BITS)
#define SLOT_BITS (PAGE_BITS + PAGE_SLOT_BITS)
#define ENTRY_BITS (SLOT_BITS + RING_BITS)
#define TNA_SLOTS (1 << SLOT_BITS)
#define TNA_ENTRIES (1 << ENTRY_BITS)

typedef bit<PAGE_BITS> page_t;
typedef bit<SLOT_BITS> slot_index_t;
typedef bit<ENTRY_BITS> entry_index_t;
typedef bit<RING_BITS> ring_t;

header word_t {
    bit<32> data;
}

/* One scale code and its padding: what a packet of up to 1,024 words carries. */
header code_t {
    bit<16> code;
    bit<16> padding;
}

struct headers_t {
    ethernet_t ethernet;
    arp_t arp;
    ipv4_t ipv4;
    udp_t udp;
    fanin_t fanin;
    code_t code;
    word_t[WORDS] word;
}

/* A 64-bit register: two words that one register action reads and writes together. */
struct pair_t {
    bit<32> low;
    bit<32> high;
}

/* What register actions report of their two comparisons: one bit of four, 1 << (first + 2 * second). */
typedef bit<8> predicate_t;
const predicate_t NEITHER = 1;
const predicate_t FIRST = 2;
const predicate_t SECOND = 4;
const predicate_t BOTH = 8;

struct metadata_t {
    bit<1> ours;            /* parsed as a contribution of a shape that this program takes */
    bit<1> member;
    bit<1> paged;
    bit<32> worker_bit;
    bit<32> others;         /* the other live workers' bits */
    bit<32> needed;         /* K - 1 */
    bit<16> group;
    page_t page;
    bit<32> before;         /* arrived[base] before this packet */
    predicate_t age;        /* FIRST: the entry is the base's; SECOND: it is older; NEITHER: newer, so this is ancient */
    bit<1> duplicate;
    bit<32> bound;          /* floor + S: the round below which rounds may close */
    bit<32> round;          /* the open round, or, for a duplicate, its base */
    bit<32> count;          /* arrivals in the open round before this one */
    predicate_t closing;    /* FIRST: V < bound; SECOND: count suffices. For a duplicate: FIRST: V > base */
}

#endif
