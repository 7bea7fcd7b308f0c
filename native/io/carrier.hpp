// Carriers move datagrams between a worker's flow and a switch's flow. Flows know them by the interfaces of this file
// only.
//
// A flow has one base carrier, which reaches any address and wakes sleeping peers (UDP), and any number of bypasses,
// which reach some peers at less cost (shared memory, between processes of one machine). Datagrams have the same bytes
// on every carrier, so that the machines know nothing of carriers. Rules of the flows:
//
// * A datagram goes by the first bypass that reaches its destination and has room for it, otherwise by the base
//   carrier; a result may go to some destinations by one and to others by another. No datagram waits for room.
// * HELLO goes by the base carrier, because it has to prove that path. Overdue packets do as well, because the base
//   carrier wakes the switch and does not depend on memory that other processes may have corrupted.
// * A thread that polls descriptors sleeps in poll and is woken by the base carrier, with an empty datagram (a
//   doorbell). A thread that reads bypasses alone sleeps on a bypass's bell.
// * A bypass that breaks is dropped by its flow: all datagrams go by the base carrier then, and lost ones are sent
//   again.
//
// Calls are per batch where the machine allows it: `receive` hands over batches, `carry` takes trains. The worker's
// machine writes its packets one by one, straight into memory of the carrier (`reserve`, `commit`).
//
// How to add one: a file pair, and a row in carriers.cpp. tests/carriers runs the same cases over every row.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/bell.hpp"
#include "wire/job.hpp"
#include "wire/sinks.hpp"
#include "io/socket_address.hpp"

namespace fanin {

using CarrierCounters = std::vector<std::pair<std::string, std::uint64_t>>;

constexpr Address THE_SWITCH = 0;  // the switch's number in a worker's machine, by every carrier

// Adds counters of the same names in the same order; an empty total becomes a copy of them.
inline void add_counters(CarrierCounters& total, const CarrierCounters& more) {
  if (total.empty()) {
    total = more;
    return;
  }
  for (std::size_t i = 0; i < total.size(); ++i) total[i].second += more[i].second;
}

// Receives a carrier's datagrams. For each batch, the carrier calls `take`, releases the batch's memory, and calls
// `respond`, so that the other side has room again before more is sent.
class Inbox {
 public:
  virtual void take(std::span<const Arrival> batch) = 0;
  virtual void skip(std::span<const Arrival> batch) = 0;  // from unknown senders: dropped, but counted as work
  virtual void respond() = 0;

 protected:
  ~Inbox() = default;
};

// Calls `use` with the parts of `batch` between empty datagrams, which are doorbells and need no handling.
template <typename Use>
void without_doorbells(std::span<const Arrival> batch, Use use) {
  while (!batch.empty()) {
    const auto rang = std::ranges::find_if(batch, [](const Arrival& arrival) { return arrival.bytes.empty(); });
    const auto before = static_cast<std::size_t>(rang - batch.begin());
    if (before != 0) use(batch.first(before));
    batch = batch.subspan(std::min(before + 1, batch.size()));
  }
}

// Bytes received between two responses of a flow: about as many as make room for a train.
inline constexpr std::size_t RESPOND_AFTER_BYTES = 60'000;
// Limits of a train: packets that a flow hands to a carrier at once (SwitchCarrier::carry).
inline constexpr std::size_t TRAIN_PACKETS = 64;
inline constexpr std::size_t TRAIN_BYTES = 65'536;

// --- a worker's end ---

class WorkerCarrier {
 public:
  virtual ~WorkerCarrier() = default;

  // Room for one datagram of `bytes`, empty when there is none now. The base carrier always has room.
  virtual std::span<std::uint8_t> reserve(std::size_t bytes) = 0;
  // Room for a datagram at an offset from the start of SwitchCarrier::images; empty if there are no images, or no room.
  virtual std::span<std::uint8_t> reserve_image(std::size_t, std::size_t) { return {}; }
  virtual void commit(std::size_t bytes) = 0;            // the datagram is complete in the span last reserved
  virtual std::span<std::uint8_t> last() { return {}; }  // as WorkerSink::last
  // Sends the committed datagrams. True: the switch may be asleep, and this carrier cannot wake it.
  virtual bool flush() = 0;

  // Hands received datagrams to `inbox`, a bounded number of batches; false if there may be more.
  virtual bool receive(Inbox& inbox) = 0;
  virtual bool has_more() const { return false; }  // as far as can be told without a system call
  virtual bool all_here() const { return false; }  // every worker of the job has this carrier, none needs a network

  // Announces that this worker is about to sleep, then checks again: false if something has come. See
  // shared_memory.hpp.
  virtual bool may_sleep(Sleep) { return true; }
  virtual void awake() {}
  virtual Bell bell() const {
    return {};
  }  // bell for a thread that reads this bypass alone; valid as long as the carrier exists

  virtual bool works() const = 0;  // false after `close`, or once the other side has broken the rules
  virtual void close() = 0;        // ends reading here, so that the other side need not leave room

