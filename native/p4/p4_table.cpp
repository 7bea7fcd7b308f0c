#include "p4/p4_table.hpp"

#include <algorithm>
#include <utility>

#include "p4/p4_key_hash.hpp"

namespace fanin::p4 {

namespace {

std::uint64_t cut(const std::uint64_t* key, std::uint32_t shift, std::uint32_t bits) {
  const std::uint32_t limb = shift / 64, within = shift % 64;
  std::uint64_t value = key[limb] >> within;
  if (within + bits > 64) value |= key[limb + 1] << (64 - within);
  return bits == 64 ? value : value & ((std::uint64_t{1} << bits) - 1);
}

}  // namespace

std::uint64_t Table::hash(const std::uint64_t* key) const {
  KeyHash hash;
  for (std::uint32_t limb = 0; limb < limbs_; ++limb) hash.add(key[limb]);
  return hash.value();
}

std::uint32_t Table::put(TableEntry entry, std::int64_t rank) {
  entry.used = true;
  std::uint32_t number = static_cast<std::uint32_t>(entries_.size());
  if (free_.empty()) {
    entries_.push_back(std::move(entry));
  } else {
    number = free_.back();
    free_.pop_back();
    entries_[number] = std::move(entry);
  }
  if (!exact_) {
    index_.add(number, rank, entries_[number].value, entries_[number].mask);
    forget();
  } else if (2 * ++filled_ > buckets_.size()) {
    rehash();
  } else {
    insert(number);
  }
  return number;
}

void Table::take(std::uint32_t number) {
  if (number >= entries_.size() || !entries_[number].used) return;
  if (exact_) {
    --filled_;
    erase(number);
  } else {
    index_.remove(number, entries_[number].value, entries_[number].mask);
    forget();
  }
  entries_[number] = TableEntry{};
  free_.push_back(number);
}

void Table::set_action(std::uint32_t number, std::uint32_t action, std::uint32_t next,
                       std::vector<std::uint64_t> data) {
  TableEntry& entry = entries_.at(number);
  entry.action = action;
  entry.next = next;
  entry.data = std::move(data);
}

void Table::insert(std::uint32_t number) {
  std::size_t at = hash(entries_[number].value.data()) & (buckets_.size() - 1);
  while (buckets_[at]) at = (at + 1) & (buckets_.size() - 1);
  buckets_[at] = number + 1;
}

// Knuth, The Art of Computer Programming, volume 3, section 6.4, algorithm R: entries that a search would no longer
// find behind the hole are moved into it.
void Table::erase(std::uint32_t number) {
  const std::size_t mask = buckets_.size() - 1;
  const auto home = [&](std::uint32_t bucket) { return hash(entries_[bucket - 1].value.data()) & mask; };
  std::size_t hole = home(number + 1);
  while (buckets_[hole] != number + 1) hole = (hole + 1) & mask;
  buckets_[hole] = 0;
  for (std::size_t at = (hole + 1) & mask; buckets_[at]; at = (at + 1) & mask) {
    if (((at - home(buckets_[at])) & mask) < ((at - hole) & mask)) continue;  // its home is behind the hole
    buckets_[hole] = std::exchange(buckets_[at], 0);
    hole = at;
  }
}

void Table::rehash() {
  std::size_t size = 16;
  while (size < 4 * filled_) size *= 2;
  buckets_.assign(size, 0);
  for (std::uint32_t number = 0; number < entries_.size(); ++number)
    if (entries_[number].used) insert(number);
}

void Table::forget() { std::fill(remembered_.begin(), remembered_.end(), 0); }

bool Table::in_ranges(std::uint32_t number, const std::uint64_t* key) const {
  for (const KeyRange& range : entries_[number].ranges) {
    const std::uint64_t value = cut(key, range.shift, range.bits);
    if (value < range.low || value > range.high) return false;
  }
  return true;
}

const TableEntry& Table::find(const std::uint64_t* key) {
  const std::uint64_t mixed = hash(key);
  if (exact_) {
    if (buckets_.empty()) return miss_;
    for (std::size_t at = mixed & (buckets_.size() - 1); buckets_[at]; at = (at + 1) & (buckets_.size() - 1)) {
      const TableEntry& entry = entries_[buckets_[at] - 1];
      if (std::equal(key, key + limbs_, entry.value.begin())) return entry;
    }
    return miss_;
  }
  if (remembered_.empty()) {
    remembered_.resize(REMEMBERED);
    remembered_keys_.resize(REMEMBERED * limbs_);
  }
  const std::size_t place = mixed % REMEMBERED;
  std::uint64_t* const kept = remembered_keys_.data() + place * limbs_;
  if (remembered_[place] && std::equal(key, key + limbs_, kept))
    return remembered_[place] == 1 ? miss_ : entries_[remembered_[place] - 2];
  const std::uint32_t found = index_.find(key, [&](std::uint32_t number) { return in_ranges(number, key); });
  std::copy(key, key + limbs_, kept);
  remembered_[place] = found + 1;
  return found ? entries_[found - 1] : miss_;
}

}  // namespace fanin::p4
