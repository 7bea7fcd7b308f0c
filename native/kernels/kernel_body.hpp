// The kernels, written once over groups of sixteen lanes (simd_*.hpp) and compiled once for each instruction set.
//
// Everything is a static member of a template over the group type, so that no function compiled for one instruction set
// can be merged by the linker with its namesake for another. For the same reason: no std templates, no lambdas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/kernel_exact.hpp"
#include "kernels/kernel_lanes.hpp"
#include "kernels/kernel_loops.hpp"

namespace fanin {

template <class Simd>
struct KernelBody : KernelLoops<Simd> {
  using Loops = KernelLoops<Simd>;
  using Loops::least, Loops::most;
  using Floats = typename Simd::Floats;
  using Ints = typename Simd::Ints;
  using Size = std::size_t;
  static constexpr Size GROUP = Simd::GROUP;
  // Distance by which elements are prefetched. A tensor is read once, from main memory, and the processor's own
  // prefetching stops at every page boundary: docs/performance.md.
  static constexpr Size PREFETCH_BYTES = 4096;
  // Distance by which words to be written are prefetched: on one machine their lines are in the cache of the core that
  // has added them up last.
  static constexpr Size PREFETCH_WORDS_BYTES = 1024;

  // x * factor + residual, sixteen at a time. Plain: the factor is 1 and there is no residual.
  template <Element E, bool Plain>
  struct Source {
    static constexpr Size WIDTH = E == Element::float32 ? 4 : 2;
    const std::uint8_t* x;
    float factor;
    const float* residual;

    Floats group(Size i) const {
      const auto* residuals = reinterpret_cast<const std::uint8_t*>(residual + (residual != nullptr ? i : 0));
      return corrected(Simd::template load<E>(x + i * WIDTH), residuals);
    }
    void prefetch(Size i) const { __builtin_prefetch(x + i * WIDTH + PREFETCH_BYTES); }
    // `count` < GROUP elements, padded with zeros.
    Floats partial(Size i, Size count) const {
      std::uint8_t elements[GROUP * WIDTH] = {};
      std::memcpy(elements, x + i * WIDTH, count * WIDTH);
      std::uint8_t residuals[GROUP * sizeof(float)] = {};
      if (residual != nullptr) std::memcpy(residuals, residual + i, count * sizeof(float));
      return corrected(Simd::template load<E>(elements), residuals);
    }

   private:
    Floats corrected(Floats value, const std::uint8_t* residuals) const {
      if constexpr (!Plain) {
        value = Simd::multiply(value, Simd::floats(factor));
        if (residual != nullptr) value = Simd::add(value, Simd::template load<Element::float32>(residuals));
      }
      return value;
    }
  };

  // ---- scale codes

  template <Element E, bool Plain>
  static void codes_of(const FixedPoint& codec, const Source<E, Plain>& source, Size n, Size block,
                       std::uint16_t* codes) {
    for (Size first = 0; first < n; first += block) {
      const Size last = least(first + block, n);
      Ints largest = Simd::ints(0), other = Simd::ints(0);  // two independent chains hide the latency of the maximum
      Size i = first;
      for (; i + 2 * GROUP <= last; i += 2 * GROUP) {
        source.prefetch(i);
        source.prefetch(i + GROUP);
        largest = Simd::maximum(largest, Simd::magnitude_bits(source.group(i)));
        other = Simd::maximum(other, Simd::magnitude_bits(source.group(i + GROUP)));
      }
      for (; i < last; i += GROUP) {
        source.prefetch(i);
        const Floats value = i + GROUP <= last       ? source.group(i)
                             : first + GROUP <= last ? source.group(last - GROUP)  // overlaps the group before
                                                     : source.partial(i, last - i);
        largest = Simd::maximum(largest, Simd::magnitude_bits(value));
      }
      const std::uint32_t bits = Simd::largest(Simd::maximum(largest, other));
      *codes++ = scale_code(codec, __builtin_bit_cast(float, bits));
    }
  }

  // Whether elements [first, last) of a block, which are whole words, can be converted in whole groups. The last group
  // may then overlap the one before it, which gives the same results again. A partial group has to be copied to a
  // buffer and back, for which a processor waits longer than for all the rest of a block.
  template <std::uint32_t L>
  static bool in_groups(Size first, Size last) {
    return last - first >= GROUP && first * L % 32 == 0 && last * L % 32 == 0;
  }

