// The tags of gcm_siv.hpp, written once for registers of one, two or four blocks: included by the files that compile it
// for an instruction set each, behind the pragma that names it.
//
// POLYVAL is Horner's rule in GF(2^128): S = (S + X) * H for each block X, the last of which holds the length. Up to
// thirty-two blocks are multiplied by H^32 to H^1 and added before the sum is reduced (Gueron and Kounavis, "Intel
// carry-less multiplication instruction and its usage for computing the GCM mode", 2010). Zeros before a message do not
// change its hash: they fill the first register.
#pragma once

namespace fanin {

template <typename Blocks>
class GcmSivBody {
 public:
  static void tags(std::span<const Tagged> datagrams, std::uint32_t* tags) {
    for (const Tagged& each : datagrams) *tags++ = tag(each);
  }

  // The product of 256 bits, divided by x^128, modulo x^128 + x^127 + x^126 + x^121 + 1.
  static __m128i reduced(__m128i low, __m128i high) {
    const __m128i polynomial = _mm_set_epi64x(static_cast<long long>(0xC200'0000'0000'0000), 1);
    for (int half = 0; half < 2; ++half)
      low = _mm_xor_si128(_mm_shuffle_epi32(low, 0x4E), _mm_clmulepi64_si128(low, polynomial, 0x10));
    return _mm_xor_si128(low, high);
  }

 private:
  using Vector = typename Blocks::Vector;
  static constexpr std::size_t COUNT = Blocks::COUNT;
  static constexpr std::size_t GROUP = GcmSivKey::POWERS / COUNT;  // registers
  static constexpr std::size_t FIELD_BLOCK = OFFSET_CHECKSUM / AES_BLOCK_BYTES;
  static_assert(OFFSET_CHECKSUM % AES_BLOCK_BYTES == 0 && HEADER_BYTES == OFFSET_CHECKSUM + WORD_BYTES);

  // A datagram as registers of blocks.
  struct Message {
    const std::uint8_t* data;
    std::size_t bytes, blocks;
    std::size_t zeros;               // blocks of them before the first
    std::size_t registers;           // in all
    std::size_t as_they_lie, until;  // the registers of blocks that do, from the first to before the second
    __m128i field;                   // what makes the checksum field the direction

    explicit Message(const Tagged& asked)
        : data(asked.datagram.data()),
          bytes(asked.datagram.size()),
          blocks((bytes + AES_BLOCK_BYTES - 1) / AES_BLOCK_BYTES + 1),
          zeros((COUNT - blocks % COUNT) % COUNT),
          registers((zeros + blocks) / COUNT),
          as_they_lie((zeros + FIELD_BLOCK) / COUNT + 1),
          until((zeros + bytes / AES_BLOCK_BYTES) / COUNT) {
      std::uint32_t is, wanted = __builtin_bswap32(static_cast<std::uint32_t>(asked.direction));
      std::memcpy(&is, data + OFFSET_CHECKSUM, sizeof is);
      field = _mm_cvtsi32_si128(static_cast<int>(is ^ wanted));
    }

    Vector whole(std::size_t place) const { return Blocks::load(data + (place * COUNT - zeros) * AES_BLOCK_BYTES); }

    Vector any(std::size_t place) const {
      return Blocks::together([&](std::size_t lane) {
        const std::size_t number = place * COUNT + lane;
        return number < zeros ? _mm_setzero_si128() : block(number - zeros);
      });
    }

    __m128i block(std::size_t number) const {
      if (number + 1 == blocks) return _mm_set_epi64x(0, static_cast<long long>(bytes * 8));
      const std::size_t end = (number + 1) * AES_BLOCK_BYTES;
      const __m128i words = end <= bytes ? load(data + end - AES_BLOCK_BYTES) : last(end - bytes);
      return number == FIELD_BLOCK ? _mm_xor_si128(words, field) : words;
    }

    // The last one, which lacks so many bytes: its end is the datagram's, and zeros follow.
    __m128i last(std::size_t lacking) const {
      alignas(AES_BLOCK_BYTES) static constexpr std::uint8_t PLACES[2 * AES_BLOCK_BYTES] = {
          0,    1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,   13,   14,   15,
          0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80};
      return _mm_shuffle_epi8(load(data + bytes - AES_BLOCK_BYTES), load(PLACES + lacking));
    }
  };

  static std::uint32_t tag(const Tagged& asked) {
    const GcmSivKey& key = asked.key->gcm_siv;
    const Message message(asked);
    __m128i sum = _mm_setzero_si128();
    for (std::size_t begin = 0, end = (message.registers - 1) % GROUP + 1; end <= message.registers;
         begin = end, end += GROUP)
      sum = product(message, begin, end, key, sum);
    return __builtin_bswap32(static_cast<std::uint32_t>(_mm_cvtsi128_si32(encrypted(key, sum))));
  }

  // (sum + the first block) * H^n + the second * H^(n - 1) + ... + the last * H.
  static __m128i product(const Message& message, std::size_t begin, std::size_t end, const GcmSivKey& key,
                         __m128i sum) {
    Vector low = Blocks::zero(), high = Blocks::zero(), middle = Blocks::zero(), carried = Blocks::widened(sum);
    const std::uint8_t* power_at = key.powers[GcmSivKey::POWERS - (end - begin) * COUNT];
    const auto take = [&](Vector taken) {
      taken = Blocks::plus(taken, carried);
      const Vector power = Blocks::load(power_at);
      power_at += COUNT * AES_BLOCK_BYTES;
      carried = Blocks::zero();
      low = Blocks::plus(low, Blocks::template times<0x00>(taken, power));
      high = Blocks::plus(high, Blocks::template times<0x11>(taken, power));
      middle = Blocks::plus(
          middle, Blocks::plus(Blocks::template times<0x01>(taken, power), Blocks::template times<0x10>(taken, power)));
    };
    std::size_t place = begin;
    for (; place < std::min(end, message.as_they_lie); ++place) take(message.any(place));
    for (; place < std::min(end, message.until); ++place) take(message.whole(place));
    for (; place < end; ++place) take(message.any(place));
    return reduced(Blocks::folded(Blocks::plus(low, Blocks::up(middle))),
                   Blocks::folded(Blocks::plus(high, Blocks::down(middle))));
  }

  // AES of the hash, into which the nonce goes and whose top bit is cleared (RFC 8452, section 4).
  static __m128i encrypted(const GcmSivKey& key, __m128i sum) {
    const __m128i nonce = load(key.nonce), masked = _mm_set_epi32(0x7FFFFFFF, -1, -1, -1);
    __m128i state = _mm_xor_si128(_mm_and_si128(_mm_xor_si128(sum, nonce), masked), load(key.rounds[0]));
    for (std::size_t round = 1; round + 1 < AES_ROUND_KEYS; ++round)
      state = _mm_aesenc_si128(state, load(key.rounds[round]));
    return _mm_aesenclast_si128(state, load(key.rounds[AES_ROUND_KEYS - 1]));
  }

  static __m128i load(const std::uint8_t* block) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(block)); }
};

}  // namespace fanin
