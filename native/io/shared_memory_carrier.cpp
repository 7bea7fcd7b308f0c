#include "io/shared_memory_carrier.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "machine/growing_ring.hpp"
#include "wire/packet.hpp"
#include "io/shared_memory.hpp"
#include "machine/slot_ring.hpp"

namespace fanin {

namespace {

constexpr int DATAGRAMS_PER_WAKE = 256;   // at a worker, before timers are looked at
constexpr int DATAGRAMS_PER_WORKER = 64;  // at the switch, before the next worker's ring has its turn
constexpr std::size_t DATAGRAMS_PER_BATCH = 64;
constexpr std::uint32_t ANYBODY = ~std::uint32_t{0};

constexpr std::uint32_t bit(std::uint32_t worker) { return std::uint32_t{1} << worker; }

struct Counters {
  std::uint64_t out = 0;        // datagrams
  std::uint64_t in = 0;         // the same
  std::uint64_t doorbells = 0;  // that were rung to wake who sleeps
  std::uint64_t broken = 0;     // rings that did not keep the rules, and are not read any more
};

CarrierCounters counter_list(const Counters& counters) {
  return {{"shared_memory_out", counters.out},
          {"shared_memory_in", counters.in},
          {"shared_memory_doorbells", counters.doorbells},
          {"shared_memory_broken", counters.broken}};
}

// Datagrams of one ring, read in place.
class Batch {
 public:
  // At most `limit` of those in `mask`, and no more than RESPOND_AFTER_BYTES and one datagram.
  std::span<const Arrival> fill(RingReader& ring, std::uint32_t mask, Address source, std::size_t limit) {
    std::size_t count = 0;
    std::size_t bytes = 0;
    while (count < std::min(limit, arrivals_.size()) && bytes < RESPOND_AFTER_BYTES) {
      const std::span<const std::uint8_t> datagram = ring.next(mask);
      if (datagram.empty()) break;
      Arrival& arrival = arrivals_[count++];
      arrival.bytes = datagram;
      arrival.source = source;
      arrival.here = true;
      bytes += datagram.size();
    }
    return std::span(arrivals_).first(count);
  }

 private:
  std::array<Arrival, DATAGRAMS_PER_BATCH> arrivals_;
};

// --- a worker's end ---

class SharedMemoryWorker final : public WorkerCarrier {
 public:
  SharedMemoryWorker(SharedMemory memory, std::uint32_t worker) : memory_(std::move(memory)), worker_(worker) {
    memory_.attach(worker_);
    downlink_ = memory_.downlink(worker_);
  }

  std::span<std::uint8_t> reserve(std::size_t bytes) override {
    image_at_.reset();
    return memory_.reserve_uplink(worker_, bytes);
  }

  std::span<std::uint8_t> reserve_image(std::size_t at, std::size_t bytes) override {
    const std::span<std::uint8_t> room = memory_.reserve_image(worker_, at, bytes);
    if (!room.empty()) image_at_ = at;
    return room;
  }

  void commit(std::size_t bytes) override {
    if (image_at_)
      memory_.commit_image(*image_at_, bytes);
    else
      memory_.commit_uplink(bytes);
    ++counters_.out;
    unannounced_bytes_ += image_at_ ? REFERENCE_BYTES : bytes;  // the switch has little to do with it
    image_at_.reset();
  }

  bool flush() override {
    const std::size_t bytes = std::exchange(unannounced_bytes_, 0);
    if (bytes == 0 || !memory_.rouses_switch(worker_, bytes >= SharedMemory::MUCH_BYTES)) return false;
    ++counters_.doorbells;
    return true;
  }

