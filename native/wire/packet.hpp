// Reading and writing the header of a datagram, as fanin/protocol/wire.py does, in place and without copies.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "wire/wire_constants.hpp"

namespace fanin {

// Big-endian numbers. Each is loaded and stored as a whole: given single bytes, a compiler would store a header byte by
// byte, and a processor waits when it loads in one piece memory that was stored in several.
constexpr std::uint16_t swapped_be16(std::uint16_t value) {
  return std::endian::native == std::endian::big ? value : __builtin_bswap16(value);
}
constexpr std::uint32_t swapped_be32(std::uint32_t value) {
  return std::endian::native == std::endian::big ? value : __builtin_bswap32(value);
}

inline std::uint16_t load_be16(const std::uint8_t* at) {
  std::uint16_t value;
  std::memcpy(&value, at, sizeof value);
  return swapped_be16(value);
}

inline std::uint32_t load_be32(const std::uint8_t* at) {
  std::uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return swapped_be32(value);
}

inline void store_be16(std::uint8_t* at, std::uint32_t value) {
  const std::uint16_t stored = swapped_be16(static_cast<std::uint16_t>(value));
  std::memcpy(at, &stored, sizeof stored);
}

inline void store_be32(std::uint8_t* at, std::uint32_t value) {
  const std::uint32_t stored = swapped_be32(value);
  std::memcpy(at, &stored, sizeof stored);
}

// Bytes of scale codes on the wire, padded to whole words.
constexpr std::size_t codes_bytes(std::size_t code_count) {
  return (code_count * CODE_BYTES + WORD_BYTES - 1) / WORD_BYTES * WORD_BYTES;
}

constexpr std::size_t datagram_bytes(std::size_t code_count, std::size_t word_count) {
  return HEADER_BYTES + codes_bytes(code_count) + word_count * WORD_BYTES;
}

// The fields that every kind shares; the checksum is not among them.
struct Header {
  Kind kind{};
  std::uint16_t job = 0;
  std::uint8_t worker = 0;
  std::uint8_t flags = 0;
  std::uint32_t generation = 0;
  std::uint32_t slot = 0;
  std::uint32_t base = 0;
  std::uint32_t signature = 0;
  std::uint32_t bitmap = 0;
  std::uint16_t contributors = 0;
  std::uint8_t code_count = 0;
  std::uint8_t lanes = 0;  // 0: words are added whole

  bool operator==(const Header&) const = default;
};

// Meaning of the `lanes` field: fanin.protocol.wire.LaneField.
constexpr std::uint32_t lane_bits_up(std::uint8_t lanes) { return 1u << (lanes >> LANES_UP & 3); }
constexpr std::uint32_t lane_bits_down(std::uint8_t lanes) { return 1u << (lanes >> LANES_DOWN & 3); }
constexpr std::uint32_t lane_shift(std::uint8_t lanes) { return lanes >> LANES_SHIFT; }
constexpr std::uint8_t without_shift(std::uint8_t lanes) {
  return static_cast<std::uint8_t>(lanes & ((1u << LANES_SHIFT) - 1));
}
// The `lanes` field of the result of contributions with `lanes`.
constexpr std::uint8_t lanes_of_result(std::uint8_t lanes, std::uint32_t shift = 0) {
  const std::uint32_t down = lanes >> LANES_DOWN & 3;
  return static_cast<std::uint8_t>(lanes == 0 ? 0 : shift << LANES_SHIFT | down << LANES_UP | down << LANES_DOWN);
}
constexpr std::size_t words_of_result(std::uint8_t lanes, std::size_t words) {
  return lanes == 0 ? words : words * lane_bits_down(lanes) / lane_bits_up(lanes);
}
// Number of consecutive items of a pass or a bare result.
constexpr std::uint32_t run_of(const Header& header) { return (header.flags & FLAG_RUN) != 0 ? header.lanes : 1; }
constexpr bool legal_run(const Header& header) {
  const bool joined = header.kind == Kind::contribution
                          ? (header.flags & FLAG_PASS) != 0
                          : header.kind == Kind::result && (header.flags & FLAG_BARE) != 0;
  return joined && header.lanes >= 2 && header.lanes <= MAX_RUN;
}
// The header of packet number `index` of a run, as fanin.protocol.wire.Packet.part.
constexpr Header part_of(Header header, std::uint32_t index, std::uint32_t slots) {
  if ((header.flags & FLAG_RUN) == 0) return header;
  const std::uint32_t at = header.slot + index;
  header.flags &= static_cast<std::uint8_t>(~FLAG_RUN);
  header.lanes = 0;
  header.slot = at % slots;
  header.base += at / slots;
  if (header.kind == Kind::contribution && header.bitmap != 0) header.bitmap += index;
  return header;
}
// The run of a pass or bare result, or a run of them, followed by `next`; none if they do not form a run.
constexpr std::optional<Header> with_next(Header run, const Header& next, std::uint32_t slots) {
  const std::uint32_t count = run_of(run);
  if (count >= MAX_RUN) return std::nullopt;
  run.flags |= FLAG_RUN;
  run.lanes = static_cast<std::uint8_t>(count + 1);
  return legal_run(run) && part_of(run, count, slots) == next ? std::optional(run) : std::nullopt;
}

constexpr bool legal_lanes(const Header& header) {
  if ((header.flags & FLAG_RUN) != 0 && header.kind != Kind::welcome) return legal_run(header);
  if (header.lanes == 0) return true;
  const std::uint32_t up = lane_bits_up(header.lanes), down = lane_bits_down(header.lanes);
  const bool with_words =
      header.kind == Kind::contribution || header.kind == Kind::result || header.kind == Kind::answer;
  const std::uint32_t without_words = header.kind == Kind::contribution ? FLAG_PASS : FLAG_PASS | FLAG_BARE;
  return with_words && (header.flags & without_words) == 0 && up >= 2 && up <= down && down >= 4;
}

inline Header load_header(const std::uint8_t* at) {
  return {.kind = static_cast<Kind>(at[OFFSET_KIND]),
          .job = load_be16(at + OFFSET_JOB),
          .worker = at[OFFSET_WORKER],
          .flags = at[OFFSET_FLAGS],
          .generation = load_be32(at + OFFSET_GENERATION),
          .slot = load_be32(at + OFFSET_SLOT),
          .base = load_be32(at + OFFSET_BASE),
          .signature = load_be32(at + OFFSET_SIGNATURE),
          .bitmap = load_be32(at + OFFSET_BITMAP),
          .contributors = load_be16(at + OFFSET_CONTRIBUTORS),
          .code_count = at[OFFSET_CODE_COUNT],
          .lanes = at[OFFSET_LANES]};
}

// Writes HEADER_BYTES, with the checksum field zero.
inline void store_header(std::uint8_t* at, const Header& header) {
  store_be16(at + OFFSET_MAGIC, MAGIC);
  at[OFFSET_VERSION] = VERSION;
  at[OFFSET_KIND] = static_cast<std::uint8_t>(header.kind);
  store_be16(at + OFFSET_JOB, header.job);
  at[OFFSET_WORKER] = header.worker;
  at[OFFSET_FLAGS] = header.flags;
  store_be32(at + OFFSET_GENERATION, header.generation);
  store_be32(at + OFFSET_SLOT, header.slot);
  store_be32(at + OFFSET_BASE, header.base);
  store_be32(at + OFFSET_SIGNATURE, header.signature);
  store_be32(at + OFFSET_BITMAP, header.bitmap);
  store_be16(at + OFFSET_CONTRIBUTORS, header.contributors);
  at[OFFSET_CODE_COUNT] = header.code_count;
  at[OFFSET_LANES] = header.lanes;
  store_be32(at + OFFSET_CHECKSUM, 0);
}

// Result of parsing. `reason` is Reason{} (zero) for a well-formed datagram whose checksum is still to be verified.
struct Parsed {
  Reason reason{};
  Header header;
  const std::uint8_t* codes = nullptr;  // header.code_count of them, 16 bits each, big-endian
  const std::uint8_t* words = nullptr;  // word_count of them, 32 bits each, big-endian
  std::size_t word_count = 0;

