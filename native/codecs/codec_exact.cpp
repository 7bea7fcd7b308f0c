// Exact reductions: each rank's elements travel in words of their own. The rules stand in host/codecs/words/exact.py.
#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/kernels.hpp"
#include "wire/packet.hpp"
#include "codecs/word_codec.hpp"

namespace fanin {

namespace {

constexpr std::uint64_t MAX_SPREAD_WORDS = 1 << 20;
constexpr std::uint32_t EVERYBODY = 0xFFFFFFFFu;
constexpr std::uint8_t FIRST_OPERATOR = 128;

void check(const Reduction& asked, const JobSpec& spec) {
  if (spec.max_staleness != 0)
    throw std::invalid_argument("an exact reduction through a job with staleness > 0: rounds would mix two of a rank");
  if (spec.total_workers != spec.workers && spec.places.empty())
    throw std::invalid_argument("an exact reduction in a tree needs the places of its workers (JobSpec.places)");
  if (is_floating(asked.element) && asked.with >= Operator::band) throw std::invalid_argument("bits are for integers");
}

class ExactCodec final : public WordCodec {
 public:
  ExactCodec(const Reduction& asked, const JobSpec& spec, std::uint32_t place)
      : element_(asked.element),
        with_(asked.with),
        count_(asked.count),
        place_(place),
        ranks_(spec.total_workers),
        marks_(spec.synchronous() ? 0 : 1),
        room_(spec.words_per_packet - marks_) {
    check(asked, spec);
    number = static_cast<std::uint8_t>(FIRST_OPERATOR + static_cast<std::uint8_t>(asked.with));
    packet_elements = block_elements = exact_elements(element_, room_ / ranks_);
    in_one_flow = packet_elements == 0;
    if (!in_one_flow) {
      packets = (count_ + packet_elements - 1) / packet_elements;
      return;
    }
    row_words_ = ranks_ * exact_words(element_, count_);
    if (row_words_ > MAX_SPREAD_WORDS)
      throw std::invalid_argument(std::to_string(count_) + " elements of " + std::to_string(ranks_) +
                                  " ranks are too many to be reduced exactly in packets of " +
                                  std::to_string(spec.words_per_packet) + " words: take at most " +
                                  std::to_string(MAX_SPREAD_WORDS * count_ / row_words_) + ", or longer packets");
    packets = missing_ = (row_words_ + room_ - 1) / room_;
  }

  PacketSpan span(std::uint64_t packet) const override {
    if (spread()) return {0, static_cast<std::size_t>(count_)};
    const std::uint64_t start = packet * packet_elements;
    return {start, static_cast<std::size_t>(std::min(packet_elements, count_ - start))};
  }

  std::size_t word_count(std::uint64_t packet) const override {
    if (spread()) return marks_ + static_cast<std::size_t>(std::min<std::uint64_t>(room_, row_words_ - packet * room_));
    return marks_ + ranks_ * exact_words(element_, span(packet).count);
  }

  void encode(std::uint64_t packet, const EncoderInput& given, const std::uint16_t*,
              std::uint8_t* words_be) const override {
    const std::size_t words = word_count(packet) - marks_, own = exact_words(element_, given.n);
    if (marks_ != 0) store_be32(words_be, 1u << place_);
    std::uint8_t* const row = words_be + marks_ * WORD_BYTES;
    const std::uint64_t start = spread() ? packet * room_ : 0, first = std::uint64_t{place_} * own;
    const std::uint64_t begin = std::max(start, first), end = std::min(start + words, first + own);
    if (begin >= end) {
      std::memset(row, 0, words * WORD_BYTES);
      return;
    }
    const std::size_t before = (begin - start) * WORD_BYTES, length = (end - begin) * WORD_BYTES;
    std::memset(row, 0, before);
    std::memset(row + before + length, 0, words * WORD_BYTES - before - length);
    if (end - begin == own) return exact_encode(element_, given.x, given.n, given.factor, given.residual, row + before);
    std::vector<std::uint8_t> whole(own * WORD_BYTES);
    exact_encode(element_, given.x, given.n, given.factor, given.residual, whole.data());
    std::memcpy(row + before, whole.data() + (begin - first) * WORD_BYTES, length);
  }

  const std::uint8_t* collect(std::uint64_t packet, const std::uint8_t* words_be) override {
    if (!spread()) return words_be;
    if (row_.empty()) row_.resize((marks_ + row_words_) * WORD_BYTES);
    if (marks_ != 0) present_ &= load_be32(words_be);
    std::memcpy(row_.data() + (marks_ + packet * room_) * WORD_BYTES, words_be + marks_ * WORD_BYTES,
                (word_count(packet) - marks_) * WORD_BYTES);
    if (--missing_ != 0) return nullptr;
    if (marks_ != 0) store_be32(row_.data(), present_);
    return row_.data();
  }

  void decode(const std::uint8_t* words_be, std::size_t count, const std::uint16_t*, std::uint32_t contributors,
              double divisor, const Kept& kept) override {
    const std::uint32_t present = marks_ != 0 ? load_be32(words_be) : EVERYBODY;
    const std::uint32_t counted = marks_ != 0 ? static_cast<std::uint32_t>(std::popcount(present)) : contributors;
    const Parts parts = {.element = element_,
                         .ranks = ranks_,
                         .present = present,
                         .part_bytes = exact_words(element_, count) * WORD_BYTES,
                         .words_be = words_be + marks_ * WORD_BYTES};
    exact_decode(parts, with_, divisor != 0 ? divisor : std::max(counted, 1u), kept.skip, kept.count, kept.out);
  }

  // Spoilers are reported for sums alone, since a maximum may be infinite.
  std::vector<Spoiler> spoilers(std::uint64_t packet, const std::uint8_t* words_be, const std::uint16_t*,
                                std::uint32_t) const override {
    std::vector<Spoiler> found;
    if (with_ != Operator::sum || !is_floating(element_)) return found;
    const PacketSpan at = span(packet);
    const std::uint32_t present = marks_ != 0 ? load_be32(words_be) : EVERYBODY;
    const std::size_t part_words = exact_words(element_, at.count);
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      if (rank < 32 && (present >> rank & 1) == 0) continue;
      const std::uint8_t* const part = words_be + (marks_ + rank * part_words) * WORD_BYTES;
      if (exact_finite(element_, part, at.count)) continue;
      std::size_t first = 0;
      while (exact_finite(element_, part + first * element_bytes(element_), 1)) ++first;
      found.push_back({rank, at.start + first, 1});
    }
    return found;
  }

  void update_residual(const EncoderInput& own, const std::uint16_t*) const override {
    exact_residual(element_, own.x, own.n, own.factor, own.residual);
  }

 private:
  bool spread() const { return in_one_flow; }

  Element element_;
  Operator with_;
  std::uint64_t count_;
  std::uint32_t place_;
  std::uint32_t ranks_;
  std::size_t marks_;  // words at the front that mark which ranks have contributed
  std::size_t room_;   // words behind the marks
  std::uint64_t row_words_ = 0;
  std::uint64_t missing_ = 0;  // packets
  std::uint32_t present_ = EVERYBODY;
  std::vector<std::uint8_t> row_;  // with spread(): all ranks' words, collected from the packets that have come
};

const CodecEntry exact{
    "exact", [](Element, std::uint32_t lanes) { return lanes == EXACT; },
    [](const Reduction& asked, const JobSpec& spec, std::uint32_t place) -> std::shared_ptr<WordCodec> {
      return std::make_shared<ExactCodec>(asked, spec, place);
    }};

}  // namespace

}  // namespace fanin
