// One implementation of the kernels of kernels.hpp: the same body (kernel_body.hpp), compiled for one instruction set.
#pragma once

#include "kernels/kernels.hpp"

// The vector kernels switch instruction sets within a file, which only GCC supports; Clang, used for fuzzing, compiles
// the portable ones.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FANIN_X86_KERNELS 1
#else
#define FANIN_X86_KERNELS 0
#endif

namespace fanin {

// Meaning of a scale code for one block of float32, float16 or bfloat16. Factors come in pairs, one at least an exact
// power of two, so that no intermediate over- or underflows whatever the exponent (docs/numerics.md, "Extremes").
struct BlockScale {
  float to_steps[2];  // q = rint(clamp((x * to_steps[0]) * to_steps[1], -limit, limit))
  float to_value[2];  // x ~ (q * to_value[0]) * to_value[1]
  float limit;        // 0 for a block that is zero or not finite: every q is then 0
};

// Meaning of a scale code for float64 over three words; each word weighs `low` = 2^k times the next.
struct WideScale {
  double to_steps[2];
  double to_value[2];
  double limit;
  double low;
};

// Deliberately not inline: the linker must never keep a copy that was compiled for AVX-512.
BlockScale block_scale(const FixedPoint& codec, std::uint16_t code);
WideScale wide_scale(const FixedPoint& codec, std::uint16_t code);
// The scale code of a block with this largest magnitude; CODE_NOT_FINITE if that is not finite.
std::uint16_t scale_code(const FixedPoint& codec, double magnitude);

struct KernelTable {
  const char* name;
  decltype(&fanin::scale_codes) scale_codes;
  decltype(&fanin::quantize) quantize;
  decltype(&fanin::dequantize) dequantize;
  decltype(&fanin::dequantize_narrowed) dequantize_narrowed;
  decltype(&fanin::update_residual) update_residual;
  decltype(&fanin::add_words) add_words;
  decltype(&fanin::accumulate_lanes) accumulate_lanes;
  decltype(&fanin::narrow_lanes) narrow_lanes;
  decltype(&fanin::exact_encode) exact_encode;
  decltype(&fanin::exact_residual) exact_residual;
  decltype(&fanin::exact_decode) exact_decode;
  decltype(&fanin::crc32) crc32;
};

std::uint32_t crc32_portable(const void* data, std::size_t bytes, std::uint32_t start);

extern const KernelTable portable_kernels;
#if FANIN_X86_KERNELS
extern const KernelTable avx2_kernels;
extern const KernelTable avx512_kernels;
// Needs PCLMULQDQ and SSE4.1, which every processor with AVX2 has.
std::uint32_t crc32_folding(const void* data, std::size_t bytes, std::uint32_t start);
#endif

}  // namespace fanin
