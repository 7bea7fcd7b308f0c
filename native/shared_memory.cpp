#include "shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "wire_constants.hpp"

namespace fanin {

namespace {

constexpr std::size_t LINE_BYTES = 64;
constexpr std::size_t PAGE_BYTES = 4096;
constexpr std::uint64_t MAGIC_AND_LAYOUT = 0xFA19'5348'4D45'4D03;  // the last byte counts changes of the layout
constexpr const char* MEMFD_NAME = "fanin";
constexpr std::string_view MEMFD_LINK = "/memfd:fanin ";           // what /proc shows for it, then "(deleted)"
constexpr std::uint32_t WRAP = ~std::uint32_t{0};                  // a record that only fills the ring up to its end

struct Record {
  std::uint32_t datagram_bytes;
  std::uint32_t mask;
};

std::size_t record_bytes(std::size_t datagram_bytes) {
  return (sizeof(Record) + datagram_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

// A token is a secret between its worker and the switch; others who map the segment see only this of it.
std::uint64_t fingerprint(std::uint64_t token) {  // the finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014)
  token += 0x9E37'79B9'7F4A'7C15;
  token = (token ^ token >> 30) * 0xBF58'476D'1CE4'E5B9;
  token = (token ^ token >> 27) * 0x94D0'49BB'1331'11EB;
  return token ^ token >> 31;
}

}  // namespace

// --- rings ---

std::span<const std::uint8_t> RingReader::front(std::uint32_t mask) {
  while (!broken_) {
    const std::uint64_t unread = written_->load(std::memory_order_acquire) - position_;
    if (unread == 0) return {};
    const std::size_t place = position_ % bytes_;
    Record record;
    std::memcpy(&record, ring_ + place, sizeof record);
    const std::size_t to_end = bytes_ - place;
    const std::size_t length = record.datagram_bytes == WRAP ? to_end : record_bytes(record.datagram_bytes);
    if (length > unread || length > to_end || unread > bytes_) {
      broken_ = true;
      return {};
    }
    next_ = position_ + length;
    if (record.datagram_bytes != WRAP && (record.mask & mask) != 0)
      return {ring_ + place + sizeof record, record.datagram_bytes};
    pop();
  }
  return {};
}

void RingReader::pop() {
  position_ = next_;
  read_->store(position_, std::memory_order_release);
}

std::span<std::uint8_t> RingWriter::reserve(std::size_t datagram_bytes, std::uint64_t slowest) {
  const std::size_t needed = record_bytes(datagram_bytes);
  const std::size_t to_end = bytes_ - position_ % bytes_;
  const std::size_t skipped = needed > to_end ? to_end : 0;
  if (position_ + skipped + needed - slowest > bytes_) return {};
  if (skipped != 0) {
    const Record wrap = {WRAP, 0};
    std::memcpy(ring_ + position_ % bytes_, &wrap, sizeof wrap);
  }
  start_ = position_ + skipped;
  return {ring_ + start_ % bytes_ + sizeof(Record), datagram_bytes};
}

void RingWriter::commit(std::size_t datagram_bytes, std::uint32_t mask) {
  const Record record = {static_cast<std::uint32_t>(datagram_bytes), mask};
  std::memcpy(ring_ + start_ % bytes_, &record, sizeof record);
  position_ = start_ + record_bytes(datagram_bytes);
  written_->store(position_, std::memory_order_release);
}

// --- the segment ---

struct SharedMemory::Control {
  std::uint64_t magic;
  std::uint32_t workers;
  std::uint32_t ring_bytes;  // of each uplink and of the downlink
  alignas(LINE_BYTES) std::atomic<std::uint32_t> switch_sleeps_until;  // so many have written; 0: it is awake
  std::atomic<std::uint32_t> written_meanwhile;                        // by whom, as a bit mask
  alignas(LINE_BYTES) std::atomic<std::uint64_t> downlink_written;
  alignas(LINE_BYTES) std::atomic<std::uint32_t> bell;
};

struct SharedMemory::WorkerControl {
  std::uint64_t token_fingerprint;
  std::atomic<std::uint32_t> attached;
  alignas(LINE_BYTES) std::atomic<Sleep> sleeps;
  alignas(LINE_BYTES) std::atomic<std::uint64_t> uplink_written;
  alignas(LINE_BYTES) std::atomic<std::uint64_t> uplink_read;
  alignas(LINE_BYTES) std::atomic<std::uint64_t> downlink_read;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free &&
              std::atomic<Sleep>::is_always_lock_free);

SharedMemory::Control& SharedMemory::control() const { return *reinterpret_cast<Control*>(memory_); }

SharedMemory::WorkerControl& SharedMemory::worker_control(std::uint32_t worker) const {
  return *reinterpret_cast<WorkerControl*>(memory_ + PAGE_BYTES * (std::size_t{worker} + 1));
}

std::uint8_t* SharedMemory::uplink_memory(std::uint32_t worker) const {
  return memory_ + PAGE_BYTES * (std::size_t{control().workers} + 1) + std::size_t{control().ring_bytes} * worker;
}

std::uint8_t* SharedMemory::downlink_memory() const { return uplink_memory(control().workers); }

SharedMemory SharedMemory::create(std::uint32_t workers, std::size_t window_bytes,
                                  std::span<const std::uint64_t> tokens) {
  // Twice the window: a ring holds what is on its way and a retransmission of it all, and loses some room where it wraps.
  const std::size_t ring = std::bit_ceil(2 * window_bytes + 2 * PAGE_BYTES);
  const std::size_t bytes = PAGE_BYTES * (std::size_t{workers} + 1) + ring * (std::size_t{workers} + 1);
  const int fd = memfd_create(MEMFD_NAME, MFD_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  void* const memory = ftruncate(fd, static_cast<off_t>(bytes)) == 0
                           ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                           : MAP_FAILED;
  if (memory == MAP_FAILED) {
    const int error = errno;
    ::close(fd);
    throw std::system_error(error, std::generic_category(), "shared memory of " + std::to_string(bytes) + " bytes");
  }
  SharedMemory segment(fd, static_cast<std::uint8_t*>(memory), bytes);
  auto* const control = new (memory) Control{};
  control->workers = workers;
  control->ring_bytes = static_cast<std::uint32_t>(ring);
  for (std::uint32_t worker = 0; worker < workers; ++worker)
    (new (&segment.worker_control(worker)) WorkerControl{})->token_fingerprint = fingerprint(tokens[worker]);
  control->magic = MAGIC_AND_LAYOUT;
  segment.window_bytes_ = window_bytes;
  segment.writer_ = RingWriter(segment.downlink_memory(), ring, &control->downlink_written);
  return segment;
}

std::optional<SharedMemory> SharedMemory::open(const std::string& path, std::uint32_t worker, std::uint64_t token) {
  // The path comes from the network: whatever else it may name here, only memory made by `create` is opened.
  char target[32];
  const ssize_t length = readlink(path.c_str(), target, sizeof target);
  if (length < 0 || !std::string_view(target, static_cast<std::size_t>(length)).starts_with(MEMFD_LINK))
    return std::nullopt;
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  struct stat about {};
  const std::size_t smallest = PAGE_BYTES * (std::size_t{worker} + 2);
  if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) || static_cast<std::size_t>(about.st_size) < smallest) {
    ::close(fd);
    return std::nullopt;
  }
  const auto bytes = static_cast<std::size_t>(about.st_size);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    ::close(fd);
    return std::nullopt;
  }
  SharedMemory segment(fd, static_cast<std::uint8_t*>(memory), bytes);
  const Control& control = segment.control();
  const std::size_t parts = std::size_t{control.workers} + 1;
  if (control.magic != MAGIC_AND_LAYOUT || control.workers > MAX_WORKERS || worker >= control.workers ||
      control.ring_bytes < PAGE_BYTES || !std::has_single_bit(control.ring_bytes) ||
      bytes != parts * (PAGE_BYTES + control.ring_bytes) ||
      segment.worker_control(worker).token_fingerprint != fingerprint(token))
    return std::nullopt;
  segment.writer_ =
      RingWriter(segment.uplink_memory(worker), control.ring_bytes, &segment.worker_control(worker).uplink_written);
  return segment;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(other.bytes_),
      window_bytes_(other.window_bytes_),
      unannounced_bytes_(other.unannounced_bytes_),
      unannounced_(other.unannounced_),
      writer_(other.writer_) {}

SharedMemory::~SharedMemory() {
  if (memory_ != nullptr) munmap(memory_, bytes_);
  if (fd_ >= 0) ::close(fd_);
}

std::string SharedMemory::path() const { return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_); }

std::uint32_t SharedMemory::workers() const { return control().workers; }

void SharedMemory::detach(std::uint32_t worker) {
  worker_control(worker).attached.store(0, std::memory_order_release);
}

// --- the switch's side ---

std::uint32_t SharedMemory::attached() const {
  std::uint32_t mask = 0;
  for (std::uint32_t worker = 0; worker < control().workers; ++worker)
    if (worker_control(worker).attached.load(std::memory_order_acquire) != 0) mask |= std::uint32_t{1} << worker;
  return mask;
}

RingReader SharedMemory::uplink(std::uint32_t worker) {
  WorkerControl& its = worker_control(worker);
  return {uplink_memory(worker), control().ring_bytes, &its.uplink_written, &its.uplink_read};
}

bool SharedMemory::publish(std::span<const std::uint8_t> datagram, std::uint32_t mask) {
  std::uint64_t slowest = writer_.position();
  for (std::uint32_t left = attached(); left != 0; left &= left - 1) {
    const auto worker = static_cast<std::uint32_t>(std::countr_zero(left));
    slowest = std::min(slowest, worker_control(worker).downlink_read.load(std::memory_order_acquire));
  }
  const std::span<std::uint8_t> room = writer_.reserve(datagram.size(), slowest);
  if (room.empty()) return false;
  std::memcpy(room.data(), datagram.data(), datagram.size());
  writer_.commit(datagram.size(), mask);
  unannounced_bytes_ += datagram.size();
  unannounced_ |= mask;
  return true;
}

Sleep SharedMemory::rouse(std::uint32_t worker) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<Sleep>& sleeps = worker_control(worker).sleeps;
  const Sleep how = sleeps.load(std::memory_order_relaxed);
  return how == Sleep::awake ? how : sleeps.exchange(Sleep::awake, std::memory_order_relaxed);
}