  // ---- quantize

  struct Steps {
    Floats first, second, low, high;
    explicit Steps(const BlockScale& scale)
        : first(Simd::floats(scale.to_steps[0])),
          second(Simd::floats(scale.to_steps[1])),
          low(Simd::floats(-scale.limit)),
          high(Simd::floats(scale.limit)) {}
    Ints operator()(const Floats& x) const {
      return Simd::round(Simd::clamp(Simd::multiply(Simd::multiply(x, first), second), low, high));
    }
  };

  template <Element E, bool Plain, std::uint32_t L>
  static void quantize_blocks(const FixedPoint& codec, const Source<E, Plain>& source, Size n, Size block,
                              const std::uint16_t* codes, std::uint8_t* words_be) {
    const Ints offset = Simd::ints(L == 32 ? 0 : codec.bound);
    for (Size first = 0; first < n; first += block) {
      const Size last = least(first + block, n);
      const Steps steps(block_scale(codec, *codes++));
      Size i = first;
      for (; i + GROUP <= last; i += GROUP) {
        source.prefetch(i);
        __builtin_prefetch(words_be + i * L / 8 + PREFETCH_WORDS_BYTES, 1);
        Simd::template store_lanes<L>(words_be + i * L / 8, lanes_of<L>(steps(source.group(i)), offset));
      }
      if (i < last && in_groups<L>(first, last)) {
        source.prefetch(i);
        i = last - GROUP;
        Simd::template store_lanes<L>(words_be + i * L / 8, lanes_of<L>(steps(source.group(i)), offset));
      } else if (i < last) {
        std::uint8_t tail[GROUP * L / 8];
        Simd::template store_lanes<L>(tail, lanes_of<L>(steps(source.partial(i, last - i)), offset));
        std::memcpy(words_be + i * L / 8, tail, words_for(codec, last - i) * 4);
      }
    }
  }

  template <std::uint32_t L>
  static Ints lanes_of(const Ints& steps, const Ints& offset) {
    return L == 32 ? steps : Simd::add(steps, offset);
  }

  // ---- dequantize

  // Value of a lane that stands for 0, and the steps of one unit of a lane, a power of two.
  struct Zero {
    std::int32_t lane;
    float unit;
  };

  template <bool Divide>
  struct Values {
    Floats first, second, divisor;  // divisor without Divide: its reciprocal, which is exact
    Ints offset;
    Values(const BlockScale& scale, float divisor_, std::int32_t offset_)
        : first(Simd::floats(scale.to_value[0])),
          second(Simd::floats(scale.to_value[1])),
          divisor(Simd::floats(divisor_)),
          offset(Simd::ints(offset_)) {}
    Floats operator()(const Ints& lanes) const {
      const Floats steps = Simd::to_floats(Simd::subtract(lanes, offset));
      // Divide first, so that the mean of values that the type can hold does not overflow on the way.
      const Floats mean = Divide ? Simd::divide(steps, divisor) : Simd::multiply(steps, divisor);
      return Simd::multiply(Simd::multiply(mean, first), second);
    }
  };