  bool receive(Inbox& inbox) override {
    for (std::size_t left = DATAGRAMS_PER_WAKE; left > 0;) {
      const std::span<const Arrival> batch = batch_.fill(downlink_, bit(worker_), THE_SWITCH, left);
      if (!batch.empty()) inbox.take(batch);
      downlink_.release();  // what was for others is passed as well
      left -= batch.size();
      counters_.in += batch.size();
      // Looked at after what came before was taken: that may be whole.
      if (downlink_.broken()) {
        ++counters_.broken;
        close();
        return true;
      }
      if (batch.empty()) return true;
      inbox.respond();
    }
    return false;
  }

  bool has_more() const override { return downlink_.has_more(); }
  bool all_here() const override { return memory_.all_attached(); }

  bool may_sleep(Sleep how) override {
    memory_.worker_sleeps(worker_, how);
    // Take in records from before the switch could read that this worker sleeps: nobody rings for those.
    if (!downlink_.has_more()) return true;
    memory_.worker_sleeps(worker_, Sleep::awake);
    return false;
  }

  void awake() override { memory_.worker_sleeps(worker_, Sleep::awake); }
  Bell bell() const override { return memory_.bell(); }

  bool works() const override { return works_; }
  // The memory stays mapped as long as this object lives: a thread may be about to wait on the bell in it.
  void close() override {
    works_ = false;
    memory_.detach(worker_);
  }

  CarrierCounters counters() const override { return counter_list(counters_); }

 private:
  SharedMemory memory_;
  std::uint32_t worker_;
  RingReader downlink_;
  Batch batch_;
  std::optional<std::size_t> image_at_;  // where the datagram last reserved is, if among images
  std::size_t unannounced_bytes_ = 0;    // written, that the switch may be asleep to
  bool works_ = true;
  Counters counters_;
};

// --- the switch's end ---

std::size_t window_bytes(const JobSpec& spec) {
  return spec.slots * datagram_bytes(spec.codes_per_packet, spec.words_per_packet);
}

// With more history a late worker may read an image that is in use again.
std::size_t image_bytes(const JobSpec& spec) { return spec.history() == 2 ? SlotRing::image_bytes(spec) : 0; }

class SharedMemorySwitch final : public SwitchBypass {
 public:
  explicit SharedMemorySwitch(CarrierHost& host) : host_(host) {}

  // Once for all who are here, if they have left room.
  std::size_t carry(std::uint16_t job, std::span<Address> destinations, std::span<iovec> train) override {
    const auto found = segments_.find(job);
    if (found == segments_.end()) return 0;
    SharedMemory& memory = found->second.memory;
    const auto& readers = found->second.readers;
    const std::uint32_t attached = memory.attached();
    std::uint32_t mask = 0;
    const auto is_here = [&](Address number) {
      const auto reads = readers.find(number);
      // A parent's index of a job is not ours: what goes up never goes through a segment of that index.
      if (reads == readers.end() || reads->second == 0 || (reads->second & ~attached) != 0 || host_.is_parent(number))
        return false;
      mask |= reads->second;
      return true;
    };
    // Not std::ranges::partition: what it returns clang 14 cannot compile.
    const auto elsewhere = std::partition(destinations.begin(), destinations.end(), is_here);
    if (mask == 0) return 0;
    // Workers may write what they like into their job's images, another job's number too.
    const auto foreign = [&](const iovec& datagram) {
      const std::span bytes(static_cast<const std::uint8_t*>(datagram.iov_base), datagram.iov_len);
      const auto holds = [bytes](const auto& each) { return each.second.memory.holds(bytes); };
      return !memory.holds(bytes) && std::ranges::any_of(segments_, holds);
    };
    if (std::ranges::any_of(train, foreign)) return 0;
    const std::size_t published = memory.publish(train, mask);
    counters_.out += published;
    // Datagrams that have gone out already go out again by the next carrier: the protocol copes with duplicates.
    if (published != train.size()) return 0;
    if (memory.announces()) announce(job, memory);
    return static_cast<std::size_t>(elsewhere - destinations.begin());
  }

  void idle() override {
    for (auto& [job, segment] : segments_) announce(job, segment.memory);
  }

