#include "io/worker_threads.hpp"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>

#include "io/process_owned.hpp"

namespace fanin {

namespace {

constexpr std::size_t MAX_THREADS = 4;
constexpr int MAX_EVENTS = 64;

// The threads of one process. Never destroyed, because engines may outlive static objects at exit.
struct Threads {
  std::uint32_t at_forks = forks();
  std::mutex lock;
  std::vector<std::shared_ptr<WorkerThread>> running;
};

// A forked child creates its own set, without locking: its copy of a lock may be locked for ever.
Threads& threads() {
  static std::atomic<Threads*> made{nullptr};
  Threads* found = made.load();
  while (found == nullptr || found->at_forks != forks()) {
    auto fresh = std::make_unique<Threads>();
    if (made.compare_exchange_strong(found, fresh.get())) found = fresh.release();
  }
  return *found;
}

}  // namespace

// Counts the cores that this process may use, since a rank may be bound to a few of its host's cores.
std::size_t max_worker_threads() {
  cpu_set_t allowed;
  const bool known =
      sched_getaffinity(0, sizeof allowed, &allowed) == 0;  // not where the host has more than CPU_SETSIZE
  const auto cores = static_cast<std::size_t>(known ? CPU_COUNT(&allowed) : std::thread::hardware_concurrency());
  return std::clamp(cores, std::size_t{1}, MAX_THREADS);
}

WorkerThread::WorkerThread() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  if (epoll_ < 0) throw std::system_error(errno, std::generic_category(), "opening epoll");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = BELL;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, bell_.fd(), &event) != 0) {
    const int error = errno;
    ::close(epoll_);
    throw std::system_error(error, std::generic_category(), "epoll_ctl");
  }
  try {
    thread_ = std::thread([this] { run(); });
  } catch (...) {
    ::close(epoll_);
    throw;
  }
}

WorkerThread::~WorkerThread() {
  stop();
  ::close(epoll_);
}

std::uint64_t WorkerThread::add(Seated& seated) {
  const std::lock_guard lock(lock_);
  const std::uint64_t number = ++last_;
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = number;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, seated.fd(), &event) != 0)
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  seats_.emplace(number, Seat{&seated});
  bell_.ring();
  return number;
}

void WorkerThread::remove(std::uint64_t number) {
  std::unique_lock lock(lock_);
  const auto found = seats_.find(number);
  if (found == seats_.end()) return;
  epoll_ctl(epoll_, EPOLL_CTL_DEL, found->second.seated->fd(), nullptr);
  seats_.erase(found);
  turn_over_.wait(lock, [&] { return in_turn_ != number; });
}

std::size_t WorkerThread::seats() {
  const std::lock_guard lock(lock_);
  return seats_.size();
}

void WorkerThread::stop() {
  {
    const std::lock_guard lock(lock_);
    stopping_ = true;
  }
  bell_.ring();
  if (thread_.joinable()) thread_.join();
}

void WorkerThread::run() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals are the main thread's
  pthread_setname_np(pthread_self(), "fanin-worker");
  for (;;) {
    wait();
    {
      const std::lock_guard lock(lock_);
      if (stopping_) return;
      due_.clear();
      for (const auto& [number, seat] : seats_) {
        if (seat.woken || seat.busy) due_.push_back(number);
      }
    }
    for (const std::uint64_t number : due_) take_turn(number);
  }
}

// Waits until a flow's turn is due, and notes which flows were woken.
void WorkerThread::wait() {
  int timeout_ms = -1;
  {
    const std::lock_guard lock(lock_);
    const auto busy = std::ranges::count_if(seats_, [](const auto& entry) { return entry.second.busy; });
    // If all flows are busy, their turns need no system call.
    if (busy > 0 && static_cast<std::size_t>(busy) == seats_.size()) return;
    if (busy > 0) timeout_ms = 0;
  }
  epoll_event events[MAX_EVENTS];
  const int count = epoll_wait(epoll_, events, MAX_EVENTS, timeout_ms);
  const std::lock_guard lock(lock_);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == BELL) {
      bell_.silence();
    } else if (const auto found = seats_.find(events[i].data.u64); found != seats_.end()) {
      found->second.woken = true;
    }
  }
}

void WorkerThread::take_turn(std::uint64_t number) {
  Seated* seated = nullptr;
  bool woken = false;
  {
    const std::lock_guard lock(lock_);
    const auto found = seats_.find(number);
    if (found == seats_.end()) return;  // the flow has left
    seated = found->second.seated;
    woken = found->second.woken;
    found->second.woken = false;
    in_turn_ = number;
  }
  const bool busy = seated->turn(woken);
  const std::lock_guard lock(lock_);
  in_turn_ = BELL;
  if (const auto found = seats_.find(number); found != seats_.end()) found->second.busy = busy;
  turn_over_.notify_all();
}

void WorkerSeat::take(Seated& seated) {
  const std::lock_guard lock(lock_);
  if (thread_ || left_) return;
  Threads& all = threads();
  const std::lock_guard choosing(all.lock);
  const auto fewest = std::ranges::min_element(all.running, {}, [](const auto& each) { return each->seats(); });
  const bool shared = all.running.size() >= max_worker_threads();
  std::shared_ptr<WorkerThread> chosen = shared ? *fewest : std::make_shared<WorkerThread>();
  number_ = chosen->add(seated);
  if (!shared) all.running.push_back(chosen);
  thread_ = std::move(chosen);
}

void WorkerSeat::leave() {
  const std::lock_guard lock(lock_);
  left_ = true;
  if (!thread_) return;
  thread_->remove(number_);
  bool last = false;
  {
    Threads& all = threads();
    const std::lock_guard choosing(all.lock);
    const auto found = std::ranges::find(all.running, thread_);
    last = found != all.running.end() && thread_->seats() == 0;
    if (last) all.running.erase(found);
  }
  if (last) thread_->stop();
  thread_.reset();
}

}  // namespace fanin
