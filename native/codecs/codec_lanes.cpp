// Block floating point in lanes, and float64 over three words. The rules stand in host/codecs/words/lane_words.py and
// wide.py; the kernels tell the two apart.
#include <algorithm>

#include "kernels/kernels.hpp"
#include "codecs/scaled_codec.hpp"

namespace fanin {

namespace {

class LanesCodec final : public ScaledCodec {
 public:
  LanesCodec(const Reduction& asked, const JobSpec& spec, std::uint32_t place)
      : ScaledCodec(FixedPoint(asked.element, asked.lanes, spec.contributions())) {
    number = static_cast<std::uint8_t>(fixed_.lanes);
    lay_out(asked.count, elements_per_packet(fixed_, spec.words_per_packet / spec.codes_per_packet),
            spec.codes_per_packet);
    whole_words_ = words_for(fixed_, packet_elements);
    marks_.emplace(fixed_, block_elements, place, spec.total_workers);
  }

  std::size_t word_count(std::uint64_t packet) const override {
    const std::size_t elements = span(packet).count;
    return elements == packet_elements ? whole_words_ : words_for(fixed_, elements);
  }

  void encode(std::uint64_t, const EncoderInput& own, const std::uint16_t* codes,
              std::uint8_t* words_be) const override {
    quantize(fixed_, own.x, own.n, block_elements, codes, own.factor, own.residual, words_be);
  }

  void decode(const std::uint8_t* words_be, std::size_t count, const std::uint16_t* codes, std::uint32_t contributors,
              double divisor, const Kept& kept) override {
    dequantize(fixed_, words_be, count, block_elements, codes, contributors,
               divisor != 0 ? divisor : std::max(contributors, 1u), kept.skip, kept.count, kept.out);
  }

 private:
  std::size_t whole_words_ = 0;  // words of a full packet
};

bool is_width(std::uint32_t lanes) { return lanes == 32 || lanes == 16 || lanes == 8 || lanes == 4; }

std::shared_ptr<WordCodec> make_lanes(const Reduction& asked, const JobSpec& spec, std::uint32_t place) {
  return std::make_shared<LanesCodec>(asked, spec, place);
}

const CodecEntry lanes_entry{"lanes",
                             [](Element element, std::uint32_t width) {
                               return is_width(width) && is_floating(element) && element != Element::float64;
                             },
                             make_lanes};
const CodecEntry wide_entry{
    "wide", [](Element element, std::uint32_t width) { return is_width(width) && element == Element::float64; },
    make_lanes};

}  // namespace

}  // namespace fanin
