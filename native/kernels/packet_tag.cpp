#include "wire/packet_tag.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "kernels/gcm_siv.hpp"
#include "kernels/kernel_table.hpp"  // FANIN_X86_KERNELS
#include "kernels/kernels.hpp"

namespace fanin {

namespace {

static_assert(std::endian::native == std::endian::little, "words of a datagram are read as they lie");

constexpr std::size_t FIRST_BYTES = 2 * TAG_BLOCK_BYTES;  // whole blocks that hold the checksum field
static_assert(OFFSET_CHECKSUM + WORD_BYTES <= FIRST_BYTES && HEADER_BYTES > TAG_BLOCK_BYTES);

// One 64-bit word for each of the four lanes; at the end, for each of up to four datagrams.
using Four [[gnu::vector_size(TAG_BLOCK_BYTES)]] = std::uint64_t;
static_assert(TAGS_TOGETHER <= TAG_LANES);

// Layout for hashing datagrams of the same length: two blocks with the direction, whole unchanged blocks, and the
// padded rest.
struct Messages {
  std::size_t bytes;         // of each datagram
  std::size_t middle_bytes;  // of the unchanged blocks
  std::size_t last_bytes;    // of the rest: one block or none
  std::uint64_t end;         // SipHash's last word, which has the length of a lane
  std::array<const SipKey*, TAGS_TOGETHER> keys;
  std::array<const std::uint8_t*, TAGS_TOGETHER> middle;
  alignas(TAG_BLOCK_BYTES) std::uint8_t first[TAGS_TOGETHER][FIRST_BYTES];
  alignas(TAG_BLOCK_BYTES) std::uint8_t last[TAGS_TOGETHER][TAG_BLOCK_BYTES];

