// Encodes weights in 8, 6 or 4 bits on a grid per bucket. The equations and the layout stand in
// host/codecs/shifted_weights.py, whose numpy agrees with this bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fanin {

struct ShiftedGrid {
  std::size_t count;   // number of elements
  std::size_t bucket;  // elements per grid, a multiple of 8
  unsigned bits;       // 8, 6 or 4
  std::size_t buckets() const { return (count + bucket - 1) / bucket; }
  std::size_t encoded_bytes() const { return 8 * buckets() + (count * bits + 7) / 8; }
};

// Squared norms of the elements and of the error; not finite if an element is not.
struct ShiftedLoss {
  double energy;
  double lost;
};

// `shifts` has one number for each bucket, `into` encoded_bytes().
ShiftedLoss shifted_encode(const ShiftedGrid& grid, const float* x, const float* shifts, std::uint8_t* into);

// Decodes `keep` elements from `first` on. `streams`: with stores past the caches (streaming.hpp).
void shifted_decode(const ShiftedGrid& grid, const std::uint8_t* encoded, std::size_t first, std::size_t keep,
                    float* out, bool streams);

}  // namespace fanin
