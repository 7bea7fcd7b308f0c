// The kernels for processors with AVX2 and F16C. Nothing here runs before kernels.cpp asks the processor.
#include "kernels/kernel_table.hpp"

#if FANIN_X86_KERNELS

// Standard headers come first: what they define must be compiled for any x86-64.
#include <immintrin.h>

#include <cstring>

#pragma GCC push_options
#pragma GCC target("avx2,f16c")

#include "kernels/kernel_body.hpp"
#include "kernels/simd_avx2.hpp"

namespace fanin {

constexpr KernelTable avx2_kernels = KernelBody<Avx2Simd>::table("avx2", crc32_folding);

}  // namespace fanin

#pragma GCC pop_options

#endif  // FANIN_X86_KERNELS
