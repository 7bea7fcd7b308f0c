// Packets and wiring of the worker machine. The rules are R-WORKER in docs/protocol.md; the parts are named at the top
// of host/machine/worker_machine.py, its twin.
#include "machine/worker_machine.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "machine/catch_up.hpp"
#include "kernels/checksum.hpp"
#include "kernels/floating_point.hpp"
#include "machine/congestion.hpp"
#include "machine/growing_ring.hpp"
#include "machine/item_stream.hpp"
#include "machine/loss_recovery.hpp"
#include "machine/operation.hpp"
#include "machine/overtaking.hpp"
#include "machine/path_watch.hpp"
#include "wire/packet.hpp"
#include "machine/presence.hpp"
#include "machine/receipts.hpp"
#include "machine/regular_run.hpp"
#include "machine/result_rows.hpp"
#include "machine/scale_forecast.hpp"

namespace fanin {

namespace {

constexpr std::uint32_t SYNCHRONOUS_HISTORY = 2;  // H of a job without staleness

}  // namespace

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

// --- verbs ---

std::uint64_t WorkerMachine::State::submit(const Reduction& reduction) {
  if (!presence_.joined()) throw std::logic_error("this worker has failed or left: it takes no more reductions");
  if (catch_up_ && !begun_)
    throw std::logic_error("this worker came into a running job: reductions begin after begin()");
  const Operation operation(tickets_ + 1, reduction, spec_, flow_, flow_count_, stream_.end_item(),
                            spec_.place(worker_));
  stream_.append(operation);
  ++tickets_;
  ++outstanding_;
  if (operation.chunks == 0) done(operation.ticket);
  return operation.ticket;
}

// Notes the result of the slot's contribution; `answered`: it answers this worker's repetition alone.
inline void WorkerMachine::State::finished(std::uint32_t slot, double now, bool answered) {
  const std::uint64_t order = recovery_.order(slot);
  in_order_.finished(slot);
  const std::optional<double> round_trip_s = recovery_.finished(slot, now, answered);
  if (round_trip_s) congestion_.round_trip(*round_trip_s, now);
  congestion_.result(order, recovery_.next_order(), recovery_.overdue());
}

// Counts the round of the slot's current item, which is over for this worker.
inline void WorkerMachine::State::count_result(std::uint32_t slot, double now, bool answered) {
  accepted_[slot] = 0;
  presence_.heard(now);
  ++counters_.results;
  moved_at_ = now;
  finished(slot, now, answered);
}

// Stores what a result has for the slot's item, which is done then.
[[gnu::always_inline]] inline void WorkerMachine::State::keep(std::uint32_t slot, Operation& operation,
                                                              const Parsed& packet, const std::uint16_t* agreed) {
  const Header& header = packet.header;
  const std::uint64_t item = stream_.current(slot);
  if (operation.carries_words(item)) {
    const std::uint64_t chunk = operation.words_chunk(item);
    if (!operation.keeps(item, stream_.agreed_codes(item)))
      operation.store(chunk, agreed, nullptr, header.contributors);
    else if (packet.word_count == 0)  // a round of passes alone; any other result without words would not fit
      operation.store_zeros(chunk);
    else
      for (const Spoiler& each :
           operation.store(chunk, agreed, packet.words, header.contributors, lane_shift(header.lanes)))
        events_.push_back(Spoiled{operation.ticket, each.place, each.first, each.count});
  }
  const std::uint64_t ticket = stream_.finish(slot, packet.codes);
  if (ticket != 0) done(ticket);
}

// Computes the tags of datagrams of one length side by side, except of those dropped without a check of their tags.
void WorkerMachine::State::receive(std::span<const Arrival> datagrams, double now) {
  const DefaultFloatingPoint arithmetic;  // of all kernels
  Results run;
  const auto open = [&](const Arrival& arrival, Opened& opened) -> const TagKey* {
    const bool regular = run.alike.continues(arrival, opened.place);
    opened.run = regular ? run.alike.number() : 0;
    if (!regular) opened.packet.reason = parse_into(arrival.bytes, opened.packet);
    const Parsed& packet = opened.packet;
    const bool ours = regular || (arrival.source == switch_ && packet.ok() && packet.header.job == spec_.job &&
                                  packet.header.generation == spec_.generation);
    return ours && keys_.tags() ? &keys_.of_addressee(arrival.bytes) : nullptr;
  };
  const auto take = [&](const Arrival& arrival, Opened& opened, const ComputedTag& computed) {
    if (opened.run == run.alike.number() && receive(run, opened.place, arrival, now, computed)) return;
    if (opened.run != 0) opened.packet.reason = parse_into(arrival.bytes, opened.packet);  // the run has ended
    run.alike.end();
    receive(arrival, opened.packet, now, computed);
    begin(run, arrival, opened.packet);
  };
  if (keys_.tags()) return for_each_tagged<Opened>(datagrams, Direction::from_switch, open, take);
  Opened opened;
  for (const Arrival& arrival : datagrams) {
    open(arrival, opened);
    take(arrival, opened, {});
  }
}

void WorkerMachine::State::begin(Results& run, const Arrival& arrival, const Parsed& packet) const {
  const Header& header = packet.header;
  if (!stored_whole_ || catch_up_ || header.kind != Kind::result || header.flags != 0) return;
  if (packet.word_count == 0 || (header.bitmap >> worker_ & 1) == 0) return;
  run.alike.begin(arrival, header);
  run.operation = *stored_whole_;
  run.packet = packet;
}

// False, with nothing done, unless the result is stored: it takes the ordinary way.
bool WorkerMachine::State::receive(Results& run, const RegularRun::Place& place, const Arrival& arrival, double now,
                                   const ComputedTag& computed) {
  const std::uint32_t slot = place.slot;
  if (slot >= spec_.slots || place.base != stream_.base(slot) || !recovery_.was_sent(slot)) return false;
  Operation& operation = stream_.operation(slot);
  if (stream_.operation_number(slot) != run.operation || !operation.is_whole(stream_.current(slot))) return false;
  if (!keys_.holds(arrival.bytes, computed)) return false;
  Parsed& packet = run.packet;
  packet.codes = arrival.bytes.data() + HEADER_BYTES;
  packet.words = packet.codes + codes_bytes(packet.header.code_count);
  ++regular_;
  ++counters_.packets_in;
  counters_.bytes_in += arrival.bytes.size();
  count_result(slot, now, false);
  keep(slot, operation, packet, stream_.agreed_codes(stream_.current(slot)));
  return true;
}

void WorkerMachine::State::tag(std::span<const iovec> datagrams) const {
  if (!keys_.tags()) return;
  std::array<const TagKey*, TAGS_TOGETHER> keys;
  keys.fill(&keys_.own());
  std::array<std::span<std::uint8_t>, TAGS_TOGETHER> together;
  for (std::size_t first = 0; first < datagrams.size(); first += TAGS_TOGETHER) {
    const std::size_t count = std::min(datagrams.size() - first, TAGS_TOGETHER);
    for (std::size_t i = 0; i < count; ++i) {
      const iovec& datagram = datagrams[first + i];
      together[i] = {static_cast<std::uint8_t*>(datagram.iov_base), datagram.iov_len};
    }
    put_tags(std::span(keys).first(count), std::span(together).first(count), Direction::to_switch);
  }
}

void WorkerMachine::State::receive(const Arrival& arrival, const Parsed& packet, double now,
                                   const ComputedTag& computed) {
  const std::span<const std::uint8_t> datagram = arrival.bytes;
  stored_whole_.reset();
  ++counters_.packets_in;
  counters_.bytes_in += datagram.size();
  counters_.marks += arrival.marked;
  if (arrival.source != switch_) return drop(Reason::stranger);  // R-WORKER-4, from here on
  if (!packet.ok()) {
    if (packet.reason == Reason::version) presence_.other_version();
    return drop(packet.reason);
  }
  const bool unprotected = spec_.checksum && (packet.header.flags & FLAG_CHECKSUM) == 0;
  // A packet without a checksum counts as damaged: the bit that says whether it has one is among those that get
  // damaged.
  if (unprotected || !checksum_holds(datagram)) return drop(Reason::checksum);
  if (packet.header.job != spec_.job) return drop(Reason::unknown_job);
  if (packet.header.generation != spec_.generation) return drop(Reason::generation);
  if (packet.header.worker != worker_ && packet.header.worker != SWITCH_WORKER) return drop(Reason::worker_range);
  if (!keys_.holds(datagram, computed)) return drop(Reason::tag);
  dispatch(packet, datagram.size(), now, arrival.marked);
}

void WorkerMachine::State::send(double now, WorkerSink& sink) {
  const DefaultFloatingPoint arithmetic;  // of all kernels
  joinable_ = false;
  if (presence_.hello_due(now)) {
    const std::span<const std::size_t> questions = path_questions(now);
    if (!send_hello(sink, phase() == Phase::connecting ? packet_bytes_ : datagram_bytes(0, 2))) return;
    presence_.hello_sent(now);
    for (const std::size_t bytes : questions) {
      if (!send_hello(sink, bytes)) return;
      presence_.probe_sent();
    }
  }
  if (presence_.bye_due(now)) {
    if (!send_token(sink, header(Kind::bye), datagram_bytes(0, 2))) return;
    presence_.bye_sent(now);
  }
  if (phase() != Phase::member) return;  // R-MEMBER-1: HELLO alone before WELCOME
  // R-MEMBER-15, before contributions: a newcomer's slots take none until they are in step.
  while (catch_up_) {
    const std::optional<std::uint32_t> slot = catch_up_->next();
    if (!slot) break;
    if (!send_pass(sink, *slot)) return;
    catch_up_->take();
    if (!recovery_.sent(*slot, now)) ++counters_.retransmissions;
  }
  const double round_trip_s = congestion_.paced_round_trip(recovery_.timer.smoothed_s);
  Contributions run;
  std::uint32_t slot;
  while ((slot = stream_.next()) != ItemStream::NONE && sendable(slot)) {
    const bool first = !recovery_.was_sent(slot);
    // R-CONGESTION-13: a pass is short, and results for passes come at the pace of the contributors.
    const Operation& operation = stream_.operation(slot);
    const bool paced = !(first && !operation.plain() && operation.passes(stream_.current(slot)));
    if (first && paced && !congestion_.may_send(round_trip_s, now)) {
      ++counters_.paced;
      break;
    }
    if (!(continues(run, slot) ? send_next(sink, slot, run) : send_contribution(sink, slot, run))) return;
    stream_.take(slot);
    if (paced) congestion_.sent(round_trip_s, now);
    // The grace for departed peers begins here, since no result was awaited before.
    if (recovery_.idle()) moved_at_ = now;
    if (!recovery_.sent(slot, now)) ++counters_.retransmissions;
  }
  congestion_.limited = slot != ItemStream::NONE;
}

// R-MEMBER-10: lengths of the HELLOs to send behind a heartbeat, to find out whether packets as long as needed pass.
std::span<const std::size_t> WorkerMachine::State::path_questions(double now) {
  if (phase() != Phase::member || !presence_.answered()) return {};
  std::optional<std::uint64_t> item;
  std::size_t needed_bytes = 0;
  if (stream_.unfinished() && !catch_up_) {
    item = stream_.oldest_item();
    needed_bytes = longest_packet_bytes(static_cast<std::uint32_t>(*item % spec_.slots));
  }
  const std::span<const std::size_t> questions = path_.beat(item, needed_bytes, now);
  counters_.path_questions += questions.size();
  return questions;
}

bool WorkerMachine::State::send_hello(WorkerSink& sink, std::size_t bytes) {
  Header hello = header(Kind::hello);
  hello.slot = presence_.hello_sequence();
  hello.bitmap = HELLO_RUNS;
  return send_token(sink, hello, bytes);
}

// The longer of the contribution and the result of the slot's current item.
std::size_t WorkerMachine::State::longest_packet_bytes(std::uint32_t slot) {
  const Operation& operation = stream_.operation(slot);
  const std::uint64_t item = stream_.current(slot);
  const std::size_t words = std::max(operation.word_count(item), operation.result_word_count(item));
  return datagram_bytes(operation.code_count, words + (stream_.forecasts(slot) ? AGE_WORDS : 0));
}

// Whether the slot's item may be sent now. A repetition needs no room in the window.
bool WorkerMachine::State::sendable(std::uint32_t slot) const {
  // R-CONGESTION-3: workers whose windows were full of different items would wait for each other.
  const bool oldest = stream_.current(slot) == stream_.oldest_item();
  return oldest || recovery_.was_sent(slot) || congestion_.has_room(recovery_.in_flight(), recovery_.waiting());
}

// Whether there is an item to send and the window has room for it.
bool WorkerMachine::State::sendable() {
  const std::uint32_t slot = stream_.next();
  return slot != ItemStream::NONE && sendable(slot);
}

std::optional<double> WorkerMachine::State::next_timer() {
  std::optional<double> earliest = presence_.next_timer();
  const auto consider = [&earliest](std::optional<double> deadline) {
    if (deadline && (!earliest || *deadline < *earliest)) earliest = deadline;
  };
  if (phase() == Phase::member) {
    consider(recovery_.deadline());
    if (sendable()) consider(congestion_.held_until());  // the pace did not allow it
    if (waits_for_departed()) consider(presence_.left_deadline(moved_at_));
  }
  return earliest;
}

void WorkerMachine::State::handle_timer(double now) {
  const std::optional<double> deadline = recovery_.deadline();
  if (phase() == Phase::member && deadline && now >= *deadline) {
    recovery_.take_due(now, [this](std::uint32_t slot) {
      ++counters_.gaps;
      send_again(slot);
    });
    if (const auto expired = recovery_.expire(now, static_cast<std::uint32_t>(stream_.oldest_item() % spec_.slots))) {
      ++counters_.timeouts;
      congestion_.expired(expired->second, recovery_.next_order());
      send_again(expired->first);
    }
  }
  presence_.handle_timer(now);
  // R-MEMBER-11: if no HELLO at all is answered, the cause is silence, not the length.
  if (phase() == Phase::member && path_.too_narrow(now) && presence_.answered())
    presence_.path_narrowed(path_.needed_bytes(), path_.passes_bytes());
  if (waits_for_departed()) presence_.peers_hold_up(moved_at_, now);
}

std::optional<WorkerEvent> WorkerMachine::State::next_event() {
  if (events_.empty()) return std::nullopt;
  const WorkerEvent event = events_.front();
  events_.pop_front();
  return event;
}

// --- packets in ---

void WorkerMachine::State::dispatch(const Parsed& packet, std::size_t bytes, double now, bool marked) {
  switch (packet.header.kind) {
    case Kind::result:
    case Kind::answer:
      hear_switch(now);
      if (packet.header.slot >= spec_.slots) return drop(Reason::slot_range);
      if ((packet.header.flags & FLAG_RUN) == 0) {
        if (phase() == Phase::member) result(packet, now, marked);
        return;
      }
      for (std::uint32_t index = 0; index < run_of(packet.header) && phase() == Phase::member; ++index)
        result(packet.part(index, spec_.slots), now, marked);
      return;
    case Kind::receipt:
      hear_switch(now);
      if (phase() == Phase::member) receipt(packet, now, marked);
      return;
    case Kind::welcome:
      return welcome(packet, bytes, now);
    case Kind::notice:
      return notice(packet, now);
    case Kind::bye:
      return presence_.departed();
    default:
      return drop(Reason::kind);
  }
}

void WorkerMachine::State::welcome(const Parsed& packet, std::size_t bytes, double now) {
  // R-MEMBER-1: connecting, only a WELCOME of full length shows that the path carries results.
  if (packet.word_count < 2 || (phase() == Phase::connecting && bytes != packet_bytes_)) return drop(Reason::length);
  // R-MEMBER-3: a tag is valid for ever, so that a replayed WELCOME must not make a dead switch seem alive.
  if (keys_.tags() && packet.header.slot < welcomes_) return drop(Reason::ancient);
  welcomes_ = std::uint64_t{packet.header.slot} + 1;
  runs_ = (packet.header.flags & FLAG_RUN) != 0;
  path_.welcome(bytes);
  presence_.heard(now);
  const std::optional<double> round_trip_s =
      presence_.welcome(packet.header.slot, load_be32(packet.words), load_be32(packet.words + WORD_BYTES), now);
  presence_.members_are(packet.header.signature, packet.header.bitmap, stream_.oldest_base());
  const auto news = static_cast<Reason>(packet.header.contributors);
  if (news == Reason::branch_lost || news == Reason::branch_left) presence_.branch(news, now);
  if (!round_trip_s) return;  // it answers an earlier HELLO, whose time is not kept
  recovery_.timer.sample(*round_trip_s, true);
  path_round_trip(*round_trip_s, now);
}

void WorkerMachine::State::notice(const Parsed& packet, double now) {
  const auto reason = static_cast<Reason>(packet.header.contributors);
  if (packet.header.contributors == 0 || packet.header.contributors >= REASON_NAMES.size()) return drop(Reason::kind);
  if (reason == Reason::version) {
    presence_.other_version();
    return drop(reason);
  }
  if (reason == Reason::branch_left) {
    hear_switch(now);
    return presence_.branch(reason, now);
  }
  if (reason != Reason::worker_lost && reason != Reason::worker_left && reason != Reason::worker_joined)
    return presence_.refused(reason);
  if (packet.word_count < 2) return drop(Reason::length);
  hear_switch(now);
  presence_.peers_gone(load_be32(packet.words), load_be32(packet.words + WORD_BYTES), now);
  presence_.members_are(packet.header.signature, packet.header.bitmap, stream_.oldest_base());
}

// Handles a receipt: which transmissions have arrived, and whether the one that it answers was spurious.
void WorkerMachine::State::receipt(const Parsed& packet, double now, bool marked) {
  const Header& header = packet.header;
  const bool repeated = (header.contributors & RECEIPT_REPEATED) != 0;
  const bool echoed = (header.contributors & RECEIPT_MARKED) != 0;
  const bool by_rota = !repeated && measures(header.slot);
  std::optional<double> round_trip_s =
      recovery_.receipt(header.slot, header.signature, header.bitmap, now, by_rota, repeated,
                        [this](std::uint32_t slot) { lost_.push_back(slot); });
  congestion_.heard();
  if (round_trip_s) {
    *round_trip_s += header.base * 1e-6;  // the round trip from a leaf to its parent
    // R-CONGESTION-12: the pace does not follow those that come by rota.
    if (by_rota)
      recovery_.timer.path_round_trip(*round_trip_s);
    else
      path_round_trip(*round_trip_s, now);
  }
  ++counters_.receipts;
  counters_.marks += echoed;
  capable_ = true;
  if (const std::int64_t order = recovery_.sent_as(header.signature); (echoed || marked) && order >= 0)
    congestion_.marked(static_cast<std::uint64_t>(order), recovery_.next_order());
  if (repeated) {
    ++counters_.spurious;
    recovery_.repetition_was(false);
  }
  counters_.losses += lost_.size();
  for (const std::uint32_t slot : lost_) {  // R-RECOVERY-1
    congestion_.lost(recovery_.order(slot), recovery_.next_order());
    send_again(slot);
  }
  lost_.clear();
  // R-RECEIPT-8: without staleness an item's round is the open one or the one before that: a bit tells which.
  const bool told =
      packet.word_count == (std::size_t{spec_.slots} + WORD_BITS - 1) / WORD_BITS && spec_.max_staleness == 0;
  if (!told || catch_up_) return;
  const auto closed = [&](std::uint32_t slot) {
    const std::uint32_t bits = load_be32(packet.words + std::size_t{slot / WORD_BITS} * WORD_BYTES);
    return ((bits >> slot % WORD_BITS ^ stream_.base(slot)) & 1) != 0;
  };
  recovery_.settle(header.signature, stream_.all_at(packet.words), closed, now, [this](std::uint32_t slot) {
    ++counters_.gaps;
    send_again(slot);
  });
}

// Gathers the facts of a result or an answer, and carries out the deed of its row (result_rows.hpp).
void WorkerMachine::State::result(const Parsed& packet, double now, bool marked) {
  const Header& header = packet.header;
  const std::uint32_t slot = header.slot;
  if (catch_up_ && catch_up_->holds(slot)) return caught(header, now);
  switch (DEEDS[facts(packet)]) {
    case Deed::duplicate:  // R-RESULT-1
      ++counters_.duplicates;
      counters_.spurious += header.kind == Kind::answer;
      return;
    case Deed::hear:  // R-RESULT-2
      if (header.kind == Kind::result) hear(slot, header.base);
      return drop(Reason::future);
    case Deed::mismatch:  // R-RESULT-3
      return drop(Reason::mismatch);
    case Deed::fail_unowned:  // R-RESULT-4
      presence_.refused(Reason::mismatch);
      return drop(Reason::mismatch);
    case Deed::nothing_new:  // R-RESULT-5, R-RESULT-6
      ++counters_.duplicates;
      return;
    case Deed::ask:  // R-RESULT-7
      accepted_[slot] = 1;
      recovery_.withdraw(slot);
      return stream_.send_again(slot);
    case Deed::leave:  // R-RESULT-8
      ++counters_.unacknowledged;
      closed_[slot] = std::max(closed_[slot], std::uint64_t{header.base} + 1);  // later ones may have come before it
      return;
    case Deed::length:  // R-RESULT-9
      return drop(Reason::length);
    case Deed::fail_incomplete:  // R-RESULT-10
      presence_.missing(spec_.full_mask() & ~header.bitmap);
      return drop(Reason::evicted);
    case Deed::store:  // R-RESULT-11
      return take(packet, now, marked);
  }
}

// Facts of a result or an answer for a slot that is in step: an index into DEEDS.
std::uint32_t WorkerMachine::State::facts(const Parsed& packet) {
  const Header& header = packet.header;
  const std::uint32_t slot = header.slot;
  if (const std::uint64_t base = stream_.base(slot); header.base != base)
    return header.base < base ? fact::EARLIER : fact::AHEAD;
  if (!recovery_.was_sent(slot)) return fact::AHEAD;
  const std::uint64_t item = stream_.current(slot);
  const Operation& operation = stream_.operation(slot);
  const bool bare = header.kind == Kind::answer && (header.flags & FLAG_BARE) != 0;
  const bool wordless = packet.word_count == 0, coded = header.code_count == operation.code_count;
  const std::size_t words = operation.result_word_count(item) + (stream_.forecasts(slot) ? AGE_WORDS : 0);
  // A switch adds nothing for a pass, so that a round of passes alone has neither words nor a signature.
  const bool passes_alone = wordless && coded && header.code_count == 0 && header.contributors == 0 && !bare;
  const auto where = [](bool holds, std::uint32_t bit) { return holds ? bit : 0U; };
  return where(header.signature != operation.signature, fact::OTHER) | where(passes_alone, fact::PASSES_ALONE) |
         where(operation.owned(), fact::OWNED) | where((header.bitmap >> worker_ & 1) != 0, fact::ACKNOWLEDGED) |
         where(bare, fact::BARE) |
         where(wordless && coded && !operation.keeps(item, stream_.agreed_codes(item)), fact::ENOUGH) |
         where(accepted_[slot] != 0, fact::ACCEPTED) | where(header.kind == Kind::result, fact::MULTICAST) |
         where(coded && packet.word_count == words && without_shift(header.lanes) == lanes_of_result(operation.lanes()),
               fact::FITS) |
         where((spec_.full_mask() & ~header.bitmap) != 0, fact::INCOMPLETE);
}

// Takes in a result: first its evidence about the path, then its words.
void WorkerMachine::State::take(const Parsed& packet, double now, bool marked) {
  const Header& header = packet.header;
  const std::uint32_t slot = header.slot;
  const std::uint64_t item = stream_.current(slot);
  Operation& operation = stream_.operation(slot);
  const bool forecasts = stream_.forecasts(slot);
  if (marked) congestion_.marked(recovery_.order(slot), recovery_.next_order());
  // R-CONGESTION-7: without staleness, which has late contributions answered, an ANSWER means a lost RESULT.
  if (header.kind == Kind::answer && spec_.history() == SYNCHRONOUS_HISTORY) {
    ++counters_.losses;
    recovery_.repetition_was(true);
    congestion_.lost(recovery_.order_before(slot), recovery_.next_order());
  }
  count_result(slot, now, header.kind == Kind::answer);
  // R-WORKER-3: the round is over all the same: the words, quantized again with the agreed codes, go into the next one.
  if (forecasts && !forecast_held(operation, packet, packet.words + operation.result_word_count(item) * WORD_BYTES))
    return stream_.repeat(slot, packet.codes);
  if (operation.is_whole(item)) stored_whole_ = stream_.operation_number(slot);
  keep(slot, operation, packet, forecasts ? operation.forecast.codes.data() : stream_.agreed_codes(item));
}

void WorkerMachine::State::begin(std::uint32_t base) {
  if (!catch_up_ || begun_ || !catch_up_->first_base() || base < *catch_up_->first_base())
    throw std::logic_error("begin() is for a newcomer, once, and no earlier than Stands said");
  begun_ = true;
  stream_.begin(base);
  catch_up_->begin(base, [this](std::uint32_t slot) { stream_.release(slot); });
  end_catch_up();
}

// Handles a result, or an answer, for a slot that is not in step yet.
void WorkerMachine::State::caught(const Header& header, double now) {
  const std::uint32_t slot = header.slot;
  const bool knew = catch_up_->first_base().has_value();
  CatchUp::Step step = CatchUp::Step::ignored;
  if (recovery_.was_sent(slot)) step = catch_up_->receive(header, (header.bitmap >> worker_ & 1) != 0);
  if (step == CatchUp::Step::ignored) {
    ++counters_.duplicates;
  } else {
    finished(slot, now, header.kind == Kind::answer);
    if (!catch_up_->holds(slot)) stream_.release(slot);
  }
  if (!knew && catch_up_->first_base()) events_.push_back(Stands{.base = *catch_up_->first_base()});
  end_catch_up();
}

void WorkerMachine::State::send_again(std::uint32_t slot) {
  if (catch_up_ && catch_up_->holds(slot)) return catch_up_->again(slot);
  stream_.send_again(slot);
}

// Reports a closed round for which this worker has sent nothing yet, in jobs with staleness.
void WorkerMachine::State::hear(std::uint32_t slot, std::uint64_t base) {
  closed_[slot] = std::max(closed_[slot], base + 1);
  if (spec_.history() == SYNCHRONOUS_HISTORY) return;
  std::uint64_t heard = closed_[slot];  // R-WORKER-5: a pass is late in every slot, or it would close empty rounds
  for (std::uint32_t other = 0; other < spec_.slots && heard > heard_; ++other)
    heard = std::min(heard, std::max(closed_[other], stream_.current(other) / spec_.slots));
  if (heard <= heard_) return;
  heard_ = heard;
  events_.push_back(RoundHeard{.base = heard - 1});
}

// Whether the words of this result equal the sum of words quantized with the agreed codes.
bool WorkerMachine::State::forecast_held(Operation& operation, const Parsed& packet, const std::uint8_t* age_sums) {
  const std::span agreed(packet.codes, operation.code_count * CODE_BYTES);
  scales_.learn(operation.shape(), operation.ticket, agreed);
  const bool held = operation.forecast.holds(agreed, age_sums, packet.header.contributors);
  ++(held ? counters_.forecasts : counters_.forecasts_missed);
  return held;
}

void WorkerMachine::State::done(std::uint64_t ticket) {
  --outstanding_;
  events_.push_back(ReductionDone{.ticket = ticket});
}

// --- packets out ---

inline void WorkerMachine::State::finish(const WorkerSink& sink, std::span<std::uint8_t> datagram) const {
  if (spec_.checksum) seal(datagram);
  if (!sink.tags_later()) keys_.finish(datagram);
}

inline void WorkerMachine::State::commit(WorkerSink& sink, std::span<std::uint8_t> datagram) {
  finish(sink, datagram);
  ++counters_.packets_out;
  counters_.bytes_out += datagram.size();
  sink.commit(datagram.size());
}

bool WorkerMachine::State::send_token(WorkerSink& sink, const Header& header, std::size_t bytes) {
  sink.go_ahead(false);
  const std::span<std::uint8_t> datagram = sink.reserve(bytes);
  if (datagram.empty()) return false;
  store_header(datagram.data(), header);
  std::uint8_t* const words = datagram.data() + HEADER_BYTES;
  store_be32(words, static_cast<std::uint32_t>(token_ >> 32));
  store_be32(words + WORD_BYTES, static_cast<std::uint32_t>(token_));
  std::memset(words + 2 * WORD_BYTES, 0, bytes - datagram_bytes(0, 2));
  commit(sink, datagram.first(bytes));
  return true;
}

bool WorkerMachine::State::send_pass(WorkerSink& sink, std::uint32_t slot) {
  sink.go_ahead(false);
  const std::span<std::uint8_t> datagram = sink.reserve(HEADER_BYTES);
  if (datagram.empty()) return false;
  Header pass = header(Kind::contribution);
  pass.flags |= FLAG_PASS;
  pass.slot = slot;
  pass.base = catch_up_->base_to_pass(slot);
  pass.bitmap = order();
  store_header(datagram.data(), pass);
  commit(sink, datagram.first(HEADER_BYTES));
  in_order_.sent(slot, false);
  return true;
}

inline void WorkerMachine::State::store_codes(const Operation& operation, std::uint64_t item, bool own,
                                              std::uint8_t* codes) {
  if (!own) {
    std::memset(codes, 0, codes_bytes(operation.code_count));
    return;
  }
  std::uint16_t numbers[MAX_CODES + 1];
  operation.own_codes(operation.codes_chunk(item), numbers);
  numbers[operation.code_count] = 0;  // pads the codes to whole words
  for (std::uint32_t i = 0; i < codes_bytes(operation.code_count) / CODE_BYTES; ++i)
    store_be16(codes + i * CODE_BYTES, numbers[i]);
}

// Sends a contribution that continues the run.
inline bool WorkerMachine::State::send_next(WorkerSink& sink, std::uint32_t slot, const Contributions& run) {
  const std::span<std::uint8_t> datagram = sink.reserve(run.bytes);
  if (datagram.empty()) return false;
  const std::uint64_t item = stream_.current(slot);
  const Operation& operation = stream_.operation(slot);
  ++regular_sent_;
  in_order_.sent(slot, false);
  std::ranges::copy(run.header, datagram.data());
  store_be32(datagram.data() + OFFSET_SLOT, slot);
  store_be32(datagram.data() + OFFSET_BASE, static_cast<std::uint32_t>(stream_.base(slot)));
  store_be32(datagram.data() + OFFSET_BITMAP, order());
  std::uint8_t* const codes = datagram.data() + HEADER_BYTES;
  store_codes(operation, item, operation.carries_codes(item), codes);
  operation.quantized(operation.words_chunk(item), stream_.agreed_codes(item),
                      codes + codes_bytes(operation.code_count));
  commit(sink, datagram.first(run.bytes));
  return true;
}

bool WorkerMachine::State::send_contribution(WorkerSink& sink, std::uint32_t slot, Contributions& run) {
  run.bytes = 0;
  const std::uint64_t item = stream_.current(slot);
  Operation& operation = stream_.operation(slot);
  const std::uint64_t base = stream_.base(slot);
  const bool first = !recovery_.was_sent(slot);
  const bool plain = first && operation.plain();  // as most are: then what follows is known
  const bool forecasts = !plain && stream_.forecasts(slot);
  // R-WORKER-7: what is accepted and shorter than its result is sent again as zeros of that length.
  const bool keeps = plain || operation.keeps(item, stream_.agreed_codes(item));
  const bool asks = !plain && keeps && accepted_[slot] != 0 &&
                    (operation.passes(item) || operation.result_word_count(item) > operation.word_count(item));
  const bool passes = !plain && operation.passes(item) && !asks;
  const std::size_t words = passes ? 0
                            : asks ? operation.result_word_count(item)
                                   : operation.word_count(item) + forecasts * AGE_WORDS;
  const std::size_t bytes = datagram_bytes(operation.code_count, words);
  Header contribution = header(Kind::contribution);
  contribution.slot = slot;
  contribution.bitmap = order();
  contribution.base = static_cast<std::uint32_t>(base);
  if (!keeps) contribution.flags |= FLAG_BARE;  // R-WORKER-8
  // R-WORKER-5: a pass that is known to be late must not count.
  if (passes) contribution.flags |= static_cast<std::uint8_t>(closed_[slot] > base ? FLAG_PASS | FLAG_LATE : FLAG_PASS);
  // R-WORKER-6: a stale round's pass is of whatever its worker has come to, and not of what the others contribute.
  contribution.signature = passes && !spec_.synchronous() ? 0 : operation.signature;
  contribution.code_count = static_cast<std::uint8_t>(operation.code_count);
  if (!passes && !asks) contribution.lanes = operation.lanes();
  const bool ahead = passes && in_order_.none();
  if (passes && first && joins(sink, contribution)) {
    in_order_.sent(slot, ahead);
    return true;
  }
  // Later ones may find that the round has closed, and its result in that place.
  const bool sole = !plain && operation.is_sole(item) && first;
  sink.go_ahead(ahead);
  const std::span<std::uint8_t> datagram =
      sole ? sink.reserve_sole(slot, contribution.base, bytes) : sink.reserve(bytes);
  if (datagram.empty()) return false;
  in_order_.sent(slot, ahead);
  joinable_ = passes && first;
  store_header(datagram.data(), contribution);

  std::uint8_t* const codes_at = datagram.data() + HEADER_BYTES;
  std::uint8_t* const words_at = codes_at + codes_bytes(operation.code_count);
  store_codes(operation, item, operation.carries_codes(item) || forecasts, codes_at);
  if (forecasts)
    store_by_forecast(operation, std::span(words_at, words * WORD_BYTES));
  else if (passes || asks)
    std::memset(words_at, 0, words * WORD_BYTES);
  else if (operation.carries_words(item))
    operation.quantized(operation.words_chunk(item), stream_.agreed_codes(item), words_at);
  commit(sink, datagram.first(bytes));
  if (plain && operation.is_whole(item)) {
    run.bytes = bytes;
    run.operation = stream_.operation_number(slot);
    store_header(run.header.data(), contribution);
  }
  return true;
}

// R-WORKER-9: adds the pass to the datagram before it, if they form a run.
bool WorkerMachine::State::joins(WorkerSink& sink, const Header& pass) {
  if (!runs_ || !joinable_) return false;
  const std::span<std::uint8_t> datagram = sink.last();
  if (datagram.size() != HEADER_BYTES) return false;
  const Header before = load_header(datagram.data());
  const std::optional<Header> run = with_next(before, pass, spec_.slots);
  if (!run) return false;
  store_header(datagram.data(), *run);
  finish(sink, datagram);
  return true;
}

// The words of the only chunk with the forecast's codes, and the forecast's age.
void WorkerMachine::State::store_by_forecast(Operation& operation, std::span<std::uint8_t> words) {
  if (!operation.has_forecast) operation.forecast = scales_.of(operation.shape(), operation.ticket);
  operation.has_forecast = true;
  if (operation.forecast.age != 0)
    operation.quantized(0, operation.forecast.codes.data(), words.data());
  else
    std::ranges::fill(words, std::uint8_t{0});
  operation.forecast.store_age(words.data() + words.size() - AGE_WORDS * WORD_BYTES);
}

// --- the public face ---

WorkerMachine::WorkerMachine(JobSpec spec, std::uint32_t worker, Address switch_address, std::uint64_t token,
                             std::uint32_t flow, std::uint32_t flow_count, double connect_timeout_s, bool newcomer)
    : state_(std::make_unique<State>(std::move(spec), worker, switch_address, token, flow, flow_count,
                                     connect_timeout_s, newcomer)) {}
WorkerMachine::~WorkerMachine() = default;

std::uint64_t WorkerMachine::submit(const Reduction& reduction) { return state_->submit(reduction); }
void WorkerMachine::leave(double now) { state_->leave(now); }
void WorkerMachine::begin(std::uint32_t base) { state_->begin(base); }
void WorkerMachine::receive_datagram(std::span<const std::uint8_t> datagram, Address source, double now, bool marked) {
  state_->receive({.bytes = datagram, .source = source, .marked = marked}, parse(datagram), now);
}
void WorkerMachine::receive_datagrams(std::span<const Arrival> datagrams, double now) {
  state_->receive(datagrams, now);
}
void WorkerMachine::tag(std::span<const iovec> datagrams) const { state_->tag(datagrams); }
void WorkerMachine::datagrams_to_send(double now, WorkerSink& sink) { state_->send(now, sink); }
std::optional<double> WorkerMachine::next_timer() const { return state_->next_timer(); }
void WorkerMachine::handle_timer(double now) { state_->handle_timer(now); }
std::optional<WorkerEvent> WorkerMachine::next_event() { return state_->next_event(); }
std::size_t WorkerMachine::outstanding() const { return state_->outstanding(); }
std::uint64_t WorkerMachine::regular() const { return state_->regular(); }
std::uint64_t WorkerMachine::regular_sent() const { return state_->regular_sent(); }
bool WorkerMachine::ready() const { return state_->phase() == Phase::member; }
bool WorkerMachine::capable() const { return state_->capable(); }
bool WorkerMachine::failed() const { return state_->phase() == Phase::failed; }
WorkerCounters WorkerMachine::counters() const { return state_->counters(); }
std::size_t WorkerMachine::buffer_bytes() const { return state_->buffer_bytes(); }

}  // namespace fanin
