// Packets that may overtake those in their host's device queue: passes and bare results.
//
// A host with a shard sends, over one link, words of its rank or results of its shard, and besides packets without
// words. A round, or the next item of a slot, waits for these as for words. In the device's queue they would wait
// behind a whole window of words, after which the link would idle until they have caused new words. So they go in a
// band of higher priority, if the device has bands: pfifo_fast, Linux's default for devices, has (fq_codel lets them
// pass as a flow of few bytes, whatever their priority).
//
// They must not overtake earlier packets to the same peer, which receipts, or gaps between results, would count as
// lost. A worker knows which of its items wait for their results (InOrderItems). A switch does not know which packets a
// worker has read, but infers it from consecutive bare results (BareRow).
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>
#include <vector>

#include "wire/packet.hpp"

namespace fanin {

// Items of a worker's flow that were sent in order and wait for their results. Passes go ahead while there are none; so
// passes never overtake passes either.
class InOrderItems {
 public:
  explicit InOrderItems(std::uint32_t slots) : in_order_(slots) {}

  bool none() const { return count_ == 0; }
  void sent(std::uint32_t slot, bool ahead) { set(slot, !ahead); }
  void finished(std::uint32_t slot) { set(slot, false); }
  std::size_t buffer_bytes() const { return in_order_.capacity(); }

 private:
  void set(std::uint32_t slot, bool in_order) {
    count_ += in_order - in_order_[slot];
    in_order_[slot] = in_order;
  }

  std::vector<std::uint8_t> in_order_;  // by slot
  std::uint32_t count_ = 0;
};

// Bare results that a switch has sent to a peer in a row, in jobs whose rounds wait for all workers. A slot has a
// second result only when the worker has read the first one. Of as many results in a row as there are slots, behind one
// with words in a further slot, two are in the same slot; so the earlier of them has been read, and what was sent
// before it has, too. (Bare results may overtake such a row itself: that makes the worker doubt for a moment, and cuts
// nothing.)
class BareRow {
 public:
  // Whether the train, which is sent now, may go ahead. `slots`: slots of all the peer's jobs (JobSpec::slots_in_step);
  // 0: never.
  bool goes_ahead(std::span<const iovec> train, std::uint32_t slots) {
    const bool proven = slots != 0 && length_ >= slots;
    bool bare = true;
    for (const iovec& datagram : train) {
      const std::uint32_t results = results_of(datagram);
      length_ = results == OTHER ? 0 : length_ < slots ? length_ + results : slots;
      bare = bare && results != OTHER;
    }
    return proven && bare;
  }

 private:
  static constexpr std::uint32_t OTHER = UINT32_MAX;

  // Number of bare results in a datagram; OTHER for a datagram that must not go ahead.
  static std::uint32_t results_of(const iovec& datagram) {
    if (datagram.iov_len < HEADER_BYTES) return OTHER;
    const Header header = load_header(static_cast<const std::uint8_t*>(datagram.iov_base));
    if (header.kind == Kind::receipt) return 0;  // a receipt goes with the train that it follows
    const bool bare = (header.kind == Kind::result || header.kind == Kind::answer) && (header.flags & FLAG_BARE) != 0;
    return bare ? run_of(header) : OTHER;
  }

  std::uint32_t length_ = 0;
};

}  // namespace fanin
