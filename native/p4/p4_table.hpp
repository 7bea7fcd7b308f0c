// Tables of a P4 program: what entries say, and how one is found. switch/p4/tables.py holds the entries for the control
// plane and says here what changes.
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
  std::uint32_t action = 0;  // the first instruction of what is done
  std::uint32_t next = 0;    // and of what comes after it
  std::vector<std::uint64_t> data;
  std::int64_t* counts = nullptr;  // packets and bytes, in Python's memory
  std::int64_t* meter = nullptr;   // the same of a direct meter
  std::uint32_t choices = 0;       // the number of what a group of members chooses from; 0: it has none
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

  // The lowest rank wins, and of equal ones the entry that came first; exact tables have none. Returns its number.
  std::uint32_t put(TableEntry entry, std::int64_t rank);
  void take(std::uint32_t number);
  // Another action, and what comes after it, for an entry that is there.
  void set_action(std::uint32_t number, std::uint32_t action, std::uint32_t next, std::vector<std::uint64_t> data);
  void set_miss(TableEntry entry) {
    miss_ = std::move(entry);
    forget();
  }

  const TableEntry& find(const std::uint64_t* key);
  const TableEntry& miss() const { return miss_; }

 private:
  static constexpr std::size_t REMEMBERED = 256;  // keys of a table without a hash whose entry is remembered

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
  EntryIndex index_;                    // where the table is no hash
  std::vector<std::uint32_t> buckets_;  // number + 1, where it is one
  std::size_t filled_ = 0;
  TableEntry miss_;
  std::vector<std::uint64_t> remembered_keys_;
  std::vector<std::uint32_t> remembered_;  // 0: nothing; 1: a miss; number + 2
};

}  // namespace fanin::p4
