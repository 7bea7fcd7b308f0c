/* Macros for the stateful ALU of a Tofino, with which the same source is also a program for v1model.
 *
 * A register's entry is one 32-bit word or a pair of them. A packet touches an entry once, by one of the register's
 * (at most four) read-modify-writes. Each has at most two conditions, two 32-bit inputs and one result: that is what a
 * stateful ALU of Tofino 1 has. Inside, `held` is the entry and `result` the result, 0 unless set.
 *
 * model.p4 defines FANIN_MODEL, to execute the controls of this folder without a Tofino: an action then reads, changes
 * and writes a register's entry. */
#ifndef FANIN_TNA_TARGET_P4
#define FANIN_TNA_TARGET_P4

#include <core.p4>
#ifdef FANIN_MODEL
#include <v1model.p4>
#elif __TARGET_TOFINO__ == 2
#include <t2na.p4>
#else
#include <tna.p4>
#endif

/* Two words that one read-modify-write reads and writes together. */
struct pair_t {
    bit<32> low;
    bit<32> high;
}

/* Report of a read-modify-write on its two conditions: one bit of four, 1 << (first + 2 * second); 0 if none ran. */
typedef bit<8> predicate_t;
const predicate_t NEITHER = 1;
const predicate_t FIRST = 2;
@noWarn("unused") const predicate_t SECOND = 4;
const predicate_t BOTH = 8;
/* Instead of a report: the entry was cleaned. */
const predicate_t CLEANED = 16;
/* Instead of a report: the packet is the parent's, and no contribution. */
@noWarn("unused") const predicate_t DESCENDED = 32;

/* Size of a table of constant entries, for which Tofino's compiler otherwise assumes 512. */
#ifdef FANIN_MODEL
#define CONST_SIZE(N)
#else
#define CONST_SIZE(N) size = N;
#endif

#ifdef FANIN_MODEL

#define WORD_REGISTER(SIZE, NAME) register<bit<32>>(SIZE) NAME;
#define PAIR_REGISTER(SIZE, NAME)                                                                                      \
    register<bit<32>>(SIZE) NAME ## _low;                                                                              \
    register<bit<32>>(SIZE) NAME ## _high;
#define ON_WORD(INDEX, RESULT, REGISTER, NAME, ...)                                                                    \
    action NAME(in INDEX index, out RESULT result) {                                                                   \
        bit<32> held;                                                                                                  \
        result = 0;                                                                                                    \
        REGISTER.read(held, (bit<32>)index);                                                                           \
        __VA_ARGS__                                                                                                    \
        REGISTER.write((bit<32>)index, held);                                                                          \
    }
#define ON_PAIR(INDEX, RESULT, REGISTER, NAME, ...)                                                                    \
    action NAME(in INDEX index, out RESULT result) {                                                                   \
        pair_t held;                                                                                                   \
        result = 0;                                                                                                    \
        REGISTER ## _low.read(held.low, (bit<32>)index);                                                               \
        REGISTER ## _high.read(held.high, (bit<32>)index);                                                             \
        __VA_ARGS__                                                                                                    \
        REGISTER ## _low.write((bit<32>)index, held.low);                                                              \
        REGISTER ## _high.write((bit<32>)index, held.high);                                                            \
    }
#define RUN(RESULT, NAME, INDEX) NAME(INDEX, RESULT);
#define REPORT(ONE, OTHER)                                                                                             \
    if (ONE) { if (OTHER) { result = BOTH; } else { result = FIRST; } }                                                \
    else { if (OTHER) { result = SECOND; } else { result = NEITHER; } }

#else

#define WORD_REGISTER(SIZE, NAME) Register<bit<32>, _>(SIZE) NAME;
#define PAIR_REGISTER(SIZE, NAME) Register<pair_t, _>(SIZE) NAME;
#define ON_WORD(INDEX, RESULT, REGISTER, NAME, ...)                                                                    \
    RegisterAction<bit<32>, INDEX, RESULT>(REGISTER) NAME = {                                                          \
        void apply(inout bit<32> held, out RESULT result) {                                                            \
            result = 0;                                                                                                \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    };
#define ON_PAIR(INDEX, RESULT, REGISTER, NAME, ...)                                                                    \
    RegisterAction<pair_t, INDEX, RESULT>(REGISTER) NAME = {                                                           \
        void apply(inout pair_t held, out RESULT result) {                                                             \
            result = 0;                                                                                                \
            __VA_ARGS__                                                                                                \
        }                                                                                                              \
    };
#define RUN(RESULT, NAME, INDEX) RESULT = NAME.execute(INDEX);
#define REPORT(ONE, OTHER) result = this.predicate(ONE, OTHER);

#endif
#endif