  template <Element E, std::uint32_t L, bool Divide>
  static void dequantize_block(const FixedPoint& codec, const std::uint8_t* words_be, Size first, Size last,
                               const Values<Divide>& values, const Wanted& wanted) {
    constexpr Size WIDTH = Source<E, true>::WIDTH;
    const Size from = most(first, wanted.skip), to = least(last, wanted.end);
    if (from < to && in_groups<L>(from, to)) {
      for (Size i = from; i < to; i = i + GROUP < to ? least(i + GROUP, to - GROUP) : to) {
        std::uint8_t* const out = wanted.out + (i - wanted.skip) * WIDTH;
        __builtin_prefetch(out + PREFETCH_BYTES, 1);
        Simd::template store<E>(out, values(Simd::template load_lanes<L>(words_be + i * L / 8)));
      }
      return;
    }
    Size i = first + (from - first) / GROUP * GROUP;
    while (i < to) {
      if (i >= from && i + GROUP <= to) {
        std::uint8_t* out = wanted.out + (i - wanted.skip) * WIDTH;
        const std::uint8_t* in = words_be + i * L / 8;
        const Size groups = (to - i) / GROUP;
        for (Size group = 0; group < groups; ++group) {
          __builtin_prefetch(out + group * GROUP * WIDTH + PREFETCH_BYTES, 1);
          Simd::template store<E>(out + group * GROUP * WIDTH,
                                  values(Simd::template load_lanes<L>(in + group * GROUP * L / 8)));
        }
        i += groups * GROUP;
      } else {  // a group at the edge of the block, or of the wanted elements
        std::uint8_t lanes[GROUP * L / 8] = {}, elements[GROUP * WIDTH];
        std::memcpy(lanes, words_be + i * L / 8, words_for(codec, least(GROUP, last - i)) * 4);
        Simd::template store<E>(elements, values(Simd::template load_lanes<L>(lanes)));
        const Size start = most(i, from), stop = least(i + GROUP, to);
        std::memcpy(wanted.out + (start - wanted.skip) * WIDTH, elements + (start - i) * WIDTH, (stop - start) * WIDTH);
        i += GROUP;
      }
    }
  }

  template <Element E, std::uint32_t L, bool Divide>
  static void dequantize_blocks(const FixedPoint& codec, const std::uint8_t* words_be, Size n, Size block,
                                const std::uint16_t* codes, const Zero& zero, float divisor, const Wanted& wanted) {
    for (Size first = wanted.skip / block * block; first < wanted.end; first += block) {
      const Size last = least(first + block, n);
      const std::uint16_t code = codes[first / block];
      if (code == CODE_ZERO || code == CODE_NOT_FINITE) {
        fill<E>(code, first, last, wanted);
      } else {
        BlockScale scale = block_scale(codec, code);
        scale.to_value[0] *= zero.unit;
        const Values<Divide> values(scale, divisor, zero.lane);
        dequantize_block<E, L, Divide>(codec, words_be, first, last, values, wanted);
      }
    }
  }

  // Zeros, or the quiet NaN of the element type.
  template <Element E>
  static void fill(std::uint16_t code, Size first, Size last, const Wanted& wanted) {
    constexpr Size WIDTH = Source<E, true>::WIDTH;
    const Size from = most(first, wanted.skip), to = least(last, wanted.end);
    std::uint8_t elements[GROUP * WIDTH];
    Simd::template store<E>(elements, Simd::floats(code == CODE_ZERO ? 0.0f : __builtin_nanf("")));
    for (Size i = from; i < to; i += GROUP) {
      std::memcpy(wanted.out + (i - wanted.skip) * WIDTH, elements, least(GROUP, to - i) * WIDTH);
    }
  }

  // ---- error feedback

  template <Element E>
  static void residual_blocks(const FixedPoint& codec, const Source<E, false>& source, Size n, Size block,
                              const std::uint16_t* codes, float* residual) {
    for (Size first = 0; first < n; first += block, ++codes) {
      if (*codes == CODE_NOT_FINITE) continue;
      const BlockScale scale = block_scale(codec, *codes);
      const Steps steps(scale);
      const Values<false> values(scale, 1.0f, 0);
      const Size last = least(first + block, n);
      for (Size i = first; i < last; i += GROUP) {
        const Size count = least(GROUP, last - i);
        const Floats value = count == GROUP ? source.group(i) : source.partial(i, count);
        std::uint8_t rest[GROUP * sizeof(float)];
        Simd::template store<Element::float32>(rest, Simd::subtract(value, values(steps(value))));
        std::memcpy(residual + i, rest, count * sizeof(float));
      }
    }
  }

  // ---- from run-time types to the templates

  static bool is_plain(double factor, const float* residual) { return factor == 1.0 && residual == nullptr; }

  template <Element E, bool Plain>
  static void quantize_lanes(const FixedPoint& codec, const Source<E, Plain>& source, Size n, Size block,
                             const std::uint16_t* codes, std::uint8_t* words_be) {
    switch (codec.lanes) {
      case 32:
        return quantize_blocks<E, Plain, 32>(codec, source, n, block, codes, words_be);
      case 16:
        return quantize_blocks<E, Plain, 16>(codec, source, n, block, codes, words_be);
      case 8:
        return quantize_blocks<E, Plain, 8>(codec, source, n, block, codes, words_be);
      default:
        return quantize_blocks<E, Plain, 4>(codec, source, n, block, codes, words_be);
    }
  }

