// A worker machine's reductions, timers, and packets that come in. Its state is in worker_machine_state.hpp, and what
// it sends in worker_sends.cpp.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "kernels/checksum.hpp"
#include "kernels/floating_point.hpp"
#include "machine/receipts.hpp"
#include "machine/result_rows.hpp"
#include "machine/worker_machine_state.hpp"

namespace fanin {

namespace {

constexpr std::uint32_t SYNCHRONOUS_HISTORY = 2;  // H of a job without staleness

}  // namespace

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
    operation.note_arrivals(chunk, header.bitmap);
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
