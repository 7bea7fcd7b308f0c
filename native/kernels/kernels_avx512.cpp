// The kernels for processors with AVX-512 (F, BW, DQ, VL). Nothing here runs before kernels.cpp asks the processor.
#include "kernels/kernel_table.hpp"

#if FANIN_X86_KERNELS

// Standard headers come first: what they define must be compiled for any x86-64.
#include <immintrin.h>

#include <cstring>

// GCC's own intrinsics start from a deliberately undefined register, and GCC 12 warns of it (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,prfchw")

#include "kernels/kernel_body.hpp"
#include "kernels/simd_avx512.hpp"

namespace fanin {

constexpr KernelTable avx512_kernels = KernelBody<Avx512Simd>::table("avx512", crc32_folding);

}  // namespace fanin

#pragma GCC pop_options

#endif  // FANIN_X86_KERNELS
