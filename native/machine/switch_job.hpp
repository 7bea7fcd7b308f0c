// One job at a switch: its slots, its workers, when they were last heard, and the addresses from which they may send.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "machine/ascents.hpp"
#include "machine/member_tally.hpp"
#include "wire/packet.hpp"
#include "wire/packet_tag.hpp"
#include "machine/receipts.hpp"
#include "wire/sinks.hpp"
#include "machine/slot_ring.hpp"
#include "machine/switch_tally.hpp"
#include "machine/uplink.hpp"

namespace fanin {

inline constexpr std::size_t TOKEN_WORDS = 2;  // words of the token at the beginning of HELLO and BYE

struct SwitchJob {
  explicit SwitchJob(const JobSpec& given, const std::optional<Uplink>& link)
      : spec(given), ring(given, link), keys(given.data_key, given.tokens) {
    excused.fill(-std::numeric_limits<double>::infinity());
    parities.resize((std::size_t{given.slots} + WORD_BITS - 1) / WORD_BITS);
    times.resize(given.slots);
    if (!link) return;
    uplink.emplace(*link, given);
    ascents.emplace(given.slots, datagram_bytes(given.codes_per_packet, given.words_per_packet));
    parent_keys = MemberKeys(link->data_key, link->token);
  }

  bool has(std::uint32_t mask, std::uint32_t worker) const { return (mask >> worker & 1) != 0; }
  bool evicted(std::uint32_t worker) const { return !has(ring.live() | expected, worker); }
  bool watched(std::uint32_t worker) const { return has(registered & ~lost & ~left, worker); }
  // A packet within SUSPICION_SETTLES_S may have been sent before, and is no sign of life.
  bool suspicion_stands(std::uint32_t worker) const {
    return suspected[worker] && heard[worker] <= *suspected[worker] + SUSPICION_SETTLES_S;
  }
  double silent_at(std::uint32_t worker) const {
    const double at = heard[worker] + spec.liveness_timeout_s;  // R-MEMBER-6, or sooner: R-MEMBER-7
    return suspicion_stands(worker) ? std::min(at, *suspected[worker] + SUSPICION_TIMEOUT_S) : at;
  }
  double heartbeat_s() const { return std::min(HEARTBEAT_INTERVAL_S, spec.liveness_timeout_s / LIVENESS_HEARTBEATS); }

  // Moves deadlines after a stop of the switch itself, as SwitchJob.was_stopped in switch/machine/switch_job.py.
  void was_stopped(double seconds, double now) {
    const double fresh = now - spec.liveness_timeout_s + HEARTBEATS_TO_SILENCE * heartbeat_s();
    for (std::uint32_t worker = 0; worker < spec.workers; ++worker) {
      if (!watched(worker)) continue;
      double later = heard[worker] + seconds;
      // R-MEMBER-8: extra time only once, or a switch that is stopped again and again would never lose a worker.
      if (heard[worker] != excused[worker]) later = std::max(later, fresh);
      // A suspicion stays, but the worker's time to give a sign of life excludes the stop.
      if (suspicion_stands(worker)) suspected[worker] = std::max(*suspected[worker] + seconds, later);
      heard[worker] = excused[worker] = later;
    }
    if (uplink) uplink->was_stopped(seconds);
  }
  std::span<const Address> audience() const { return {listeners.data(), listener_count}; }

  // Writes the audience to `numbers`, first the workers outside the mask `bare`, then those in it; returns the number
  // of the former.
  std::size_t audience_but(std::uint32_t bare, std::array<Address, MAX_WORKERS>& numbers) const {
    std::size_t first = 0, last = listener_count;
    for (std::uint32_t worker = 0; worker < spec.workers; ++worker)
      if (has(registered & ~left & ~bare, worker)) numbers[first++] = sources[worker];
    const std::size_t whole = first;
    for (std::uint32_t worker = 0; worker < spec.workers && first < last; ++worker)
      if (has(registered & ~left & bare, worker)) numbers[first++] = sources[worker];
    return whole;
  }

  // Whether all present workers in the mask `bare` accept bare results in runs.
  bool runs(std::uint32_t bare) const { return (bare & registered & ~left & ~takes_runs) == 0; }

  // Called after any change of the registered, left or evicted workers.
  void update_audience() {
    registered &= ring.live();
    lost &= ring.live();
    left &= ring.live();
    listener_count = 0;
    for (std::uint32_t worker = 0; worker < spec.workers; ++worker)
      if (has(registered & ~left, worker)) listeners[listener_count++] = sources[worker];
  }

