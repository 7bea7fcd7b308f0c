#include "p4/p4_index.hpp"

#include <algorithm>

#include "p4/p4_key_hash.hpp"

namespace fanin::p4 {

namespace {

constexpr std::size_t COMPARED = 8;  // values of a group up to which comparing is faster than hashing

bool same(const std::uint64_t* key, const std::vector<std::uint64_t>& mask, const std::vector<std::uint64_t>& value) {
  for (std::size_t limb = 0; limb < value.size(); ++limb)
    if ((key[limb] & mask[limb]) != value[limb]) return false;
  return true;
}

}  // namespace

void EntryIndex::add(std::uint32_t number, std::int64_t rank, const std::vector<std::uint64_t>& value,
                     const std::vector<std::uint64_t>& mask) {
  const Order order{rank, ++added_};
  if (orders_.size() <= number) orders_.resize(number + 1);
  orders_[number] = order;
  const auto [place, fresh] = groups_.try_emplace(mask);
  Group& group = place->second;
  if (fresh) {
    group.mask = mask;
    search_from(group, order);
  } else if (order < group.first) {
    search_no_more(group);
    search_from(group, order);
  }
  Alike* alike = group.at(value);
  if (alike == nullptr) alike = group.make(value);
  const auto before = [](const Order& left, const Member& right) { return left < right.order; };
  const auto behind = std::upper_bound(alike->members.begin(), alike->members.end(), order, before);
  alike->members.insert(behind, Member{order, number});
}

void EntryIndex::remove(std::uint32_t number, const std::vector<std::uint64_t>& value,
                        const std::vector<std::uint64_t>& mask) {
  const auto place = groups_.find(mask);
  Group& group = place->second;
  Alike* const alike = group.at(value);
  const auto before = [](const Member& left, const Order& right) { return left.order < right; };
  alike->members.erase(std::lower_bound(alike->members.begin(), alike->members.end(), orders_[number], before));
  if (!alike->members.empty()) return;
  group.drop(alike);
  if (!group.values.empty()) return;
  search_no_more(group);
  groups_.erase(place);
}

void EntryIndex::search_from(Group& group, const Order& first) {
  group.first = first;
  const auto before = [](const Order& left, const Searched& right) { return left < right.first; };
  searched_.insert(std::upper_bound(searched_.begin(), searched_.end(), first, before), Searched{first, &group});
}

void EntryIndex::search_no_more(const Group& group) {
  const auto before = [](const Searched& left, const Order& right) { return left.first < right; };
  searched_.erase(std::lower_bound(searched_.begin(), searched_.end(), group.first, before));
}

const EntryIndex::Alike* EntryIndex::Group::find(const std::uint64_t* key, std::uint32_t limbs) const {
  if (buckets.empty()) {
    for (const auto& each : values)
      if (same(key, mask, each->value)) return each.get();
    return nullptr;
  }
  KeyHash hash;
  for (std::uint32_t limb = 0; limb < limbs; ++limb) hash.add(key[limb] & mask[limb]);
  const std::size_t last = buckets.size() - 1;
  for (std::size_t at = hash.value() & last; buckets[at]; at = (at + 1) & last) {
    const Alike& each = *values[buckets[at] - 1];
    if (same(key, mask, each.value)) return &each;
  }
  return nullptr;
}

EntryIndex::Alike* EntryIndex::Group::at(const std::vector<std::uint64_t>& value) {
  return const_cast<Alike*>(find(value.data(), static_cast<std::uint32_t>(value.size())));
}

EntryIndex::Alike* EntryIndex::Group::make(const std::vector<std::uint64_t>& value) {
  values.push_back(std::make_unique<Alike>(Alike{value, {}}));
  if (values.size() > COMPARED && 2 * values.size() > buckets.size())
    rehash();
  else if (!buckets.empty())
    put_in_bucket(values.size() - 1);
  return values.back().get();
}

// Removes a value; the last value takes its place.
void EntryIndex::Group::drop(const Alike* alike) {
  const std::size_t last = values.size() - 1;
  if (buckets.empty()) {
    const auto found =
        std::find_if(values.begin(), values.end(), [&](const auto& each) { return each.get() == alike; });
    std::swap(*found, values.back());
    values.pop_back();
    return;
  }
  std::size_t place = 0;
  KeyHash hash;
  for (const std::uint64_t limb : alike->value) hash.add(limb);
  std::size_t bucket = hash.value() & (buckets.size() - 1);
  while (values[buckets[bucket] - 1].get() != alike) bucket = (bucket + 1) & (buckets.size() - 1);
  place = buckets[bucket] - 1;
  empty_bucket(bucket);
  if (place != last) {
    buckets[bucket_of(last)] = static_cast<std::uint32_t>(place + 1);
    std::swap(values[place], values[last]);
  }
  values.pop_back();
}

std::size_t EntryIndex::Group::bucket_of(std::size_t place) const {
  KeyHash hash;
  for (const std::uint64_t limb : values[place]->value) hash.add(limb);
  std::size_t at = hash.value() & (buckets.size() - 1);
  while (buckets[at] != place + 1) at = (at + 1) & (buckets.size() - 1);
  return at;
}

void EntryIndex::Group::put_in_bucket(std::size_t place) {
  KeyHash hash;
  for (const std::uint64_t limb : values[place]->value) hash.add(limb);
  std::size_t at = hash.value() & (buckets.size() - 1);
  while (buckets[at]) at = (at + 1) & (buckets.size() - 1);
  buckets[at] = static_cast<std::uint32_t>(place + 1);
}

// Knuth, The Art of Computer Programming, volume 3, section 6.4, algorithm R, as in p4_table.cpp.
void EntryIndex::Group::empty_bucket(std::size_t hole) {
  const std::size_t mask_of_buckets = buckets.size() - 1;
  buckets[hole] = 0;
  for (std::size_t at = (hole + 1) & mask_of_buckets; buckets[at]; at = (at + 1) & mask_of_buckets) {
    KeyHash hash;
    for (const std::uint64_t limb : values[buckets[at] - 1]->value) hash.add(limb);
    const std::size_t home = hash.value() & mask_of_buckets;
    if (((at - home) & mask_of_buckets) < ((at - hole) & mask_of_buckets)) continue;  // its home is behind the hole
    buckets[hole] = std::exchange(buckets[at], 0);
    hole = at;
  }
}

void EntryIndex::Group::rehash() {
  std::size_t size = 16;
  while (size < 4 * values.size()) size *= 2;
  buckets.assign(size, 0);
  for (std::size_t place = 0; place < values.size(); ++place) put_in_bucket(place);
}

}  // namespace fanin::p4
