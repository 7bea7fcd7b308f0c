// Wide sums at the switch: lanes are added up one by one in accumulators, and narrowed when their round closes. The
// rules stand in fanin/numerics/wide_sums.py. Plain loops, each over one plane of accumulators (kernels.hpp), that the
// compiler vectorizes: lanes change places only where the result interleaves planes.
//
// Templates over the group type, though they do not use it, for the reason that kernel_body.hpp gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/kernels.hpp"
#include "wire/packet.hpp"

namespace fanin {

template <class Simd>
struct LaneLoops {
  using Size = std::size_t;

  // ---- adding up

  template <class Sum>
  static Sum magnitude(Sum sum) {
    const Sum minus = static_cast<Sum>(0 - sum);
    return static_cast<std::make_signed_t<Sum>>(sum) < 0 ? minus : sum;
  }

  template <class Sum>
  static Sum larger(Sum a, Sum b) {
    return a > b ? a : b;
  }

  // Adds plane P of lanes of U bits of COUNT inputs to `sums`; Sum is unsigned, since it wraps around. The inputs'
  // lanes are first added to each other, in the narrowest integer that holds their sum, so that more of them fit into a
  // vector. Returns the largest magnitude, which narrowing needs, because it costs little while the sums are in
  // registers.
  template <class Sum, std::uint32_t U, std::uint32_t P, std::size_t COUNT, bool First, bool Shifts>
  static Sum add_plane(Sum* __restrict__ sums, const std::uint8_t* const* in, Size bytes, std::uint32_t shift) {
    using Lanes = std::conditional_t<U == 8, std::uint16_t, std::uint8_t>;
    constexpr std::uint32_t DOWN = 8 - U * (P + 1), MASK = (1u << U) - 1, BOUND = MASK >> 1;
    static_assert(COUNT * MASK <= static_cast<Lanes>(-1));
    const std::uint8_t* __restrict__ const in_0 = in[0];
    const std::uint8_t* __restrict__ const in_1 = in[COUNT > 1 ? 1 : 0];
    const std::uint8_t* __restrict__ const in_2 = in[COUNT > 2 ? 2 : 0];
    const std::uint8_t* __restrict__ const in_3 = in[COUNT > 3 ? 3 : 0];
    Sum* const plane = sums + P * bytes;
    Sum most = 0;
    for (Size i = 0; i < bytes; ++i) {
      Lanes lanes = static_cast<Lanes>(in_0[i] >> DOWN & MASK);
      if constexpr (COUNT > 1) lanes = static_cast<Lanes>(lanes + (in_1[i] >> DOWN & MASK));
      if constexpr (COUNT > 2) lanes = static_cast<Lanes>(lanes + (in_2[i] >> DOWN & MASK));
      if constexpr (COUNT > 3) lanes = static_cast<Lanes>(lanes + (in_3[i] >> DOWN & MASK));
      Sum added = static_cast<Sum>(lanes - COUNT * BOUND);
      if constexpr (Shifts) added = static_cast<Sum>(std::uint32_t{added} << shift);
      plane[i] = static_cast<Sum>((First ? 0 : plane[i]) + added);
      most = larger(most, magnitude(plane[i]));
    }
    return most;
  }

  template <class Sum, std::uint32_t U, std::size_t COUNT, bool First, bool Shifts>
  static std::uint32_t add_planes(Sum* sums, const std::uint8_t* const* in, Size bytes, std::uint32_t shift) {
    Sum most = add_plane<Sum, U, 0, COUNT, First, Shifts>(sums, in, bytes, shift);
    if constexpr (U <= 4) most = larger(most, add_plane<Sum, U, 1, COUNT, First, Shifts>(sums, in, bytes, shift));
    if constexpr (U == 2) {
      most = larger(most, add_plane<Sum, U, 2, COUNT, First, Shifts>(sums, in, bytes, shift));
      most = larger(most, add_plane<Sum, U, 3, COUNT, First, Shifts>(sums, in, bytes, shift));
    }
    return most;
  }

  template <class Sum, std::size_t COUNT, bool First, bool Shifts>
  static std::uint32_t add(Sum* sums, std::uint8_t lanes, const std::uint8_t* const* in, Size bytes) {
    const std::uint32_t shift = lane_shift(lanes);
    switch (lane_bits_up(lanes)) {
      case 8:
        return add_planes<Sum, 8, COUNT, First, Shifts>(sums, in, bytes, shift);
      case 4:
        return add_planes<Sum, 4, COUNT, First, Shifts>(sums, in, bytes, shift);
      default:
        return add_planes<Sum, 2, COUNT, First, Shifts>(sums, in, bytes, shift);
    }
  }

