// Copies bytes unchanged, each from the one rank that owns it. The rules stand in host/codecs/words/copied.py.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/kernels.hpp"
#include "kernels/streaming.hpp"
#include "codecs/word_codec.hpp"

namespace fanin {

namespace {

class CopiedCodec final : public BlockCodec {
 public:
  CopiedCodec(const Reduction& asked, const JobSpec& spec) : whole_words_(Element::int32, 32, 1) {
    number = static_cast<std::uint8_t>(COPIED);
    lay_out(asked.count, std::uint64_t{spec.words_per_packet} * WORD_BYTES, 1);
  }

  std::size_t word_count(std::uint64_t packet) const override {
    return (span(packet).count + WORD_BYTES - 1) / WORD_BYTES;
  }

  void encode(std::uint64_t, const EncoderInput& own, const std::uint16_t*, std::uint8_t* words_be) const override {
    const std::size_t whole = own.n / WORD_BYTES;
    quantize(whole_words_, own.x, whole, 1, nullptr, 1.0, nullptr, words_be);
    if (own.n % WORD_BYTES == 0) return;
    std::uint8_t last[WORD_BYTES] = {};
    std::copy_n(own.x + whole * WORD_BYTES, own.n % WORD_BYTES, last);
    std::reverse_copy(last, last + WORD_BYTES, words_be + whole * WORD_BYTES);
  }

  void decode(const std::uint8_t* words_be, std::size_t, const std::uint16_t*, std::uint32_t, double,
              const Kept& kept) override {
    std::size_t at = kept.skip;
    const std::size_t end = kept.skip + kept.count;
    std::uint8_t* out = kept.out;
    const auto byte_by_byte = [&](std::size_t until) {
      for (; at < until; ++at) *out++ = words_be[at ^ (WORD_BYTES - 1)];
    };
    byte_by_byte(std::min(end, (at + WORD_BYTES - 1) / WORD_BYTES * WORD_BYTES));
    const std::size_t whole = (end - at) / WORD_BYTES;
    dequantize(whole_words_, words_be + at, whole, 1, nullptr, 1, 1.0, 0, whole, out);
    at += whole * WORD_BYTES;
    out += whole * WORD_BYTES;
    byte_by_byte(end);
  }

  bool stream(const std::uint8_t* words_be, const Kept& kept) override {
    const bool aligned = (kept.skip | kept.count | reinterpret_cast<std::uintptr_t>(kept.out)) % WORD_BYTES == 0;
    return aligned && stream_words(kept.out, words_be + kept.skip, kept.count / WORD_BYTES);
  }

  void update_residual(const EncoderInput&, const std::uint16_t*) const override {}

 private:
  FixedPoint whole_words_;  // 32-bit integers, which are only swapped into wire order and back
};

const CodecEntry copied{
    "copied", [](Element element, std::uint32_t number) { return number == COPIED && element == Element::uint8; },
    [](const Reduction& asked, const JobSpec& spec, std::uint32_t) -> std::shared_ptr<WordCodec> {
      return std::make_shared<CopiedCodec>(asked, spec);
    }};

}  // namespace

}  // namespace fanin