  // Opens an evicted worker's place to a new process, which registers with `token`.
  void expect(std::uint32_t worker, std::uint64_t token) {
    spec.tokens[worker] = token;
    keys.renew(worker, token);
    hellos[worker] = 0;
    expected |= std::uint32_t{1} << worker;
  }

  // Lets a new process into an evicted worker's place: rounds wait for it from now on, but for no earlier base.
  void enter(std::uint32_t worker) {
    for (std::uint32_t slot = 0; slot < spec.slots; ++slot) ring.enter(slot, worker);  // R-SLOT-14
    ring.set_live(ring.live() | std::uint32_t{1} << worker);
    expected &= ~(std::uint32_t{1} << worker);
    suspected[worker].reset();
    ++changes;  // R-MEMBER-12, R-MEMBER-13: live from its HELLO on
  }

  JobSpec spec;  // with the current tokens: a newcomer in a place has a new one
  SlotRing ring;
  PacketKeys keys;
  MemberKeys parent_keys;
  std::array<std::uint64_t, MAX_WORKERS> hellos{};  // with keyed tags: the least sequence number of the next HELLO
  std::uint64_t parent_welcomes = 0;                // the same of the parent's WELCOMEs
  std::uint64_t held_bytes = 0;                     // of the switch's memory, beside the ring's
  std::vector<std::uint32_t> parities;  // bit s % 32 of word s / 32: whether slot s has closed an odd number of rounds
  SwitchTally tally;
  std::optional<UplinkPresence> uplink;  // at a leaf: its membership at the parent
  std::optional<Ascents> ascents;        // at a leaf: transmissions to the parent
  std::uint32_t registered = 0;          // masks; evicted workers are not in this one and the next two
  std::uint32_t lost = 0;
  std::uint32_t left = 0;
  std::uint32_t marked = 0;      // of whom contributions met congestion, which they have not been told of
  std::uint32_t takes_runs = 0;  // who takes bare results as runs
  std::uint32_t expected = 0;    // evicted workers whose place is open for a new process; live from its HELLO on
  std::uint32_t changes = 0;     // of membership, in a job that survives losses
  std::array<Address, MAX_WORKERS> sources{};                  // of those that registered
  std::array<double, MAX_WORKERS> heard{};                     // when something last came from there, in seconds
  std::array<std::optional<double>, MAX_WORKERS> suspected{};  // when something else than silence spoke for its death
  std::array<double, MAX_WORKERS> excused;                     // what that was after the last stop of the switch itself
  std::array<std::uint64_t, MAX_WORKERS> last_arrivals{};      // rounds that this worker was the last to contribute to
  std::array<Arrivals, MAX_WORKERS> arrivals{};                // which transmissions of each worker have come
  std::array<MemberTally, MAX_WORKERS> members{};
  std::vector<SlotTimes> times;  // by slot
  std::array<Address, MAX_WORKERS> listeners{};
  std::size_t listener_count = 0;
};

inline std::uint64_t token_of(const Parsed& packet) {
  return std::uint64_t{load_be32(packet.words)} << 32 | load_be32(packet.words + WORD_BYTES);
}

// The rows of the table from CHECKSUM to STRANGER; Reason{} when none objects.
inline Reason objection(const SwitchJob& job, const Parsed& packet, std::span<const std::uint8_t> datagram,
                        Address source, const ComputedTag& computed) {
  const JobSpec& spec = job.spec;
  const Header& header = packet.header;
  const std::uint32_t worker = header.worker;
  if (spec.checksum && (header.flags & FLAG_CHECKSUM) == 0) return Reason::checksum;
  if (header.generation != spec.generation) return Reason::generation;
  if (worker >= spec.workers) return Reason::worker_range;
  if (!job.keys.holds(datagram, worker, computed)) return Reason::tag;
  if (header.kind != Kind::contribution) {
    if (header.code_count != 0 || packet.word_count < TOKEN_WORDS ||
        datagram.size() > datagram_bytes(spec.codes_per_packet, spec.words_per_packet))
      return Reason::length;
    if (token_of(packet) != spec.tokens[worker]) return Reason::token;
  }
  if (job.evicted(worker)) return Reason::evicted;
  // R-MEMBER-2: the token alone is not enough, since anybody may have read it.
  if (job.has(job.registered, worker) ? job.sources[worker] != source : header.kind == Kind::contribution)
    return Reason::stranger;
  if (job.keys.tags() && header.kind == Kind::hello && header.slot < job.hellos[worker]) return Reason::ancient;
  return Reason{};
}

}  // namespace fanin
