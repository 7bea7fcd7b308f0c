// Forecasts of scale codes from an earlier reduction. R-WORKER-3 in docs/protocol.md; twin of
// host/machine/scale_forecast.py.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "wire/packet.hpp"
#include "wire/reduction.hpp"
#include "wire/wire_constants.hpp"

namespace fanin {

inline constexpr std::uint32_t AGE_WORDS = 2;
inline constexpr std::uint64_t MAX_AGE = 1024;
inline constexpr std::size_t MAX_SHAPES = 8;

struct Shape {
  std::uint64_t count = 0;
  Element element = Element::float32;
  std::uint32_t lanes = 32;
  bool operator==(const Shape&) const = default;
};

struct Forecast {
  std::uint64_t age = 0;  // 0: no forecast
  std::array<std::uint16_t, MAX_CODES> codes{};

  void store_age(std::uint8_t* words) const {
    store_be32(words, static_cast<std::uint32_t>(age));
    store_be32(words + WORD_BYTES, static_cast<std::uint32_t>(age * age));
  }
  // Whether the forecast equals the agreed codes; `agreed` and `age_sums` are in wire order.
  bool holds(std::span<const std::uint8_t> agreed, const std::uint8_t* age_sums, std::uint64_t contributors) const {
    // R-WORKER-3: ages that sum to c a and c a^2 vary by nothing, so all workers took the codes of one ticket.
    if (age == 0 || load_be32(age_sums) != contributors * age) return false;
    if (load_be32(age_sums + WORD_BYTES) != contributors * age * age) return false;
    for (std::size_t i = 0; i < agreed.size() / CODE_BYTES; ++i)
      if (load_be16(&agreed[i * CODE_BYTES]) != codes[i]) return false;
    return true;
  }
};

class ScaleForecast {
 public:
  Forecast of(const Shape& shape, std::uint64_t ticket) const {
    const auto known = std::ranges::find(last_, shape, &Agreed::shape);
    if (known == last_.end() || known->ticket >= ticket || ticket - known->ticket > MAX_AGE) return {};
    return {ticket - known->ticket, known->codes};
  }

  void learn(const Shape& shape, std::uint64_t ticket, std::span<const std::uint8_t> agreed) {
    auto known = std::ranges::find(last_, shape, &Agreed::shape);
    if (known == last_.end()) {
      if (last_.size() == MAX_SHAPES) last_.erase(last_.begin());
      known = last_.insert(last_.end(), Agreed{shape, 0, {}});
    }
    if (ticket > known->ticket) {
      known->ticket = ticket;
      for (std::size_t i = 0; i < agreed.size() / CODE_BYTES; ++i) known->codes[i] = load_be16(&agreed[i * CODE_BYTES]);
    }
    std::rotate(known, known + 1, last_.end());
  }

  std::size_t buffer_bytes() const { return last_.capacity() * sizeof(Agreed); }

 private:
  struct Agreed {
    Shape shape;
    std::uint64_t ticket = 0;
    std::array<std::uint16_t, MAX_CODES> codes{};
  };
  std::vector<Agreed> last_;  // one for each shape, the most recent last
};

}  // namespace fanin
