// Carriers move datagrams between a worker's flow and a switch's flow. Flows know them by the interfaces of this file
// only.
//
// A flow has one base carrier, which reaches anybody at an address and wakes who sleeps (UDP), and beside it any number
// of bypasses, which reach some peers at less cost (shared memory, between processes of one machine). Datagrams have
// the same bytes whatever carries them, so the machines know nothing of carriers. Rules of the flows:
//
// * A datagram goes by the first bypass that reaches its destination and has room for it, otherwise by the base
// carrier: of
//   the destinations of a result, some by this and some by that. Nothing waits for room.
// * HELLO goes by the base carrier, since it has to prove that path; overdue packets do as well, since that wakes the
// switch and
//   depends on nothing that other processes may have done to a bypass.
// * A thread that polls descriptors sleeps in poll and is woken by the base carrier, with an empty datagram (a
// doorbell). One
//   that reads bypasses alone sleeps on a bypass's bell.
// * A bypass that breaks is dropped by its flow: everything goes by the base carrier, and what was lost is sent again.
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

constexpr Address THE_SWITCH = 0;  // what a worker's machine calls it, by every carrier

// Adds counters of the same names in the same order, or takes them over where there are none yet.
inline void add_counters(CarrierCounters& total, const CarrierCounters& more) {
  if (total.empty()) {
    total = more;
    return;
  }
  for (std::size_t i = 0; i < total.size(); ++i) total[i].second += more[i].second;
}

// Where a carrier puts what it has received. For each batch it calls `take`, lets go of the batch's memory, and calls
// `respond`: so the other side finds room before it is sent more.
class Inbox {
 public:
  virtual void take(std::span<const Arrival> batch) = 0;
  virtual void skip(std::span<const Arrival> batch) = 0;  // from nobody who is known: dropped, but counts as work
  virtual void respond() = 0;

 protected:
  ~Inbox() = default;
};

// Hands `batch` on in parts without datagrams of no bytes, which rang a doorbell and have done their work.
template <typename Use>
void without_doorbells(std::span<const Arrival> batch, Use use) {
  while (!batch.empty()) {
    const auto rang = std::ranges::find_if(batch, [](const Arrival& arrival) { return arrival.bytes.empty(); });
    const auto before = static_cast<std::size_t>(rang - batch.begin());
    if (before != 0) use(batch.first(before));
    batch = batch.subspan(std::min(before + 1, batch.size()));
  }
}

// Received between two responses of a flow: about as much as makes room for a train.
inline constexpr std::size_t RESPOND_AFTER_BYTES = 60'000;
// What a flow hands to a carrier at once (SwitchCarrier::carry).
inline constexpr std::size_t TRAIN_PACKETS = 64;
inline constexpr std::size_t TRAIN_BYTES = 65'536;

// --- a worker's end ---

class WorkerCarrier {
 public:
  virtual ~WorkerCarrier() = default;

  // Room for one datagram of `bytes`, empty when there is none now. The base carrier always has room.
  virtual std::span<std::uint8_t> reserve(std::size_t bytes) = 0;
  // The same so many bytes behind the start of SwitchCarrier::images; empty where there are none, or no room.
  virtual std::span<std::uint8_t> reserve_image(std::size_t, std::size_t) { return {}; }
  virtual void commit(std::size_t bytes) = 0;            // it is complete in the span last reserved
  virtual std::span<std::uint8_t> last() { return {}; }  // as WorkerSink::last
  // Send the committed datagrams on their way. True: the switch may sleep where this carrier does not wake it.
  virtual bool flush() = 0;

  // Hands over what has come, a bounded number of batches; false when there may be more.
  virtual bool receive(Inbox& inbox) = 0;
  virtual bool has_more() const { return false; }  // as far as can be told without a system call
  virtual bool all_here() const { return false; }  // every worker of the job has this carrier, none needs a network

  // Says that this worker is about to sleep, then looks once more: false when it had better not. See shared_memory.hpp.
  virtual bool may_sleep(Sleep) { return true; }
  virtual void awake() {}
  virtual Bell bell() const {
    return {};
  }  // for a thread that reads this bypass alone; rings as long as the carrier exists

  virtual bool works() const = 0;  // false from `close` on, or once the other side has broken the rules
  virtual void close() = 0;        // nothing is read here any more: the other side need not leave room

