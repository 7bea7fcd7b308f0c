// State of a WorkerMachine, shared by its two files: worker_machine.cpp takes reductions and packets in,
// worker_sends.cpp makes the packets that go out. The rules are R-WORKER in docs/protocol.md; the parts are named at
// the top of host/machine/worker_machine.py, the machine's twin.
#pragma once

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>
#include <vector>

#include "machine/catch_up.hpp"
#include "machine/congestion.hpp"
#include "machine/growing_ring.hpp"
#include "machine/item_stream.hpp"
#include "machine/loss_recovery.hpp"
#include "machine/operation.hpp"
#include "machine/overtaking.hpp"
#include "machine/path_watch.hpp"
#include "machine/presence.hpp"
#include "machine/regular_run.hpp"
#include "machine/scale_forecast.hpp"
#include "machine/worker_machine.hpp"
#include "wire/packet.hpp"

namespace fanin {

class WorkerMachine::State {
 public:
  State(JobSpec spec, std::uint32_t worker, Address switch_address, std::uint64_t token, std::uint32_t flow,
        std::uint32_t flow_count, double connect_timeout_s, bool newcomer)
      : spec_(std::move(spec)),
        worker_(worker),
        switch_(switch_address),
        token_(token),
        keys_(spec_.data_key, token),
        flow_(flow),
        flow_count_(flow_count),
        packet_bytes_(datagram_bytes(spec_.codes_per_packet, spec_.words_per_packet)),
        presence_(spec_, connect_timeout_s, events_),
        path_(spec_.liveness_timeout_s),
        stream_(spec_.slots, spec_.window_items, spec_.codes_per_packet),
        recovery_(spec_.slots),
        congestion_(spec_.slots, packet_bytes_),
        in_order_(spec_.slots),
        accepted_(spec_.slots),
        closed_(spec_.slots) {
    if (worker >= spec_.workers || flow >= flow_count) throw std::invalid_argument("no such worker or flow");
    if (newcomer) catch_up_.emplace(spec_.slots);
  }

  std::uint64_t submit(const Reduction& reduction);
  void receive(const Arrival& arrival, const Parsed& packet, double now, const ComputedTag& computed = {});
  void receive(std::span<const Arrival> datagrams, double now);
  std::uint64_t regular() const { return regular_; }
  std::uint64_t regular_sent() const { return regular_sent_; }
  void tag(std::span<const iovec> datagrams) const;
  void send(double now, WorkerSink& sink);
  std::optional<double> next_timer();
  void handle_timer(double now);
  std::optional<WorkerEvent> next_event();
  void leave(double now) { presence_.leave(now); }
  void begin(std::uint32_t base);

  Phase phase() const { return presence_.phase(); }
  bool capable() const { return capable_; }
  std::size_t outstanding() const { return outstanding_; }
  // Order number of the next contribution; 0 within one machine, where rings and sockets overtake each other, but
  // nothing is lost.
  std::uint32_t order() const { return congestion_.shares() ? static_cast<std::uint32_t>(recovery_.next_order()) : 0; }
  WorkerCounters counters() const {
    WorkerCounters counters = counters_;
    counters.cuts = congestion_.cuts();
    counters.window = static_cast<std::uint64_t>(congestion_.window());
    counters.path_suspected = path_.suspects();
    counters.srtt_us = static_cast<std::uint64_t>(recovery_.timer.smoothed_s * 1e6);
    return counters;
  }
  std::size_t buffer_bytes() const {
    return sizeof(State) + stream_.buffer_bytes() + recovery_.buffer_bytes() + scales_.buffer_bytes() +
           in_order_.buffer_bytes() + accepted_.capacity() + closed_.capacity() * sizeof(std::uint64_t) +
           events_.capacity_bytes();
  }

 private:
  // Counts the switch as heard, unless the packet may be a replay, since a keyed tag is valid for ever.
  void hear_switch(double now) {
    if (!keys_.tags()) presence_.heard(now);
  }
  void drop(Reason reason) { ++counters_.dropped[static_cast<std::size_t>(reason)]; }
  void dispatch(const Parsed& packet, std::size_t bytes, double now, bool marked);
  void welcome(const Parsed& packet, std::size_t bytes, double now);
  void notice(const Parsed& packet, double now);
  void receipt(const Parsed& packet, double now, bool marked);
  void result(const Parsed& packet, double now, bool marked);
  std::uint32_t facts(const Parsed& packet);
  void take(const Parsed& packet, double now, bool marked);
  // RESULTs of one operation (regular_run.hpp), with words, and as many as all whole chunks have, which acknowledge
  // this worker's contribution. After one that was stored, all that are for what their slots have sent are stored as
  // well: no other fact of result_rows.hpp depends on the slot, but ACCEPTED, which an acknowledgement overrules.
  struct Results {
    RegularRun alike;
    std::uint64_t operation = 0;  // its number
    Parsed packet;                // the latest one
  };
  struct Opened {
    Parsed packet;
    std::uint32_t run = 0;  // number of the run that it continues, so that it was not parsed; 0: none
    RegularRun::Place place;
  };
  void begin(Results& run, const Arrival& arrival, const Parsed& packet) const;
  bool receive(Results& run, const RegularRun::Place& place, const Arrival& arrival, double now,
               const ComputedTag& computed);
  void keep(std::uint32_t slot, Operation& operation, const Parsed& packet, const std::uint16_t* agreed);
  void caught(const Header& header, double now);
  void end_catch_up() {
    if (catch_up_ && catch_up_->done()) catch_up_.reset();
  }
  void send_again(std::uint32_t slot);
  bool send_pass(WorkerSink& sink, std::uint32_t slot);
  void path_round_trip(double round_trip_s, double now) {
    congestion_.path_round_trip(round_trip_s, now);
    recovery_.timer.path_round_trip(round_trip_s);
  }
  void finished(std::uint32_t slot, double now, bool answered);
  bool sendable(std::uint32_t slot) const;
  bool sendable();
  void hear(std::uint32_t slot, std::uint64_t base);
  void count_result(std::uint32_t slot, double now, bool answered);
  bool forecast_held(Operation& operation, const Parsed& packet, const std::uint8_t* age_sums);
  void done(std::uint64_t ticket);

