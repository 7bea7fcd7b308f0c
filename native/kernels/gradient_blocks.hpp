// Arithmetic of gradient codecs block by block, each block while it is in the cache. The rules stand in
// host/codecs/blocks.py and host/codecs/rotation.py, whose numpy agrees with this bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fanin {

// The squared norm of each block of `block` floats; the last one may be shorter.
void block_squares(const float* x, std::size_t count, std::size_t block, float* squares);

// Notes for each block whether it has an element that is not zero.
void nonzero_blocks(const float* x, std::size_t count, std::size_t block, bool* nonzero);

// `count` elements in blocks of a power of two, the last one padded with zeros. Sign bit i: element i changes its sign.
struct Rotation {
  const std::uint32_t* signs;
  std::size_t block;
  std::size_t count;
};

// sent + cut = 2^(-k/2) H D x + owed, each block of `sent` clipped at `clip` times its root mean square; `squares` are
// those before clipping. `owed` may be null. `sent` may be x where the last block is whole.
void rotate_and_clip(const Rotation& rotation, const float* x, const float* owed, float clip, float* sent, float* cut,
                     float* squares);

// x = D 2^(-k/2) H mean; owed += lost, whose squares these are. `mean` is overwritten, and may be x likewise.
void rotate_back(const Rotation& rotation, float* mean, const float* lost, float* owed, float* squares, float* x);

}  // namespace fanin
