// See the table at the top of switch/machine/switch_machine.py: the checks here are its rows, in its order.
#include "machine/switch_machine.hpp"

#include <algorithm>
#include <limits>
#include <new>
#include <string>

#include "kernels/checksum.hpp"
#include "machine/switch_machine_state.hpp"

namespace fanin {

namespace {

bool from_workers(Kind kind) { return kind == Kind::contribution || kind == Kind::hello || kind == Kind::bye; }

// The row LENGTH of contributions.
bool fits(const JobSpec& spec, const Parsed& packet) {
  const Header& header = packet.header;
  const bool passes = (header.flags & FLAG_PASS) != 0, late = (header.flags & FLAG_LATE) != 0;
  const bool runs = run_of(header) > 1;
  const bool summed =
      header.lanes == 0 || runs || (spec.accumulators && (spec.branches || lane_shift(header.lanes) == 0));
  return (header.code_count == 0 || header.code_count == spec.codes_per_packet) && summed &&
         packet.word_count <= spec.words_per_packet &&
         words_of_result(header.lanes, packet.word_count) <= spec.words_per_packet &&
         !(passes && (header.code_count != 0 || packet.word_count != 0)) && !(late && !passes) &&
         !(runs && !spec.synchronous()) && !(spec.branches && header.contributors > MAX_TREE_WORKERS);
}

Contribution given_by(const JobSpec& spec, const Parsed& packet) {
  const Header& header = packet.header;
  return {.signature = header.signature,
          .codes = packet.codes,
          .code_count = header.code_count,
          .words = packet.words,
          .word_count = static_cast<std::uint32_t>(packet.word_count),
          .contributors = spec.branches ? std::max<std::uint32_t>(header.contributors, 1) : 1,
          .lanes = header.lanes};
}

}  // namespace

SwitchMachine::SwitchMachine(std::uint64_t memory_bytes) : state_(std::make_unique<State>(memory_bytes)) {}
SwitchMachine::~SwitchMachine() = default;

// --- what the controller asks ---

void SwitchMachine::admit(const JobSpec& spec, const std::optional<Uplink>& uplink) {
  State& state = *state_;
  if (state.find(spec.job) != nullptr)
    throw JobRefused("job index " + std::to_string(spec.job) +
                     " is taken at this switch; the controller must choose another");
  const std::uint64_t needed = SlotRing::pool_bytes(spec);
  const std::uint64_t free = state.memory_bytes - state.memory_taken;
  if (needed > free)
    throw JobRefused("job " + std::to_string(spec.job) + " needs " + std::to_string(needed) +
                     " bytes of switch memory and " + std::to_string(free) + " of " +
                     std::to_string(state.memory_bytes) +
                     " are free; ask for fewer slots, end another job or give the switch more memory");
  if (state.jobs.size() <= spec.job) state.jobs.resize(std::size_t{spec.job} + 1);
  try {
    state.jobs[spec.job] = std::make_unique<SwitchJob>(spec, uplink);
  } catch (const std::bad_alloc&) {
    throw JobRefused("job " + std::to_string(spec.job) + " needs " + std::to_string(needed) +
                     " bytes of switch memory, which this machine does not have; ask for fewer slots");
  }
  state.memory_taken += needed;
  if (uplink) state.parts[State::part_key(*uplink)] = spec.job;
  state.look_at_own_watch();
}

bool SwitchMachine::hold(std::uint16_t job, std::uint64_t bytes) {
  SwitchJob& holder = state_->job_at(job);
  const std::uint64_t others = state_->memory_taken - holder.held_bytes;
  if (bytes > state_->memory_bytes - others) return false;
  state_->memory_taken = others + bytes;
  holder.held_bytes = bytes;
  return true;
}

void SwitchMachine::use_images(std::uint16_t job, std::shared_ptr<std::uint8_t> memory,
                               std::span<const std::uint8_t> lasting) {
  state_->job_at(job).ring.use_images(std::move(memory), lasting);
}

bool SwitchMachine::waits_in(std::uint16_t job, std::span<const std::uint8_t> memory) const {
  const SwitchJob* const found = state_->find(job);
  return found != nullptr && found->ring.waits_in(memory);
}

void SwitchMachine::let_go(std::uint16_t job, std::span<const std::uint8_t> memory) {
  if (SwitchJob* const found = state_->find(job); found != nullptr) found->ring.let_go(memory);
}

void SwitchMachine::remove(std::uint16_t job) {
  SwitchJob& gone = state_->job_at(job);
  state_->queue.make_tags();  // uses the job's keys before they are removed; this also ends runs
  const std::span<const std::uint8_t> memory = gone.ring.memory();
  state_->queue.copy_out_all(memory.data(), memory.size());
  state_->past.add(gone.tally);
  if (gone.uplink) state_->parts.erase(State::part_key(gone.uplink->uplink()));
  state_->memory_taken -= SlotRing::pool_bytes(gone.spec) + gone.held_bytes;
  state_->jobs[job].reset();
  state_->look_at_own_watch();
}

void SwitchMachine::State::look_at_own_watch() {
  double tick_s = std::numeric_limits<double>::infinity();
  for (const auto& job : jobs)
    if (job != nullptr) tick_s = std::min(tick_s, job->heartbeat_s());
  stops.watch_every(tick_s);
}

void SwitchMachine::evict(std::uint16_t index, std::uint32_t worker, double) {
  SwitchJob& job = state_->job_at(index);
  if (worker >= job.spec.workers) throw NoSuchJob("worker " + std::to_string(worker));
  job.expected &= ~(std::uint32_t{1} << worker);  // R-MEMBER-13: an expected newcomer may no longer enter either
  if (job.evicted(worker)) return;
  const bool known = job.has(job.registered, worker);
  const Reason news = job.has(job.left, worker) ? Reason::worker_left : Reason::worker_lost;
  job.ring.set_live(job.ring.live() & ~(std::uint32_t{1} << worker));
  job.update_audience();
  if (known) state_->tell(job, Reason::evicted, static_cast<std::uint8_t>(worker), {&job.sources[worker], 1});
  if (job.spec.survives_loss) {  // R-MEMBER-12
    ++job.changes;
    state_->tell(job, news, SWITCH_WORKER, job.audience());
  }
  state_->poke(job);
}

void SwitchMachine::suspect(std::uint16_t index, std::uint32_t worker, double now) {
  SwitchJob& job = state_->job_at(index);
  if (worker >= job.spec.workers) throw NoSuchJob("worker " + std::to_string(worker));
  if (!job.suspicion_stands(worker)) job.suspected[worker] = now;  // R-MEMBER-7: a second one must not delay the loss
}

void SwitchMachine::suspect_parent(std::uint16_t index, double now) {
  SwitchJob& job = state_->job_at(index);
  if (job.uplink) job.uplink->suspect(now);
}

std::vector<Address> SwitchMachine::overdue(double now) const {
  std::vector<Address> sources;
  for (const auto& job : state_->jobs) {
    if (job == nullptr) continue;
    for (std::uint32_t worker = 0; worker < job->spec.workers; ++worker)
      if (job->watched(worker) && job->silent_at(worker) <= now) sources.push_back(job->sources[worker]);
  }
  return sources;
}

void SwitchMachine::sign_of_life(Address source, double now) {
  for (const auto& job : state_->jobs) {
    if (job == nullptr) continue;
    for (std::uint32_t worker = 0; worker < job->spec.workers; ++worker)
      if (job->watched(worker) && job->sources[worker] == source) job->heard[worker] = now;
  }
}

void SwitchMachine::admit_worker(std::uint16_t index, std::uint32_t worker, std::uint64_t token) {
  SwitchJob& job = state_->job_at(index);
  if (worker >= job.spec.workers) throw NoSuchJob("worker " + std::to_string(worker));
  if (!job.spec.survives_loss || !job.evicted(worker))
    throw std::invalid_argument("worker " + std::to_string(worker) + " of job " + std::to_string(index) +
                                " has not been evicted, or nobody may come in its place");
  job.expect(worker, token);
}

void SwitchMachine::set_quorum(std::uint16_t index, std::uint32_t quorum, double) {
  SwitchJob& job = state_->job_at(index);
  if (quorum < 1 || quorum > job.spec.workers)
    throw std::invalid_argument("quorum = " + std::to_string(quorum) + "; must be in 1.." +
                                std::to_string(job.spec.workers) + " (workers)");
  job.ring.set_quorum(quorum);
  state_->poke(job);
}

void SwitchMachine::set_staleness(std::uint16_t index, std::uint32_t staleness, double) {
  SwitchJob& job = state_->job_at(index);
  if (staleness > job.spec.max_staleness)
    throw std::invalid_argument("staleness = " + std::to_string(staleness) + "; must be in 0.." +
                                std::to_string(job.spec.max_staleness) + " (the job's max_staleness)");
  job.ring.set_staleness(staleness);
  state_->poke(job);
}

std::vector<std::uint16_t> SwitchMachine::jobs() const {
  std::vector<std::uint16_t> indices;
  for (const auto& job : state_->jobs)
    if (job != nullptr) indices.push_back(job->spec.job);
  return indices;
}

Members SwitchMachine::members(std::uint16_t index) const {
  const SwitchJob& job = state_->job_at(index);
  return {.registered = job.registered, .lost = job.lost, .left = job.left};
}

std::optional<Address> SwitchMachine::source(std::uint16_t index, std::uint32_t worker) const {
  const SwitchJob& job = state_->job_at(index);
  const bool known = worker < job.spec.workers && job.has(job.registered, worker);
  return known ? std::optional(job.sources[worker]) : std::nullopt;
}

std::uint32_t SwitchMachine::slots_in_step(std::uint16_t index) const {
  const auto& jobs = state_->jobs;
  return index < jobs.size() && jobs[index] != nullptr ? jobs[index]->spec.slots_in_step() : 0;
}

std::uint32_t SwitchMachine::missing(std::uint16_t index) const {
  const auto& jobs = state_->jobs;
  return index < jobs.size() && jobs[index] != nullptr ? jobs[index]->ring.missing() : 1;
}

CounterList SwitchMachine::counters() const {
  SwitchTally total = state_->past;
  for (const auto& job : state_->jobs)
    if (job != nullptr) total.add(job->tally);
  return total.list();
}

CounterList SwitchMachine::job_counters(std::uint16_t job) const {
  const SwitchJob& found = state_->job_at(job);
  CounterList counts = found.tally.list();
  for (std::uint32_t worker = 0; worker < found.spec.workers; ++worker)
    counts.emplace_back("last_arrivals_" + std::to_string(worker), found.last_arrivals[worker]);
  return counts;
}

std::vector<CounterList> SwitchMachine::member_counters(std::uint16_t job) const {
  const SwitchJob& found = state_->job_at(job);
  std::vector<CounterList> counts;
  for (std::uint32_t worker = 0; worker < found.spec.workers; ++worker)
    counts.push_back(found.members[worker].list(found.arrivals[worker]));
  return counts;
}

// --- one contribution ---

template <bool Alone>
[[gnu::always_inline]] inline bool SwitchMachine::State::handle(SwitchJob& job, const Header& each,
                                                                const Contribution* given, const Asked& asked,
                                                                Owed& owed, double now) {
  MemberTally& member = job.members[each.worker];
  const SlotOutcome outcome =
      job.ring.contribute(each.slot, each.worker, each.base, given, queue,
                          {.late = asked.late, .bare = (each.flags & FLAG_BARE) != 0, .signature = each.signature});
  switch (outcome.verdict) {
    case Verdict::accepted:
      ++(given == nullptr ? job.tally.passes : job.tally.contributions);
      ++member.contributions;
      // Late contributions get an answer, and no round waited for them.
      if (!outcome.answered) member.accepted(job.times[each.slot], outcome.closed || outcome.ascends, now);
      job.heard[each.worker] = now;
      break;
    case Verdict::duplicate:
      ++job.tally.duplicates;
      ++(outcome.answered && Alone ? member.asked_again : member.repeated);
      break;
    case Verdict::future:
      job.tally.drop(Reason::future);
      return true;
    case Verdict::ancient:
      job.tally.drop(Reason::ancient);
      return true;
    case Verdict::mismatch:  // the rest of the run has the same signature
      refuse(job.tally, &job, Reason::mismatch, each, asked.source);
      return false;
  }
  member.spoke(now);
  const bool again = outcome.verdict == Verdict::duplicate;
  // R-LEAF-2: a worker's repetition may send the leaf's round again, since the leaf has no timer.
  if (outcome.ascends && !again) job.ascents->complete(each.slot, each.base);
  const bool ascends = outcome.ascends && (!again || job.ascents->asked(each.slot, now));
  if (each.bitmap != 0) {  // R-RECEIPT-9
    Arrivals& arrivals = job.arrivals[each.worker];
    const bool uncovers = arrivals.take(each.bitmap);
    // R-RECEIPT-2, R-RECEIPT-3, R-RECEIPT-4 and R-RECEIPT-6, in this order.
    const bool due = (uncovers || arrivals.incomplete() || again || measures(each.bitmap)) && !ascends;
    // R-RECEIPT-7: an answer acknowledges as well, and so will the parent's result. R-RECEIPT-5: neither reports
    // marks, and a worker that is always the last one at its leaf would never be told of them.
    const bool met_congestion = job.has(job.marked, each.worker);
    if (!outcome.answered && (due || met_congestion)) {
      owed.receipt = true;
      owed.header = each;
      owed.repeated = again;
    }
  }
  if (owed.receipt && !asked.more) receipt(job, owed.header, asked.bytes, owed.repeated, asked.source);
  if (outcome.closed) {
    ++job.last_arrivals[each.worker];
    job.times[each.slot].closed_s = now;
    multicast(job, each.slot, outcome.number);
  }
  if (outcome.answered && Alone) answer(job, each, asked.bytes, asked.source);
  return true;
}

// --- the five verbs ---

void SwitchMachine::receive_datagram(std::span<const std::uint8_t> datagram, Address source, double now, bool marked) {
  State::Opened opened;
  state_->open(datagram, opened);
  state_->receive(opened, datagram, source, now, marked);
}

void SwitchMachine::receive_datagrams(std::span<const Arrival> datagrams, double now) {
  State::Contributions run;
  std::optional<Address> before;  // source of the datagram before, if that took the ordinary way
  const auto open = [&](const Arrival& arrival, State::Opened& opened) {
    const bool regular = run.alike.continues(arrival, opened.place);
    opened.run = regular ? run.alike.number() : 0;
    return regular ? run.key : state_->open(arrival.bytes, opened);
  };
  const auto take = [&](const Arrival& arrival, State::Opened& opened, const ComputedTag& computed) {
    if (opened.run == run.alike.number() && state_->receive(run, opened.place, arrival, now, computed)) return;
    if (opened.run != 0) state_->open(arrival.bytes, opened);  // a datagram between has ended the run
    run.alike.end();
    const bool fits = state_->receive(opened, arrival.bytes, arrival.source, now, arrival.marked, computed);
    // A run begins with the second datagram of a sender, because it would end at once if senders took turns.
    if (fits && before == arrival.source) state_->begin(run, opened, arrival);
    before = arrival.source;
  };
  for_each_tagged<State::Opened>(datagrams, Direction::to_switch, open, take);
}

std::uint64_t SwitchMachine::regular() const { return state_->regular; }

void SwitchMachine::State::begin(Contributions& run, const Opened& opened, const Arrival& arrival) const {
  const Header& header = opened.packet.header;
  SwitchJob& job = *opened.job;
  if ((header.flags & ~FLAG_BARE) != 0 || !parts.empty() || job.uplink) return;
  run.alike.begin(arrival, header);
  run.job = &job;
  run.key = job.keys.of_worker(header.worker);
  run.header = header;
  run.given = given_by(job.spec, opened.packet);
}

// False, with nothing done, for a datagram that is refused: it takes the ordinary way.
bool SwitchMachine::State::receive(Contributions& run, const RegularRun::Place& place, const Arrival& arrival,
                                   double now, const ComputedTag& computed) {
  SwitchJob& job = *run.job;
  Header& header = run.header;
  if (place.slot >= job.spec.slots || !job.keys.holds(arrival.bytes, header.worker, computed)) return false;
  header.slot = place.slot;
  header.base = place.base;
  header.bitmap = place.order;
  run.given.codes = arrival.bytes.data() + HEADER_BYTES;
  run.given.words = run.given.codes + codes_bytes(header.code_count);
  ++regular;
  ++job.tally.packets_in;
  job.tally.bytes_in += arrival.bytes.size();
  job.members[header.worker].bytes_in += arrival.bytes.size();
  Owed owed;
  handle<true>(job, header, &run.given,
               {.bytes = arrival.bytes.size(), .source = arrival.source, .late = false, .more = false}, owed, now);
  return true;
}

// Parses a datagram and finds its job. Returns the key for its tag; null if the job has no tags, or the datagram is
// dropped without a check of its tag.
const TagKey* SwitchMachine::State::open(std::span<const std::uint8_t> datagram, Opened& opened) {
  Parsed& packet = opened.packet;
  opened.job = nullptr;
  packet.reason = parse_into(datagram, packet);
  if (packet.ok() && !checksum_holds(datagram)) packet.reason = Reason::checksum;
  if (!packet.ok() || !from_workers(packet.header.kind)) return nullptr;
  opened.job = find(packet.header.job);
  if (opened.job == nullptr || packet.header.generation != opened.job->spec.generation) return nullptr;
  const std::uint32_t worker = packet.header.worker;
  return worker < opened.job->spec.workers ? opened.job->keys.of_worker(worker) : nullptr;
}

bool SwitchMachine::State::receive(const Opened& opened, std::span<const std::uint8_t> datagram, Address source,
                                   double now, bool marked, const ComputedTag& computed) {
  turn(now);
  const Parsed& packet = opened.packet;
  const Kind kind = packet.header.kind;  // of this datagram, unless it is TOO_SHORT or BAD_MAGIC
  if (packet.ok() && !parts.empty()) {
    if (SwitchJob* const part = find_part(source, packet.header)) {
      receive_from_parent(*part, packet, datagram, now, marked);
      return false;
    }
  }
  SwitchTally& tally = opened.job != nullptr ? opened.job->tally : past;
  ++tally.packets_in;
  tally.bytes_in += datagram.size();
  if (opened.job != nullptr) return receive(*opened.job, packet, datagram, source, now, marked, computed);
  if (packet.reason == Reason::version && (from_workers(kind) || kind == Kind::probe)) {
    refuse(tally, nullptr, packet.reason, packet.header, source);
  } else if (!packet.ok()) {
    tally.drop(packet.reason);
  } else if (kind == Kind::probe) {
    echo(datagram, source);
  } else if (!from_workers(kind)) {
    tally.drop(Reason::kind);
  } else {
    refuse(tally, nullptr, Reason::unknown_job, packet.header, source);
  }
  return false;
}

void SwitchMachine::datagrams_to_send(double now, SwitchSink& sink) {
  state_->turn(now);
  for (const auto& [key, index] : state_->parts) state_->speak_to_parent(*state_->jobs[index], now);
  state_->queue.hand_out(sink);
}

std::size_t SwitchMachine::pending_bytes() const { return state_->queue.bytes(); }

std::optional<double> SwitchMachine::next_timer() const {
  double first = std::numeric_limits<double>::infinity();
  for (const auto& job : state_->jobs) {
    if (job == nullptr) continue;
    for (std::uint32_t worker = 0; worker < job->spec.workers; ++worker)
      if (job->watched(worker)) first = std::min({first, job->silent_at(worker), state_->stops.due_at()});
    if (!job->uplink) continue;
    first = std::min(first, job->uplink->next_timer().value_or(first));
    first = std::min(first, job->ascents->next_timer().value_or(first));
  }
  return first == std::numeric_limits<double>::infinity() ? std::nullopt : std::optional(first);
}

void SwitchMachine::handle_timer(double now) {
  state_->turn(now);
  for (const auto& job : state_->jobs) {
    if (job == nullptr) continue;
    const std::uint32_t lost_before = job->lost;
    for (std::uint32_t worker = 0; worker < job->spec.workers; ++worker) {
      if (!job->watched(worker) || job->silent_at(worker) > now) continue;
      job->lost |= std::uint32_t{1} << worker;  // R-MEMBER-6: lost; only the controller evicts
      state_->events.push_back({.kind = SwitchEvent::Kind::worker_silent,
                                .job = job->spec.job,
                                .worker = static_cast<std::uint8_t>(worker),
                                .silent_s = now - job->heard[worker]});
    }
    if (job->lost != lost_before) state_->tell(*job, Reason::worker_lost, SWITCH_WORKER, job->audience());
    if (!job->uplink) continue;
    if (job->lost != lost_before) job->uplink->leave(now);
    const Reason news = job->uplink->handle_timer(now);
    if (job->uplink->narrowed())
      state_->events.push_back({.kind = SwitchEvent::Kind::branch_narrowed,
                                .job = job->spec.job,
                                .worker = 0,
                                .silent_s = 0.0,
                                .needed_bytes = job->uplink->path.needed_bytes(),
                                .passes_bytes = job->uplink->path.passes_bytes()});
    state_->tell_news(*job, news);
  }
}

std::optional<SwitchEvent> SwitchMachine::next_event() {
  if (state_->events.empty()) return std::nullopt;
  const SwitchEvent event = state_->events.front();
  state_->events.pop_front();
  return event;
}

// --- packets of a job ---

bool SwitchMachine::State::receive(SwitchJob& job, const Parsed& packet, std::span<const std::uint8_t> datagram,
                                   Address source, double now, bool marked, const ComputedTag& computed) {
  const Reason reason = objection(job, packet, datagram, source, computed);
  if (reason != Reason{}) {
    refuse(job.tally, &job, reason, packet.header, source);
    return false;
  }
  const std::uint32_t worker = packet.header.worker;
  // A tagged contribution is a sign of life only where it counts (contribute): anybody can replay an old one.
  if (!job.keys.tags() || packet.header.kind != Kind::contribution) job.heard[worker] = now;
  if (packet.header.kind == Kind::contribution) {
    job.marked |= std::uint32_t{marked} << worker;
    job.members[worker].marks += marked;
    job.members[worker].bytes_in += datagram.size();
    return contribute(job, packet, source, now);
  }
  if (packet.header.kind == Kind::bye) {  // R-MEMBER-4
    part(job, worker, datagram, source);
    if (job.uplink && (job.left | job.lost) == job.spec.full_mask()) job.uplink->leave(now);
  } else {
    if (!job.has(job.registered, worker)) register_source(job, worker, source);  // R-MEMBER-2
    job.hellos[worker] = std::uint64_t{packet.header.slot} + 1;
    // Runs need a synchronous job: all contribute to every round, in order, so that the bitmaps of its results are
    // equal and no pass has to be answered at once.
    const bool runs = job.spec.synchronous() && (packet.header.bitmap & HELLO_RUNS) != 0;
    job.takes_runs = (job.takes_runs & ~(std::uint32_t{1} << worker)) | std::uint32_t{runs} << worker;
    welcome(job, packet, source);  // R-MEMBER-3
    if (job.uplink && job.registered == job.spec.full_mask()) job.uplink->start(now);
  }
  return false;
}

bool SwitchMachine::State::contribute(SwitchJob& job, const Parsed& packet, Address source, double now) {
  const Header& header = packet.header;
  const bool passes = (header.flags & FLAG_PASS) != 0;
  const std::uint32_t run = run_of(header);
  const bool late = (header.flags & FLAG_LATE) != 0;
  const bool length_fits = fits(job.spec, packet);
  if (!length_fits || header.slot >= job.spec.slots) {
    job.tally.drop(length_fits ? Reason::slot_range : Reason::length);
    return false;
  }
  if (passes && header.base == MAX_BASE) {  // R-MEMBER-14
    tell_where(job, header, source);
    return false;
  }
  const Contribution given = given_by(job.spec, packet);
  // A run of passes gets at most one reply, since it is as long as one pass. A worker that lacks a result asks with a
  // single pass.
  Asked asked = {
      .bytes = datagram_bytes(header.code_count, packet.word_count), .source = source, .late = late, .more = false};
  Owed owed;
  if (run == 1) {
    handle<true>(job, header, passes ? nullptr : &given, asked, owed, now);
    return true;
  }
  for (std::uint32_t index = 0; index < run; ++index) {
    asked.more = index + 1 < run;
    if (!handle<false>(job, part_of(header, index, job.spec.slots), nullptr, asked, owed, now)) break;
  }
  return true;
}

void SwitchMachine::State::register_source(SwitchJob& job, std::uint32_t worker, Address source) {
  const bool enters = job.has(job.expected, worker);
  if (enters) job.enter(worker);
  job.sources[worker] = source;
  job.arrivals[worker].restart();
  job.marked &= ~(std::uint32_t{1} << worker);
  job.registered |= std::uint32_t{1} << worker;
  job.update_audience();
  if (enters) tell(job, Reason::worker_joined, SWITCH_WORKER, job.audience());
  events.push_back({.kind = SwitchEvent::Kind::worker_joined,
                    .job = job.spec.job,
                    .worker = static_cast<std::uint8_t>(worker),
                    .silent_s = 0.0});
}

void SwitchMachine::State::part(SwitchJob& job, std::uint32_t worker, std::span<const std::uint8_t> bye,
                                Address source) {
  echo_bye(job, bye, source);
  if (job.has(job.left, worker)) return;
  job.left |= std::uint32_t{1} << worker;
  job.update_audience();
  events.push_back({.kind = SwitchEvent::Kind::worker_left,
                    .job = job.spec.job,
                    .worker = static_cast<std::uint8_t>(worker),
                    .silent_s = 0.0});
  // A newcomer that gives up before it has entered is not live, so that nobody need be told.
  if (job.has(job.left, worker)) tell(job, Reason::worker_left, SWITCH_WORKER, job.audience());
}

void SwitchMachine::State::poke(SwitchJob& job) {
  for (std::uint32_t slot = 0; slot < job.spec.slots; ++slot) {
    if (const std::optional<std::uint32_t> number = job.ring.poke(slot)) {
      job.times[slot].arrived_s = NEVER_S;
      multicast(job, slot, *number);
    }
    if (job.ring.complete(slot)) job.ascents->complete(slot, job.ring.open(slot));
  }
}

}  // namespace fanin
