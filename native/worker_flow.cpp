#include "worker_flow.hpp"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "wire_constants.hpp"

namespace fanin {

// The machine quantizes into this buffer; the kernel copies from it. That is all the copying there is.
class WorkerFlow::Outbox final : public WorkerSink {
 public:
  explicit Outbox(WorkerFlow& flow) : flow_(flow) {}

  std::span<std::uint8_t> reserve(std::size_t bytes) override {
    if (flow_.shared_ && !by_socket_ && flow_.machine_.ready()) {  // before that, HELLO has to prove the path
      const std::span<std::uint8_t> room = flow_.shared_->reserve_uplink(flow_.worker_, bytes);
      in_shared_memory_ = !room.empty();
      if (in_shared_memory_) return room;
    }
    if (used_ + bytes > capacity() || count_ == MAX_TRAIN_PACKETS) flush();
    return {buffer_.data() + used_, bytes};
  }

  void commit(std::size_t bytes) override {
    if (in_shared_memory_) {
      flow_.shared_->commit_uplink(bytes);
      ++flow_.counters_.shared_out;
      unannounced_bytes_ += bytes;
      in_shared_memory_ = false;
      return;
    }
    datagrams_[count_++] = {buffer_.data() + used_, bytes};
    used_ += bytes;
  }

  // From here on, whether everything goes through the socket.
  void use_socket(bool only) { by_socket_ = only; }

  void flush() {
    if (count_ > 0) send_datagrams(flow_.socket_, std::span(datagrams_).first(count_), flow_.counters_);
    used_ = 0;
    count_ = 0;
    if (unannounced_bytes_ == 0) return;
    if (flow_.shared_->rouses_switch(flow_.worker_, unannounced_bytes_ >= SharedMemory::MUCH_BYTES)) {
      flow_.socket_.send_empty();
      ++flow_.counters_.doorbells;
    }
    unannounced_bytes_ = 0;
  }

 private:
  std::size_t capacity() const {
    return flow_.socket_.train_bytes() > 0 ? flow_.socket_.train_bytes() : MAX_DATAGRAM_BYTES;
  }

  WorkerFlow& flow_;
  std::vector<std::uint8_t> buffer_ = std::vector<std::uint8_t>(MAX_DATAGRAM_BYTES);
  std::array<iovec, MAX_TRAIN_PACKETS> datagrams_{};
  std::size_t used_ = 0;
  std::size_t count_ = 0;
  bool in_shared_memory_ = false;  // where the span last reserved is
  bool by_socket_ = false;
  std::size_t unannounced_bytes_ = 0;  // written there, that the switch may be asleep to
};

namespace {

UdpSocket connected_socket(const SocketAddress& address, const UdpOptions& options) {
  UdpSocket socket(address.family(), options);
  socket.connect(address);
  return socket;
}

bool ends_the_flow(const WorkerEvent& event) {
  return std::holds_alternative<WorkersGone>(event) || std::holds_alternative<SwitchSilent>(event) ||
         std::holds_alternative<Refused>(event);
}

}  // namespace

WorkerFlow::WorkerFlow(const JobSpec& spec, std::uint32_t worker, std::uint64_t token, std::uint32_t flow,
                       std::uint32_t flow_count, const SocketAddress& address, const UdpOptions& options,
                       double connect_timeout_s, std::optional<SharedMemory> shared, bool newcomer,
                       Listener listener)
    : address_(address),
      listener_(std::move(listener)),
      socket_(connected_socket(address, options)),
      receive_buffer_bytes_(socket_.receive_buffer_bytes()),
      machine_(spec, worker, SWITCH, token, flow, flow_count, connect_timeout_s, newcomer),
      worker_(worker),
      shared_(std::move(shared)),
      outbox_(std::make_unique<Outbox>(*this)) {
  poller_.watch(socket_.fd(), SWITCH);
  if (shared_) {
    shared_->attach(worker_);
    downlink_ = shared_->downlink(worker_);
    bell_ = shared_->bell();
  }
}

WorkerFlow::~WorkerFlow() { close(); }

void WorkerFlow::start() {
  thread_.start([this] { run(); });
  poller_.ring();  // to say HELLO
}

void WorkerFlow::run() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are the main thread's
  pthread_setname_np(pthread_self(), "fanin-worker");
  bool drained = true;
  while (!closing_.load()) {
    if (drained) sleep();
    drained = pump(true);
    if (driven_.load()) ring_driver();  // what it waits for may have come in here, or it may count as awake by mistake
  }
}

