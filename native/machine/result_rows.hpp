// By `python -m tools.rules --write`, from host/machine/result_rows.py, which says what each name means.
// clang-format off
#pragma once

#include <array>
#include <cstdint>

namespace fanin {

// Facts of a result or an answer, and of the item that it is for.
namespace fact {
inline constexpr std::uint32_t EARLIER = 1;
inline constexpr std::uint32_t AHEAD = 2;
inline constexpr std::uint32_t OTHER = 4;
inline constexpr std::uint32_t PASSES_ALONE = 8;
inline constexpr std::uint32_t OWNED = 16;
inline constexpr std::uint32_t ACKNOWLEDGED = 32;
inline constexpr std::uint32_t BARE = 64;
inline constexpr std::uint32_t ENOUGH = 128;
inline constexpr std::uint32_t ACCEPTED = 256;
inline constexpr std::uint32_t MULTICAST = 512;
inline constexpr std::uint32_t FITS = 1024;
inline constexpr std::uint32_t INCOMPLETE = 2048;
inline constexpr std::uint32_t COMBINATIONS = 4096;
}  // namespace fact

enum class Deed : std::uint8_t {
  duplicate = 0,
  hear = 1,
  mismatch = 2,
  fail_unowned = 3,
  nothing_new = 4,
  ask = 5,
  leave = 6,
  length = 7,
  fail_incomplete = 8,
  store = 9,
};

struct ResultRow {
  std::uint32_t has;
  std::uint32_t lacks;
  Deed deed;
};

// The first row that holds decides.
inline constexpr std::array<ResultRow, 11> RESULT_ROWS = {{
    {fact::EARLIER, 0, Deed::duplicate},  // R-RESULT-1, duplicate
    {fact::AHEAD, 0, Deed::hear},  // R-RESULT-2, heard of
    {fact::OTHER, fact::PASSES_ALONE | fact::BARE, Deed::mismatch},  // R-RESULT-3, another collective
    {fact::PASSES_ALONE | fact::OWNED | fact::ACKNOWLEDGED, 0, Deed::fail_unowned},  // R-RESULT-4, nobody's element
    {fact::BARE, fact::ACKNOWLEDGED, Deed::nothing_new},  // R-RESULT-5, not about this contribution
    {fact::BARE | fact::ACCEPTED, fact::ENOUGH, Deed::nothing_new},  // R-RESULT-6, accepted before
    {fact::BARE, fact::ENOUGH, Deed::ask},  // R-RESULT-7, accepted
    {fact::MULTICAST, fact::ACKNOWLEDGED | fact::ACCEPTED, Deed::leave},  // R-RESULT-8, acceptance not known
    {0, fact::PASSES_ALONE | fact::ENOUGH | fact::FITS, Deed::length},  // R-RESULT-9, another shape
    {fact::OWNED | fact::INCOMPLETE, 0, Deed::fail_incomplete},  // R-RESULT-10, an owner may be missing
    {0, 0, Deed::store},  // R-RESULT-11, stored
}};

// The deed for each combination of facts, so that a packet costs one look-up.
inline constexpr std::array<Deed, fact::COMBINATIONS> DEEDS = [] {
  std::array<Deed, fact::COMBINATIONS> deeds{};
  for (std::uint32_t facts = 0; facts < fact::COMBINATIONS; ++facts)
    for (const ResultRow& row : RESULT_ROWS)
      if ((facts & row.has) == row.has && (facts & row.lacks) == 0) {
        deeds[facts] = row.deed;
        break;
      }
  return deeds;
}();

}  // namespace fanin
