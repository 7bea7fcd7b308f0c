// Lanes that were packed elsewhere, and their narrowed sums with the shifts. The rules stand in
// host/codecs/words/packed_lanes.py.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/kernels.hpp"
#include "wire/packet.hpp"
#include "codecs/word_codec.hpp"

namespace fanin {

namespace {

constexpr std::size_t SHIFT_WORDS = 4;

class PackedLanesCodec final : public BlockCodec {
 public:
  PackedLanesCodec(const Reduction& asked, const JobSpec& spec) : whole_words_(Element::int32, 32, 1) {
    lanes = static_cast<std::uint8_t>(asked.lanes - PACKED_LANES);
    up_ = lane_bits_up(lanes), down_ = lane_bits_down(lanes);
    require_wide_sums(spec, up_, down_);
    number = static_cast<std::uint8_t>(asked.lanes);
    lay_out(asked.count, std::uint64_t{spec.words_per_packet} + SHIFT_WORDS, 1);
  }

  std::size_t word_count(std::uint64_t packet) const override {
    return std::max<std::size_t>((words_of(span(packet).count) * up_ + down_ - 1) / down_, 1);
  }

  void encode(std::uint64_t packet, const EncoderInput& own, const std::uint16_t*,
              std::uint8_t* words_be) const override {
    quantize(whole_words_, own.x, word_count(packet), 1, nullptr, 1.0, nullptr, words_be);
  }

  void decode(const std::uint8_t* words_be, std::size_t count, const std::uint16_t* codes, std::uint32_t contributors,
              double divisor, const Kept& kept) override {
    decode_narrowed(words_be, count, codes, contributors, divisor, 0, kept);
  }

  void decode_narrowed(const std::uint8_t* words_be, std::size_t count, const std::uint16_t*,
                       std::uint32_t contributors, double, std::uint32_t shift, const Kept& kept) override {
    const std::size_t words = words_of(count), end = kept.skip + kept.count;
    const std::size_t summed = std::min(std::max(words, kept.skip), end) - kept.skip;
    if (contributors != 0 && summed != 0)
      dequantize(whole_words_, words_be + kept.skip * WORD_BYTES, summed, 1, nullptr, 1, 1.0, 0, summed, kept.out);
    for (std::size_t at = contributors != 0 ? summed : 0; at < kept.count; ++at) {
      const std::size_t element = kept.skip + at;
      const std::uint32_t word = element < words ? zeros() : element == words ? shift : 0;
      std::memcpy(kept.out + at * WORD_BYTES, &word, WORD_BYTES);
    }
  }

  void update_residual(const EncoderInput&, const std::uint16_t*) const override {}

 private:
  // Number of words of the sum in a packet of `count` elements, the rest of which are shifts.
  static std::size_t words_of(std::size_t count) { return count - std::min(count, SHIFT_WORDS); }
  // A word whose lanes all stand for 0.
  std::uint32_t zeros() const { return down_ == 8 ? 0x7F7F7F7Fu : 0x77777777u; }

  FixedPoint whole_words_;  // 32-bit integers, which are only swapped into wire order and back
  std::uint32_t up_ = 8, down_ = 8;
};

const CodecEntry packed_lanes{
    "packed_lanes",
    [](Element element, std::uint32_t lanes) {
      return element == Element::int32 && is_wide_sum(lanes - PACKED_LANES + WIDE_SUMS);
    },
    [](const Reduction& asked, const JobSpec& spec, std::uint32_t) -> std::shared_ptr<WordCodec> {
      return std::make_shared<PackedLanesCodec>(asked, spec);
    }};

}  // namespace

}  // namespace fanin
