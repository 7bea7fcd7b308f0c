// The kernels without vector instructions of our own.
#include "kernels/kernel_body.hpp"
#include "kernels/simd_portable.hpp"

namespace fanin {

constexpr KernelTable portable_kernels = KernelBody<PortableSimd>::table("portable", crc32_portable);

}  // namespace fanin
