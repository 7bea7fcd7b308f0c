#include "codecs/spoilers.hpp"

#include <algorithm>

#include "wire/packet.hpp"

namespace fanin {

namespace {

constexpr std::uint32_t WORD_BITS = 32;

std::uint32_t largest_mark(std::uint32_t bits) { return (1u << (bits - 1)) - 1; }

void add_to_word(std::uint8_t* words_be, std::size_t word, std::uint32_t mark) {
  std::uint8_t* const at = words_be + word * WORD_BYTES;
  store_be32(at, load_be32(at) + mark);
}

// Calls `visit(begin, end)` for the blocks of `count` elements whose code is not finite.
template <typename Visit>
void for_each_spoiled(const std::uint16_t* codes, std::size_t count, std::size_t block_elements, Visit visit) {
  for (std::size_t begin = 0; begin < count; begin += block_elements, ++codes)
    if (*codes == CODE_NOT_FINITE) visit(begin, std::min(begin + block_elements, count));
}

}  // namespace

Marks::Marks(const FixedPoint& codec, std::uint64_t block_elements, std::uint32_t place, std::uint32_t workers,
             std::uint8_t lanes)
    : codec_(codec), block_elements_(block_elements), place_(place), workers_(workers) {
  if (lanes != 0) {
    up_ = lane_bits_up(lanes), down_ = lane_bits_down(lanes);
  } else if (codec.lanes != WORD_BITS) {
    for (std::uint32_t shift = 0; shift < WORD_BITS; shift += codec.lanes)
      blank_ |= static_cast<std::uint32_t>(codec.bound) << shift;
  }
}

std::size_t Marks::words(std::size_t elements, std::uint32_t lane_bits) const {
  return lane_bits == 0 ? words_for(codec_, elements) : (elements * lane_bits + WORD_BITS - 1) / WORD_BITS;
}

void Marks::mark(const EncoderInput& own, const std::uint16_t* agreed, std::uint8_t* words_be) const {
  for_each_spoiled(agreed, own.n, block_elements_, [&](std::size_t begin, std::size_t end) {
    std::vector<std::uint16_t> codes(end - begin);
    scale_codes(codec_, own.x + begin * element_bytes(codec_.element), end - begin, 1, own.factor,
                own.residual == nullptr ? nullptr : own.residual + begin, codes.data());
    const auto bad = std::ranges::find(codes, CODE_NOT_FINITE);
    if (bad == codes.end()) return;
    std::uint8_t* const of_block = words_be + words(begin, up_) * WORD_BYTES;
    const std::size_t n = words(end, up_) - words(begin, up_);
    if (up_ != 0) {
      const std::uint32_t per_word = WORD_BITS / up_;
      if (place_ < end - begin)
        add_to_word(of_block, place_ / per_word, largest_mark(up_) << (WORD_BITS - up_ * (place_ % per_word + 1)));
    } else if (n >= workers_) {
      add_to_word(of_block, place_, 1 + static_cast<std::uint32_t>(bad - codes.begin()));
    } else if (place_ / WORD_BITS < n) {
      add_to_word(of_block, place_ / WORD_BITS, 1u << place_ % WORD_BITS);
    }
  });
}

std::vector<Spoiler> Marks::read(const PacketSpan& at, const std::uint16_t* agreed, const std::uint8_t* words_be,
                                 std::uint32_t contributors) const {
  std::vector<Spoiler> found;
  if (contributors == 0) return found;
  for_each_spoiled(agreed, at.count, block_elements_, [&](std::size_t begin, std::size_t end) {
    read_block(at.start + begin, end - begin, words_be + words(begin, down_) * WORD_BYTES, contributors, found);
  });
  return found;
}

void Marks::read_block(std::uint64_t first, std::size_t count, const std::uint8_t* words_be, std::uint32_t contributors,
                       std::vector<Spoiler>& found) const {
  if (down_ != 0) {
    const std::uint32_t per_word = WORD_BITS / down_, offset = largest_mark(down_);
    for (std::uint32_t place = 0; place < std::min<std::size_t>(count, workers_); ++place) {
      const std::uint32_t word = load_be32(words_be + place / per_word * WORD_BYTES);
      if ((word >> (WORD_BITS - down_ * (place % per_word + 1)) & ((1u << down_) - 1)) != offset)
        found.push_back({place, first, count});
    }
    return;
  }
  const std::size_t n = words(count, 0);
  const auto mark_of = [&](std::size_t word) {
    return load_be32(words_be + word * WORD_BYTES) - contributors * blank_;
  };
  if (n >= workers_) {
    for (std::uint32_t place = 0; place < workers_; ++place) {
      const std::uint32_t mark = mark_of(place);
      if (mark == 0) continue;
      const bool told = mark - 1 < count;
      found.push_back({place, first + (told ? mark - 1 : 0), told ? 1 : count});
    }
    return;
  }
  for (std::uint32_t place = 0; place < std::min<std::size_t>(n * WORD_BITS, workers_); ++place)
    if ((mark_of(place / WORD_BITS) >> place % WORD_BITS & 1) != 0) found.push_back({place, first, count});
}

}  // namespace fanin