  bool receive(Inbox& inbox) override {
    bool drained = true;
    for (auto& [job, segment] : segments_) {
      for (std::uint32_t worker = 0; worker < segment.uplinks.size(); ++worker)
        drained = receive_from(job, segment, worker, inbox) && drained;
    }
    return drained;
  }

  bool in_use() const override { return !segments_.empty(); }

  bool all_here() const override {
    return std::ranges::any_of(segments_, [this](const auto& entry) {
      const auto& [job, segment] = entry;
      const std::uint32_t attached = segment.memory.attached();
      for (std::uint32_t worker = 0; worker < segment.uplinks.size(); ++worker)
        if ((attached & bit(worker)) == 0 && host_.source(job, worker)) return false;
      return true;
    });
  }

  bool worth_waking() override {
    for (const auto& [job, segment] : segments_) {
      const Unread unread = segment.unread();
      if (unread.much || std::popcount(unread.workers) >= static_cast<int>(host_.missing(job))) return true;
    }
    return false;
  }

  bool may_sleep() override {
    bool may = true;
    for (auto& [job, segment] : segments_) {
      const std::uint32_t until = host_.missing(job);
      segment.memory.switch_sleeps(until);
      // A worker that wrote just before it could read `until` has not rung: looked for after `until` is there.
      const Unread unread = segment.unread();
      may = may && !unread.much && !segment.memory.enough(unread.workers, until);
    }
    return may;
  }

  void awake() override {
    for (auto& [job, segment] : segments_) segment.memory.switch_sleeps(0);
  }

  std::uint64_t offer_bytes(const JobSpec& spec) const override {
    return SharedMemory::bytes_for(spec.workers, window_bytes(spec), image_bytes(spec)) + SlotRing::waiting_bytes(spec);
  }

  std::string offer(const JobSpec& spec) override {
    SharedMemory memory = SharedMemory::create(spec.workers, window_bytes(spec), image_bytes(spec), spec.tokens);
    Segment& segment =
        segments_.emplace(spec.job, Segment{std::move(memory), window_bytes(spec), {}, {}}).first->second;
    for (std::uint32_t worker = 0; worker < spec.workers; ++worker)
      segment.uplinks.push_back({segment.memory.uplink(worker), {}});
    return segment.memory.path();
  }

  std::shared_ptr<std::uint8_t> images(std::uint16_t job) override { return segments_.at(job).memory.images(); }
  std::span<const std::uint8_t> lasting(std::uint16_t job) override { return segments_.at(job).memory.uplinks(); }
  void withdraw(std::uint16_t job) override { segments_.erase(job); }
  void remove(std::uint16_t job) override { segments_.erase(job); }

  // A worker maps the memory before it says HELLO, so that the first WELCOME is the time to look.
  void joined(Address number, std::uint16_t job) override {
    const auto found = segments_.find(job);
    if (found == segments_.end()) return;
    const auto [readers, first] = found->second.readers.try_emplace(number, 0);
    if (!first) return;
    for (std::uint32_t attached = found->second.memory.attached(); attached != 0; attached &= attached - 1) {
      const auto worker = static_cast<std::uint32_t>(std::countr_zero(attached));
      if (host_.source(job, worker) == number) readers->second |= bit(worker);
    }
  }

  // A worker that is gone reads no more: without this, the others' results would wait for it to make room.
  void detach(std::uint16_t job, std::uint32_t worker) override {
    if (const auto found = segments_.find(job); found != segments_.end()) found->second.memory.detach(worker);
  }

  CarrierCounters counters() const override { return counter_list(counters_); }

 private:
  struct Unread {
    std::uint32_t workers = 0;  // who has written it, as a bit mask
    bool much = false;
  };

  struct Uplink {
    RingReader ring;
    GrowingRing<std::uint64_t> taken;  // positions behind batches that are not released yet
  };

  // A job's memory, and what the switch reads there.
  struct Segment {
    SharedMemory memory;
    std::size_t window_bytes;
    std::vector<Uplink> uplinks;                         // by worker
    std::unordered_map<Address, std::uint32_t> readers;  // by member: as which workers it has mapped it, as a bit mask

