// How an exact reduction lies in packets. The rules stand in host/machine/gather.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "job.hpp"
#include "reduction.hpp"

namespace fanin {

inline constexpr std::uint64_t MAX_SPREAD_WORDS = 1 << 20;
inline constexpr std::uint32_t EVERYBODY = 0xFFFFFFFFu;

class Gather {
 public:
  Gather() = default;
  // Throws std::invalid_argument for what would be too large a row.
  Gather(const Reduction& asked, const JobSpec& spec, std::uint32_t place);

  std::uint64_t packets = 0;
  std::uint64_t elements_per_packet = 0;
  bool spread = false;

  std::size_t word_count(std::uint64_t packet) const;
  // The words of a packet, of which `n` elements at x are this worker's: its own, or all where the reduction is spread.
  void contribution(std::uint64_t packet, const std::uint8_t* x, std::size_t n, double factor, const float* residual,
                    std::uint8_t* words_be) const;
  // Spread: takes in a packet's result.
  void keep(std::uint64_t packet, const std::uint8_t* words_be);

  // What came in: who is in it (and how many that are), and where all ranks' parts begin.
  struct Result {
    std::uint32_t present;
    std::uint32_t contributors;
    const std::uint8_t* parts_be;
  };
  Result result(const std::uint8_t* words_be, std::uint32_t contributors) const;

  std::uint32_t ranks() const { return ranks_; }
  void forget() { std::vector<std::uint8_t>().swap(row_); }

 private:
  Element element_ = Element::float32;
  std::uint64_t count_ = 0;
  std::uint32_t place_ = 0;
  std::uint32_t ranks_ = 1;
  std::size_t marks_ = 0;  // words in front that say who has contributed
  std::size_t room_ = 0;   // words behind them
  std::uint64_t row_words_ = 0;
  std::uint32_t present_ = EVERYBODY;
  std::vector<std::uint8_t> row_;  // spread: what has come
};

}  // namespace fanin
