// The keyed tag of data packets, and the keys that it is made with. The rules stand in fanin/protocol/packet_tag.py.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "siphash.hpp"
#include "wire_constants.hpp"

namespace fanin {

inline constexpr std::size_t TAG_LANES = 4;
inline constexpr std::size_t TAG_BLOCK_BYTES = TAG_LANES * sizeof(std::uint64_t);

// Stands in the checksum field while the tag is computed.
enum class Direction : std::uint8_t { to_switch = 1, from_switch = 2 };

enum class KeyPurpose : std::uint8_t { flow = 0, worker = 1, everybody = 2 };

using DataKey = std::optional<SipKey>;  // none: packets are not tagged

SipKey derived(const SipKey& key, KeyPurpose purpose, std::uint64_t value);
inline DataKey of_flow(const DataKey& key, std::uint32_t flow) {
  return key ? DataKey(derived(*key, KeyPurpose::flow, flow)) : std::nullopt;
}

// Of a datagram of HEADER_BYTES at least. `put_tag` writes it to the checksum field.
std::uint32_t packet_tag(const SipKey& key, std::span<const std::uint8_t> datagram, Direction direction);
void put_tag(const SipKey& key, std::span<std::uint8_t> datagram, Direction direction);
bool tag_holds(const SipKey& key, std::span<const std::uint8_t> datagram, Direction direction);

// The keys of one flow of a job, as its switch has them. Without a flow key nothing is tagged, and all holds.
class PacketKeys {
 public:
  PacketKeys(const DataKey& flow_key, std::span<const std::uint64_t> tokens);

  bool tags() const { return flow_key_.has_value(); }
  void renew(std::uint32_t worker, std::uint64_t token);
  void finish(std::span<std::uint8_t> datagram) const;  // of the switch's, whose worker field says for whom it is
  bool holds(std::span<const std::uint8_t> datagram, std::uint32_t worker) const {
    return !tags() || tag_holds(workers_[worker], datagram, Direction::to_switch);
  }

 private:
  DataKey flow_key_;
  std::vector<SipKey> workers_;
  SipKey everybody_;
};

// The same as one of its workers has them, or a leaf at its parent.
class MemberKeys {
 public:
  MemberKeys() = default;
  MemberKeys(const DataKey& flow_key, std::uint64_t token);

  bool tags() const { return tags_; }
  void finish(std::span<std::uint8_t> datagram) const {
    if (tags_) put_tag(own_, datagram, Direction::to_switch);
  }
  bool holds(std::span<const std::uint8_t> datagram) const {
    return !tags_ || tag_holds(datagram[OFFSET_WORKER] == SWITCH_WORKER ? everybody_ : own_, datagram,
                               Direction::from_switch);
  }

 private:
  bool tags_ = false;
  SipKey own_, everybody_;
};

}  // namespace fanin