    Unread unread() const {
      Unread found;
      for (std::uint32_t worker = 0; worker < uplinks.size(); ++worker) {
        const std::uint64_t bytes = uplinks[worker].ring.unread_bytes();
        if (bytes != 0) found.workers |= bit(worker);
        found.much = found.much || bytes >= SharedMemory::MUCH_BYTES;
      }
      return found;
    }
  };

  bool receive_from(std::uint16_t job, Segment& segment, std::uint32_t worker, Inbox& inbox) {
    release(job, segment, segment.uplinks[worker]);
    RingReader& uplink = segment.uplinks[worker].ring;
    if (!uplink.has_more()) return true;
    std::size_t left = DATAGRAMS_PER_WORKER;
    while (left > 0) {
      // By the machine's word, not the segment's. None: its worker has not registered, and is not heard.
      const std::optional<Address> source = host_.source(job, worker);
      const std::span<const Arrival> batch = batch_.fill(uplink, ANYBODY, source.value_or(0), left);
      if (source)
        inbox.take(batch);
      else
        inbox.skip(batch);
      segment.uplinks[worker].taken.push_back(uplink.position());
      release(job, segment, segment.uplinks[worker]);
      counters_.in += batch.size();
      left -= batch.size();
      inbox.respond();
      if (batch.empty() || !uplink.has_more()) break;
    }
    if (uplink.broken()) {  // from here on everything goes by the base carrier; what is missing is resent
      segment.memory.detach(worker);
      ++counters_.broken;
    }
    return left > 0;
  }

  // Release added records. A window of others may stay: then the worker finds room for another one, as large as
  // it may have on its way.
  void release(std::uint16_t job, const Segment& segment, Uplink& uplink) {
    for (; !uplink.taken.empty(); uplink.taken.pop_front()) {
      const std::uint64_t until = uplink.taken.front();
      const bool may_stay = uplink.ring.position() - uplink.ring.released() <= segment.window_bytes;
      for (const std::span<const std::uint8_t> part : uplink.ring.unreleased(until)) {
        if (!host_.waits_in(job, part)) continue;
        if (may_stay) return;
        host_.let_go(job, part);
      }
      uplink.ring.release_to(until);
    }
  }

  // Wakes those workers that sleep while results lie there for them: on the bell all at once, in poll each by a
  // doorbell.
  void announce(std::uint16_t job, SharedMemory& memory) {
    std::uint32_t on_bell = 0;
    for (std::uint32_t told = memory.take_unannounced(); told != 0; told &= told - 1) {
      const auto worker = static_cast<std::uint32_t>(std::countr_zero(told));
      const Sleep how = memory.rouse(worker);
      if (how == Sleep::on_bell) on_bell |= bit(worker);
      if (how != Sleep::in_poll) continue;
      const std::optional<Address> source = host_.source(job, worker);
      if (source && host_.ring(*source)) ++counters_.doorbells;
    }
    if (on_bell == 0) return;
    memory.bell().ring(on_bell);
    ++counters_.doorbells;
  }

  CarrierHost& host_;
  std::map<std::uint16_t, Segment> segments_;  // by job
  Batch batch_;
  Counters counters_;
};

}  // namespace

std::unique_ptr<WorkerCarrier> open_shared_memory_worker(const WorkerPath& path) {
  std::optional<SharedMemory> memory = SharedMemory::open(path.offer, path.worker, path.token);
  if (!memory) return nullptr;
  return std::make_unique<SharedMemoryWorker>(std::move(*memory), path.worker);
}

std::unique_ptr<SwitchBypass> open_shared_memory_switch(CarrierHost& host) {
  return std::make_unique<SharedMemorySwitch>(host);
}

CarrierCounters no_shared_memory_counters() { return counter_list(Counters{}); }

}  // namespace fanin
