// Hash of a table's key, limb by limb: the whole key in an exact table, its masked part in any other.
#pragma once

#include <cstdint>

namespace fanin::p4 {

class KeyHash {
 public:
  void add(std::uint64_t limb) {
    mixed_ = (mixed_ ^ limb) * 0xFF51AFD7ED558CCDu;
    mixed_ ^= mixed_ >> 32;
  }
  std::uint64_t value() const { return mixed_; }

 private:
  std::uint64_t mixed_ = 0x9E3779B97F4A7C15u;
};

}  // namespace fanin::p4