  virtual CarrierCounters counters() const = 0;
  virtual std::uint64_t send_ns() const { return 0; }  // time spent in system calls that send
  virtual std::size_t buffer_bytes() const { return 0; }
};

class WorkerBase : public WorkerCarrier {
 public:
  virtual int fd() const = 0;  // readable when there is something to receive
  // Called with each train before it is sent (WorkerSink::tags_later).
  using Tag = std::function<void(std::span<const iovec> train)>;
  virtual void tag_with(Tag tag) = 0;
  virtual void ring() = 0;                // wakes a switch that sleeps in poll
  virtual void go_ahead(bool ahead) = 0;  // as WorkerSink::go_ahead
  virtual void be_capable() {}  // sends as ECN-capable from now on: marked instead of dropped (fanin/protocol/ecn.py)
  virtual int receive_buffer_bytes() const = 0;
  virtual std::uint64_t overflows() const = 0;  // datagrams that found the receive buffer full
  virtual std::string trouble() const = 0;      // the operating system's last error in words; empty without one
};

// --- the switch's end ---

// Services of a flow for its carriers. All calls come with the flow's lock held.
class CarrierHost {
 public:
  virtual std::optional<Address> source(std::uint16_t job, std::uint32_t worker) const = 0;
  virtual std::uint32_t missing(std::uint16_t job) const = 0;        // as SwitchMachine::missing
  virtual std::uint32_t slots_in_step(std::uint16_t job) const = 0;  // 0 also where there is no such job
  virtual bool ring(Address number) = 0;                             // as SwitchBase::ring
  virtual bool is_parent(Address number) const = 0;                  // of this switch, as a leaf
  // For memory in SwitchCarrier::lasting: whether contributions in it are still to be added; `let_go`: adds them,
  // because the memory is about to be reused.
  virtual bool waits_in(std::uint16_t job, std::span<const std::uint8_t> memory) const = 0;
  virtual void let_go(std::uint16_t job, std::span<const std::uint8_t> memory) = 0;

 protected:
  ~CarrierHost() = default;
};

class SwitchCarrier {
 public:
  virtual ~SwitchCarrier() = default;

  // Sends a train to the destinations that this carrier reaches, moves these to the front, and returns their number. 0
  // also if there was no room for the whole train: the next carrier then sends all of it again.
  virtual std::size_t carry(std::uint16_t job, std::span<Address> destinations, std::span<iovec> train) = 0;
  virtual void idle() {}  // nothing is left to read: wakes sleeping workers for which there are results

  // --- offers to the workers of a job; the base carrier needs none, since workers know its port ---
  virtual std::uint64_t offer_bytes(const JobSpec&) const { return 0; }  // memory that an offer takes; 0: makes none
  virtual std::string offer(const JobSpec&) { return ""; }               // its path; throws std::system_error
  // Memory of the offer for the images of the job's results (SlotRing::use_images), which need not be copied then.
  // Null: none.
  virtual std::shared_ptr<std::uint8_t> images(std::uint16_t) { return nullptr; }
  // Memory in which datagrams of the job's workers stay after `take`, until CarrierHost::let_go is called; mapped as
  // long as the images are.
  virtual std::span<const std::uint8_t> lasting(std::uint16_t) { return {}; }
  virtual void withdraw(std::uint16_t) {}
  virtual void joined(Address, std::uint16_t) {}        // a WELCOME is about to be sent to a member of a job
  virtual void detach(std::uint16_t, std::uint32_t) {}  // a worker of a job no longer reads
  virtual void remove(std::uint16_t) {}                 // removes a job, with all state of its members

  virtual CarrierCounters counters() const = 0;
};

class SwitchBase : public SwitchCarrier {
 public:
  virtual std::uint16_t port() const = 0;
  virtual int receive_buffer_bytes() const = 0;
  virtual Address number_of_parent(const SocketAddress& address) = 0;  // never forgotten
  virtual bool ring(Address number) = 0;  // wakes a worker that sleeps in poll; false where it has no path of its own
  virtual void serve(std::uint64_t key, Inbox& inbox) = 0;  // reads the descriptor of `key`, which is readable
  virtual void vacated(Address, std::uint16_t) = 0;         // no worker of the job has this address any more
  virtual void handle_timer(double now) = 0;                // called after every turn of the loop
  virtual void close() = 0;
  virtual std::uint64_t overflows() const = 0;  // datagrams that found a receive buffer full
  virtual std::uint64_t flooded() const = 0;    // datagrams of strangers beyond their allowance
};

class SwitchBypass : public SwitchCarrier {
 public:
  virtual bool receive(Inbox& inbox) = 0;  // hands over a bounded number of batches; false if there may be more
  virtual bool in_use() const = 0;         // whether it is offered to any job, so that doorbells may come
  virtual bool all_here() const = 0;       // whether all workers of some job use it, so that lingering may pay
  virtual bool worth_waking() = 0;         // whether so much has come that a round may close
  // Announces that the switch is about to sleep, then checks again: false if something has come.
  virtual bool may_sleep() = 0;
  virtual void awake() = 0;
};

}  // namespace fanin
