// The queue of a switch machine. Results wait where they were summed up; everything else in an arena of bytes.
//
// Both arenas keep their size once they have grown, so that nothing is allocated in steady state. Datagrams beyond
// SWITCH_QUEUE_DATAGRAMS or SWITCH_QUEUE_BYTES are dropped, as by a network, if the driver does not send.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "wire/packet_tag.hpp"
#include "wire/sinks.hpp"
#include "wire/wire_constants.hpp"

namespace fanin {

class SwitchQueue {
 public:
  SwitchQueue() { items_.reserve(SWITCH_QUEUE_DATAGRAMS); }

  bool takes(std::size_t bytes) const {
    return items_.size() < SWITCH_QUEUE_DATAGRAMS && bytes_ + bytes <= SWITCH_QUEUE_BYTES;
  }

  std::size_t bytes() const { return bytes_; }

  // The bytes stay where they are. `mark` is set to the datagram's place in the queue, from 1, until it has been handed
  // out (then to 0); whoever is about to change the bytes calls copy_out first if the mark is not 0. Unless `key` is
  // null, they get its keyed tag before they are handed out: it lasts until then, or make_tags is called.
  void push_in_place(std::span<std::uint8_t> datagram, const TagKey* key, std::uint32_t* mark,
                     std::span<const Address> destinations) {
    Item& item = append(datagram.size(), destinations);
    item.in_place = datagram.data();
    item.key = key;
    item.mark = mark;
    untagged_ = untagged_ || key != nullptr;
    *mark = static_cast<std::uint32_t>(items_.size());
  }

  // Room, with undefined contents, for a datagram that the caller writes before the queue is used again.
  std::span<std::uint8_t> push(std::size_t bytes, std::span<const Address> destinations) {
    append(bytes, destinations).copy_at = take(bytes);
    return {copies_.data() + items_.back().copy_at, bytes};
  }

  // Room for a datagram that may become longer, up to `most_bytes`, until this is called again or the queue is handed
  // out. `key` as in push_in_place.
  std::span<std::uint8_t> push_run(std::size_t bytes, std::size_t most_bytes, const TagKey* key,
                                   std::span<const Address> destinations) {
    Item& item = append(bytes, destinations);
    item.key = key;
    item.copy_at = take(most_bytes);
    untagged_ = untagged_ || key != nullptr;
    run_ = items_.size();
    return run();
  }

  // The datagram that may become longer; empty without one for these destinations.
  std::span<std::uint8_t> run(std::span<const Address> destinations) {
    if (run_ == 0 || !std::ranges::equal(destinations, destinations_of(items_[run_ - 1]))) return {};
    return run();
  }

  // Lengthens that datagram by `bytes`, with undefined contents.
  std::span<std::uint8_t> lengthen_run(std::size_t bytes) {
    items_[run_ - 1].bytes += static_cast<std::uint32_t>(bytes);
    bytes_ += bytes;
    return run();
  }

  void end_run() { run_ = 0; }

  void copy_out(std::uint32_t mark) {
    Item& item = items_[mark - 1];
    item.copy_at = take(item.bytes);
    std::memcpy(copies_.data() + item.copy_at, item.in_place, item.bytes);
    *item.mark = 0;
    item.in_place = nullptr;
    item.mark = nullptr;
  }

  // Copies all queued datagrams out of [from, from + bytes), before that memory is freed.
  void copy_out_all(const std::uint8_t* from, std::size_t bytes) {
    for (std::size_t place = 0; place < items_.size(); ++place) {
      const std::uint8_t* const at = items_[place].in_place;
      if (at != nullptr && !std::less<>{}(at, from) && std::less<>{}(at, from + bytes))
        copy_out(static_cast<std::uint32_t>(place + 1));
    }
  }

  // Makes the missing tags, of several datagrams side by side.
  void make_tags() {
    end_run();
    if (!std::exchange(untagged_, false)) return;
    std::array<const TagKey*, TAGS_TOGETHER> keys;
    std::array<std::span<std::uint8_t>, TAGS_TOGETHER> datagrams;
    std::size_t count = 0;
    const auto make = [&] {
      put_tags(std::span(keys).first(count), std::span(datagrams).first(count), Direction::from_switch);
      count = 0;
    };
    for (Item& item : items_) {
      if (item.key == nullptr) continue;
      keys[count] = std::exchange(item.key, nullptr);
      datagrams[count++] = {data_of(item), item.bytes};
      if (count == TAGS_TOGETHER) make();
    }
    make();
  }

  void hand_out(SwitchSink& sink) {
    make_tags();
    for (const Item& item : items_) {
      sink.send({data_of(item), item.bytes}, destinations_of(item));
      if (item.mark != nullptr) *item.mark = 0;
    }
    items_.clear();
    destinations_.clear();
    bytes_ = used_ = 0;
  }

 private:
  struct Item {
    std::uint8_t* in_place = nullptr;
    const TagKey* key = nullptr;  // key of the tag that is still to be made; null: none
    std::uint32_t* mark = nullptr;
    std::uint32_t copy_at = 0;
    std::uint32_t bytes = 0;
    std::uint32_t destinations_at = 0;
    std::uint32_t destination_count = 0;
  };

  std::span<std::uint8_t> run() { return {data_of(items_[run_ - 1]), items_[run_ - 1].bytes}; }

  std::span<const Address> destinations_of(const Item& item) const {
    return {destinations_.data() + item.destinations_at, item.destination_count};
  }

  std::uint8_t* data_of(const Item& item) {
    return item.in_place != nullptr ? item.in_place : copies_.data() + item.copy_at;
  }

  // The entry for a datagram of `bytes`, filled in where it stays.
  Item& append(std::size_t bytes, std::span<const Address> destinations) {
    Item& item = items_.emplace_back();
    item.bytes = static_cast<std::uint32_t>(bytes);
    item.destinations_at = static_cast<std::uint32_t>(destinations_.size());
    item.destination_count = static_cast<std::uint32_t>(destinations.size());
    destinations_.insert(destinations_.end(), destinations.begin(), destinations.end());
    bytes_ += bytes;
    return item;
  }

  std::uint32_t take(std::size_t bytes) {
    const std::size_t at = used_;
    used_ += bytes;
    if (copies_.size() < used_) copies_.resize(2 * used_);  // items hold offsets, since this moves the bytes
    return static_cast<std::uint32_t>(at);
  }

  std::vector<Item> items_;
  std::vector<Address> destinations_;
  std::vector<std::uint8_t> copies_;
  std::size_t run_ = 0;    // place in the queue, from 1, of the run that may become longer; 0: none
  bool untagged_ = false;  // whether an item may lack its tag
  std::size_t used_ = 0;   // used bytes of copies_
  std::size_t bytes_ = 0;  // of all datagrams, in both arenas
};

}  // namespace fanin
