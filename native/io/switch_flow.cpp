#include "io/switch_flow.hpp"

#include <sched.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "wire/packet.hpp"

namespace fanin {

// Gathers the machine's datagrams in groups with the same destinations. To each destination they go in order, except
// receipts, which later datagrams may overtake, since a receipt concerns only transmissions before it.
//
// Rounds with bare results alternate between two groups, and receipts come between results. To make trains as long as
// possible, a datagram joins the latest group with its destinations, past groups for other destinations. Receipts go
// out with the last train of the group that they follow: they are shorter, so that the first of them ends that train.
class SwitchFlow::Outbox final : public SwitchSink {
 public:
  explicit Outbox(SwitchFlow& flow) : flow_(flow) {}

  void send(std::span<const std::uint8_t> datagram, std::span<const Address> destinations) override {
    const std::uint16_t job = load_be16(datagram.data() + OFFSET_JOB);
    const auto kind = static_cast<Kind>(datagram[OFFSET_KIND]);
    const std::size_t number = group_for(job, kind == Kind::receipt, destinations);
    ++groups_[number].datagrams;
    items_.push_back({{const_cast<std::uint8_t*>(datagram.data()), datagram.size()}, number});
    if (destinations.size() == 1 && kind == Kind::welcome) welcomed_.push_back({destinations[0], job});
  }

  void flush() {
    for (const auto& [number, job] : welcomed_) {
      for (const auto& bypass : flow_.bypasses_) bypass->joined(number, job);
      flow_.base_->joined(number, job);
    }
    std::size_t first = 0;
    for (Group& group : groups_) {
      group.first_datagram = group.end = first;
      first += group.datagrams;
    }
    datagrams_.resize(items_.size());
    for (const Item& item : items_) datagrams_[groups_[item.group].end++] = item.datagram;
    for (std::size_t number = 0; number < groups_.size(); ++number)
      if (groups_[number].receipts) groups_[number].follows = followed_by(number);
    for (std::size_t number = 0; number < groups_.size(); ++number)
      if (!groups_[number].sent) flush(number);
    groups_.clear();
    items_.clear();
    destinations_.clear();
    welcomed_.clear();
  }

 private:
  static constexpr std::size_t LOOKED_AT = 8;  // groups, the latest ones
  static constexpr std::size_t NONE = SIZE_MAX;

  struct Group {
    std::uint16_t job;    // job index in the datagrams
    bool receipts;        // whether it has receipts only
    std::uint64_t marks;  // hash bits of its destinations: groups without a common bit share no destination
    std::size_t first_destination;
    std::size_t destinations;
    std::size_t datagrams;
    std::size_t first_datagram = 0;  // range in datagrams_, set when they are sent
    std::size_t end = 0;
    std::size_t follows = NONE;  // for receipts: the group with whose last train they are sent
    bool sent = false;           // whether they were sent with it
  };

  struct Item {
    iovec datagram;
    std::size_t group;
  };

  std::size_t group_for(std::uint16_t job, bool receipt, std::span<const Address> destinations) {
    std::uint64_t marks = 0;
    for (const Address number : destinations) marks |= std::uint64_t{1} << number % 64;
    const std::size_t last = groups_.size() - std::min(groups_.size(), LOOKED_AT);
    for (std::size_t number = groups_.size(); number-- > last;) {
      const Group& group = groups_[number];
      const bool fits = group.job == job && group.receipts == receipt && group.marks == marks;
      if (fits && same_destinations(group, destinations)) return number;
      if ((receipt || !group.receipts) && (group.marks & marks) != 0) break;
    }
    groups_.push_back({.job = job,
                       .receipts = receipt,
                       .marks = marks,
                       .first_destination = destinations_.size(),
                       .destinations = destinations.size(),
                       .datagrams = 0});
    destinations_.insert(destinations_.end(), destinations.begin(), destinations.end());
    return groups_.size() - 1;
  }

  bool same_destinations(const Group& group, std::span<const Address> destinations) const {
    return group.destinations == destinations.size() &&
           std::equal(destinations.begin(), destinations.end(), destinations_.begin() + group.first_destination);
  }

