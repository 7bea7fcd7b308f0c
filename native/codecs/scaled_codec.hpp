// A codec of floating point in steps of each block's scale, on which the ranks agree: what all layouts of its lanes
// have in common.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "codecs/spoilers.hpp"
#include "codecs/word_codec.hpp"
#include "kernels/kernels.hpp"

namespace fanin {

class ScaledCodec : public BlockCodec {
 public:
  void codes(const EncoderInput& own, std::uint16_t* codes) const final {
    scale_codes(fixed_, own.x, own.n, block_elements, own.factor, own.residual, codes);
  }

  void mark(const EncoderInput& own, const std::uint16_t* agreed, std::uint8_t* words_be) const final {
    marks_->mark(own, agreed, words_be);
  }

  std::vector<Spoiler> spoilers(std::uint64_t packet, const std::uint8_t* words_be, const std::uint16_t* agreed,
                                std::uint32_t contributors) const final {
    return marks_->read(span(packet), agreed, words_be, contributors);
  }

  void update_residual(const EncoderInput& own, const std::uint16_t* codes) const final {
    fanin::update_residual(fixed_, own.x, own.n, block_elements, codes, own.factor, own.residual);
  }

 protected:
  explicit ScaledCodec(const FixedPoint& fixed) : fixed_(fixed) { scaled = true; }

  FixedPoint fixed_;
  std::optional<Marks> marks_;  // set once the blocks are laid out
};

}  // namespace fanin
