#include "io/worker_flow.hpp"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "wire/packet.hpp"
#include "machine/slot_ring.hpp"

namespace fanin {

// Writes the machine's packets into the first carrier that has room.
class WorkerFlow::Outbox final : public WorkerSink {
 public:
  Outbox(WorkerFlow& flow, const JobSpec& spec) : flow_(flow), spec_(spec) {}

  // Overdue packets go by the base carrier alone, which wakes the switch and does not depend on memory that others may
  // have corrupted. All packets do until the switch has answered a HELLO, which has to prove that path.
  void begin(bool overdue) { bypassing_ = !overdue && flow_.machine_.ready(); }

  std::span<std::uint8_t> reserve(std::size_t bytes) override {
    if (bypassing_) {
      for (WorkerCarrier* const bypass : flow_.bypasses_) {
        const std::span<std::uint8_t> room = bypass->reserve(bytes);
        if (room.empty()) continue;
        reserved_ = bypass;
        return room;
      }
    }
    reserved_ = flow_.base_.get();
    return reserved_->reserve(bytes);
  }

  std::span<std::uint8_t> reserve_sole(std::uint32_t slot, std::uint32_t base, std::size_t bytes) override {
    if (bypassing_) {
      const std::size_t at = SlotRing::words_at(spec_, slot, base) - HEADER_BYTES;
      for (WorkerCarrier* const bypass : flow_.bypasses_) {
        const std::span<std::uint8_t> room = bypass->reserve_image(at, bytes);
        if (room.empty()) continue;
        reserved_ = bypass;
        return room;
      }
    }
    return reserve(bytes);
  }

  // Only the base carrier has a device queue in which to go ahead.
  void go_ahead(bool ahead) override { flow_.base_->go_ahead(ahead); }
  void commit(std::size_t bytes) override { reserved_->commit(bytes); }
  std::span<std::uint8_t> last() override {
    return reserved_ != nullptr ? reserved_->last() : std::span<std::uint8_t>{};
  }
  // The base carrier adds tags per train; datagrams of a bypass need none.
  bool tags_later() const override { return true; }

  void flush() {
    flow_.base_->flush();
    for (WorkerCarrier* const bypass : flow_.bypasses_) {
      if (bypass->flush()) flow_.base_->ring();
    }
  }

 private:
  WorkerFlow& flow_;
  const JobSpec spec_;
  WorkerCarrier* reserved_ = nullptr;
  bool bypassing_ = false;
};

// Hands incoming datagrams to the machine. Responses go out whenever there may be a train of them: even to a result
// without words, the response may be a contribution of full length.
class WorkerFlow::Intake final : public Inbox {
 public:
  Intake(WorkerFlow& flow, const JobSpec& spec)
      : flow_(flow), packet_bytes_(datagram_bytes(spec.codes_per_packet, spec.words_per_packet)) {}

  void take(std::span<const Arrival> batch) override {
    const double now = monotonic_now();
    const auto use = [this, now](std::span<const Arrival> arrivals) {
      flow_.machine_.receive_datagrams(arrivals, now);
      unanswered_bytes_ += arrivals.size() * packet_bytes_;
    };
    if (flow_.bypasses_.empty())
      use(batch);
    else
      without_doorbells(batch, use);
    if (flow_.machine_.capable() && !std::exchange(capable_, true)) flow_.base_->be_capable();
    flow_.decoding_ns_ += static_cast<std::uint64_t>((monotonic_now() - now) * 1e9);
  }

  void skip(std::span<const Arrival>) override {}

  void respond() override {
    if (unanswered_bytes_ < RESPOND_AFTER_BYTES) return;
    flow_.send(monotonic_now());
    unanswered_bytes_ = 0;
  }

  void begin() { unanswered_bytes_ = 0; }

