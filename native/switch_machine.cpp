// See the table at the top of switch/switch_machine.py: the checks here are its rows, in its order.
#include "switch_machine.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <new>
#include <string>
#include <tuple>

#include "checksum.hpp"
#include "packet.hpp"
#include "switch_job.hpp"
#include "switch_queue.hpp"

namespace fanin {

namespace {

constexpr std::size_t NOTICE_WORDS = 2;

bool from_workers(Kind kind) { return kind == Kind::contribution || kind == Kind::hello || kind == Kind::bye; }

bool told(Reason reason) {
  switch (reason) {
    case Reason::version:
    case Reason::unknown_job:
    case Reason::generation:
    case Reason::stranger:
    case Reason::token:
    case Reason::mismatch:
    case Reason::evicted:
      return true;
    default:
      return false;
  }
}

}  // namespace

struct SwitchMachine::State {
  explicit State(std::uint64_t memory) : memory_bytes(memory) {}

  SwitchJob& job_at(std::uint16_t index) {
    SwitchJob* const job = find(index);
    if (job == nullptr) throw NoSuchJob("job " + std::to_string(index));
    return *job;
  }
  SwitchJob* find(std::uint16_t index) { return index < jobs.size() ? jobs[index].get() : nullptr; }

  void receive(SwitchJob& job, const Parsed& packet, std::span<const std::uint8_t> datagram, Address source,
               double now);
  void contribute(SwitchJob& job, const Parsed& packet, Address source);
  void register_source(SwitchJob& job, std::uint32_t worker, Address source);
  void welcome(SwitchJob& job, const Parsed& hello, Address source);
  void part(SwitchJob& job, std::uint32_t worker, std::span<const std::uint8_t> bye, Address source);
  void poke(SwitchJob& job);

  void ascend(SwitchJob& job, std::uint32_t slot);
  void speak_to_parent(SwitchJob& job, double now);
  void send_token_up(SwitchJob& job, Kind kind, std::uint32_t sequence, std::size_t bytes);
  void receive_from_parent(SwitchJob& job, const Parsed& packet, std::size_t bytes, double now);
  void descend(SwitchJob& job, const Parsed& packet);
  void tell_of_branches(SwitchJob& job, Reason news);

  bool takes(SwitchTally& tally, std::size_t bytes, std::size_t destinations);
  void copy(SwitchTally& tally, std::span<const std::uint8_t> datagram, Address destination);
  void echo(std::span<const std::uint8_t> probe, Address source);
  void multicast(SwitchJob& job, std::uint32_t slot, std::uint32_t number);
  void answer(SwitchJob& job, const Header& header, Address source);
  void refuse(SwitchTally& tally, const SwitchJob* job, Reason reason, const Header& header, Address source);
  void tell(SwitchJob& job, Reason reason, std::uint8_t worker, std::span<const Address> destinations);
  void tell_where(SwitchJob& job, const Header& header, Address source);

  std::uint64_t memory_bytes;
  std::uint64_t memory_taken = 0;
  std::vector<std::unique_ptr<SwitchJob>> jobs;  // by index
  // Parts of jobs at a parent: its address, its index of the job, the generation. A parent that was restarted uses its
  // indices again, while parts of jobs of its former life linger here.
  using PartKey = std::tuple<Address, std::uint16_t, std::uint32_t>;
  static PartKey part_key(const Uplink& uplink) { return {uplink.parent, uplink.job, uplink.generation}; }
  SwitchJob* find_part(Address source, const Header& header);
  std::map<PartKey, std::uint16_t> parts;
  SwitchTally past;                        // packets of no job, and the counts of jobs that were removed
  SwitchQueue queue;
  std::deque<SwitchEvent> events;  // at most three per worker
};

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
}

void SwitchMachine::remove(std::uint16_t job) {
  SwitchJob& gone = state_->job_at(job);
  const std::span<const std::uint8_t> memory = gone.ring.memory();
  state_->queue.copy_out_all(memory.data(), memory.size());
  state_->past.add(gone.tally);
  if (gone.uplink) state_->parts.erase(State::part_key(gone.uplink->uplink()));
  state_->memory_taken -= SlotRing::pool_bytes(gone.spec);
  state_->jobs[job].reset();
}

