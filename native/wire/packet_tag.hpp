// The keyed tag of data packets, and the keys that it is made with. The rules stand in fanin/protocol/packet_tag.py.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "wire/gcm_siv.hpp"
#include "wire/packet.hpp"
#include "wire/siphash.hpp"
#include "wire/wire_constants.hpp"

namespace fanin {

inline constexpr std::size_t TAG_LANES = 4;
inline constexpr std::size_t TAG_BLOCK_BYTES = TAG_LANES * sizeof(std::uint64_t);

// Stands in the checksum field while the tag is computed.
enum class Direction : std::uint8_t { to_switch = 1, from_switch = 2 };

enum class KeyPurpose : std::uint8_t { flow = 0, worker = 1, everybody = 2 };

// Algorithms of tags. Keys are derived by SipHash for all of them.
enum class TagAlgorithm : std::uint8_t { siphash, gcm_siv };

struct SecretKey {
  SipKey bits;
  TagAlgorithm algorithm = TagAlgorithm::siphash;
};
using DataKey = std::optional<SecretKey>;  // none: packets are not tagged

SecretKey derived(const SecretKey& key, KeyPurpose purpose, std::uint64_t value);
inline DataKey of_flow(const DataKey& key, std::uint32_t flow) {
  return key ? DataKey(derived(*key, KeyPurpose::flow, flow)) : std::nullopt;
}

// A key for tags, prepared for its algorithm.
struct TagKey {
  TagAlgorithm algorithm = TagAlgorithm::siphash;
  SipKey siphash;
  GcmSivKey gcm_siv;  // only for that algorithm

  TagKey() = default;
  explicit TagKey(const SecretKey& key);
};

// Computes tags of datagrams of at least HEADER_BYTES. Up to TAGS_TOGETHER consecutive ones of the same length are
// computed side by side, which takes little more time than one, so that callers should pass as many.
inline constexpr std::size_t TAGS_TOGETHER = 4;
struct Tagged {
  const TagKey* key = nullptr;
  std::span<const std::uint8_t> datagram;
  Direction direction = Direction::to_switch;
};
void packet_tags(std::span<const Tagged> datagrams, std::uint32_t* tags);
// Writes the tags of datagrams to their checksum fields.
void put_tags(std::span<const TagKey* const> keys, std::span<const std::span<std::uint8_t>> datagrams,
              Direction direction);

// The tag of one datagram; `put_tag` writes it to the checksum field.
std::uint32_t packet_tag(const TagKey& key, std::span<const std::uint8_t> datagram, Direction direction);
void put_tag(const TagKey& key, std::span<std::uint8_t> datagram, Direction direction);
bool tag_holds(const TagKey& key, std::span<const std::uint8_t> datagram, Direction direction);

// A tag that was computed in advance, together with others; without a key there is none.
struct ComputedTag {
  const TagKey* key = nullptr;
  std::uint32_t tag = 0;
  bool needless = false;  // the datagram needs no tag, because of its carrier (Arrival::here)

  bool holds(const TagKey& wanted, std::span<const std::uint8_t> datagram, Direction direction) const {
    if (needless) return true;
    if (key != &wanted) return tag_holds(wanted, datagram, direction);
    return load_be32(datagram.data() + OFFSET_CHECKSUM) == tag;
  }
};

// Calls `take(item, opened, ComputedTag)` for each item, in order. `open(item, opened)` fills in what is known of the
// item before its tag is checked, over what was known of an earlier one, and returns the key for its tag; null: unknown
// or none. No tags are computed for items that need none.
template <typename Opened, typename Item, typename Open, typename Take>
void for_each_tagged(std::span<const Item> items, Direction direction, Open open, Take take) {
  std::array<Opened, TAGS_TOGETHER> opened{};
  for (std::size_t first = 0; first < items.size(); first += TAGS_TOGETHER) {
    const std::span<const Item> group = items.subspan(first, std::min(items.size() - first, TAGS_TOGETHER));
    std::array<ComputedTag, TAGS_TOGETHER> computed{};
    std::array<Tagged, TAGS_TOGETHER> asked;
    std::array<std::uint32_t, TAGS_TOGETHER> tags;
    std::size_t count = 0;
    for (std::size_t i = 0; i < group.size(); ++i) {
      const TagKey* const key = open(group[i], opened[i]);
      if (!(computed[i].needless = group[i].here) && (computed[i].key = key) != nullptr)
        asked[count++] = {key, group[i].bytes, direction};
    }
    packet_tags(std::span(asked).first(count), tags.data());
    for (std::size_t i = group.size(); i-- > 0;)
      if (computed[i].key != nullptr) computed[i].tag = tags[--count];
    for (std::size_t i = 0; i < group.size(); ++i) take(group[i], opened[i], computed[i]);
  }
}

// The keys of one flow of a job at its switch. Without a flow key no packet is tagged, and every check holds.
class PacketKeys {
 public:
  PacketKeys(const DataKey& flow_key, std::span<const std::uint64_t> tokens);

  bool tags() const { return flow_key_.has_value(); }
  void renew(std::uint32_t worker, std::uint64_t token);
  void finish(std::span<std::uint8_t> datagram) const;  // tags a datagram of the switch for its worker field's worker
  bool holds(std::span<const std::uint8_t> datagram, std::uint32_t worker, const ComputedTag& computed) const {
    return !tags() || computed.holds(workers_[worker], datagram, Direction::to_switch);
  }
  // Key of a worker; null without tags.
  const TagKey* of_worker(std::uint32_t worker) const { return tags() ? &workers_[worker] : nullptr; }
  const TagKey* of_everybody() const { return tags() ? &everybody_ : nullptr; }

 private:
  DataKey flow_key_;
  std::vector<TagKey> workers_;
  TagKey everybody_;
};

// The keys of one flow of a job at one of its workers, or at a leaf for its parent.
class MemberKeys {
 public:
  MemberKeys() = default;
  MemberKeys(const DataKey& flow_key, std::uint64_t token);

  bool tags() const { return tags_; }
  void finish(std::span<std::uint8_t> datagram) const {
    if (tags_) put_tag(own_, datagram, Direction::to_switch);
  }
  bool holds(std::span<const std::uint8_t> datagram, const ComputedTag& computed = {}) const {
    return !tags_ || computed.holds(of_addressee(datagram), datagram, Direction::from_switch);
  }
  const TagKey& own() const { return own_; }
  // The key of a datagram from the switch, which is for all workers or for this one.
  const TagKey& of_addressee(std::span<const std::uint8_t> datagram) const {
    return datagram[OFFSET_WORKER] == SWITCH_WORKER ? everybody_ : own_;
  }

 private:
  bool tags_ = false;
  TagKey own_, everybody_;
};

}  // namespace fanin