  bool ok() const { return reason == Reason{}; }
  // Packet number `index` of a run.
  Parsed part(std::uint32_t index, std::uint32_t slots) const {
    if ((header.flags & FLAG_RUN) == 0) return *this;
    return {.header = part_of(header, index, slots),
            .codes = codes + index * codes_bytes(header.code_count),
            .words = nullptr,
            .word_count = 0};
  }
};

// Same checks, in the same order and with the same reasons, as fanin.protocol.wire.parse, the checksum apart. `header`
// is filled in from TOO_SHORT and BAD_MAGIC upwards, so that a packet of another version can be answered.
//
// A datagram may lie in memory that its sender still writes to (native/io/shared_memory.hpp). So the header is copied
// first, and only the copy is checked and used; codes and words are any numbers at any time, and are read as such.
//
// Fills in `parsed` in place, because copying a struct whose fields were just stored makes a processor wait. For
// TOO_SHORT and BAD_MAGIC it stays as it was. Inlined always: a call takes 15 % more instructions.
[[gnu::always_inline]] inline Reason parse_into(std::span<const std::uint8_t> datagram, Parsed& parsed) {
  if (datagram.size() < HEADER_BYTES) return Reason::too_short;
  std::uint8_t head[HEADER_BYTES];
  std::memcpy(head, datagram.data(), HEADER_BYTES);
  // The compiler must not read the header again from the datagram, and later reads of words must not see older memory.
  std::atomic_thread_fence(std::memory_order_acquire);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (load_be16(head + OFFSET_MAGIC) != MAGIC) return Reason::bad_magic;
  parsed.header = load_header(head);
  if (head[OFFSET_VERSION] != VERSION) return Reason::version;
  if (head[OFFSET_KIND] < static_cast<std::uint8_t>(Kind::contribution) ||
      head[OFFSET_KIND] > static_cast<std::uint8_t>(Kind::receipt))
    return Reason::kind;
  const std::size_t words_at = HEADER_BYTES + codes_bytes(parsed.header.code_count);
  if (datagram.size() > MAX_DATAGRAM_BYTES || parsed.header.code_count > MAX_CODES || datagram.size() < words_at ||
      (datagram.size() - words_at) % WORD_BYTES != 0)
    return Reason::length;
  if ((parsed.header.flags & ~(FLAG_PASS | FLAG_CHECKSUM | FLAG_BARE | FLAG_LATE | FLAG_RUN)) != 0 ||
      !legal_lanes(parsed.header))
    return Reason::length;
  if (const std::uint32_t run = run_of(parsed.header);
      run > 1 && datagram.size() != HEADER_BYTES + run * codes_bytes(parsed.header.code_count))
    return Reason::length;
  parsed.codes = datagram.data() + HEADER_BYTES;
  parsed.words = datagram.data() + words_at;
  parsed.word_count = (datagram.size() - words_at) / WORD_BYTES;
  return Reason{};
}

inline Parsed parse(std::span<const std::uint8_t> datagram) {
  Parsed parsed;
  parsed.reason = parse_into(datagram, parsed);
  return parsed;
}

}  // namespace fanin