  template <Element E>
  static void quantize_element(const FixedPoint& codec, const std::uint8_t* x, Size n, Size block,
                               const std::uint16_t* codes, double factor, const float* residual,
                               std::uint8_t* words_be) {
    if (is_plain(factor, residual)) {
      quantize_lanes(codec, Source<E, true>{x, 1.0f, nullptr}, n, block, codes, words_be);
    } else {
      quantize_lanes(codec, Source<E, false>{x, static_cast<float>(factor), residual}, n, block, codes, words_be);
    }
  }

  template <Element E>
  static void codes_element(const FixedPoint& codec, const std::uint8_t* x, Size n, Size block, double factor,
                            const float* residual, std::uint16_t* codes) {
    if (is_plain(factor, residual)) {
      codes_of(codec, Source<E, true>{x, 1.0f, nullptr}, n, block, codes);
    } else {
      codes_of(codec, Source<E, false>{x, static_cast<float>(factor), residual}, n, block, codes);
    }
  }

  template <Element E, bool Divide>
  static void dequantize_lanes(const FixedPoint& codec, const std::uint8_t* words_be, Size n, Size block,
                               const std::uint16_t* codes, const Zero& zero, float divisor, const Wanted& wanted) {
    switch (codec.lanes) {
      case 32:
        return dequantize_blocks<E, 32, Divide>(codec, words_be, n, block, codes, {0, 1.0f}, divisor, wanted);
      case 16:
        return dequantize_blocks<E, 16, Divide>(codec, words_be, n, block, codes, zero, divisor, wanted);
      case 8:
        return dequantize_blocks<E, 8, Divide>(codec, words_be, n, block, codes, zero, divisor, wanted);
      default:
        return dequantize_blocks<E, 4, Divide>(codec, words_be, n, block, codes, zero, divisor, wanted);
    }
  }

  template <Element E>
  static void dequantize_element(const FixedPoint& codec, const std::uint8_t* words_be, Size n, Size block,
                                 const std::uint16_t* codes, const Zero& zero, float divisor, const Wanted& wanted) {
    // Dividing by a power of two is multiplying by its reciprocal, to the bit, and several times faster.
    const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, divisor);
    const std::uint32_t exponent = bits >> 23 & 0xFFu;
    if ((bits & 0x7FFFFFu) == 0 && exponent >= 1 && exponent <= 253) {
      dequantize_lanes<E, false>(codec, words_be, n, block, codes, zero, 1.0f / divisor, wanted);
    } else {
      dequantize_lanes<E, true>(codec, words_be, n, block, codes, zero, divisor, wanted);
    }
  }

  static void scale_codes(const FixedPoint& codec, const void* given, Size n, Size block, double factor,
                          const float* residual, std::uint16_t* codes) {
    using enum Element;
    const auto* x = static_cast<const std::uint8_t*>(given);
    switch (codec.element) {
      case float32:
        return codes_element<float32>(codec, x, n, block, factor, residual, codes);
      case float16:
        return codes_element<float16>(codec, x, n, block, factor, residual, codes);
      case bfloat16:
        return codes_element<bfloat16>(codec, x, n, block, factor, residual, codes);
      case float64:
        return Loops::wide_codes(codec, x, n, block, factor, codes);
      default:
        return;
    }
  }

  static void quantize(const FixedPoint& codec, const void* given, Size n, Size block, const std::uint16_t* codes,
                       double factor, const float* residual, std::uint8_t* out) {
    using enum Element;
    const auto* x = static_cast<const std::uint8_t*>(given);
    switch (codec.element) {
      case float32:
        return quantize_element<float32>(codec, x, n, block, codes, factor, residual, out);
      case float16:
        return quantize_element<float16>(codec, x, n, block, codes, factor, residual, out);
      case bfloat16:
        return quantize_element<bfloat16>(codec, x, n, block, codes, factor, residual, out);
      case float64:
        return Loops::quantize_wide(codec, x, n, block, codes, factor, out);
      case int32:
        return Loops::template widen<std::int32_t>(x, n, out);
      case int16:
        return Loops::template widen<std::int16_t>(x, n, out);
      case int8:
        return Loops::template widen<std::int8_t>(x, n, out);
      case uint8:
        return Loops::template widen<std::uint8_t>(x, n, out);
      case int64:
        return;  // int64 is reduced exactly, or not at all
    }
  }

