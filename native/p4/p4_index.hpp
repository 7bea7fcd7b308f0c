// Index of a table's entries that match by masks or ranges, grouped by mask. Twin of switch/p4/entry_index.py, with the
// same rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace fanin::p4 {

// Rank, and a number that grows with each entry that is added: no two are equal, and the lowest wins.
using Order = std::pair<std::int64_t, std::uint64_t>;

class EntryIndex {
 public:
  explicit EntryIndex(std::uint32_t limbs) : limbs_(limbs) {}

  // Adds an entry behind those of the same rank. Its value has no bits outside its mask.
  void add(std::uint32_t number, std::int64_t rank, const std::vector<std::uint64_t>& value,
           const std::vector<std::uint64_t>& mask);
  // Removes an entry, which must be in the index.
  void remove(std::uint32_t number, const std::vector<std::uint64_t>& value, const std::vector<std::uint64_t>& mask);

  // The number of the winning entry, plus one; 0: none. `covers(number)`: whether the key is in the entry's ranges.
  template <typename Covers>
  std::uint32_t find(const std::uint64_t* key, Covers covers) const {
    const Order* best = nullptr;
    std::uint32_t found = 0;
    for (const Searched& each : searched_) {
      if (best && each.first > *best) break;
      const Alike* const alike = each.group->find(key, limbs_);
      if (alike == nullptr) continue;
      for (const Member& member : alike->members) {
        if (best && member.order > *best) break;
        if (!covers(member.number)) continue;
        best = &member.order;
        found = member.number + 1;
        break;
      }
    }
    return found;
  }

 private:
  struct Member {
    Order order;
    std::uint32_t number;
  };
  // Entries with the same mask and value, in order: they differ in ranges or ranks.
  struct Alike {
    std::vector<std::uint64_t> value;
    std::vector<Member> members;
  };
  // Entries with the same mask: few values are compared one by one, many are hashed.
  struct Group {
    std::vector<std::uint64_t> mask;
    Order first;  // lower bound: order of its first entry, or of an earlier, removed one
    std::vector<std::unique_ptr<Alike>> values;
    std::vector<std::uint32_t> buckets;  // number in `values` + 1

    const Alike* find(const std::uint64_t* key, std::uint32_t limbs) const;
    Alike* at(const std::vector<std::uint64_t>& value);
    Alike* make(const std::vector<std::uint64_t>& value);
    void drop(const Alike* alike);
    std::size_t bucket_of(std::size_t place) const;
    void put_in_bucket(std::size_t place);
    void empty_bucket(std::size_t bucket);
    void rehash();
  };
  struct Searched {
    Order first;
    Group* group;
  };

  void search_from(Group& group, const Order& first);
  void search_no_more(const Group& group);

  std::uint32_t limbs_;
  std::uint64_t added_ = 0;
  std::map<std::vector<std::uint64_t>, Group> groups_;  // by mask
  std::vector<Searched> searched_;                      // groups in the order in which a search visits them
  std::vector<Order> orders_;                           // by the number of an entry
};

}  // namespace fanin::p4
