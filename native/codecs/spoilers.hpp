// Marks, in the words of a block that is not finite, of the workers that have spoiled it: fanin/numerics/spoilers.py
// has the rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "codecs/word_codec.hpp"
#include "kernels/kernels.hpp"

namespace fanin {

class Marks {
 public:
  // `codec`: that of the words or, for wide sums, of the lanes of contributions. `workers`: at all switches together.
  // `lanes`: Header.lanes of wide sums; 0: words are added whole.
  Marks(const FixedPoint& codec, std::uint64_t block_elements, std::uint32_t place, std::uint32_t workers,
        std::uint8_t lanes = 0);

  // Writes this worker's mark into the blocks of a packet's words that it has spoiled; `agreed` codes say which are not
  // finite. Words are in wire order.
  void mark(const EncoderInput& own, const std::uint16_t* agreed, std::uint8_t* words_be) const;
  // Reads the marks in the words of a packet's result, whose elements are `at`.
  std::vector<Spoiler> read(const PacketSpan& at, const std::uint16_t* agreed, const std::uint8_t* words_be,
                            std::uint32_t contributors) const;

 private:
  std::size_t words(std::size_t elements, std::uint32_t lane_bits) const;
  void read_block(std::uint64_t first, std::size_t count, const std::uint8_t* words_be, std::uint32_t contributors,
                  std::vector<Spoiler>& found) const;

  FixedPoint codec_;
  std::uint64_t block_elements_;
  std::uint32_t place_;
  std::uint32_t workers_;
  std::uint32_t up_ = 0, down_ = 0;  // bits of a lane of wide sums; 0: words are added whole
  std::uint32_t blank_ = 0;          // a word of a contribution whose elements are all q = 0
};

}  // namespace fanin