Bell SharedMemory::bell() const { return Bell(&control().bell); }

void SharedMemory::switch_sleeps(std::uint32_t until_written) {
  if (until_written != 0) control().written_meanwhile.store(0, std::memory_order_relaxed);
  control().switch_sleeps_until.store(until_written, std::memory_order_release);
  if (until_written != 0) std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool SharedMemory::enough(std::uint32_t written) {
  const std::uint32_t all = written | control().written_meanwhile.fetch_or(written, std::memory_order_relaxed);
  return static_cast<std::uint32_t>(std::popcount(all)) >= control().switch_sleeps_until.load(std::memory_order_relaxed);
}

// --- the worker's side ---

void SharedMemory::attach(std::uint32_t worker) {
  WorkerControl& mine = worker_control(worker);
  // What was published before was for others: this worker takes part from here on.
  mine.downlink_read.store(control().downlink_written.load(std::memory_order_acquire), std::memory_order_release);
  mine.attached.store(1, std::memory_order_release);
}

std::span<std::uint8_t> SharedMemory::reserve_uplink(std::uint32_t worker, std::size_t datagram_bytes) {
  return writer_.reserve(datagram_bytes, worker_control(worker).uplink_read.load(std::memory_order_acquire));
}

RingReader SharedMemory::downlink(std::uint32_t worker) {
  WorkerControl& mine = worker_control(worker);
  return {downlink_memory(), control().ring_bytes, &control().downlink_written, &mine.downlink_read};
}

bool SharedMemory::rouses_switch(std::uint32_t worker, bool at_once) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<std::uint32_t>& until = control().switch_sleeps_until;
  if (until.load(std::memory_order_acquire) == 0) return false;
  return (enough(std::uint32_t{1} << worker) || at_once) && until.exchange(0, std::memory_order_relaxed) != 0;
}

void SharedMemory::worker_sleeps(std::uint32_t worker, Sleep how) {
  worker_control(worker).sleeps.store(how, std::memory_order_relaxed);
  if (how != Sleep::awake) std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace fanin
