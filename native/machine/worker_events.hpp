// Events that the worker machine reports; fanin/protocol/events.py has the same ones.
#pragma once

#include <cstdint>
#include <variant>

namespace fanin {

struct Ready {};
struct ReductionDone {
  std::uint64_t ticket;
};
struct Spoiled {
  std::uint64_t ticket;
  std::uint32_t place;
  std::uint64_t first;
  std::uint64_t count;
};
struct RoundHeard {
  std::uint64_t base;
};
struct MembersChanged {
  std::uint32_t change;
  std::uint32_t members;
  std::uint32_t gone;
  std::uint32_t come;
  std::uint64_t base;
};
struct Stands {
  std::uint64_t base;
};
struct WorkersGone {
  std::uint32_t lost;
  std::uint32_t left;
};
struct SwitchSilent {
  double silent_s;
};
struct PathNarrowed {
  std::uint64_t needed_bytes;
  std::uint64_t passes_bytes;
};
struct PacketRefused {
  std::uint16_t reason;  // fanin.protocol.wire.Reason
};
struct Departed {
  bool confirmed;
};

using WorkerEvent = std::variant<Ready, MembersChanged, Stands, ReductionDone, Spoiled, RoundHeard, WorkersGone,
                                 SwitchSilent, PathNarrowed, PacketRefused, Departed>;

}  // namespace fanin
