// Integers, one per word. The rules stand in host/codecs/words/integers.py.
#include "kernels/kernels.hpp"
#include "codecs/word_codec.hpp"

namespace fanin {

namespace {

class IntegersCodec final : public BlockCodec {
 public:
  IntegersCodec(const Reduction& asked, const JobSpec& spec) : fixed_(asked.element, 32, 1) {
    lay_out(asked.count, spec.words_per_packet / spec.codes_per_packet, spec.codes_per_packet);
  }

  std::size_t word_count(std::uint64_t packet) const override { return span(packet).count; }

  void encode(std::uint64_t, const EncoderInput& own, const std::uint16_t*, std::uint8_t* words_be) const override {
    quantize(fixed_, own.x, own.n, 1, nullptr, 1.0, nullptr, words_be);
  }

  void decode(const std::uint8_t* words_be, std::size_t count, const std::uint16_t*, std::uint32_t contributors,
              double divisor, const Kept& kept) override {
    dequantize(fixed_, words_be, count, 1, nullptr, contributors, divisor, kept.skip, kept.count, kept.out);
  }

  void update_residual(const EncoderInput&, const std::uint16_t*) const override {}

 private:
  FixedPoint fixed_;
};

const CodecEntry integers{"integers",
                          [](Element element, std::uint32_t width) {
                            const bool is_width = width == 32 || width == 16 || width == 8 || width == 4;
                            return is_width && !is_floating(element) && element != Element::int64;
                          },
                          [](const Reduction& asked, const JobSpec& spec, std::uint32_t) -> std::shared_ptr<WordCodec> {
                            return std::make_shared<IntegersCodec>(asked, spec);
                          }};

}  // namespace

}  // namespace fanin
