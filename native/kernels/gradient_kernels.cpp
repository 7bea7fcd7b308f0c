#include "kernels/gradient_kernels.hpp"

#include <cstring>

#include "kernels/clones.hpp"
#include "kernels/floating_point.hpp"

namespace fanin {

namespace {

constexpr std::size_t GROUP = 8;  // elements of a vector, within which the first three stages of butterflies are
typedef float Group __attribute__((vector_size(4 * GROUP)));
typedef std::int32_t Places __attribute__((vector_size(4 * GROUP)));

// The butterflies of distances 1, 2 and 4 within a vector: a + b in the place of a, a - b in the place of b. Negation
// is exact, so that the result has the same bits as that of the plain loop.
#if defined(__clang__)
#define FANIN_PARTNERS(v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#else
#define FANIN_PARTNERS(v, ...) __builtin_shuffle(v, Places{__VA_ARGS__})
#endif

__attribute__((always_inline)) inline void within_group(Group& v) {
  v = FANIN_PARTNERS(v, 1, 0, 3, 2, 5, 4, 7, 6) + v * Group{1, -1, 1, -1, 1, -1, 1, -1};
  v = FANIN_PARTNERS(v, 2, 3, 0, 1, 6, 7, 4, 5) + v * Group{1, 1, -1, -1, 1, 1, -1, -1};
  v = FANIN_PARTNERS(v, 4, 5, 6, 7, 0, 1, 2, 3) + v * Group{1, 1, 1, 1, -1, -1, -1, -1};
}

FANIN_CLONES void butterflies(float* __restrict x, std::size_t block, float scale) {
  if (block < GROUP) {
    for (std::size_t half = 1; half < block; half *= 2)
      for (std::size_t first = 0; first < block; first += 2 * half)
        for (std::size_t i = first; i < first + half; ++i) {
          const float a = x[i], b = x[i + half];
          x[i] = a + b;
          x[i + half] = a - b;
        }
    for (std::size_t i = 0; i < block; ++i) x[i] *= scale;
    return;
  }
  for (std::size_t i = 0; i < block; i += GROUP) {
    Group v;
    std::memcpy(&v, x + i, sizeof v);
    within_group(v);
    std::memcpy(x + i, &v, sizeof v);
  }
  // Two distances per pass as long as possible, which halves the passes over the block.
  std::size_t half = GROUP;
  for (; 2 * half < block; half *= 4)
    for (std::size_t first = 0; first < block; first += 4 * half) {
      float* __restrict p = x + first;
      for (std::size_t i = 0; i < half; ++i) {
        const float a = p[i] + p[i + half], b = p[i] - p[i + half];
        const float c = p[i + 2 * half] + p[i + 3 * half], d = p[i + 2 * half] - p[i + 3 * half];
        p[i] = a + c;
        p[i + half] = b + d;
        p[i + 2 * half] = a - c;
        p[i + 3 * half] = b - d;
      }
    }
  for (; half < block; half *= 2)
    for (std::size_t first = 0; first < block; first += 2 * half) {
      float* __restrict low = x + first;
      float* __restrict high = low + half;
      for (std::size_t i = 0; i < half; ++i) {
        const float a = low[i], b = high[i];
        low[i] = a + b;
        high[i] = a - b;
      }
    }
  for (std::size_t i = 0; i < block; ++i) x[i] *= scale;
}

constexpr std::uint32_t MULTIPLIERS[2] = {0xD2511F53u, 0xCD9E8D57u};
constexpr std::uint32_t WEYL[2] = {0x9E3779B9u, 0xBB67AE85u};
constexpr int ROUNDS = 10;
constexpr std::size_t LANES = 16;  // Philox blocks computed side by side, so that the compiler vectorizes them

FANIN_CLONES void philox_blocks(const std::uint32_t* key, const std::uint32_t* counter, std::uint32_t first,
                                std::uint32_t* out) {
  std::uint32_t a[LANES], b[LANES], c[LANES], d[LANES];
  for (std::size_t i = 0; i < LANES; ++i) {
    a[i] = first + static_cast<std::uint32_t>(i);
    b[i] = counter[1];
    c[i] = counter[2];
    d[i] = counter[3];
  }
  std::uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < ROUNDS; ++round) {
    for (std::size_t i = 0; i < LANES; ++i) {
      const std::uint64_t p = std::uint64_t{MULTIPLIERS[0]} * a[i], q = std::uint64_t{MULTIPLIERS[1]} * c[i];
      a[i] = static_cast<std::uint32_t>(q >> 32) ^ b[i] ^ k0;
      b[i] = static_cast<std::uint32_t>(q);
      c[i] = static_cast<std::uint32_t>(p >> 32) ^ d[i] ^ k1;
      d[i] = static_cast<std::uint32_t>(p);
    }
    k0 += WEYL[0];
    k1 += WEYL[1];
  }
  for (std::size_t i = 0; i < LANES; ++i) {
    out[4 * i] = a[i];
    out[4 * i + 1] = b[i];
    out[4 * i + 2] = c[i];
    out[4 * i + 3] = d[i];
  }
}

}  // namespace

void hadamard(float* x, std::size_t count, std::size_t block) {
  const DefaultFloatingPoint arithmetic;
  float scale = 1.0f;
  for (std::size_t size = block; size > 1; size /= 4) scale *= 0.5f;
  for (std::size_t first = 0; first + block <= count; first += block) butterflies(x + first, block, scale);
}

void philox(const std::uint32_t key[2], const std::uint32_t counter[4], std::uint32_t* words, std::size_t count) {
  std::uint32_t group[4 * LANES];
  for (std::size_t done = 0; done < count; done += 4 * LANES) {
    const std::size_t wanted = count - done < 4 * LANES ? count - done : 4 * LANES;
    const auto first = static_cast<std::uint32_t>(counter[0] + done / 4);
    if (wanted == 4 * LANES) {
      philox_blocks(key, counter, first, words + done);
      continue;
    }
    philox_blocks(key, counter, first, group);
    for (std::size_t i = 0; i < wanted; ++i) words[done + i] = group[i];
  }
}

}  // namespace fanin