  virtual CarrierCounters counters() const = 0;
  virtual std::uint64_t send_ns() const { return 0; }  // spent in system calls that send
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
  virtual void be_capable() {}  // from now on what is sent may be marked instead of dropped (fanin/protocol/ecn.py)
  virtual int receive_buffer_bytes() const = 0;
  virtual std::uint64_t overflows() const = 0;  // datagrams that found the receive buffer full
  virtual std::string trouble() const = 0;      // what the operating system last complained about, empty for nothing
};

// --- the switch's end ---

// Services of a flow for its carriers. All calls come with the flow's lock held.
class CarrierHost {
 public:
  virtual std::optional<Address> source(std::uint16_t job, std::uint32_t worker) const = 0;
  virtual std::uint32_t missing(std::uint16_t job) const = 0;        // workers whose contributions could close a round
  virtual std::uint32_t slots_in_step(std::uint16_t job) const = 0;  // 0 also where there is no such job
  virtual bool ring(Address number) = 0;                             // as SwitchBase::ring
  virtual bool is_parent(Address number) const = 0;                  // of this switch, as a leaf
  // Of what lies in SwitchCarrier::lasting: whether any of it is still to be read; and that it is about to go.
  virtual bool waits_in(std::uint16_t job, std::span<const std::uint8_t> memory) const = 0;
  virtual void let_go(std::uint16_t job, std::span<const std::uint8_t> memory) = 0;

 protected:
  ~CarrierHost() = default;
};

class SwitchCarrier {
 public:
  virtual ~SwitchCarrier() = default;

  // Sends a train to those destinations that it reaches, which it moves to the front, and returns how many these are. 0
  // also where there was no room for all of the train: the next carrier sends all of it again.
  virtual std::size_t carry(std::uint16_t job, std::span<Address> destinations, std::span<iovec> train) = 0;
  virtual void idle() {}  // there is nothing more to read: who sleeps while results lie there is woken now

  // --- what is offered to the workers of a job; the base carrier is told by its port ---
  virtual std::uint64_t offer_bytes(const JobSpec&) const { return 0; }  // memory that an offer takes; 0: makes none
  virtual std::string offer(const JobSpec&) { return ""; }               // where they find it; throws std::system_error
  // Memory of what was offered, for the images of the job's results (SlotRing::use_images): they need not be copied
  // then. Null: none.
  virtual std::shared_ptr<std::uint8_t> images(std::uint16_t) { return nullptr; }
  // Memory in which datagrams of the job's workers stay, after `take`, until CarrierHost::let_go; mapped as long as
  // images are.
  virtual std::span<const std::uint8_t> lasting(std::uint16_t) { return {}; }
  virtual void withdraw(std::uint16_t) {}
  virtual void joined(Address, std::uint16_t) {}      // a WELCOME is about to go there
  virtual void gone(std::uint16_t, std::uint32_t) {}  // a worker does not read any more
  virtual void remove(std::uint16_t) {}               // a job, with all that is kept for its members

  virtual CarrierCounters counters() const = 0;
};

class SwitchBase : public SwitchCarrier {
 public:
  virtual std::uint16_t port() const = 0;
  virtual int receive_buffer_bytes() const = 0;
  virtual Address number_of_parent(const SocketAddress& address) = 0;  // never forgotten
  virtual bool ring(Address number) = 0;  // wakes a worker that sleeps in poll; false where it has no path of its own
  virtual void serve(std::uint64_t key, Inbox& inbox) = 0;  // the poller has found `key` readable
  virtual void vacated(Address, std::uint16_t) = 0;         // none of the job's workers is there any more
  virtual void handle_timer(double now) = 0;                // after every turn of the loop
  virtual void close() = 0;
  virtual std::uint64_t overflows() const = 0;  // datagrams that found a receive buffer full
  virtual std::uint64_t flooded() const = 0;    // datagrams of strangers beyond their allowance
};

class SwitchBypass : public SwitchCarrier {
 public:
  virtual bool receive(Inbox& inbox) = 0;  // what has come, a bounded number of batches; false when there may be more
  virtual bool in_use() const = 0;         // whether any job is offered it: doorbells may come
  virtual bool all_here() const = 0;       // every worker of some job has it: lingering may pay
  virtual bool worth_waking() = 0;         // so much has come that a round may close
  // Says that the switch is about to sleep, then looks once more: false when it had better not.
  virtual bool may_sleep() = 0;
  virtual void awake() = 0;
};

}  // namespace fanin
