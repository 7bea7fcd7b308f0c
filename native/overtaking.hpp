// Which trains to one peer may leave this host before what waits in its device's queue.
//
// A host with a shard sends, over one link, words of its rank or results of its shard, and beside them what has no words:
// passes and bare results. A round, or the next item of a slot, waits for these as long as for words. Behind a window of
// words they take as long as all of it; then the link has nothing to carry until words come for them. So they go by a band
// of higher priority, if the device has bands: pfifo_fast, which Linux gives devices where nobody has chosen otherwise, does
// (fq_codel lets them through as a flow of few bytes whatever their priority).
//
// They must not overtake words to the same peer: receipts, and gaps between results, would call these lost. A datagram says
// nothing of what is still under way, but a row of them does. A slot has one item at a time, and a second one only when the
// first one's result has come or, at the switch, when its worker has read that result. Of as many items in a row as there
// are slots, behind one with words in a further slot, two are in the same slot; so the earlier of them has arrived, and what
// was sent before it has, too. Repetitions count like others: where they make the row too short, an item may be sent again in
// vain.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>

#include "packet.hpp"

namespace fanin {

class Overtaking {
 public:
  // Whether the train, which is sent now, may overtake. `slots`: of the flow, or of all flows that share the peer's socket;
  // 0: never (JobSpec::slots_in_step).
  bool allows(std::span<const iovec> train, std::uint32_t slots) {
    const bool proven = slots != 0 && without_words_ >= slots;
    bool only = true;
    for (const iovec& datagram : train) {
      const std::uint32_t items = items_of(datagram);
      without_words_ = items == WORDS ? 0 : without_words_ < slots ? without_words_ + items : slots;
      only = only && items != WORDS;
    }
    return proven && only;
  }

 private:
  static constexpr std::uint32_t WORDS = UINT32_MAX;

  // Of a datagram without words; WORDS for any other, and for all that keeps its place.
  static std::uint32_t items_of(const iovec& datagram) {
    if (datagram.iov_len < HEADER_BYTES) return WORDS;
    const Header header = load_header(static_cast<const std::uint8_t*>(datagram.iov_base));
    if (header.kind == Kind::receipt) return 0;  // goes with the train that it follows
    const bool pass = header.kind == Kind::contribution && (header.flags & FLAG_PASS) != 0;
    const bool bare = (header.kind == Kind::result || header.kind == Kind::answer) && (header.flags & FLAG_BARE) != 0;
    return pass || bare ? run_of(header) : WORDS;
  }

  std::uint32_t without_words_ = 0;  // items in a row
};

}  // namespace fanin
