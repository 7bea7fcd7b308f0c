#include "gather.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels.hpp"
#include "packet.hpp"

namespace fanin {

Gather::Gather(const Reduction& asked, const JobSpec& spec, std::uint32_t place)
    : element_(asked.element),
      count_(asked.count),
      place_(place),
      ranks_(spec.ranks()),
      marks_(spec.synchronous() ? 0 : 1),
      room_(spec.words_per_packet - marks_) {
  elements_per_packet = exact_elements(element_, room_ / ranks_);
  spread = elements_per_packet == 0;
  if (!spread) {
    packets = (count_ + elements_per_packet - 1) / elements_per_packet;
    return;
  }
  row_words_ = ranks_ * exact_words(element_, count_);
  if (row_words_ > MAX_SPREAD_WORDS)
    throw std::invalid_argument(std::to_string(count_) + " elements of " + std::to_string(ranks_) +
                                " ranks are too many to be reduced exactly in packets of " +
                                std::to_string(spec.words_per_packet) + " words: take at most " +
                                std::to_string(MAX_SPREAD_WORDS * count_ / row_words_) + ", or longer packets");
  packets = (row_words_ + room_ - 1) / room_;
}

std::size_t Gather::word_count(std::uint64_t packet) const {
  if (spread) return marks_ + static_cast<std::size_t>(std::min<std::uint64_t>(room_, row_words_ - packet * room_));
  const std::uint64_t count = std::min(elements_per_packet, count_ - packet * elements_per_packet);
  return marks_ + ranks_ * exact_words(element_, count);
}

void Gather::contribution(std::uint64_t packet, const std::uint8_t* x, std::size_t n, double factor,
                          const float* residual, std::uint8_t* words_be) const {
  const std::size_t words = word_count(packet) - marks_, own = exact_words(element_, n);
  if (marks_ != 0) store_be32(words_be, 1u << place_);
  std::uint8_t* const row = words_be + marks_ * WORD_BYTES;
  const std::uint64_t start = spread ? packet * room_ : 0, first = std::uint64_t{place_} * own;
  const std::uint64_t begin = std::max(start, first), end = std::min(start + words, first + own);
  if (begin >= end) {
    std::memset(row, 0, words * WORD_BYTES);
    return;
  }
  const std::size_t before = (begin - start) * WORD_BYTES, length = (end - begin) * WORD_BYTES;
  std::memset(row, 0, before);
  std::memset(row + before + length, 0, words * WORD_BYTES - before - length);
  if (end - begin == own) return exact_encode(element_, x, n, factor, residual, row + before);
  std::vector<std::uint8_t> whole(own * WORD_BYTES);
  exact_encode(element_, x, n, factor, residual, whole.data());
  std::memcpy(row + before, whole.data() + (begin - first) * WORD_BYTES, length);
}

void Gather::keep(std::uint64_t packet, const std::uint8_t* words_be) {
  if (row_.empty()) row_.resize(row_words_ * WORD_BYTES);
  if (marks_ != 0) present_ &= load_be32(words_be);
  std::memcpy(row_.data() + packet * room_ * WORD_BYTES, words_be + marks_ * WORD_BYTES,
              (word_count(packet) - marks_) * WORD_BYTES);
}

Gather::Result Gather::result(const std::uint8_t* words_be, std::uint32_t contributors) const {
  if (marks_ == 0) return {EVERYBODY, contributors, spread ? row_.data() : words_be};
  const std::uint32_t present = spread ? present_ : load_be32(words_be);
  return {present, static_cast<std::uint32_t>(std::popcount(present)),
          spread ? row_.data() : words_be + marks_ * WORD_BYTES};
}

}  // namespace fanin
