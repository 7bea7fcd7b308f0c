#include "packet_tag.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernel_table.hpp"  // FANIN_X86_KERNELS
#include "kernels.hpp"
#include "packet.hpp"

namespace fanin {

namespace {

static_assert(std::endian::native == std::endian::little, "words of a datagram are read as they lie");

constexpr std::size_t FIRST_BYTES = 2 * TAG_BLOCK_BYTES;  // whole blocks that hold the checksum field
static_assert(OFFSET_CHECKSUM + WORD_BYTES <= FIRST_BYTES && HEADER_BYTES > TAG_BLOCK_BYTES);

// One 64-bit word of each of the four lanes.
using Four [[gnu::vector_size(TAG_BLOCK_BYTES)]] = std::uint64_t;

// The body of each of the functions below. Macros on purpose: a function that is called from them must be compiled for the
// same instruction set, and a copy of an inline one for AVX-512 must never be the one that the linker keeps.
#define FANIN_ROTATED(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))
#define FANIN_SIP_ROUND                                                 \
  do {                                                                  \
    v0 += v1, v2 += v3;                                                 \
    v1 = FANIN_ROTATED(v1, 13) ^ v0, v3 = FANIN_ROTATED(v3, 16) ^ v2;   \
    v0 = FANIN_ROTATED(v0, 32);                                         \
    v2 += v1, v0 += v3;                                                 \
    v1 = FANIN_ROTATED(v1, 17) ^ v2, v3 = FANIN_ROTATED(v3, 21) ^ v0;   \
    v2 = FANIN_ROTATED(v2, 32);                                         \
  } while (false)
#define FANIN_SIP_TAKE(words) \
  do {                        \
    const Four taken = words; \
    v3 ^= taken;              \
    FANIN_SIP_ROUND;          \
    FANIN_SIP_ROUND;          \
    v0 ^= taken;              \
  } while (false)
#define FANIN_HASH_LANES                                                                                  \
  const Four zero = {};                                                                                   \
  Four v0 = zero + (key.low ^ 0x736F'6D65'7073'6575), v1 = zero + (key.high ^ 0x646F'7261'6E64'6F6D);     \
  Four v2 = zero + (key.low ^ 0x6C79'6765'6E65'7261), v3 = zero + (key.high ^ 0x7465'6462'7974'6573);     \
  const Four numbers = {0, 1, 2, 3};                                                                      \
  FANIN_SIP_TAKE(numbers);                                                                                \
  for (std::size_t at = 0; at < FIRST_BYTES; at += TAG_BLOCK_BYTES) {                                     \
    Four block;                                                                                           \
    std::memcpy(&block, first + at, TAG_BLOCK_BYTES);                                                     \
    FANIN_SIP_TAKE(block);                                                                                \
  }                                                                                                       \
  const std::size_t whole = rest_bytes / TAG_BLOCK_BYTES * TAG_BLOCK_BYTES;                               \
  for (std::size_t at = 0; at < whole; at += TAG_BLOCK_BYTES) {                                           \
    Four block;                                                                                           \
    std::memcpy(&block, rest + at, TAG_BLOCK_BYTES);                                                      \
    FANIN_SIP_TAKE(block);                                                                                \
  }                                                                                                       \
  if (whole != rest_bytes) {                                                                              \
    Four last = {};                                                                                       \
    std::memcpy(&last, rest + whole, rest_bytes - whole);                                                 \
    FANIN_SIP_TAKE(last);                                                                                 \
  }                                                                                                       \
  FANIN_SIP_TAKE(zero + end);                                                                             \
  v2 ^= zero + 0xFF;                                                                                      \
  FANIN_SIP_ROUND;                                                                                        \
  FANIN_SIP_ROUND;                                                                                        \
  FANIN_SIP_ROUND;                                                                                        \
  FANIN_SIP_ROUND;                                                                                        \
  const Four sums = v0 ^ v1 ^ v2 ^ v3;                                                                    \
  std::memcpy(hashes, &sums, TAG_BLOCK_BYTES)

// `first` are the first FIRST_BYTES of a datagram, as they are hashed; `rest` is the rest, as it lies. `end` is SipHash's
// last word, of a lane's length.
#define FANIN_HASH_LANES_ARGUMENTS                                                                             \
  const SipKey &key, const std::uint8_t *first, const std::uint8_t *rest, std::size_t rest_bytes, std::uint64_t end, \
      std::uint64_t *hashes
using HashLanes = void(FANIN_HASH_LANES_ARGUMENTS);

void lanes_portable(FANIN_HASH_LANES_ARGUMENTS) { FANIN_HASH_LANES; }
#if FANIN_X86_KERNELS
__attribute__((target("avx2"))) void lanes_avx2(FANIN_HASH_LANES_ARGUMENTS) { FANIN_HASH_LANES; }
__attribute__((target("avx512f,avx512vl"))) void lanes_avx512(FANIN_HASH_LANES_ARGUMENTS) { FANIN_HASH_LANES; }
#endif

// As the other kernels: whichever runs, all give the same bits.
HashLanes* hash_lanes() {
#if FANIN_X86_KERNELS
  if (std::strcmp(kernels_in_use(), "avx512") == 0) return lanes_avx512;
  if (std::strcmp(kernels_in_use(), "avx2") == 0) return lanes_avx2;
#endif
  return lanes_portable;
}

}  // namespace

SipKey derived(const SipKey& key, KeyPurpose purpose, std::uint64_t value) {
  const auto half = [&](std::uint8_t number) {
    std::array<std::uint8_t, 10> message = {static_cast<std::uint8_t>(purpose), number};
    std::memcpy(message.data() + 2, &value, sizeof value);
    return siphash24(key, message);
  };
  return {.low = half(0), .high = half(1)};
}

std::uint32_t packet_tag(const SipKey& key, std::span<const std::uint8_t> datagram, Direction direction) {
  alignas(TAG_BLOCK_BYTES) std::array<std::uint8_t, FIRST_BYTES> first{};
  const std::size_t copied = std::min(datagram.size(), first.size());
  std::memcpy(first.data(), datagram.data(), copied);
  store_be32(first.data() + OFFSET_CHECKSUM, static_cast<std::uint32_t>(direction));
  const std::size_t rest_bytes = datagram.size() - copied;
  const std::size_t blocks = (datagram.size() + TAG_BLOCK_BYTES - 1) / TAG_BLOCK_BYTES;
  const std::uint64_t lane_bytes = (1 + blocks) * sizeof(std::uint64_t);
  std::array<std::uint64_t, 1 + TAG_LANES> sums{datagram.size()};
  hash_lanes()(key, first.data(), datagram.data() + copied, rest_bytes, lane_bytes << 56, &sums[1]);
  std::array<std::uint8_t, sizeof sums> message;
  std::memcpy(message.data(), sums.data(), sizeof sums);
  return static_cast<std::uint32_t>(siphash24(key, message));
}

void put_tag(const SipKey& key, std::span<std::uint8_t> datagram, Direction direction) {
  store_be32(datagram.data() + OFFSET_CHECKSUM, packet_tag(key, datagram, direction));
}

bool tag_holds(const SipKey& key, std::span<const std::uint8_t> datagram, Direction direction) {
  return load_be32(datagram.data() + OFFSET_CHECKSUM) == packet_tag(key, datagram, direction);
}

PacketKeys::PacketKeys(const DataKey& flow_key, std::span<const std::uint64_t> tokens) : flow_key_(flow_key) {
  if (!flow_key_) return;
  for (const std::uint64_t token : tokens) workers_.push_back(derived(*flow_key_, KeyPurpose::worker, token));
  everybody_ = derived(*flow_key_, KeyPurpose::everybody, 0);
}

void PacketKeys::renew(std::uint32_t worker, std::uint64_t token) {
  if (flow_key_) workers_[worker] = derived(*flow_key_, KeyPurpose::worker, token);
}

void PacketKeys::finish(std::span<std::uint8_t> datagram) const {
  if (!tags()) return;
  const std::uint8_t worker = datagram[OFFSET_WORKER];
  put_tag(worker == SWITCH_WORKER ? everybody_ : workers_[worker], datagram, Direction::from_switch);
}

MemberKeys::MemberKeys(const DataKey& flow_key, std::uint64_t token) : tags_(flow_key.has_value()) {
  if (!tags_) return;
  own_ = derived(*flow_key, KeyPurpose::worker, token);
  everybody_ = derived(*flow_key, KeyPurpose::everybody, 0);
}

}  // namespace fanin