  template <class Sum, bool First>
  static std::uint32_t add_some(Sum* sums, std::uint8_t lanes, const std::uint8_t* const* in, Size count, Size bytes) {
    switch (count) {
      case 1:
        return add<Sum, 1, First, false>(sums, lanes, in, bytes);
      case 2:
        return add<Sum, 2, First, false>(sums, lanes, in, bytes);
      case 3:
        return add<Sum, 3, First, false>(sums, lanes, in, bytes);
      default:
        return add<Sum, 4, First, false>(sums, lanes, in, bytes);
    }
  }

  // Adds shifted inputs one after the other. Only contributions of leaves are shifted, and a root has few leaves; loops
  // for each number of inputs would be a sixth of all kernels' code.
  template <class Sum>
  static std::uint32_t add_shifted(Sum* sums, std::uint8_t lanes, const std::uint8_t* const* in, Size count, Size bytes,
                                   bool first) {
    std::uint32_t most = 0;
    for (Size i = 0; i < count; ++i)
      most = first && i == 0 ? add<Sum, 1, true, true>(sums, lanes, in + i, bytes)
                             : add<Sum, 1, false, true>(sums, lanes, in + i, bytes);
    return most;
  }

  template <class Sum>
  static std::uint32_t add_up(Sum* sums, std::uint8_t lanes, const std::uint8_t* const* in, Size count, Size bytes,
                              bool first) {
    if (lane_shift(lanes) != 0) return add_shifted(sums, lanes, in, count, bytes, first);
    return first ? add_some<Sum, true>(sums, lanes, in, count, bytes)
                 : add_some<Sum, false>(sums, lanes, in, count, bytes);
  }

  static std::uint32_t accumulate(const LaneSums& sums, std::uint8_t lanes, const std::uint8_t* const* in, Size count,
                                  Size bytes, bool first) {
    if (sums.bytes_each == 2) return add_up(reinterpret_cast<std::uint16_t*>(sums.at), lanes, in, count, bytes, first);
    return add_up(reinterpret_cast<std::uint32_t*>(sums.at), lanes, in, count, bytes, first);
  }

  // ---- narrowing

  // A lane of the result: rint(sum / 2^shift), clamped to the bound, plus the bound. Computed in the width of the
  // accumulators without overflow, since the remainder is compared with a half instead of adding one.
  template <class Sum, class Signed, bool Shifts>
  static std::uint8_t lane(Sum sum, std::uint32_t shift, Signed bound) {
    Signed rounded = static_cast<Signed>(sum);
    if constexpr (Shifts) {
      const Sum half = static_cast<Sum>(Sum{1} << (shift - 1));
      const Sum rest = static_cast<Sum>(sum & ((Sum{1} << shift) - 1));
      rounded = static_cast<Signed>(rounded >> shift);
      const Sum odd = static_cast<Sum>(rounded & 1);
      rounded = static_cast<Signed>(rounded + (static_cast<Sum>(rest + odd) > half ? 1 : 0));
    }
    rounded = rounded < bound ? rounded : bound;
    rounded = rounded > -bound ? rounded : static_cast<Signed>(-bound);
    return static_cast<std::uint8_t>(rounded + bound);
  }

  // A lane of the result for a 32-bit sum that needs no clamping, by the processor's own rounding: x + 1.5 * 2^23 has
  // no fraction bits, and rint(x) in its lowest bits. `scale` is 2^-shift.
  static std::uint8_t lane_by_float(std::uint32_t sum, float scale, std::uint32_t bound) {
    const float x = static_cast<float>(static_cast<std::int32_t>(sum)) * scale;
    return static_cast<std::uint8_t>(__builtin_bit_cast(std::uint32_t, x + 0x1.8p23f) + bound);
  }

  static std::uint32_t shift_for(std::uint32_t most, std::uint32_t bound) {
    if (most <= bound) return 0;
    for (std::uint32_t shift = 1; shift < MAX_SHIFT; ++shift) {
      const std::uint32_t quotient = most >> shift, half = (1u << shift) >> 1;
      if (quotient + ((most & ((1u << shift) - 1)) + (quotient & 1) > half ? 1 : 0) <= bound) return shift;
    }
    return MAX_SHIFT;
  }