  std::span<Address> destinations_of(const Group& group) {
    return std::span(destinations_).subspan(group.first_destination, group.destinations);
  }
  std::span<iovec> datagrams_of(const Group& group) {
    return std::span(datagrams_).subspan(group.first_datagram, group.datagrams);
  }

  // The last group before a group of receipts that has their destination.
  std::size_t followed_by(std::size_t receipts) {
    const Address number = destinations_[groups_[receipts].first_destination];
    for (std::size_t before = receipts; before-- > 0;) {
      const Group& group = groups_[before];
      if ((group.marks & groups_[receipts].marks) == 0) continue;
      if (std::ranges::find(destinations_of(group), number) == destinations_of(group).end()) continue;
      return group.receipts || group.job != groups_[receipts].job ? NONE : before;
    }
    return NONE;
  }

  // Sends one train to all destinations, then the next train, so that no destination waits for another's backlog.
  void flush(std::size_t number) {
    const Group& group = groups_[number];
    std::size_t first = group.first_datagram;
    while (first < group.end) {
      std::size_t next = first;
      std::size_t bytes = 0;
      while (next < group.end && next - first < TRAIN_PACKETS) {
        bytes += datagrams_[next].iov_len;
        if (bytes > TRAIN_BYTES && next > first) break;
        ++next;
      }
      carry(number, std::span(datagrams_).subspan(first, next - first), next == group.end);
      first = next;
    }
  }

  // Sends a train to each destination by the first bypass that carries it there, otherwise by the base carrier.
  void carry(std::size_t number, std::span<iovec> train, bool last) {
    const std::uint16_t job = groups_[number].job;
    std::span<Address> to = destinations_of(groups_[number]);
    for (const auto& bypass : flow_.bypasses_) {
      to = to.subspan(bypass->carry(job, to, train));
      if (to.empty()) return;
    }
    for (std::size_t after = number + 1; last && after < groups_.size(); ++after) {
      Group& receipts = groups_[after];
      if (receipts.follows != number) continue;
      const auto found = std::ranges::find(to, destinations_[receipts.first_destination]);
      if (found == to.end()) continue;  // a bypass has taken it there
      std::iter_swap(found, to.begin());
      with_receipts_.assign(train.begin(), train.end());
      const std::span<iovec> behind = datagrams_of(receipts);
      with_receipts_.insert(with_receipts_.end(), behind.begin(), behind.end());
      flow_.base_->carry(job, to.first(1), with_receipts_);
      receipts.sent = true;
      to = to.subspan(1);
    }
    if (!to.empty()) flow_.base_->carry(job, to, train);
  }

  SwitchFlow& flow_;
  std::vector<Group> groups_;
  std::vector<Item> items_;
  std::vector<iovec> datagrams_;  // of the groups, one after another
  std::vector<iovec> with_receipts_;
  std::vector<Address> destinations_;
  std::vector<std::pair<Address, std::uint16_t>> welcomed_;
};

// Incoming datagrams go to the machine, batch by batch; datagrams that become due are sent before the next batch.
class SwitchFlow::Intake final : public Inbox {
 public:
  Intake(SwitchFlow& flow, bool takes_turns) : flow_(flow), takes_turns_(takes_turns) {}

  void take(std::span<const Arrival> batch) override {
    const double now = monotonic_now();
    const auto use = [this, now](std::span<const Arrival> arrivals) {
      flow_.machine_.receive_datagrams(arrivals, now);
    };
    if (flow_.in_use())
      without_doorbells(batch, use);
    else
      use(batch);
    count(batch);
  }

  void skip(std::span<const Arrival> batch) override { count(batch); }

  // Responses to datagrams of descriptors wait for a full train, or until all ready descriptors were read, because a
  // round often closes with a datagram of another socket.
  void respond() override {
    if (!takes_turns_ && flow_.machine_.pending_bytes() < RESPOND_AFTER_BYTES) return;
    flow_.send(monotonic_now());
    if (takes_turns_ && flow_.bypass_turn_ >= BYPASS_TURN) flow_.look_at_descriptors();
  }

