// Small integers in lanes of 16, 8 or 4 bits. The rules stand in host/codecs/words/narrow_integers.py.
#include <cstring>

#include "kernels/kernels.hpp"
#include "wire/packet.hpp"
#include "codecs/word_codec.hpp"

namespace fanin {

namespace {

constexpr std::uint32_t NARROW = 64;  // Reduction::lanes is this plus the bits of a lane

template <class Integer>
struct Packed {
  // Bytes in the order of the wire: within a byte, the first of two lanes of 4 bits is the upper one.
  static void encode(const std::uint8_t* x, std::size_t n, std::uint32_t bits, std::int32_t bound, std::uint8_t* out) {
    const auto lane = [&](std::size_t i) {
      if (i >= n) return static_cast<std::uint32_t>(bound);  // what pads the last word holds q = 0
      Integer value;
      std::memcpy(&value, x + i * sizeof value, sizeof value);
      const auto q = static_cast<std::int32_t>(value);
      return static_cast<std::uint32_t>((q < -bound ? -bound : q > bound ? bound : q) + bound);
    };
    const std::size_t lanes_per_word = 32 / bits, lanes = (n + lanes_per_word - 1) / lanes_per_word * lanes_per_word;
    if (bits == 16)
      for (std::size_t i = 0; i < lanes; ++i) store_be16(out + 2 * i, static_cast<std::uint16_t>(lane(i)));
    else if (bits == 8)
      for (std::size_t i = 0; i < lanes; ++i) out[i] = static_cast<std::uint8_t>(lane(i));
    else
      for (std::size_t i = 0; i < lanes; i += 2) out[i / 2] = static_cast<std::uint8_t>(lane(i) << 4 | lane(i + 1));
  }

  static void decode(const std::uint8_t* in, std::uint32_t bits, std::uint32_t offset, const Kept& kept) {
    const auto lane = [&](std::size_t i) -> std::uint32_t {
      if (bits == 16) return load_be16(in + 2 * i);
      if (bits == 8) return in[i];
      return in[i / 2] >> (i % 2 == 0 ? 4 : 0) & 15u;
    };
    for (std::size_t i = 0; i < kept.count; ++i) {
      const auto value = static_cast<Integer>(lane(kept.skip + i) - offset);
      std::memcpy(kept.out + i * sizeof value, &value, sizeof value);
    }
  }
};

template <class Integer>
class NarrowIntegersCodec final : public BlockCodec {
 public:
  // FixedPoint computes the bound of lanes of that width, and throws if so many contributions leave no level.
  NarrowIntegersCodec(const Reduction& asked, const JobSpec& spec)
      : fixed_(Element::float32, asked.lanes - NARROW, spec.contributions()) {
    number = static_cast<std::uint8_t>(asked.lanes);
    lay_out(asked.count, elements_per_packet(fixed_, spec.words_per_packet / spec.codes_per_packet),
            spec.codes_per_packet);
  }

  std::size_t word_count(std::uint64_t packet) const override { return words_for(fixed_, span(packet).count); }

  void encode(std::uint64_t, const EncoderInput& own, const std::uint16_t*, std::uint8_t* words_be) const override {
    Packed<Integer>::encode(own.x, own.n, fixed_.lanes, fixed_.bound, words_be);
  }

  void decode(const std::uint8_t* words_be, std::size_t, const std::uint16_t*, std::uint32_t contributors, double,
              const Kept& kept) override {
    Packed<Integer>::decode(words_be, fixed_.lanes, contributors * static_cast<std::uint32_t>(fixed_.bound), kept);
  }

  void update_residual(const EncoderInput&, const std::uint16_t*) const override {}

 private:
  FixedPoint fixed_;
};

bool takes(Element element, std::uint32_t lanes) {
  const bool is_signed = element == Element::int32 || element == Element::int16 || element == Element::int8;
  return is_signed && (lanes == NARROW + 16 || lanes == NARROW + 8 || lanes == NARROW + 4);
}

std::shared_ptr<WordCodec> make_narrow(const Reduction& asked, const JobSpec& spec, std::uint32_t) {
  switch (asked.element) {
    case Element::int8:
      return std::make_shared<NarrowIntegersCodec<std::int8_t>>(asked, spec);
    case Element::int16:
      return std::make_shared<NarrowIntegersCodec<std::int16_t>>(asked, spec);
    default:
      return std::make_shared<NarrowIntegersCodec<std::int32_t>>(asked, spec);
  }
}

const CodecEntry narrow_integers{"narrow_integers", takes, make_narrow};

}  // namespace

}  // namespace fanin
