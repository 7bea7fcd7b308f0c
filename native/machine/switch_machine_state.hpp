// State of a SwitchMachine, shared by its three files: switch_machine.cpp handles packets, switch_replies.cpp makes
// replies, switch_leaf.cpp handles the packets between a leaf and its parent.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "machine/own_stops.hpp"
#include "machine/regular_run.hpp"
#include "wire/packet.hpp"
#include "machine/switch_job.hpp"
#include "machine/switch_machine.hpp"
#include "machine/switch_queue.hpp"

namespace fanin {

struct SwitchMachine::State {
  explicit State(std::uint64_t memory) : memory_bytes(memory) {}

  SwitchJob& job_at(std::uint16_t index) {
    SwitchJob* const job = find(index);
    if (job == nullptr) throw NoSuchJob("job " + std::to_string(index));
    return *job;
  }
  SwitchJob* find(std::uint16_t index) { return index < jobs.size() ? jobs[index].get() : nullptr; }

  void look_at_own_watch();
  void turn(double now) {
    if (const double stopped_s = stops.turn(now); stopped_s != 0.0)
      for (const auto& job : jobs)
        if (job != nullptr) job->was_stopped(stopped_s, now);
  }

  // A datagram after the checks that concern it alone, and the job that its worker names; null: none, or unknown.
  struct Opened {
    Parsed packet;
    SwitchJob* job = nullptr;
    std::uint32_t run = 0;  // number of the run that it continues, so that it was not parsed; 0: none
    RegularRun::Place place;
  };
  // Contributions with words of one worker to one job, which is no leaf's (regular_run.hpp). The checks from CHECKSUM
  // to LENGTH read only what is the same in all of them.
  struct Contributions {
    RegularRun alike;
    SwitchJob* job = nullptr;
    const TagKey* key = nullptr;  // of the worker; null without tags
    Header header;                // of the latest one
    Contribution given;           // the latest one
  };
  const TagKey* open(std::span<const std::uint8_t> datagram, Opened& opened);
  // Both return whether it was a contribution that fits the job.
  bool receive(const Opened& opened, std::span<const std::uint8_t> datagram, Address source, double now, bool marked,
               const ComputedTag& computed = {});
  bool receive(SwitchJob& job, const Parsed& packet, std::span<const std::uint8_t> datagram, Address source, double now,
               bool marked, const ComputedTag& computed);
  bool contribute(SwitchJob& job, const Parsed& packet, Address source, double now);
  // A receipt that `handle` finds to be owed to a datagram's sender.
  struct Owed {
    bool receipt = false;
    bool repeated = false;  // whether the switch had it before
    Header header;          // of the contribution that a receipt is owed for
  };
  struct Asked {
    std::size_t bytes;  // length of the datagram
    Address source;
    bool late;
    bool more;
  };
  // Handles one contribution (`Alone`: its datagram has no other), or a part of a run of passes; with `more`, other
  // parts follow. Returns false if these are refused as well.
  template <bool Alone>
  bool handle(SwitchJob& job, const Header& each, const Contribution* given, const Asked& asked, Owed& owed,
              double now);
  void begin(Contributions& run, const Opened& opened, const Arrival& arrival) const;
  bool receive(Contributions& run, const RegularRun::Place& place, const Arrival& arrival, double now,
               const ComputedTag& computed);
  void register_source(SwitchJob& job, std::uint32_t worker, Address source);
  void welcome(SwitchJob& job, const Parsed& hello, Address source);
  void part(SwitchJob& job, std::uint32_t worker, std::span<const std::uint8_t> bye, Address source);
  void poke(SwitchJob& job);

  void ascend(SwitchJob& job, const Ascent& ascent);
  void receipt_from_parent(SwitchJob& job, const Parsed& packet, double now);
  void speak_to_parent(SwitchJob& job, double now);
  std::span<const std::size_t> path_questions(SwitchJob& job, double now);
  void send_token_up(SwitchJob& job, Kind kind, std::uint32_t sequence, std::size_t bytes);
  void receive_from_parent(SwitchJob& job, const Parsed& packet, std::span<const std::uint8_t> datagram, double now,
                           bool marked);
  void descend(SwitchJob& job, const Parsed& packet, double now, bool marked);
  void tell_news(SwitchJob& job, Reason news);

  bool takes(SwitchTally& tally, std::size_t bytes, std::size_t destinations);
  void echo_bye(SwitchJob& job, std::span<const std::uint8_t> bye, Address source);
  void echo(std::span<const std::uint8_t> probe, Address source);
  void multicast(SwitchJob& job, std::uint32_t slot, std::uint32_t number);
  bool lengthen_run(SwitchJob& job, std::span<const std::uint8_t> bare, std::span<const Address> destinations);
  void answer(SwitchJob& job, const Header& header, std::size_t asked_bytes, Address source);
  void answer_bare(SwitchJob& job, const Header& header, std::uint32_t base, std::uint32_t bitmap, Address source);
  void receipt(SwitchJob& job, const Header& header, std::size_t asked_bytes, bool repeated, Address source);
  void refuse(SwitchTally& tally, const SwitchJob* job, Reason reason, const Header& header, Address source);
  void tell(SwitchJob& job, Reason reason, std::uint8_t worker, std::span<const Address> destinations);
  void tell_where(SwitchJob& job, const Header& header, Address source);

  std::uint64_t memory_bytes;
  std::uint64_t memory_taken = 0;
  std::vector<std::unique_ptr<SwitchJob>> jobs;  // by index
  // Key of a part of a job at a parent: the parent's address, its index of the job, the generation. A restarted parent
  // uses its indices again, while parts of its earlier jobs may still linger here.
  using PartKey = std::tuple<Address, std::uint16_t, std::uint32_t>;
  static PartKey part_key(const Uplink& uplink) { return {uplink.parent, uplink.job, uplink.generation}; }
  SwitchJob* find_part(Address source, const Header& header);
  std::map<PartKey, std::uint16_t> parts;
  SwitchTally past;  // counts of packets for no job, and of removed jobs
  SwitchQueue queue;
  OwnStops stops;
  std::uint64_t regular = 0;       // contributions that were handled as parts of a run
  std::deque<SwitchEvent> events;  // at most three per worker
};

// Writes the words of a datagram: first the masks of lost and left workers, then zeros.
void write_news(std::span<std::uint8_t> datagram, const Header& header, std::uint32_t lost, std::uint32_t left);

}  // namespace fanin
