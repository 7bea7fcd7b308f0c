// The costly arithmetic of gradient codecs: the rotation and random numbers. The rules stand in
// host/codecs/rotation.py and host/codecs/philox.py, whose numpy agrees with this bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fanin {

// x = 2^(-k/2) H x for each block of 2^k floats, k even; `count` is a multiple of `block`.
void hadamard(float* x, std::size_t count, std::size_t block);

// Philox4x32-10 (Salmon et al., SC 2011): word i is from block i / 4, whose counter is {i / 4, counter[1..3]}.
void philox(const std::uint32_t key[2], const std::uint32_t counter[4], std::uint32_t* words, std::size_t count);

}  // namespace fanin
