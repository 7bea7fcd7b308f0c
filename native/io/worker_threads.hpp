// The threads that move the packets of this process's flows, whatever the number of engines that the flows belong to.
//
// A program makes a group, and so an engine, for each dimension of its mesh, and sums over few of them at a time. So
// the number of threads does not grow with the groups: each flow has a seat at one of a few threads, the one with the
// fewest flows. The flows of one engine have seats at different threads, as far as there are cores.
//
// A flow gets a turn when its poller, which is nested in the thread's poller, is readable, and again as long as its
// turns leave work. Turns are bounded and rotate, so that a busy flow delays no other. The first flow starts a thread,
// and the last one that leaves waits for the thread's end. A child of fork() has none of its parent's threads and
// starts its own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "io/event_fd.hpp"

namespace fanin {

// A flow with a seat.
class Seated {
 public:
  virtual ~Seated() = default;
  virtual int fd() const = 0;  // readable when a turn is due
  // Does the work that is due. `woken`: the descriptor was readable. True: there may be more, without a wake-up for it.
  virtual bool turn(bool woken) = 0;
};

class WorkerThread {
 public:
  WorkerThread();   // throws std::system_error
  ~WorkerThread();  // after `stop`
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  std::uint64_t add(Seated& seated);
  void remove(std::uint64_t number);  // no turn is under way once this returns; never called from within a turn
  std::size_t seats();
  void stop();  // waits for its end

 private:
  static constexpr std::uint64_t BELL = 0;  // seats count from 1
  struct Seat {
    Seated* seated;
    bool woken = false;
    bool busy = true;  // a new one has its first turn at once
  };

  void run();
  void wait();
  void take_turn(std::uint64_t number);

  EventFd bell_;
  int epoll_ = -1;
  std::vector<std::uint64_t> due_;  // the thread's own
  std::mutex lock_;                 // guards everything below
  std::condition_variable turn_over_;
  std::map<std::uint64_t, Seat> seats_;
  std::uint64_t last_ = BELL;
  std::uint64_t in_turn_ = BELL;
  bool stopping_ = false;
  std::thread thread_;
};

// A flow's seat: taken at most once, and given up by whoever closes the flow, from any thread.
class WorkerSeat {
 public:
  ~WorkerSeat() { leave(); }
  // Takes a seat, unless one was taken or left before. Throws std::system_error.
  void take(Seated& seated);
  // Leaves the seat; no turn comes any more when this returns, also for other threads that call this meanwhile.
  void leave();

 private:
  std::mutex lock_;
  std::shared_ptr<WorkerThread> thread_;
  std::uint64_t number_ = 0;
  bool left_ = false;
};

// Most threads for the flows of a process: the number of cores that it may use, up to a bound, since the ranks of a
// host share its cores.
std::size_t max_worker_threads();

}  // namespace fanin