  Header header(Kind kind) const {
    return {.kind = kind,
            .job = spec_.job,
            .worker = static_cast<std::uint8_t>(worker_),
            .flags = spec_.checksum ? FLAG_CHECKSUM : std::uint8_t{0},
            .generation = spec_.generation};
  }
  std::span<const std::size_t> path_questions(double now);
  std::size_t longest_packet_bytes(std::uint32_t slot);
  // All return false when the sink takes no more.
  bool send_token(WorkerSink& sink, const Header& header, std::size_t bytes);
  bool send_hello(WorkerSink& sink, std::size_t bytes);
  // Contributions that one call of `send` sends in a row: plain ones of one operation, for whole chunks, each for the
  // first time. Their headers differ in slot, base and order number only, and they are of one length.
  struct Contributions {
    std::size_t bytes = 0;        // of each; 0: there is no run
    std::uint64_t operation = 0;  // its number
    std::array<std::uint8_t, HEADER_BYTES> header;
  };
  bool continues(const Contributions& run, std::uint32_t slot) const {
    return run.bytes != 0 && stream_.operation_number(slot) == run.operation && !recovery_.was_sent(slot) &&
           stream_.operation(slot).is_whole(stream_.current(slot));
  }
  bool send_next(WorkerSink& sink, std::uint32_t slot, const Contributions& run);
  bool send_contribution(WorkerSink& sink, std::uint32_t slot, Contributions& run);
  static void store_codes(const Operation& operation, std::uint64_t item, bool own, std::uint8_t* codes);
  bool joins(WorkerSink& sink, const Header& pass);
  void store_by_forecast(Operation& operation, std::span<std::uint8_t> words);
  void commit(WorkerSink& sink, std::span<std::uint8_t> datagram);
  void finish(const WorkerSink& sink, std::span<std::uint8_t> datagram) const;

  // Whether reductions have waited for so many retransmissions that a departed peer may be why.
  bool waits_for_departed() const { return stream_.unfinished() && recovery_.timeouts_in_a_row() >= LEFT_MIN_TIMEOUTS; }

  const JobSpec spec_;
  const std::uint32_t worker_;
  const Address switch_;
  const std::uint64_t token_;
  const MemberKeys keys_;
  std::uint64_t welcomes_ = 0;  // with keyed tags: the least sequence number of the next WELCOME
  const std::uint32_t flow_;
  const std::uint32_t flow_count_;
  const std::size_t packet_bytes_;

  GrowingRing<WorkerEvent> events_;
  Presence presence_;
  PathWatch path_;
  ItemStream stream_;
  LossRecovery recovery_;
  Congestion congestion_;
  ScaleForecast scales_;
  std::vector<std::uint32_t> lost_;  // lost slots by the current receipt
  std::optional<CatchUp> catch_up_;  // of a newcomer, until it is in step
  bool begun_ = false;
  bool runs_ = false;      // whether the switch accepts passes in runs
  bool joinable_ = false;  // whether the last datagram of this call of `send` is a pass that was not sent before
  bool capable_ = false;   // whether the switch gives receipts, which report marks of contributions
  InOrderItems in_order_;
  std::vector<std::uint8_t> accepted_;  // by slot: a bare ANSWER has acknowledged the current contribution
  std::vector<std::uint64_t> closed_;   // by slot: one past the newest round known to be over without this worker
  std::uint64_t heard_ = 0;             // one past the newest round that RoundHeard told of
  // The operation of the latest datagram, by number, if that was stored and of a whole chunk.
  std::optional<std::uint64_t> stored_whole_;
  std::uint64_t regular_ = 0;       // results that were handled as parts of a run
  std::uint64_t regular_sent_ = 0;  // contributions that were sent as parts of a run
  double moved_at_ = 0.0;           // when a result was last stored, or the first contribution sent after a pause
  std::uint64_t tickets_ = 0;
  std::size_t outstanding_ = 0;
  WorkerCounters counters_;
};

}  // namespace fanin