 private:
  WorkerFlow& flow_;
  std::size_t packet_bytes_;
  std::size_t unanswered_bytes_ = 0;
  bool capable_ = false;  // whether be_capable was called for the base carrier
};

namespace {

bool ends_the_flow(const WorkerEvent& event) {
  return std::holds_alternative<WorkersGone>(event) || std::holds_alternative<SwitchSilent>(event) ||
         std::holds_alternative<PathNarrowed>(event) || std::holds_alternative<PacketRefused>(event);
}

}  // namespace

WorkerFlow::WorkerFlow(const JobSpec& spec, const WorkerPath& path, std::uint32_t flow, std::uint32_t flow_count,
                       double connect_timeout_s, bool newcomer, Listener listener)
    : listener_(std::move(listener)),
      base_(BASE.open_worker(path)),
      machine_(spec, path.worker, SWITCH, path.token, flow, flow_count, connect_timeout_s, newcomer),
      outbox_(std::make_unique<Outbox>(*this, spec)),
      intake_(std::make_unique<Intake>(*this, spec)),
      my_bit_(std::uint32_t{1} << path.worker) {
  poller_.watch(base_->fd(), SWITCH);
  base_->tag_with([this](std::span<const iovec> train) { machine_.tag(train); });
  for (const BypassRow& row : fanin::bypasses()) {
    opened_.push_back(row.open_worker(path));
    WorkerCarrier* const bypass = opened_.back().get();
    if (bypass == nullptr) continue;
    bypasses_.push_back(bypass);
    if (!bell_) bell_ = bypass->bell();
  }
}

WorkerFlow::~WorkerFlow() { close(); }

void WorkerFlow::start() {
  seat_.take(*this);
  poller_.ring();  // makes the thread send HELLO
}

// While another thread drives the flow, that thread announces sleep. If it sleeps on a bell, wake it after every turn,
// because this turn may have marked the worker as awake, or as asleep in poll. Otherwise wake it only if an event was
// reported, since its result may have come, and not after every burst that pacing allows.
bool WorkerFlow::turn(bool woken) {
  if (closing_.load()) return false;
  if (woken && poller_.has_own_news()) poller_.look();  // `pump` reads the socket in any case
  const bool told_before = told_.exchange(false);
  if (!driven_.load()) count_as_awake();
  const bool drained = pump(true);
  if (driven_.load()) {
    if (bell_ || told_before || told_.load()) wake_driver();
    return !drained;
  }
  return !drained || !may_sleep(Sleep::in_poll);
}

void WorkerFlow::wake_driver() {
  if (bell_) return bell_.ring(my_bit_);
  driver_bell_.ring();
}

// `reads_base`: whether the base carrier is the calling thread's, too.
bool WorkerFlow::pump(bool reads_base) {
  bool drained = true;
  std::optional<WorkerEvent> failure;
  {
    const std::lock_guard lock(turnstile_);
    if (!base_->works()) {  // halted: only the bell rings now
      bypasses_.clear();
      return true;
    }
    intake_->begin();
    if (reads_base) drained = base_->receive(*intake_);
    intake_->begin();
    for (WorkerCarrier* const bypass : bypasses_) drained = bypass->receive(*intake_) && drained;
    drop_broken_bypasses();
    const double now = monotonic_now();
    const std::optional<double> timer = machine_.next_timer();
    const bool overdue = timer && *timer <= now;
    if (overdue) {
      send(now);  // packets that are not overdue may go by a bypass
      machine_.handle_timer(now);
    }
    send(now, overdue);
    failure = report();
    poller_.alarm_at(machine_.next_timer());
  }
  if (failure) listener_.on_failure(*failure);
  return drained;
}

bool WorkerFlow::drive(const std::function<bool()>& finished, double deadline_s) {
  const std::unique_lock driving(driver_, std::try_to_lock);
  if (!driving.owns_lock()) return false;
  driven_.store(true);  // before finished() is asked: see turn()
  watch_base(false);
  count_as_awake();  // so that results do not wake the thread, which may go on sleeping
  bool drained = true;
  while (!finished() && !closing_.load() && monotonic_now() < deadline_s) {
    if (drained && !linger()) wait_for_packets(finished, deadline_s);
    drained = pump(!bell_);
  }
  driven_.store(false);
  watch_base(true);
  if (!may_sleep(Sleep::in_poll)) poller_.ring();  // more has come, which the thread must handle
  return true;
}

// The poller is level-triggered, so that the thread would wake for every packet that the driver is about to read.
// Therefore it does not watch the descriptor while a driver does.
void WorkerFlow::watch_base(bool by_thread) {
  if (bell_) return;
  const std::lock_guard lock(turnstile_);
  if (base_->works()) poller_.set_watched(base_->fd(), SWITCH, by_thread);
  driver_fd_ = base_->fd();
}

// Makes the driver sleep until packets have come. The thread handles timers, and wakes the driver after its own turns.
void WorkerFlow::wait_for_packets(const std::function<bool()>& finished, double deadline_s) {
  if (bell_) {
    // Read before `finished` is asked: if the thread finishes it and rings in between, the word has changed, and the
    // wait returns at once.
    const std::uint32_t seen = bell_.read();
    if (!finished() && may_sleep(Sleep::on_bell)) bell_.wait(seen, my_bit_, deadline_s);
  } else {
    const double left_s = std::max(deadline_s - monotonic_now(), 0.0);
    pollfd waiting[] = {{driver_fd_, POLLIN, 0}, {driver_bell_.fd(), POLLIN, 0}};
    poll(waiting, 2, static_cast<int>(std::min(std::ceil(left_s * 1e3), 1e6)));
    if (waiting[1].revents != 0) driver_bell_.silence();
  }
  count_as_awake();
}

// Yields the processor for a moment, in the hope that the result comes meanwhile: this is faster if a round trip takes
// less time than going to sleep and being woken. It does not pay if rounds wait for a peer behind a network. Only
// bypasses are checked, because any other check costs a system call.
bool WorkerFlow::linger() {
  const auto has_more = [this] {
    const std::lock_guard lock(turnstile_);
    return std::ranges::any_of(bypasses_, [](const WorkerCarrier* bypass) { return bypass->has_more(); });
  };
  if (!bell_ || !all_here() || !lingering_.pays()) return false;
  const double until = monotonic_now() + Lingering::FOR_S;
  bool came = false;
  do {
    sched_yield();
    came = has_more();
  } while (!came && monotonic_now() < until);
  lingering_.ended(came);
  return came;
}

bool WorkerFlow::all_here() {
  const std::lock_guard lock(turnstile_);
  return std::ranges::any_of(bypasses_, [](const WorkerCarrier* bypass) { return bypass->all_here(); });
}

bool WorkerFlow::may_sleep(Sleep how) {
  const std::lock_guard lock(turnstile_);
  if (std::ranges::all_of(bypasses_, [how](WorkerCarrier* bypass) { return bypass->may_sleep(how); })) return true;
  // One bypass has more, but those before it were told that this worker sleeps.
  for (WorkerCarrier* const bypass : bypasses_) bypass->awake();
  return false;
}

void WorkerFlow::count_as_awake() {
  const std::lock_guard lock(turnstile_);
  for (WorkerCarrier* const bypass : bypasses_) bypass->awake();
}

void WorkerFlow::drop_broken_bypasses() {
  std::erase_if(bypasses_, [](const WorkerCarrier* bypass) { return !bypass->works(); });
}

void WorkerFlow::send(double now, bool overdue) {
  const double began_s = monotonic_now();
  const std::uint64_t sending_ns = send_ns();
  outbox_->begin(overdue);
  machine_.datagrams_to_send(now, *outbox_);
  outbox_->flush();
  const auto took_ns = static_cast<std::uint64_t>((monotonic_now() - began_s) * 1e9);
  packing_ns_ += took_ns - std::min(took_ns, send_ns() - sending_ns);
}

std::uint64_t WorkerFlow::send_ns() const {
  std::uint64_t ns = base_->send_ns();
  for (const WorkerCarrier* const bypass : bypasses_) ns += bypass->send_ns();
  return ns;
}

std::optional<WorkerEvent> WorkerFlow::report() {
  std::optional<WorkerEvent> failure;
  while (const std::optional<WorkerEvent> event = machine_.next_event()) {
    told_.store(true);
    if (ends_the_flow(*event))
      failure = event;
    else
      listener_.on_event(*event);
  }
  return failure;
}

void WorkerFlow::submit(const Reduction& reduction) {
  std::optional<WorkerEvent> failure;
  {
    const std::lock_guard lock(turnstile_);
    if (machine_.failed()) return;  // the failure has been, or is about to be, reported to the listener
    machine_.submit(reduction);
    if (base_->works()) {
      send(monotonic_now());
      failure = report();
      poller_.alarm_at(machine_.next_timer());
    }
  }
  if (failure) listener_.on_failure(*failure);
}

void WorkerFlow::leave() {
  const std::lock_guard lock(turnstile_);
  if (!base_->works()) return;
  const double now = monotonic_now();
  machine_.leave(now);
  send(now);
  poller_.alarm_at(machine_.next_timer());
}

void WorkerFlow::begin(std::uint32_t base) {
  const std::lock_guard lock(turnstile_);
  if (!base_->works()) return;
  machine_.begin(base);
  send(monotonic_now());
  poller_.alarm_at(machine_.next_timer());
}

void WorkerFlow::halt() {
  const std::lock_guard lock(turnstile_);
  if (!base_->works()) return;
  poller_.forget(base_->fd());  // a child of fork() may keep it open, so that packets would wake the thread for ever
  base_->close();
  for (WorkerCarrier* const bypass : bypasses_)
    bypass->close();  // so that the switch need not leave room for this worker
}

void WorkerFlow::close() {
  closing_.store(true);
  halt();
  poller_.ring();
  if (driven_.load()) wake_driver();
  seat_.leave();
}

WorkerCounters WorkerFlow::counters() {
  const std::lock_guard lock(turnstile_);
  return machine_.counters();
}

CarrierCounters WorkerFlow::carrier_counters() {
  const std::lock_guard lock(turnstile_);
  CarrierCounters all = base_->counters();
  const std::span<const BypassRow> rows = fanin::bypasses();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const CarrierCounters its = opened_[i] ? opened_[i]->counters() : rows[i].no_counters();
    all.insert(all.end(), its.begin(), its.end());
  }
  return all;
}

std::uint64_t WorkerFlow::packing_us() {
  const std::lock_guard lock(turnstile_);
  return packing_ns_ / 1000;
}

std::uint64_t WorkerFlow::decoding_us() {
  const std::lock_guard lock(turnstile_);
  return decoding_ns_ / 1000;
}

std::uint64_t WorkerFlow::overflows() {
  const std::lock_guard lock(turnstile_);
  return base_->overflows();
}

bool WorkerFlow::has_bypass() {
  const std::lock_guard lock(turnstile_);
  return !bypasses_.empty();
}

std::size_t WorkerFlow::buffer_bytes() {
  const std::lock_guard lock(turnstile_);
  std::size_t bytes = machine_.buffer_bytes() + base_->buffer_bytes();
  for (const WorkerCarrier* const bypass : bypasses_) bytes += bypass->buffer_bytes();
  return bytes;
}

std::string WorkerFlow::trouble() {
  const std::lock_guard lock(turnstile_);
  return base_->trouble();
}

}  // namespace fanin