void WorkerFlow::ring_driver() {
  if (bell_) return bell_.ring(std::uint32_t{1} << worker_);
  driver_bell_.ring();
}

// `reads_socket`: whether the socket is the calling thread's, too.
bool WorkerFlow::pump(bool reads_socket) {
  bool drained = true;
  std::optional<WorkerEvent> failure;
  {
    const std::lock_guard lock(turnstile_);
    if (!socket_.is_open()) {  // halted: only the bell rings now
      give_up_sharing();
      return true;
    }
    if (reads_socket) drained = receive();
    if (shared_) drained = receive_shared() && drained;
    const double now = monotonic_now();
    const std::optional<double> timer = machine_.next_timer();
    const bool overdue = timer && *timer <= now;
    if (overdue) machine_.handle_timer(now);
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
  driven_.store(true);  // before finished() is asked: see run()
  watch_socket(false);
  count_as_awake();  // the thread may go on sleeping: results need not wake it
  bool drained = true;
  while (!finished() && !closing_.load() && monotonic_now() < deadline_s) {
    if (drained && !linger()) drowse(finished, deadline_s);
    drained = pump(!bell_);
  }
  driven_.store(false);
  watch_socket(true);
  if (!may_sleep(Sleep::in_poll)) poller_.ring();  // there is more already, for the thread
  return true;
}

// With shared memory the thread keeps the socket, through which little comes then. Without, whoever drives watches it.
void WorkerFlow::watch_socket(bool by_thread) {
  if (bell_) return;
  const std::lock_guard lock(turnstile_);
  if (socket_.is_open()) poller_.set_watched(socket_.fd(), SWITCH, by_thread);
  driver_fd_ = socket_.fd();
}

// Sleeps until something has come. The thread minds the timers, and wakes the driver after whatever it has done itself.
void WorkerFlow::drowse(const std::function<bool()>& finished, double deadline_s) {
  if (bell_) {
    const std::uint32_t seen = bell_.read();
    if (!finished() && may_sleep(Sleep::on_bell)) bell_.wait(seen, std::uint32_t{1} << worker_, deadline_s);
  } else {
    const double left_s = std::max(deadline_s - monotonic_now(), 0.0);
    pollfd waiting[] = {{driver_fd_, POLLIN, 0}, {driver_bell_.fd(), POLLIN, 0}};
    poll(waiting, 2, static_cast<int>(std::min(std::ceil(left_s * 1e3), 1e6)));
    if (waiting[1].revents != 0) driver_bell_.silence();
  }
  count_as_awake();
}

bool WorkerFlow::receive() {
  std::size_t bytes = 0;
  for (int i = 0; i < BATCHES_PER_WAKE; ++i) {
    const std::span<const Received> batch = batch_.fill(socket_, counters_);
    const double now = monotonic_now();
    for (const Received& received : batch) {
      if (shared_ && received.bytes.empty()) continue;  // a doorbell: it has done its work
      machine_.receive_datagram(received.bytes, SWITCH, now);
      bytes += received.bytes.size();
    }
    if (!batch_.may_have_more()) return true;
    if (bytes < SEND_AFTER_BYTES) continue;
    send(now);
    bytes = 0;
  }
  return false;
}

bool WorkerFlow::receive_shared() {
  std::size_t bytes = 0;
  const std::uint32_t mine = std::uint32_t{1} << worker_;
  for (int i = 0; i < SHARED_DATAGRAMS_PER_WAKE; ++i) {
    const std::span<const std::uint8_t> datagram = downlink_.front(mine);
    if (datagram.empty()) {
      if (downlink_.broken()) {  // from here on everything goes by UDP; what is missing is resent
        ++counters_.shared_broken;
        shared_->detach(worker_);
        give_up_sharing();
      }
      return true;
    }
    const double now = monotonic_now();
    machine_.receive_datagram(datagram, SWITCH, now);
    bytes += datagram.size();
    downlink_.pop();
    ++counters_.shared_in;
    if (bytes < SEND_AFTER_BYTES) continue;
    send(now);
    bytes = 0;
  }
  return false;
}

// Gives the processor to others for a moment, on the chance that the result comes meanwhile: where a round trip takes
// less than going to sleep and being woken, that is the quicker way.
bool WorkerFlow::linger() {
  const double until = monotonic_now() + LINGER_S;
  do {
    sched_yield();
    const std::lock_guard lock(turnstile_);
    if (!shared_) return false;
    if (downlink_.has_more()) return true;
  } while (monotonic_now() < until);
  return false;
}

// Says that this worker sleeps and looks once more: see native/shared_memory.hpp.
bool WorkerFlow::may_sleep(Sleep how) {
  const std::lock_guard lock(turnstile_);
  if (!shared_) return true;
  shared_->worker_sleeps(worker_, how);
  if (!downlink_.has_more()) return true;
  shared_->worker_sleeps(worker_, Sleep::awake);
  return false;
}

void WorkerFlow::count_as_awake() {
  const std::lock_guard lock(turnstile_);
  if (shared_) shared_->worker_sleeps(worker_, Sleep::awake);
}

// While somebody drives, that thread says who sleeps. Waking too many does no harm.
void WorkerFlow::sleep() {
  if (!driven_.load() && !may_sleep(Sleep::in_poll)) return;
  poller_.wait();
  if (!driven_.load()) count_as_awake();
}

// The memory stays mapped: somebody may be about to wait on the bell in it.
void WorkerFlow::give_up_sharing() {
  if (!shared_) return;
  retired_.emplace(std::move(*shared_));
  shared_.reset();
}

// `overdue`: what is sent has waited. It goes through the socket, which wakes the switch, and does not depend on what others
// may have written to shared memory.
void WorkerFlow::send(double now, bool overdue) {
  const double began_s = monotonic_now();
  const std::uint64_t sending_ns = counters_.send_ns;
  outbox_->use_socket(overdue);
  machine_.datagrams_to_send(now, *outbox_);
  outbox_->flush();
  outbox_->use_socket(false);
  const auto took_ns = static_cast<std::uint64_t>((monotonic_now() - began_s) * 1e9);
  packing_ns_ += took_ns - std::min(took_ns, counters_.send_ns - sending_ns);
}

std::optional<WorkerEvent> WorkerFlow::report() {
  std::optional<WorkerEvent> failure;
  while (const std::optional<WorkerEvent> event = machine_.next_event()) {
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
    if (machine_.failed()) return;  // the listener knows, or is about to
    machine_.submit(reduction);
    if (socket_.is_open()) {
      send(monotonic_now());
      failure = report();
      poller_.alarm_at(machine_.next_timer());
    }
  }
  if (failure) listener_.on_failure(*failure);
}

void WorkerFlow::leave() {
  const std::lock_guard lock(turnstile_);
  if (!socket_.is_open()) return;
  const double now = monotonic_now();
  machine_.leave(now);
  send(now);
  poller_.alarm_at(machine_.next_timer());
}

void WorkerFlow::begin(std::uint32_t base) {
  const std::lock_guard lock(turnstile_);
  if (!socket_.is_open()) return;
  machine_.begin(base);
  send(monotonic_now());
  poller_.alarm_at(machine_.next_timer());
}

void WorkerFlow::halt() {
  const std::lock_guard lock(turnstile_);
  if (!socket_.is_open()) return;
  overflows_at_halt_ = socket_.dropped_by_kernel();
  socket_.close();
  if (shared_) shared_->detach(worker_);  // others need not leave room for what it does not read
}

void WorkerFlow::close() {
  closing_.store(true);
  halt();
  poller_.ring();
  if (driven_.load()) ring_driver();
  thread_.join();
}

std::pair<WorkerCounters, UdpCounters> WorkerFlow::counters() {
  const std::lock_guard lock(turnstile_);
  return {machine_.counters(), counters_};
}

std::uint64_t WorkerFlow::packing_us() {
  const std::lock_guard lock(turnstile_);
  return packing_ns_ / 1000;
}

std::uint64_t WorkerFlow::socket_overflows() {
  const std::lock_guard lock(turnstile_);
  return socket_.is_open() ? socket_.dropped_by_kernel() : overflows_at_halt_;
}

bool WorkerFlow::shares_memory() {
  const std::lock_guard lock(turnstile_);
  return shared_.has_value();
}

std::size_t WorkerFlow::buffer_bytes() {
  const std::lock_guard lock(turnstile_);
  return machine_.buffer_bytes() + RECEIVE_SLOTS * RECEIVE_SLOT_BYTES + MAX_DATAGRAM_BYTES;
}

std::string WorkerFlow::trouble() {
  const std::lock_guard lock(turnstile_);
  if (counters_.last_error == 0) return "";
  if (counters_.last_error == ECONNREFUSED) return "nobody listens at UDP " + address_.text() + " (connection refused)";
  return "UDP " + address_.text() + ": " + std::strerror(counters_.last_error);
}

}  // namespace fanin