 private:
  void count(std::span<const Arrival> batch) {
    if (!takes_turns_) return;
    for (const Arrival& arrival : batch) flow_.bypass_turn_ += 1 + arrival.bytes.size() / BYPASS_TURN_BYTES;
  }

  SwitchFlow& flow_;
  const bool takes_turns_;  // with descriptors: it reads bypasses
};

SwitchFlow::SwitchFlow(const SocketAddress& address, const UdpOptions& options, std::uint64_t memory_bytes,
                       OnEvent on_event)
    : on_event_(std::move(on_event)),
      machine_(memory_bytes),
      base_(BASE.open_switch({.address = address, .options = options, .poller = poller_, .host = *this})),
      outbox_(std::make_unique<Outbox>(*this)),
      from_base_(std::make_unique<Intake>(*this, false)),
      from_bypasses_(std::make_unique<Intake>(*this, true)) {
  for (const BypassRow& row : fanin::bypasses()) bypasses_.push_back(row.open_switch(*this));
}

SwitchFlow::~SwitchFlow() { close(); }

void SwitchFlow::start() {
  thread_.start([this] { run(); });
}

void SwitchFlow::close() {
  closing_.store(true);
  poller_.ring();
  thread_.join();
  const std::lock_guard lock(turnstile_);
  base_->close();
}

std::optional<Address> SwitchFlow::source(std::uint16_t job, std::uint32_t worker) const {
  return machine_.source(job, worker);
}
std::uint32_t SwitchFlow::missing(std::uint16_t job) const { return machine_.missing(job); }
bool SwitchFlow::ring(Address number) { return base_->ring(number); }
bool SwitchFlow::is_parent(Address number) const { return !parents_.empty() && parents_.contains(number); }

void SwitchFlow::run() {
  bool drained = true;
  while (!closing_.load()) {
    if (drained) sleep();
    const std::lock_guard lock(turnstile_);
    drained = receive_from_bypasses();
    const double now = monotonic_now();
    const std::optional<double> timer = machine_.next_timer();
    if (timer && *timer <= now) machine_.handle_timer(now);
    send(now);
    if (drained)
      for (const auto& bypass : bypasses_) bypass->idle();
    base_->handle_timer(now);
    poller_.alarm_at(machine_.next_timer());
  }
}

bool SwitchFlow::receive_from_bypasses() {
  bool drained = true;
  for (const auto& bypass : bypasses_) drained = bypass->receive(*from_bypasses_) && drained;
  return drained;
}

// Polls for a moment before this thread sleeps, if the flow has just handled packets; an idle switch sleeps at once.
bool SwitchFlow::linger() {
  const auto worth_waking = [this] {
    const std::lock_guard lock(turnstile_);
    return std::ranges::any_of(bypasses_, [](const auto& bypass) { return bypass->worth_waking(); });
  };
  {
    const std::lock_guard lock(turnstile_);
    if (!std::ranges::any_of(bypasses_, [](const auto& bypass) { return bypass->all_here(); })) return false;
  }
  if (!lingering_.pays()) return false;
  const double until = monotonic_now() + Lingering::FOR_S;
  bool came = false;
  do {
    sched_yield();
    came = worth_waking();
  } while (!came && monotonic_now() < until);
  lingering_.ended(came);
  return came;
}

// The lock is taken anew for each step, so that threads that call verbs of the server get their turn in between.
void SwitchFlow::sleep() {
  if (linger()) return;
  bool busy = false;
  {
    const std::lock_guard lock(turnstile_);
    for (const auto& bypass : bypasses_) busy = !bypass->may_sleep() || busy;
  }
  const std::span<const epoll_event> ready = busy ? poller_.look() : poller_.wait();
  {
    const std::lock_guard lock(turnstile_);
    bypass_turn_ = 0;
    for (const auto& bypass : bypasses_) bypass->awake();
  }
  for (const epoll_event& event : ready) {
    const std::lock_guard lock(turnstile_);
    serve(event.data.u64);
  }
}

// With the lock held.
void SwitchFlow::look_at_descriptors() {
  bypass_turn_ = 0;
  for (const epoll_event& event : poller_.look()) serve(event.data.u64);
}

void SwitchFlow::serve(std::uint64_t key) {
  if (key < Poller::ALARM) base_->serve(key, *from_base_);
}

void SwitchFlow::report() {
  while (const std::optional<SwitchEvent> event = machine_.next_event()) {
    if (event->kind != SwitchEvent::Kind::worker_joined)
      for (const auto& bypass : bypasses_) bypass->detach(event->job, event->worker);
    on_event_(*event);
  }
}

void SwitchFlow::send(double now) {
  // Report events before sending: once a worker has got WELCOME, its joining has been reported.
  report();
  machine_.datagrams_to_send(now, *outbox_);
  outbox_->flush();
}

Address SwitchFlow::number_of_parent(const SocketAddress& address) {
  const std::lock_guard lock(turnstile_);
  return *parents_.insert(base_->number_of_parent(address)).first;
}

bool SwitchFlow::in_use() const {
  return std::ranges::any_of(bypasses_, [](const auto& bypass) { return bypass->in_use(); });
}

SwitchBypass* SwitchFlow::offering(const JobSpec& spec) const {
  const auto found =
      std::ranges::find_if(bypasses_, [&](const auto& bypass) { return bypass->offer_bytes(spec) != 0; });
  return found == bypasses_.end() ? nullptr : found->get();
}

std::uint64_t SwitchFlow::offer_bytes(const JobSpec& spec) const {
  const SwitchBypass* const bypass = offering(spec);
  return bypass == nullptr ? 0 : bypass->offer_bytes(spec);
}

std::string SwitchFlow::offer_bypass(const JobSpec& spec) {
  const std::lock_guard lock(turnstile_);
  SwitchBypass* const bypass = offering(spec);
  if (bypass == nullptr || !machine_.hold(spec.job, bypass->offer_bytes(spec))) return "";
  try {
    std::string told = bypass->offer(spec);
    if (const std::shared_ptr<std::uint8_t> images = bypass->images(spec.job))
      machine_.use_images(spec.job, images, bypass->lasting(spec.job));
    return told;
  } catch (const std::system_error&) {  // no memory for the offer: the base carrier suffices
    machine_.hold(spec.job, 0);
    return "";
  }
}

void SwitchFlow::withdraw_bypass(std::uint16_t job) {
  const std::lock_guard lock(turnstile_);
  for (const auto& bypass : bypasses_) bypass->withdraw(job);
  machine_.hold(job, 0);
}

void SwitchFlow::remove(std::uint16_t job) {
  const std::lock_guard lock(turnstile_);
  machine_.remove(job);
  for (const auto& bypass : bypasses_) bypass->remove(job);
  base_->remove(job);
}

// Forgets the worker's address: in a job that survives losses, sockets of replaced processes would add up otherwise.
void SwitchFlow::evict(std::uint16_t job, std::uint32_t worker) {
  {
    const std::lock_guard lock(turnstile_);
    const std::optional<Address> source = machine_.source(job, worker);
    machine_.evict(job, worker, monotonic_now());
    for (const auto& bypass : bypasses_) bypass->detach(job, worker);
    bool vacated = source.has_value();
    for (std::uint32_t other = 0; other < MAX_WORKERS; ++other)
      vacated = vacated && machine_.source(job, other) != source;
    if (vacated) base_->vacated(*source, job);
  }
  wake();
}

void SwitchFlow::admit_worker(std::uint16_t job, std::uint32_t worker, std::uint64_t token) {
  const std::lock_guard lock(turnstile_);
  report();
  machine_.admit_worker(job, worker, token);
}

CarrierCounters SwitchFlow::carrier_counters() {
  const std::lock_guard lock(turnstile_);
  CarrierCounters all = base_->counters();
  for (const auto& bypass : bypasses_) {
    const CarrierCounters its = bypass->counters();
    all.insert(all.end(), its.begin(), its.end());
  }
  return all;
}

std::uint64_t SwitchFlow::overflows() {
  const std::lock_guard lock(turnstile_);
  return base_->overflows();
}

std::uint64_t SwitchFlow::flooded() {
  const std::lock_guard lock(turnstile_);
  return base_->flooded();
}

}  // namespace fanin