void SwitchMachine::evict(std::uint16_t index, std::uint32_t worker, double) {
  SwitchJob& job = state_->job_at(index);
  if (worker >= job.spec.workers) throw NoSuchJob("worker " + std::to_string(worker));
  job.expected &= ~(std::uint32_t{1} << worker);
  if (job.evicted(worker)) return;
  const bool known = job.has(job.registered, worker);
  const Reason news = job.has(job.left, worker) ? Reason::worker_left : Reason::worker_lost;
  job.ring.set_live(job.ring.live() & ~(std::uint32_t{1} << worker));
  job.update_audience();
  if (known) state_->tell(job, Reason::evicted, static_cast<std::uint8_t>(worker), {&job.sources[worker], 1});
  if (job.spec.survives_loss) {
    ++job.changes;
    state_->tell(job, news, SWITCH_WORKER, job.audience());
  }
  state_->poke(job);
}

void SwitchMachine::admit_worker(std::uint16_t index, std::uint32_t worker, std::uint64_t token) {
  SwitchJob& job = state_->job_at(index);
  if (worker >= job.spec.workers) throw NoSuchJob("worker " + std::to_string(worker));
  if (!job.spec.survives_loss || !job.evicted(worker))
    throw std::invalid_argument("worker " + std::to_string(worker) + " of job " + std::to_string(index) +
                                " has not been evicted, or nobody may come in its place");
  job.spec.tokens[worker] = token;
  job.expected |= std::uint32_t{1} << worker;
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
  return job.has(job.registered, worker) ? std::optional(job.sources[worker]) : std::nullopt;
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

// --- the five verbs ---

void SwitchMachine::receive_datagram(std::span<const std::uint8_t> datagram, Address source, double now) {
  State& state = *state_;
  Parsed packet = parse(datagram);
  if (packet.ok() && !checksum_holds(datagram)) packet.reason = Reason::checksum;
  const Kind kind = packet.header.kind;
  if (packet.ok() && !state.parts.empty())
    if (SwitchJob* const part = state.find_part(source, packet.header))
      return state.receive_from_parent(*part, packet, datagram.size(), now);
  SwitchJob* const job = packet.ok() && from_workers(kind) ? state.find(packet.header.job) : nullptr;
  SwitchTally& tally = job != nullptr ? job->tally : state.past;
  ++tally.packets_in;
  tally.bytes_in += datagram.size();
  if (job != nullptr) {
    state.receive(*job, packet, datagram, source, now);
  } else if (packet.reason == Reason::version && (from_workers(kind) || kind == Kind::probe)) {
    state.refuse(tally, nullptr, packet.reason, packet.header, source);
  } else if (!packet.ok()) {
    tally.drop(packet.reason);
  } else if (kind == Kind::probe) {
    state.echo(datagram, source);
  } else if (!from_workers(kind)) {
    tally.drop(Reason::kind);
  } else {
    state.refuse(tally, nullptr, Reason::unknown_job, packet.header, source);
  }
}

void SwitchMachine::datagrams_to_send(double now, SwitchSink& sink) {
  for (const auto& [key, index] : state_->parts) state_->speak_to_parent(*state_->jobs[index], now);
  state_->queue.hand_out(sink);
}

std::optional<double> SwitchMachine::next_timer() const {
  double first = std::numeric_limits<double>::infinity();
  for (const auto& job : state_->jobs) {
    if (job == nullptr) continue;
    for (std::uint32_t worker = 0; worker < job->spec.workers; ++worker)
      if (job->watched(worker)) first = std::min(first, job->silent_at(worker));
    if (job->uplink) first = std::min(first, job->uplink->next_timer().value_or(first));
  }
  return first == std::numeric_limits<double>::infinity() ? std::nullopt : std::optional(first);
}

void SwitchMachine::handle_timer(double now) {
  for (const auto& job : state_->jobs) {
    if (job == nullptr) continue;
    const std::uint32_t lost_before = job->lost;
    for (std::uint32_t worker = 0; worker < job->spec.workers; ++worker) {
      if (!job->watched(worker) || job->silent_at(worker) > now) continue;
      job->lost |= std::uint32_t{1} << worker;
      state_->events.push_back({.kind = SwitchEvent::Kind::worker_silent,
                                .job = job->spec.job,
                                .worker = static_cast<std::uint8_t>(worker),
                                .silent_s = now - job->heard[worker]});
    }
    if (job->lost != lost_before) state_->tell(*job, Reason::worker_lost, SWITCH_WORKER, job->audience());
    if (!job->uplink) continue;
    if (job->lost != lost_before) job->uplink->leave(now);
    state_->tell_of_branches(*job, job->uplink->handle_timer(now));
  }
}

std::optional<SwitchEvent> SwitchMachine::next_event() {
  if (state_->events.empty()) return std::nullopt;
  const SwitchEvent event = state_->events.front();
  state_->events.pop_front();
  return event;
}

// --- packets of a job ---

void SwitchMachine::State::receive(SwitchJob& job, const Parsed& packet, std::span<const std::uint8_t> datagram,
                                   Address source, double now) {
  const Reason reason = objection(job, packet, datagram.size(), source);
  if (reason != Reason{}) return refuse(job.tally, &job, reason, packet.header, source);
  const std::uint32_t worker = packet.header.worker;
  job.heard[worker] = now;
  if (packet.header.kind == Kind::contribution) {
    contribute(job, packet, source);
  } else if (packet.header.kind == Kind::bye) {
    part(job, worker, datagram, source);
    if (job.uplink && (job.left | job.lost) == job.spec.full_mask()) job.uplink->leave(now);
  } else {
    if (!job.has(job.registered, worker)) register_source(job, worker, source);
    welcome(job, packet, source);
    if (job.uplink && job.registered == job.spec.full_mask()) job.uplink->start(now);
  }
}

void SwitchMachine::State::contribute(SwitchJob& job, const Parsed& packet, Address source) {
  const Header& header = packet.header;
  const bool passes = (header.flags & FLAG_PASS) != 0;
  const bool fits = (header.code_count == 0 || header.code_count == job.spec.codes_per_packet) &&
                    packet.word_count <= job.spec.words_per_packet;
  const bool late = (header.flags & FLAG_LATE) != 0;
  if (!fits || (passes && (header.code_count != 0 || packet.word_count != 0)) || (late && !passes))
    return job.tally.drop(Reason::length);
  if (header.slot >= job.spec.slots) return job.tally.drop(Reason::slot_range);
  if (passes && header.base == MAX_BASE) return tell_where(job, header, source);
  const Contribution given = {.signature = header.signature,
                              .codes = packet.codes,
                              .code_count = header.code_count,
                              .words = packet.words,
                              .word_count = static_cast<std::uint32_t>(packet.word_count),
                              .contributors = job.spec.branches ? std::max<std::uint32_t>(header.contributors, 1) : 1};
  const SlotOutcome outcome =
      job.ring.contribute(header.slot, header.worker, header.base, passes ? nullptr : &given, queue, late);
  switch (outcome.verdict) {
    case Verdict::accepted:
      ++(passes ? job.tally.passes : job.tally.contributions);
      break;
    case Verdict::duplicate:
      ++job.tally.duplicates;
      break;
    case Verdict::future:
      return job.tally.drop(Reason::future);
    case Verdict::ancient:
      return job.tally.drop(Reason::ancient);
    case Verdict::mismatch:
      return refuse(job.tally, &job, Reason::mismatch, header, source);
  }
  if (outcome.closed) {
    ++job.last_arrivals[header.worker];
    multicast(job, header.slot, outcome.number);
  }
  if (outcome.answered) answer(job, header, source);
  if (outcome.ascends) ascend(job, header.slot);
}

void SwitchMachine::State::register_source(SwitchJob& job, std::uint32_t worker, Address source) {
  const bool enters = job.has(job.expected, worker);
  if (enters) job.enter(worker);
  job.sources[worker] = source;
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
  copy(job.tally, bye, source);
  if (job.has(job.left, worker)) return;
  job.left |= std::uint32_t{1} << worker;
  job.update_audience();
  events.push_back({.kind = SwitchEvent::Kind::worker_left,
                    .job = job.spec.job,
                    .worker = static_cast<std::uint8_t>(worker),
                    .silent_s = 0.0});
  tell(job, Reason::worker_left, SWITCH_WORKER, job.audience());
}

void SwitchMachine::State::poke(SwitchJob& job) {
  for (std::uint32_t slot = 0; slot < job.spec.slots; ++slot) {
    if (const std::optional<std::uint32_t> number = job.ring.poke(slot)) multicast(job, slot, *number);
    if (job.ring.complete(slot)) ascend(job, slot);
  }
}

// --- what is sent ---

namespace {

// To the sender of `header`: same job, worker, generation, slot and base; a checksum if that packet had one.
Header reply_to(const Header& header, Kind kind) {
  return {.kind = kind,
          .job = header.job,
          .worker = header.worker,
          .flags = static_cast<std::uint8_t>(header.flags & FLAG_CHECKSUM),
          .generation = header.generation,
          .slot = header.slot,
          .base = header.base};
}

void finish(std::span<std::uint8_t> datagram) {
  if ((datagram[OFFSET_FLAGS] & FLAG_CHECKSUM) != 0) seal(datagram);
}

// The words of the datagram: the first two the masks of who is gone, the others zero.
void write_news(std::span<std::uint8_t> datagram, const Header& header, std::uint32_t lost, std::uint32_t left) {
  store_header(datagram.data(), header);
  std::fill(datagram.begin() + HEADER_BYTES, datagram.end(), std::uint8_t{0});
  store_be32(datagram.data() + HEADER_BYTES, lost);
  store_be32(datagram.data() + HEADER_BYTES + WORD_BYTES, left);
  finish(datagram);
}

}  // namespace

// Whether the queue has room; counts accordingly.
bool SwitchMachine::State::takes(SwitchTally& tally, std::size_t bytes, std::size_t destinations) {
  if (destinations == 0) return false;
  if (!queue.takes(bytes)) {
    tally.unsent += destinations;
    return false;
  }
  tally.packets_out += destinations;
  tally.bytes_out += bytes * destinations;
  return true;
}

void SwitchMachine::State::copy(SwitchTally& tally, std::span<const std::uint8_t> datagram, Address destination) {
  if (!takes(tally, datagram.size(), 1)) return;
  std::ranges::copy(datagram, queue.push(datagram.size(), {&destination, 1}).begin());
}

void SwitchMachine::State::echo(std::span<const std::uint8_t> probe, Address source) {
  if (!takes(past, probe.size(), 1)) return;
  const std::span<std::uint8_t> datagram = queue.push(probe.size(), {&source, 1});
  std::ranges::copy(probe, datagram.begin());
  datagram[OFFSET_KIND] = static_cast<std::uint8_t>(Kind::echo);
  store_be32(datagram.data() + OFFSET_CHECKSUM, 0);
  finish(datagram);
}

// --- a leaf and its parent ---

// Contributes a complete round to the parent's, for the first time or again.
void SwitchMachine::State::ascend(SwitchJob& job, std::uint32_t slot) {
  const std::uint32_t number = job.ring.open(slot);
  std::uint32_t* const mark = job.ring.queue_mark(slot, number);
  const std::span<const std::uint8_t> datagram = job.ring.result(slot, number);
  if (!takes(job.tally, datagram.size(), 1)) return;
  const Address parent = job.uplink->uplink().parent;
  if (*mark == 0) return queue.push_in_place(datagram, mark, {&parent, 1});
  std::ranges::copy(datagram, queue.push(datagram.size(), {&parent, 1}).begin());
}

void SwitchMachine::State::speak_to_parent(SwitchJob& job, double now) {
  UplinkPresence& presence = *job.uplink;
  const std::size_t longest = datagram_bytes(job.spec.codes_per_packet, job.spec.words_per_packet);
  if (presence.hello_due(now)) {
    const bool connecting = presence.phase() == UplinkPresence::Phase::connecting;
    send_token_up(job, Kind::hello, presence.hello_sequence(), connecting ? longest : datagram_bytes(0, TOKEN_WORDS));
    presence.hello_sent(now);
  }
  if (presence.bye_due(now)) {
    send_token_up(job, Kind::bye, 0, datagram_bytes(0, TOKEN_WORDS));
    presence.bye_sent(now);
  }
}

void SwitchMachine::State::send_token_up(SwitchJob& job, Kind kind, std::uint32_t sequence, std::size_t bytes) {
  const Uplink& uplink = job.uplink->uplink();
  if (!takes(job.tally, bytes, 1)) return;
  const Header header = {.kind = kind,
                         .job = uplink.job,
                         .worker = uplink.worker,
                         .flags = job.spec.checksum ? FLAG_CHECKSUM : std::uint8_t{0},
                         .generation = uplink.generation,
                         .slot = sequence};
  write_news(queue.push(bytes, {&uplink.parent, 1}), header, static_cast<std::uint32_t>(uplink.token >> 32),
             static_cast<std::uint32_t>(uplink.token));
}

// The part that a packet from `source` concerns: of its generation, or else any with its index, which will refuse it.
SwitchJob* SwitchMachine::State::find_part(Address source, const Header& header) {
  auto part = parts.find({source, header.job, header.generation});
  if (part == parts.end()) part = parts.lower_bound({source, header.job, 0});
  if (part == parts.end() || std::get<0>(part->first) != source || std::get<1>(part->first) != header.job) return nullptr;
  return jobs[part->second].get();
}

void SwitchMachine::State::receive_from_parent(SwitchJob& job, const Parsed& packet, std::size_t bytes, double now) {
  UplinkPresence& presence = *job.uplink;
  const Header& header = packet.header;
  ++job.tally.packets_in;
  job.tally.bytes_in += bytes;
  const Reason objection = [&] {
    const bool connecting = presence.phase() == UplinkPresence::Phase::connecting;
    if (job.spec.checksum && (header.flags & FLAG_CHECKSUM) == 0) return Reason::checksum;
    if (header.generation != presence.uplink().generation) return Reason::generation;
    if (header.worker != presence.uplink().worker && header.worker != SWITCH_WORKER) return Reason::worker_range;
    switch (header.kind) {
      case Kind::result:
      case Kind::answer:
        if (header.slot >= job.spec.slots) return Reason::slot_range;
        if ((header.code_count != 0 && header.code_count != job.spec.codes_per_packet) ||
            packet.word_count > job.spec.words_per_packet)
          return Reason::length;
        return Reason{};
      case Kind::welcome:
        if (connecting && bytes != datagram_bytes(job.spec.codes_per_packet, job.spec.words_per_packet))
          return Reason::length;
        [[fallthrough]];
      case Kind::notice:
      case Kind::bye:
        if (packet.word_count < TOKEN_WORDS) return Reason::length;
        return header.kind == Kind::notice && header.contributors == static_cast<std::uint16_t>(Reason::version) &&
                       (job.spec.checksum || !connecting)
                   ? Reason::version
                   : Reason{};
      default:
        return Reason::kind;
    }
  }();
  if (objection != Reason{}) return job.tally.drop(objection);
  presence.heard(now);
  const auto gone = [&] {
    return presence.branches_gone(load_be32(packet.words), load_be32(packet.words + WORD_BYTES));
  };
  if (header.kind == Kind::result || header.kind == Kind::answer) return descend(job, packet);
  if (header.kind == Kind::bye) return presence.departed();
  if (header.kind == Kind::welcome) {
    presence.welcome(now);
    return tell_of_branches(job, gone());
  }
  const auto reason = static_cast<Reason>(header.contributors);
  if (reason == Reason::worker_lost || reason == Reason::worker_left) return tell_of_branches(job, gone());
  if (reason == Reason::mismatch) return tell(job, Reason::mismatch, SWITCH_WORKER, job.audience());
  tell_of_branches(job, presence.refused());
}

// The parent's result of a round, or its answer to a contribution that was sent again.
void SwitchMachine::State::descend(SwitchJob& job, const Parsed& packet) {
  const Header& header = packet.header;
  if (header.kind == Kind::answer && (header.flags & FLAG_BARE) != 0) {
    if (job.ring.complete(header.slot) && header.base == job.ring.open(header.slot)) ascend(job, header.slot);
    return;
  }
  const Contribution result = {.signature = header.signature,
                               .codes = packet.codes,
                               .code_count = header.code_count,
                               .words = packet.words,
                               .word_count = static_cast<std::uint32_t>(packet.word_count),
                               .contributors = header.contributors};
  if (job.ring.descend(header.slot, header.base, result, queue)) return multicast(job, header.slot, header.base);
  if (header.base < job.ring.open(header.slot))
    ++job.tally.duplicates;
  else
    job.tally.drop(Reason::future);
}

// Once for each kind of news; the worse one stays.
void SwitchMachine::State::tell_of_branches(SwitchJob& job, Reason news) {
  if (news == Reason{} || job.branch_news == news || job.branch_news == Reason::branch_lost) return;
  job.branch_news = news;
  tell(job, news, SWITCH_WORKER, job.audience());
}

void SwitchMachine::State::multicast(SwitchJob& job, std::uint32_t slot, std::uint32_t number) {
  ++job.tally.rounds;
  const std::span<const std::uint8_t> datagram = job.ring.result(slot, number);
  if (takes(job.tally, datagram.size(), job.listener_count))
    queue.push_in_place(datagram, job.ring.queue_mark(slot, number), job.audience());
}

void SwitchMachine::State::answer(SwitchJob& job, const Header& header, Address source) {
  ++job.tally.answers;
  const std::span<const std::uint8_t> result = job.ring.result(header.slot, header.base);
  if (!takes(job.tally, result.size(), 1)) return;
  const std::span<std::uint8_t> datagram = queue.push(result.size(), {&source, 1});
  std::ranges::copy(result, datagram.begin());
  datagram[OFFSET_KIND] = static_cast<std::uint8_t>(Kind::answer);
  datagram[OFFSET_WORKER] = header.worker;
  store_be32(datagram.data() + OFFSET_BITMAP, job.ring.arrived(header.slot, header.base));
  finish(datagram);
}

// The base that the worker has to contribute next, as a bare answer that acknowledges nothing.
void SwitchMachine::State::tell_where(SwitchJob& job, const Header& header, Address source) {
  ++job.tally.answers;
  if (!takes(job.tally, HEADER_BYTES, 1)) return;
  Header where = reply_to(header, Kind::answer);
  where.base = job.ring.stands(header.slot, header.worker);
  where.flags = static_cast<std::uint8_t>(FLAG_BARE | (job.spec.checksum ? FLAG_CHECKSUM : 0));
  const std::span<std::uint8_t> datagram = queue.push(HEADER_BYTES, {&source, 1});
  store_header(datagram.data(), where);
  finish(datagram);
}

void SwitchMachine::State::refuse(SwitchTally& tally, const SwitchJob* job, Reason reason, const Header& header,
                                  Address source) {
  tally.drop(reason);
  if (!told(reason)) return;
  ++tally.notices;
  constexpr std::size_t bytes = datagram_bytes(0, NOTICE_WORDS);
  if (!takes(tally, bytes, 1)) return;
  Header notice = reply_to(header, Kind::notice);
  notice.contributors = static_cast<std::uint16_t>(reason);
  write_news(queue.push(bytes, {&source, 1}), notice, job != nullptr ? job->lost : 0, job != nullptr ? job->left : 0);
}

void SwitchMachine::State::tell(SwitchJob& job, Reason reason, std::uint8_t worker,
                                std::span<const Address> destinations) {
  job.tally.notices += destinations.size();
  constexpr std::size_t bytes = datagram_bytes(0, NOTICE_WORDS);
  if (!takes(job.tally, bytes, destinations.size())) return;
  const Header notice = {.kind = Kind::notice,
                         .job = job.spec.job,
                         .worker = worker,
                         .flags = job.spec.checksum ? FLAG_CHECKSUM : std::uint8_t{0},
                         .generation = job.spec.generation,
                         .signature = job.changes,
                         .bitmap = job.spec.survives_loss ? job.registered : 0,
                         .contributors = static_cast<std::uint16_t>(reason)};
  write_news(queue.push(bytes, destinations), notice, job.lost, job.left);
}

void SwitchMachine::State::welcome(SwitchJob& job, const Parsed& hello, Address source) {
  const std::size_t bytes = datagram_bytes(0, hello.word_count);
  if (!takes(job.tally, bytes, 1)) return;
  Header header = reply_to(hello.header, Kind::welcome);
  header.signature = job.changes;
  header.contributors = static_cast<std::uint16_t>(job.branch_news);
  header.bitmap = job.registered;
  write_news(queue.push(bytes, {&source, 1}), header, job.lost, job.left);
}

}  // namespace fanin
