#include "switch_flow.hpp"

#include <sched.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "packet.hpp"

namespace fanin {

// Gathers what the machine sends, in order, as groups with the same destinations.
class SwitchFlow::Outbox final : public SwitchSink {
 public:
  explicit Outbox(SwitchFlow& flow) : flow_(flow) {}

  void send(std::span<const std::uint8_t> datagram, std::span<const Address> destinations) override {
    const std::uint16_t job = load_be16(datagram.data() + OFFSET_JOB);
    if (groups_.empty() || groups_.back().job != job || !same_destinations(groups_.back(), destinations)) {
      groups_.push_back({job, datagrams_.size(), 0, destinations_.size(), destinations.size()});
      destinations_.insert(destinations_.end(), destinations.begin(), destinations.end());
    }
    datagrams_.push_back({const_cast<std::uint8_t*>(datagram.data()), datagram.size()});
    ++groups_.back().datagrams;
    if (destinations.size() == 1 && datagram[OFFSET_KIND] == static_cast<std::uint8_t>(Kind::welcome))
      welcomed_.push_back({destinations[0], job});
  }

  void flush() {
    for (const auto& [number, job] : welcomed_) {
      for (const auto& bypass : flow_.bypasses_) bypass->joined(number, job);
      flow_.base_->joined(number, job);
    }
    for (const Group& group : groups_) flush(group);
    groups_.clear();
    datagrams_.clear();
    destinations_.clear();
    welcomed_.clear();
  }

 private:
  struct Group {
    std::uint16_t job;  // as the datagrams have it
    std::size_t first_datagram;
    std::size_t datagrams;
    std::size_t first_destination;
    std::size_t destinations;
  };

  bool same_destinations(const Group& group, std::span<const Address> destinations) const {
    return group.destinations == destinations.size() &&
           std::equal(destinations.begin(), destinations.end(), destinations_.begin() + group.first_destination);
  }

  // A train to everybody, then the next one: nobody waits for another's whole backlog.
  void flush(const Group& group) {
    std::size_t first = group.first_datagram;
    const std::size_t end = first + group.datagrams;
    while (first < end) {
      std::size_t next = first;
      std::size_t bytes = 0;
      while (next < end && next - first < TRAIN_PACKETS) {
        bytes += datagrams_[next].iov_len;
        if (bytes > TRAIN_BYTES && next > first) break;
        ++next;
      }
      carry(group.job, std::span(destinations_).subspan(group.first_destination, group.destinations),
            std::span(datagrams_).subspan(first, next - first));
      first = next;
    }
  }

  // To each by the first bypass that takes it there, otherwise by the base carrier.
  void carry(std::uint16_t job, std::span<Address> to, std::span<iovec> train) {
    for (const auto& bypass : flow_.bypasses_) {
      to = to.subspan(bypass->carry(job, to, train));
      if (to.empty()) return;
    }
    flow_.base_->carry(job, to, train);
  }

  SwitchFlow& flow_;
  std::vector<Group> groups_;
  std::vector<iovec> datagrams_;
  std::vector<Address> destinations_;
  std::vector<std::pair<Address, std::uint16_t>> welcomed_;
};

// What comes in goes to the machine, batch by batch; what that makes due is sent before the next one.
class SwitchFlow::Intake final : public Inbox {
 public:
  Intake(SwitchFlow& flow, bool takes_turns) : flow_(flow), takes_turns_(takes_turns) {}

  void take(std::span<const Arrival> batch) override {
    const double now = monotonic_now();
    const auto use = [this, now](std::span<const Arrival> arrivals) { flow_.machine_.receive_datagrams(arrivals, now); };
    if (flow_.in_use())
      without_doorbells(batch, use);
    else
      use(batch);
    count(batch);
  }

  void skip(std::span<const Arrival> batch) override { count(batch); }

  void respond() override {
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

void SwitchFlow::start() { thread_.start([this] { run(); }); }

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

// As WorkerFlow::linger, after a round of work only: what is idle stays asleep.
bool SwitchFlow::linger() {
  const auto worth_waking = [this] {
    const std::lock_guard lock(turnstile_);
    return std::ranges::any_of(bypasses_, [](const auto& bypass) { return bypass->worth_waking(); });
  };
  {
    const std::lock_guard lock(turnstile_);
    if (!in_use()) return false;
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

// The lock is taken anew for each step: whoever waits for it, for a verb of the server, has his turn in between.
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
      for (const auto& bypass : bypasses_) bypass->gone(event->job, event->worker);
    on_event_(*event);
  }
}

void SwitchFlow::send(double now) {
  // Events first: who has heard a WELCOME can rely on it that the joining was reported before anything that follows.
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
  const auto found = std::ranges::find_if(bypasses_, [&](const auto& bypass) { return bypass->offer_bytes(spec) != 0; });
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
  } catch (const std::system_error&) {  // no memory to be had for it: the base carrier does
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