  explicit Messages(std::span<const Tagged> datagrams)
      : bytes(datagrams[0].datagram.size()),
        middle_bytes(bytes > FIRST_BYTES ? (bytes - FIRST_BYTES) / TAG_BLOCK_BYTES * TAG_BLOCK_BYTES : 0),
        last_bytes(bytes > FIRST_BYTES + middle_bytes ? TAG_BLOCK_BYTES : 0),
        end((sizeof(std::uint64_t) + (FIRST_BYTES + middle_bytes + last_bytes) / TAG_LANES) << 56) {
    for (std::size_t i = 0; i < datagrams.size(); ++i) {
      const std::uint8_t* const data = datagrams[i].datagram.data();
      keys[i] = &datagrams[i].key->siphash;
      middle[i] = data + std::min(bytes, FIRST_BYTES);
      std::memset(first[i], 0, FIRST_BYTES);
      std::memcpy(first[i], data, std::min(bytes, FIRST_BYTES));
      store_be32(first[i] + OFFSET_CHECKSUM, static_cast<std::uint32_t>(datagrams[i].direction));
      if (last_bytes == 0) continue;
      std::memset(last[i], 0, TAG_BLOCK_BYTES);
      std::memcpy(last[i], middle[i] + middle_bytes, bytes - FIRST_BYTES - middle_bytes);
    }
  }
};

// The body of each function below, for N datagrams side by side: since a round of SipHash waits for the one before it,
// rounds of other datagrams are computed meanwhile. These are macros because functions called from there would have to
// be compiled for the same instruction set, and the linker must never keep a copy of an inline function for AVX-512.
constexpr std::uint64_t SIP_START[] = {0x736F'6D65'7073'6575, 0x646F'7261'6E64'6F6D, 0x6C79'6765'6E65'7261,
                                       0x7465'6462'7974'6573};
#define FANIN_EACH for (std::size_t i = 0; i < CHAINS; ++i)
#define FANIN_ROTATED(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))
#define FANIN_ROTATED_16(x) FANIN_ROTATED(x, 16)
#define FANIN_ROTATED_32(x) FANIN_ROTATED(x, 32)
#define FANIN_SIP_ROUND(ROTATED_16, ROTATED_32)                                                    \
  do {                                                                                             \
    FANIN_EACH v0[i] += v1[i], v2[i] += v3[i];                                                     \
    FANIN_EACH v1[i] = FANIN_ROTATED(v1[i], 13) ^ v0[i], v3[i] = ROTATED_16(v3[i]) ^ v2[i];        \
    FANIN_EACH v0[i] = ROTATED_32(v0[i]);                                                          \
    FANIN_EACH v2[i] += v1[i], v0[i] += v3[i];                                                     \
    FANIN_EACH v1[i] = FANIN_ROTATED(v1[i], 17) ^ v2[i], v3[i] = FANIN_ROTATED(v3[i], 21) ^ v0[i]; \
    FANIN_EACH v2[i] = ROTATED_32(v2[i]);                                                          \
  } while (false)
// v0 and v1 hold the keys.
#define FANIN_SIP_BEGIN                                                    \
  do {                                                                     \
    FANIN_EACH v2[i] = v0[i] ^ SIP_START[2], v3[i] = v1[i] ^ SIP_START[3]; \
    FANIN_EACH v0[i] ^= SIP_START[0], v1[i] ^= SIP_START[1];               \
  } while (false)
#define FANIN_SIP_TAKE(ROTATED_16, ROTATED_32) \
  do {                                         \
    FANIN_EACH v3[i] ^= taken[i];              \
    FANIN_SIP_ROUND(ROTATED_16, ROTATED_32);   \
    FANIN_SIP_ROUND(ROTATED_16, ROTATED_32);   \
    FANIN_EACH v0[i] ^= taken[i];              \
  } while (false)
#define FANIN_SIP_TAKE_BLOCKS(ROTATED_16, ROTATED_32, part, part_bytes)        \
  for (std::size_t at = 0; at < (part_bytes); at += TAG_BLOCK_BYTES) {         \
    FANIN_EACH std::memcpy(&taken[i], messages.part[i] + at, TAG_BLOCK_BYTES); \
    FANIN_SIP_TAKE(ROTATED_16, ROTATED_32);                                    \
  }
#define FANIN_SIP_END(ROTATED_16, ROTATED_32)            \
  do {                                                   \
    FANIN_EACH v2[i] ^= zero + 0xFF;                     \
    FANIN_SIP_ROUND(ROTATED_16, ROTATED_32);             \
    FANIN_SIP_ROUND(ROTATED_16, ROTATED_32);             \
    FANIN_SIP_ROUND(ROTATED_16, ROTATED_32);             \
    FANIN_SIP_ROUND(ROTATED_16, ROTATED_32);             \
    FANIN_EACH taken[i] = v0[i] ^ v1[i] ^ v2[i] ^ v3[i]; \
  } while (false)
#define FANIN_TAGS(ROTATED_16, ROTATED_32)                                                                 \
  const Four zero = {};                                                                                    \
  std::uint64_t hashes[N][TAG_LANES];                                                                      \
  {                                                                                                        \
    constexpr std::size_t CHAINS = N;                                                                      \
    Four v0[CHAINS], v1[CHAINS], v2[CHAINS], v3[CHAINS], taken[CHAINS];                                    \
    FANIN_EACH v0[i] = zero + messages.keys[i]->low, v1[i] = zero + messages.keys[i]->high;                \
    FANIN_EACH taken[i] = Four{0, 1, 2, 3};                                                                \
    FANIN_SIP_BEGIN;                                                                                       \
    FANIN_SIP_TAKE(ROTATED_16, ROTATED_32);                                                                \
    FANIN_SIP_TAKE_BLOCKS(ROTATED_16, ROTATED_32, first, FIRST_BYTES);                                     \
    FANIN_SIP_TAKE_BLOCKS(ROTATED_16, ROTATED_32, middle, messages.middle_bytes);                          \
    FANIN_SIP_TAKE_BLOCKS(ROTATED_16, ROTATED_32, last, messages.last_bytes);                              \
    FANIN_EACH taken[i] = zero + messages.end;                                                             \
    FANIN_SIP_TAKE(ROTATED_16, ROTATED_32);                                                                \
    FANIN_SIP_END(ROTATED_16, ROTATED_32);                                                                 \
    FANIN_EACH std::memcpy(hashes[i], &taken[i], TAG_BLOCK_BYTES);                                         \
  }                                                                                                        \
  constexpr std::size_t CHAINS = 1;                                                                        \
  Four v0[CHAINS] = {}, v1[CHAINS] = {}, v2[CHAINS], v3[CHAINS], taken[CHAINS] = {zero + messages.bytes};  \
  for (std::size_t i = 0; i < N; ++i) v0[0][i] = messages.keys[i]->low, v1[0][i] = messages.keys[i]->high; \
  FANIN_SIP_BEGIN;                                                                                         \
  FANIN_SIP_TAKE(ROTATED_16, ROTATED_32);                                                                  \
  for (std::size_t lane = 0; lane < TAG_LANES; ++lane) {                                                   \
    for (std::size_t i = 0; i < N; ++i) taken[0][i] = hashes[i][lane];                                     \
    FANIN_SIP_TAKE(ROTATED_16, ROTATED_32);                                                                \
  }                                                                                                        \
  taken[0] = zero + ((1 + TAG_LANES) * sizeof(std::uint64_t) << 56);                                       \
  FANIN_SIP_TAKE(ROTATED_16, ROTATED_32);                                                                  \
  FANIN_SIP_END(ROTATED_16, ROTATED_32);                                                                   \
  for (std::size_t i = 0; i < N; ++i) tags[i] = static_cast<std::uint32_t>(taken[0][i])

using Tags = void(const Messages& messages, std::uint32_t* tags);

template <std::size_t N>
void tags_portable(const Messages& messages, std::uint32_t* tags) {
  FANIN_TAGS(FANIN_ROTATED_16, FANIN_ROTATED_32);
}
#if FANIN_X86_KERNELS
// AVX2 has no rotation; rotations by whole bytes are shuffles.
using Halves [[gnu::vector_size(TAG_BLOCK_BYTES)]] = std::uint32_t;
using Quarters [[gnu::vector_size(TAG_BLOCK_BYTES)]] = std::uint16_t;
#define FANIN_SHUFFLED_32(x) \
  reinterpret_cast<Four>(__builtin_shuffle(reinterpret_cast<Halves>(x), Halves{1, 0, 3, 2, 5, 4, 7, 6}))
#define FANIN_SHUFFLED_16(x)                                              \
  reinterpret_cast<Four>(__builtin_shuffle(reinterpret_cast<Quarters>(x), \
                                           Quarters{3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10, 15, 12, 13, 14}))

template <std::size_t N>
__attribute__((target("avx2"))) void tags_avx2(const Messages& messages, std::uint32_t* tags) {
  FANIN_TAGS(FANIN_SHUFFLED_16, FANIN_SHUFFLED_32);
}
template <std::size_t N>
__attribute__((target("avx512f,avx512vl"))) void tags_avx512(const Messages& messages, std::uint32_t* tags) {
  FANIN_TAGS(FANIN_ROTATED_16, FANIN_ROTATED_32);
}
#endif

// Functions for one, two and four datagrams; null if the processor has too few registers.
struct TagTable {
  Tags *one, *two, *four;
};
constexpr TagTable portable_tags = {tags_portable<1>, nullptr, nullptr};
#if FANIN_X86_KERNELS
constexpr TagTable avx2_tags = {tags_avx2<1>, tags_avx2<2>, nullptr};
constexpr TagTable avx512_tags = {tags_avx512<1>, tags_avx512<2>, tags_avx512<4>};
#endif

// The implementation for this processor; all give the same bits, as those of the other kernels do.
const TagTable& tag_table() {
#if FANIN_X86_KERNELS
  const char* const in_use = kernels_in_use();
  if (in_use == avx512_kernels.name) return avx512_tags;
  if (in_use == avx2_kernels.name) return avx2_tags;
#endif
  return portable_tags;
}

// The same nonce for all packets, because a retransmitted packet has the same bytes and therefore the same tag.
constexpr std::array<std::uint8_t, GCM_SIV_NONCE_BYTES> NONCE = {'f', 'a', 'n', 'i', 'n', ' ',
                                                                 'p', 'a', 'c', 'k', 'e', 't'};

// Number of datagrams at the beginning whose keys are of GCM-SIV.
std::size_t of_gcm_siv(std::span<const Tagged> datagrams) {
  std::size_t count = 0;
  while (count < datagrams.size() && datagrams[count].key->algorithm == TagAlgorithm::gcm_siv) ++count;
  return count;
}

#if FANIN_X86_KERNELS
bool has_wide_products() {
  static const bool has = __builtin_cpu_supports("vpclmulqdq");
  return has;
}

void gcm_siv_tags(std::span<const Tagged> datagrams, std::uint32_t* tags) {
  const char* const in_use = kernels_in_use();
  if (has_wide_products() && in_use == avx512_kernels.name) return gcm_siv_tags_of_four(datagrams, tags);
  if (has_wide_products() && in_use == avx2_kernels.name) return gcm_siv_tags_of_two(datagrams, tags);
  gcm_siv_tags_of_one(datagrams, tags);
}
#else
void gcm_siv_tags(std::span<const Tagged>, std::uint32_t*) { throw std::logic_error("no key of GCM-SIV can be here"); }
#endif

}  // namespace

#if FANIN_X86_KERNELS
bool gcm_siv_runs_here() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}
#else
bool gcm_siv_runs_here() { return false; }
GcmSivKey gcm_siv_key(const std::array<std::uint8_t, AES_BLOCK_BYTES>&,
                      const std::array<std::uint8_t, GCM_SIV_NONCE_BYTES>&) {
  throw std::logic_error("this processor computes no tags of GCM-SIV");
}
#endif

TagKey::TagKey(const SecretKey& key) : algorithm(key.algorithm), siphash(key.bits) {
  if (algorithm != TagAlgorithm::gcm_siv) return;
  std::array<std::uint8_t, AES_BLOCK_BYTES> bytes;
  std::memcpy(bytes.data(), &key.bits.low, sizeof key.bits.low);
  std::memcpy(bytes.data() + sizeof key.bits.low, &key.bits.high, sizeof key.bits.high);
  gcm_siv = gcm_siv_key(bytes, NONCE);
}

SecretKey derived(const SecretKey& key, KeyPurpose purpose, std::uint64_t value) {
  const auto half = [&](std::uint8_t number) {
    std::array<std::uint8_t, 10> message = {static_cast<std::uint8_t>(purpose), number};
    std::memcpy(message.data() + 2, &value, sizeof value);
    return siphash24(key.bits, message);
  };
  return {.bits = {.low = half(0), .high = half(1)}, .algorithm = key.algorithm};
}

void packet_tags(std::span<const Tagged> datagrams, std::uint32_t* tags) {
  const TagTable& table = tag_table();
  while (!datagrams.empty()) {
    if (const std::size_t count = of_gcm_siv(datagrams); count > 0) {
      gcm_siv_tags(datagrams.first(count), tags);
      datagrams = datagrams.subspan(count);
      tags += count;
      continue;
    }
    std::size_t equal = 1;
    while (equal < std::min(datagrams.size(), TAGS_TOGETHER) &&
           datagrams[equal].datagram.size() == datagrams[0].datagram.size() &&
           datagrams[equal].key->algorithm == TagAlgorithm::siphash)
      ++equal;
    const std::size_t taken = equal == 4 && table.four != nullptr ? 4 : equal >= 2 && table.two != nullptr ? 2 : 1;
    (taken == 4 ? table.four : taken == 2 ? table.two : table.one)(Messages(datagrams.first(taken)), tags);
    datagrams = datagrams.subspan(taken);
    tags += taken;
  }
}

std::uint32_t packet_tag(const TagKey& key, std::span<const std::uint8_t> datagram, Direction direction) {
  std::uint32_t tag;
  const Tagged one = {&key, datagram, direction};
  packet_tags({&one, 1}, &tag);
  return tag;
}

void put_tag(const TagKey& key, std::span<std::uint8_t> datagram, Direction direction) {
  store_be32(datagram.data() + OFFSET_CHECKSUM, packet_tag(key, datagram, direction));
}

bool tag_holds(const TagKey& key, std::span<const std::uint8_t> datagram, Direction direction) {
  return load_be32(datagram.data() + OFFSET_CHECKSUM) == packet_tag(key, datagram, direction);
}

void put_tags(std::span<const TagKey* const> keys, std::span<const std::span<std::uint8_t>> datagrams,
              Direction direction) {
  for (std::size_t first = 0; first < datagrams.size(); first += TAGS_TOGETHER) {
    const std::size_t count = std::min(datagrams.size() - first, TAGS_TOGETHER);
    std::array<Tagged, TAGS_TOGETHER> together;
    std::array<std::uint32_t, TAGS_TOGETHER> tags;
    for (std::size_t i = 0; i < count; ++i) together[i] = {keys[first + i], datagrams[first + i], direction};
    packet_tags(std::span(together).first(count), tags.data());
    for (std::size_t i = 0; i < count; ++i) store_be32(datagrams[first + i].data() + OFFSET_CHECKSUM, tags[i]);
  }
}

PacketKeys::PacketKeys(const DataKey& flow_key, std::span<const std::uint64_t> tokens) : flow_key_(flow_key) {
  if (!flow_key_) return;
  for (const std::uint64_t token : tokens) workers_.emplace_back(derived(*flow_key_, KeyPurpose::worker, token));
  everybody_ = TagKey(derived(*flow_key_, KeyPurpose::everybody, 0));
}

void PacketKeys::renew(std::uint32_t worker, std::uint64_t token) {
  if (flow_key_) workers_[worker] = TagKey(derived(*flow_key_, KeyPurpose::worker, token));
}

void PacketKeys::finish(std::span<std::uint8_t> datagram) const {
  if (!tags()) return;
  const std::uint8_t worker = datagram[OFFSET_WORKER];
  put_tag(worker == SWITCH_WORKER ? everybody_ : workers_[worker], datagram, Direction::from_switch);
}

MemberKeys::MemberKeys(const DataKey& flow_key, std::uint64_t token) : tags_(flow_key.has_value()) {
  if (!tags_) return;
  own_ = TagKey(derived(*flow_key, KeyPurpose::worker, token));
  everybody_ = TagKey(derived(*flow_key, KeyPurpose::everybody, 0));
}

}  // namespace fanin
