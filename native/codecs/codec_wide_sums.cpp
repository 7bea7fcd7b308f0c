// Block floating point in lanes without head room, which the switch adds up one by one. The rules stand in
// host/codecs/words/wide_sums.py and fanin/numerics/wide_sums.py.
#include <algorithm>
#include <cstring>

#include "kernels/kernels.hpp"
#include "wire/packet.hpp"
#include "codecs/scaled_codec.hpp"

namespace fanin {

namespace {

constexpr std::size_t PIECE_ELEMENTS = 1024;

std::int32_t largest(std::uint32_t bits) { return (1 << (bits - 1)) - 1; }

class WideSumsCodec final : public ScaledCodec {
 public:
  // `fixed_` gets 2^(U-1) - 1 levels on each side of 0 once the lanes are known.
  WideSumsCodec(const Reduction& asked, const JobSpec& spec, std::uint32_t place)
      : ScaledCodec(FixedPoint(asked.element, 8, 1)) {
    lanes = static_cast<std::uint8_t>(asked.lanes - WIDE_SUMS);
    up_ = lane_bits_up(lanes), down_ = lane_bits_down(lanes);
    require_wide_sums(spec, up_, down_);
    fixed_.lanes = up_ == 2 ? 8 : up_;
    fixed_.bound = largest(up_);
    number = static_cast<std::uint8_t>(asked.lanes);
    lay_out(asked.count, std::uint64_t{spec.words_per_packet / spec.codes_per_packet} * (32 / down_),
            spec.codes_per_packet);
    marks_.emplace(fixed_, block_elements, place, spec.total_workers, lanes);
  }

  std::size_t word_count(std::uint64_t packet) const override { return (span(packet).count * up_ + 31) / 32; }

  void encode(std::uint64_t, const EncoderInput& own, const std::uint16_t* codes,
              std::uint8_t* words_be) const override {
    if (up_ != 2) return quantize(fixed_, own.x, own.n, block_elements, codes, own.factor, own.residual, words_be);
    for (std::size_t first = 0; first < own.n; first += block_elements, ++codes) {
      const std::size_t end = std::min<std::size_t>(first + block_elements, own.n);
      for (std::size_t i = first; i < end; i += PIECE_ELEMENTS)
        encode_two_bits(own, i, std::min(PIECE_ELEMENTS, end - i), *codes, words_be + i / 4);
    }
  }

  void decode(const std::uint8_t* words_be, std::size_t count, const std::uint16_t* codes, std::uint32_t contributors,
              double divisor, const Kept& kept) override {
    decode_narrowed(words_be, count, codes, contributors, divisor, 0, kept);
  }

  void decode_narrowed(const std::uint8_t* words_be, std::size_t count, const std::uint16_t* codes,
                       std::uint32_t contributors, double divisor, std::uint32_t shift, const Kept& kept) override {
    const Narrowed narrowed{down_, contributors != 0 ? largest(down_) : 0, shift};
    dequantize_narrowed(fixed_, narrowed, words_be, count, block_elements, codes,
                        divisor != 0 ? divisor : std::max(contributors, 1u), kept.skip, kept.count, kept.out);
  }

 private:
  // Encodes `n` elements of one block by way of lanes of 8 bits: 16 lanes of 2 bits fill a word, and the last one is
  // padded with q = 0.
  void encode_two_bits(const EncoderInput& own, std::size_t first, std::size_t n, std::uint16_t code,
                       std::uint8_t* out) const {
    std::uint8_t bytes[PIECE_ELEMENTS];
    const std::size_t whole = (n + 15) / 16 * 16;
    std::memset(bytes + n / 16 * 16, 1, whole - n / 16 * 16);
    quantize(fixed_, own.x + first * element_bytes(fixed_.element), n, PIECE_ELEMENTS, &code, own.factor,
             own.residual == nullptr ? nullptr : own.residual + first, bytes);
    for (std::size_t i = 0; i < whole / 4; ++i)
      out[i] = static_cast<std::uint8_t>(bytes[4 * i] << 6 | bytes[4 * i + 1] << 4 | bytes[4 * i + 2] << 2 |
                                         bytes[4 * i + 3]);
  }

  std::uint32_t up_ = 8, down_ = 8;
};

const CodecEntry wide_sums{
    "wide_sums",
    [](Element element, std::uint32_t lanes) {
      return is_wide_sum(lanes) && is_floating(element) && element != Element::float64;
    },
    [](const Reduction& asked, const JobSpec& spec, std::uint32_t place) -> std::shared_ptr<WordCodec> {
      return std::make_shared<WideSumsCodec>(asked, spec, place);
    }};

}  // namespace

}  // namespace fanin
