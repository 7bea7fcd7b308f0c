// A compiled P4 program as instructions for a register machine, which switch/p4/native_program.py translates from the
// functions that the Python emulator runs.
//
// A packet's state is one array of 64-bit limbs, the frame: the architecture's state, the packet's fields, the data of
// the matching table entry, temporaries, constants. A value takes as many limbs as its width requires, the lowest
// first, in two's complement if it may be negative. Operands are places in the frame. An instruction with a result of
// one limb keeps its low `n` bits; any other result has `n` limbs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace fanin::p4 {

// clang-format off
#define FANIN_P4_OPERATIONS(X)                                                                                        \
  X(HALT) X(JUMP) X(STOP) X(FAIL) X(TRANSIT) X(ACTION_END)                                                            \
  X(JUMP_ZERO) X(JUMP_NONZERO) X(JUMP_EQ) X(JUMP_NE) X(JUMP_LT) X(JUMP_LE) X(JUMP_LT_SIGNED) X(JUMP_LE_SIGNED)        \
  X(JUMP_EQ_WIDE) X(JUMP_NE_WIDE) X(JUMP_LT_WIDE) X(JUMP_LE_WIDE)                                                     \
  X(COPY) X(ADD) X(SUB) X(MUL) X(AND) X(OR) X(XOR) X(NOT) X(SHL) X(SHR) X(SHL_VAR) X(SHR_VAR) X(DIV) X(MOD) X(SEXT)   \
  X(COPY_WIDE) X(ADD_WIDE) X(SUB_WIDE) X(AND_WIDE) X(OR_WIDE) X(XOR_WIDE) X(NOT_WIDE) X(SHL_WIDE) X(SHR_WIDE)         \
  X(EXTEND) X(ZERO) X(TRIM)                                                                                           \
  X(LOAD8) X(LOAD16) X(LOAD32) X(LOAD64) X(LOAD_BITS)                                                                 \
  X(READ32) X(READ64) X(READ_WIDE) X(WRITE32) X(WRITE64) X(WRITE_WIDE) X(COUNT_PACKET) X(COUNT_BYTES)                 \
  X(FIND) X(MISS) X(COUNT_ENTRY) X(METER_ENTRY) X(METER_CELL) X(SELECT) X(RUN)                                                                               \
  X(HASH_BEGIN) X(HASH_PUT) X(HASH) X(EMIT) X(EMIT_PAYLOAD)
// clang-format on

enum class Operation : std::uint16_t {
#define FANIN_P4_NAME(name) name,
  FANIN_P4_OPERATIONS(FANIN_P4_NAME)
#undef FANIN_P4_NAME
};

inline const std::vector<const char*>& operation_names() {
  static const std::vector<const char*> names{
#define FANIN_P4_NAME(name) #name,
      FANIN_P4_OPERATIONS(FANIN_P4_NAME)
#undef FANIN_P4_NAME
  };
  return names;
}

struct Instruction {
  Operation operation;
  std::uint16_t n;
  std::uint32_t d;
  std::uint32_t a;
  std::uint32_t b;
};
static_assert(sizeof(Instruction) == 16);

// The first limbs of a frame: the architecture's state of a packet (switch/p4/packet_state.py).
enum State : std::uint32_t {
  ARRIVED,       // length on arrival, in bytes
  LENGTH,        // current length in bytes, updated as headers are added and removed
  CUT,           // most bytes of it that leave the switch
  EXIT,          // whether the program has called exit
  CLONE,         // mirror session and CLONE_ASKED, if a clone was requested
  CLONE_FIELDS,  // field list of the clone
  RESUBMIT,      // field list, if resubmit was requested
  RECIRCULATE,   // field list, if recirculate was requested
  AT,            // the parser's position, in bytes
  PACKET_BYTES,  // bytes to parse
  RESULT,        // of `verify`: whether a checksum is wrong
  SOURCE_PORT,   // port of arrival, kept in all passes
  NOW_US,        // time of arrival, in microseconds
  DIGEST,        // learn list, if a digest was requested
  STATE_LIMBS = 16,
};
constexpr std::uint64_t CLONE_ASKED = 1 << 15;

enum class Hash : std::uint32_t { internet, crc16, crc32, ccitt, identity, xor16 };
std::uint64_t hash_of(Hash algorithm, const std::uint8_t* data, std::size_t bytes);

// A register array, whose memory is Python's.
struct RegisterArray {
  void* cells;
  std::uint32_t size;
  std::uint32_t limbs;
};

// A counter array, whose memory is Python's.
struct CounterArray {
  std::int64_t* packets;
  std::int64_t* bytes;
  std::uint32_t size;
};

// A meter array, whose memory is Python's.
struct MeterArray {
  std::int64_t* cells;
  std::uint32_t size;
};

// Writes sequences of bits, the most significant first.
class BitWriter {
 public:
  void clear() {
    used_ = 0;
    rest_ = 0;
    rest_bits_ = 0;
  }
  // Appends the low `bits`, 1..64, of `value`.
  void put(std::uint64_t value, unsigned bits);
  // Appends the low `bits` of a value of several limbs.
  void put_wide(const std::uint64_t* limbs, unsigned bits);
  void put_bytes(const std::uint8_t* data, std::size_t count);
  void pad();
  std::span<const std::uint8_t> bytes() const { return {bytes_.data(), used_}; }

 private:
  // Makes room for `count` more bytes; returns where they go.
  std::uint8_t* room(std::size_t count) {
    if (bytes_.size() < used_ + count) bytes_.resize(2 * (used_ + count));
    return bytes_.data() + used_;
  }

  std::vector<std::uint8_t> bytes_;  // kept from packet to packet
  std::size_t used_ = 0;
  std::uint64_t rest_ = 0;
  unsigned rest_bits_ = 0;
};

}  // namespace fanin::p4