  // Packs PLANES planes of sums, each of `bytes` sums, into bytes of D-bit lanes.
  template <class Sum, class Signed, std::uint32_t D, std::uint32_t PLANES, bool Shifts>
  static void pack(const Sum* __restrict__ sums, Size bytes, std::uint32_t shift, std::uint8_t* __restrict__ out) {
    constexpr Signed BOUND = D == 8 ? 127 : 7;
    if constexpr (D == 8) {
      for (Size i = 0; i < bytes; ++i)
        for (std::uint32_t plane = 0; plane < PLANES; ++plane)
          out[i * PLANES + plane] = lane<Sum, Signed, Shifts>(sums[plane * bytes + i], shift, BOUND);
    } else {
      for (Size i = 0; i < bytes; ++i)
        for (std::uint32_t pair = 0; pair < PLANES / 2; ++pair) {
          const Sum* const two = sums + 2 * pair * bytes + i;
          out[i * (PLANES / 2) + pair] =
              static_cast<std::uint8_t>(lane<Sum, Signed, Shifts>(two[0], shift, BOUND) << 4 |
                                        lane<Sum, Signed, Shifts>(two[bytes], shift, BOUND));
        }
    }
  }

  template <std::uint32_t D, std::uint32_t PLANES>
  static void pack_by_float(const std::uint32_t* __restrict__ sums, Size bytes, std::uint32_t shift,
                            std::uint8_t* __restrict__ out) {
    constexpr std::uint32_t BOUND = D == 8 ? 127 : 7;
    const float scale = __builtin_bit_cast(float, (127u - shift) << 23);
    if constexpr (D == 8) {
      for (Size i = 0; i < bytes; ++i)
        for (std::uint32_t plane = 0; plane < PLANES; ++plane)
          out[i * PLANES + plane] = lane_by_float(sums[plane * bytes + i], scale, BOUND);
    } else {
      for (Size i = 0; i < bytes; ++i)
        for (std::uint32_t pair = 0; pair < PLANES / 2; ++pair) {
          const std::uint32_t* const two = sums + 2 * pair * bytes + i;
          out[i * (PLANES / 2) + pair] = static_cast<std::uint8_t>(lane_by_float(two[0], scale, BOUND) << 4 |
                                                                   lane_by_float(two[bytes], scale, BOUND));
        }
    }
  }

  template <class Sum, class Signed, std::uint32_t D, std::uint32_t PLANES>
  static void pack_planes(const Sum* sums, Size bytes, std::uint32_t shift, std::uint8_t* out) {
    if constexpr (sizeof(Sum) == 4) {
      // Only at the largest shift may sums exceed the bound, and the exact range of floats.
      if (shift < MAX_SHIFT) return pack_by_float<D, PLANES>(sums, bytes, shift, out);
    }
    if (shift == 0) return pack<Sum, Signed, D, PLANES, false>(sums, bytes, shift, out);
    pack<Sum, Signed, D, PLANES, true>(sums, bytes, shift, out);
  }

  template <class Sum, class Signed>
  static std::uint32_t narrow_sums(const Sum* sums, std::uint8_t lanes, Size bytes, std::uint32_t most,
                                   std::uint8_t* out) {
    const std::uint32_t up = lane_bits_up(lanes), down = lane_bits_down(lanes);
    const std::uint32_t shift = shift_for(most, (1u << (down - 1)) - 1);
    if (down == 8) {
      if (up == 8)
        pack_planes<Sum, Signed, 8, 1>(sums, bytes, shift, out);
      else if (up == 4)
        pack_planes<Sum, Signed, 8, 2>(sums, bytes, shift, out);
      else
        pack_planes<Sum, Signed, 8, 4>(sums, bytes, shift, out);
    } else if (up == 4) {
      pack_planes<Sum, Signed, 4, 2>(sums, bytes, shift, out);
    } else {
      pack_planes<Sum, Signed, 4, 4>(sums, bytes, shift, out);
    }
    return shift;
  }

  static std::uint32_t narrow(const LaneSums& sums, std::uint8_t lanes, Size bytes, std::uint32_t most,
                              std::uint8_t* out) {
    if (sums.bytes_each == 2)
      return narrow_sums<std::uint16_t, std::int16_t>(reinterpret_cast<const std::uint16_t*>(sums.at), lanes, bytes,
                                                      most, out);
    return narrow_sums<std::uint32_t, std::int32_t>(reinterpret_cast<const std::uint32_t*>(sums.at), lanes, bytes, most,
                                                    out);
  }
};

}  // namespace fanin
