// Tables of a P4 program: copies of their entries, and the lookup by key. switch/p4/tables.py keeps the entries for the
// control plane, and reports every change here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "p4/p4_index.hpp"

namespace fanin::p4 {

// One field of a key that is compared with a range: its place in the key, and the bounds.
struct KeyRange {
  std::uint32_t shift;
  std::uint32_t bits;
  std::uint64_t low;
  std::uint64_t high;
};

struct TableEntry {
  std::vector<std::uint64_t> value;
  std::vector<std::uint64_t> mask;
  std::vector<KeyRange> ranges;
  std::uint32_t action = 0;  // first instruction of the action
  std::uint32_t next = 0;    // first instruction of the node that follows
  std::vector<std::uint64_t> data;
  std::int64_t* counts = nullptr;  // packets and bytes, in Python's memory
  std::int64_t* meter = nullptr;   // direct meter, in Python's memory
  std::uint32_t choices = 0;       // number of its group's choices; 0: no group
  bool used = false;
};

// The members of a group, and which of them each remainder of a hash chooses.
struct Choices {
  std::vector<TableEntry> members;
  std::vector<std::uint32_t> spread;

  const TableEntry& chosen(std::uint64_t hash) const { return members[spread[hash % spread.size()]]; }
};

class Table {
 public:
  Table(std::uint32_t limbs, bool exact) : limbs_(limbs), exact_(exact), index_(limbs) {}

  // Adds an entry; returns its number. The lowest rank wins and, among equal ranks, the oldest entry; exact tables have
  // no ranks.
  std::uint32_t put(TableEntry entry, std::int64_t rank);
  void take(std::uint32_t number);
  // Sets another action, and the node that follows, for an existing entry.
  void set_action(std::uint32_t number, std::uint32_t action, std::uint32_t next, std::vector<std::uint64_t> data);
  void set_miss(TableEntry entry) {
    miss_ = std::move(entry);
    forget();
  }

  const TableEntry& find(const std::uint64_t* key);
  const TableEntry& miss() const { return miss_; }

 private:
  static constexpr std::size_t REMEMBERED = 256;  // keys whose entries are remembered, unless the table is exact

  std::uint64_t hash(const std::uint64_t* key) const;
  void insert(std::uint32_t number);
  void erase(std::uint32_t number);
  void rehash();
  void forget();
  bool in_ranges(std::uint32_t number, const std::uint64_t* key) const;

  std::uint32_t limbs_;
  bool exact_;
  std::vector<TableEntry> entries_;
  std::vector<std::uint32_t> free_;
  EntryIndex index_;                    // entries of a table that is not exact
  std::vector<std::uint32_t> buckets_;  // hash table of an exact one: number of an entry + 1
  std::size_t filled_ = 0;
  TableEntry miss_;
  std::vector<std::uint64_t> remembered_keys_;
  std::vector<std::uint32_t> remembered_;  // 0: nothing; 1: a miss; otherwise number of an entry + 2
};

}  // namespace fanin::p4