  static void dequantize(const FixedPoint& codec, const std::uint8_t* words_be, Size n, Size block,
                         const std::uint16_t* codes, std::uint32_t contributors, double divisor, Size skip, Size keep,
                         void* out) {
    using enum Element;
    const Wanted wanted{skip, skip + keep, static_cast<std::uint8_t*>(out)};
    const float by = static_cast<float>(divisor);
    const Zero zero{static_cast<std::int32_t>(contributors * static_cast<std::uint32_t>(codec.bound)), 1.0f};
    switch (codec.element) {
      case float32:
        return dequantize_element<float32>(codec, words_be, n, block, codes, zero, by, wanted);
      case float16:
        return dequantize_element<float16>(codec, words_be, n, block, codes, zero, by, wanted);
      case bfloat16:
        return dequantize_element<bfloat16>(codec, words_be, n, block, codes, zero, by, wanted);
      case float64:
        return Loops::dequantize_wide(codec, words_be, block, codes, divisor, wanted);
      case int32:
        return Loops::template narrow<std::int32_t>(words_be, wanted);
      case int16:
        return Loops::template narrow<std::int16_t>(words_be, wanted);
      case int8:
        return Loops::template narrow<std::int8_t>(words_be, wanted);
      case uint8:
        return Loops::template narrow<std::uint8_t>(words_be, wanted);
      case int64:
        return;
    }
  }

  static void dequantize_narrowed(const FixedPoint& given, const Narrowed& narrowed, const std::uint8_t* words_be,
                                  Size n, Size block, const std::uint16_t* codes, double divisor, Size skip, Size keep,
                                  void* out) {
    using enum Element;
    FixedPoint codec = given;
    codec.lanes = narrowed.bits;
    const Wanted wanted{skip, skip + keep, static_cast<std::uint8_t*>(out)};
    const Zero zero{narrowed.offset, static_cast<float>(1u << narrowed.shift)};
    const float by = static_cast<float>(divisor);
    switch (codec.element) {
      case float32:
        return dequantize_element<float32>(codec, words_be, n, block, codes, zero, by, wanted);
      case float16:
        return dequantize_element<float16>(codec, words_be, n, block, codes, zero, by, wanted);
      case bfloat16:
        return dequantize_element<bfloat16>(codec, words_be, n, block, codes, zero, by, wanted);
      default:
        return;
    }
  }

  template <Element E>
  static void residual_element(const FixedPoint& codec, const void* given, Size n, Size block,
                               const std::uint16_t* codes, double factor, float* residual) {
    const auto* x = static_cast<const std::uint8_t*>(given);
    const Source<E, false> source{x, static_cast<float>(factor), residual};
    residual_blocks(codec, source, n, block, codes, residual);
  }

  static void update_residual(const FixedPoint& codec, const void* given, Size n, Size block,
                              const std::uint16_t* codes, double factor, float* residual) {
    using enum Element;
    switch (codec.element) {
      case float32:
        return residual_element<float32>(codec, given, n, block, codes, factor, residual);
      case float16:
        return residual_element<float16>(codec, given, n, block, codes, factor, residual);
      case bfloat16:
        return residual_element<bfloat16>(codec, given, n, block, codes, factor, residual);
      default:
        return;
    }
  }

  static constexpr KernelTable table(const char* name, decltype(&fanin::crc32) crc32) {
    return {name,
            scale_codes,
            quantize,
            dequantize,
            dequantize_narrowed,
            update_residual,
            Loops::add_words,
            LaneLoops<Simd>::accumulate,
            LaneLoops<Simd>::narrow,
            ExactLoops<Simd>::encode,
            ExactLoops<Simd>::residual,
            ExactLoops<Simd>::decode,
            crc32};
  }
};

}  // namespace fanin
