// One reduction of one flat array, as in fanin/numerics/reduction.py, which checks the values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fanin {

enum class Element : std::uint8_t { float32, float64, float16, bfloat16, int32, int16, int8, uint8, int64 };

inline bool is_floating(Element element) { return element <= Element::bfloat16; }

inline std::size_t element_bytes(Element element) {
  static constexpr std::size_t sizes[] = {4, 8, 2, 2, 4, 2, 1, 1, 8};
  return sizes[static_cast<std::size_t>(element)];
}

enum class Operator : std::uint8_t { sum, min, max, product, band, bor, bxor };

inline constexpr std::uint32_t EXACT = 0;    // value of `lanes`: an exact reduction
inline constexpr std::uint32_t COPIED = 65;  // value of `lanes`: bytes, each of which has an owner

// In the place of a lane width: these plus Header.lanes of wide sums, fanin.numerics.reduction.WIDE_SUMS, and of lanes
// that were packed elsewhere, PACKED_LANES there.
inline constexpr std::uint32_t WIDE_SUMS = 96;
inline constexpr std::uint32_t PACKED_LANES = 80;
inline bool is_wide_sum(std::uint32_t lanes) {
  const std::uint32_t field = lanes - WIDE_SUMS;
  return field == 15 || field == 11 || field == 10 || field == 7 || field == 6;
}

struct Reduction {
  const std::uint8_t* source = nullptr;
  std::uint8_t* destination = nullptr;
  std::uint64_t count = 0;
  Element element = Element::float32;
  std::uint32_t lanes = 32;
  Operator with = Operator::sum;
  double divisor = 1.0;  // rounded to float32 where it meets float32 and narrower elements
  double factor = 1.0;
  float* residual = nullptr;
  std::uint64_t keep_first = 0;
  std::uint64_t keep_count = 0;
  bool owned = false;  // every element is contributed by one worker; `source` has the elements of this one:
  std::uint64_t own_first = 0;
  std::uint64_t own_count = 0;
  std::uint32_t tag = 0;
  std::uint32_t signature = 0;
  std::uint16_t scale_code = 0;       // of every element, agreed beforehand; 0: agreed chunk by chunk
  bool passes = false;                // whether this worker contributes nothing
  std::uint32_t* counts = nullptr;    // per chunk of all flows: number of contributions in its result
  std::uint32_t* arrivals = nullptr;  // per chunk of all flows: workers whose contributions or passes are in its round
};

}  // namespace fanin
