#include "io/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>

#include "wire/packet.hpp"
#include "wire/siphash.hpp"
#include "wire/wire_constants.hpp"

namespace fanin {

namespace {

constexpr std::size_t LINE_BYTES = RECORD_ALIGNMENT;
constexpr std::size_t PAGE_BYTES = 4096;
constexpr std::uint64_t MAGIC_AND_LAYOUT = 0xFA19'5348'4D45'4D06;  // the last byte counts changes of the layout
constexpr const char* MEMFD_NAME = "fanin";
constexpr std::string_view MEMFD_LINK = "/memfd:fanin ";     // what /proc shows for it, then "(deleted)"
constexpr std::uint32_t WRAP = ~std::uint32_t{0};            // a record that only fills the ring up to its end
constexpr std::uint32_t ELSEWHERE = std::uint32_t{1} << 31;  // in a length: the record is a Reference

constexpr int SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct Record {
  std::uint32_t datagram_bytes;
  std::uint32_t mask;
};

// In the place of the datagram, which lies among the images, if it still begins with these bytes.
struct Reference {
  std::uint64_t at;
  std::uint8_t begins[HEADER_BYTES];
};
static_assert(sizeof(Reference) == REFERENCE_BYTES);

// Its content is read once: its writer may change it at any time.
Record read_once(const std::uint8_t* at) {
  return std::bit_cast<Record>(__atomic_load_n(reinterpret_cast<const std::uint64_t*>(at), __ATOMIC_RELAXED));
}

// Offset of the datagram in its record. Words that follow a header and four codes (packet_shape's choice on one
// machine) then begin on a cache line, so that no store or load of a whole line touches two.
constexpr std::size_t DATAGRAM_AT = 20;
constexpr std::size_t REFERENCE_AT = sizeof(Record);
static_assert((DATAGRAM_AT + HEADER_BYTES + codes_bytes(4)) % LINE_BYTES == 0);

// Length of a record whose content, `bytes` long, begins at offset `at`: whole cache lines.
constexpr std::size_t record_bytes(std::size_t at, std::size_t bytes) {
  return (at + bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

// Twice the window: a ring must hold a window and its retransmission, and loses some room where it wraps.
constexpr std::size_t ring_bytes_for(std::size_t window_bytes) {
  return (2 * window_bytes + 3 * PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

constexpr std::size_t whole_pages(std::size_t bytes) { return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES; }

constexpr std::size_t segment_bytes(std::uint32_t workers, std::size_t ring_bytes, std::size_t image_bytes) {
  return (std::size_t{workers} + 1) * (PAGE_BYTES + ring_bytes) + image_bytes;
}

// A hash of a worker's token for the segment, which other workers map as well: the token itself stays secret.
std::uint64_t fingerprint(std::uint64_t token, std::uint32_t worker) {
  constexpr std::uint64_t PURPOSE = MAGIC_AND_LAYOUT;  // the key is used for nothing else
  const std::uint8_t message[] = {static_cast<std::uint8_t>(worker)};
  return siphash24({.low = token, .high = PURPOSE}, message);
}

}  // namespace

// --- rings ---

std::span<const std::uint8_t> RingReader::next(std::uint32_t mask) {
  if (broken_) return {};
  const std::uint64_t end = written_->load(std::memory_order_acquire);
  broken_ = end - position_ > bytes_ || end - released_ > bytes_;
  while (!broken_ && position_ != end) {
    const std::uint64_t unread = end - position_;
    const std::uint8_t* const at = ring_ + place_;
    const std::size_t to_end = bytes_ - place_;
    const Record record = read_once(at);
    const bool wraps = record.datagram_bytes == WRAP;
    const bool elsewhere = !wraps && (record.datagram_bytes & ELSEWHERE) != 0;
    const std::uint32_t bytes = record.datagram_bytes & ~ELSEWHERE;
    const std::size_t length = wraps       ? to_end
                               : elsewhere ? record_bytes(REFERENCE_AT, sizeof(Reference))
                                           : record_bytes(DATAGRAM_AT, bytes);
    const bool legal = wraps || (record.mask != 0 && bytes != 0 && bytes <= MAX_DATAGRAM_BYTES);
    if (!legal || length > unread || length > to_end) {
      broken_ = true;
      return {};
    }
    position_ += length;
    place_ = length == to_end ? 0 : place_ + length;
    if (wraps || (record.mask & mask) == 0) continue;
    if (!elsewhere) return {at + DATAGRAM_AT, bytes};
    Reference reference;
    std::memcpy(&reference, at + REFERENCE_AT, sizeof reference);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler must not read values again after the check
    if (bytes < HEADER_BYTES || bytes > images_.size() || reference.at > images_.size() - bytes) {
      broken_ = true;
      return {};
    }
    const std::span<const std::uint8_t> datagram = images_.subspan(reference.at, bytes);
    if (std::memcmp(datagram.data(), reference.begins, sizeof reference.begins) == 0) return datagram;
  }
  return {};
}

// Release order, so that the writer sees the new position, and overwrites records, only after they were read.
void RingReader::release_to(std::uint64_t position) {
  released_ = position;
  read_->store(position, std::memory_order_release);
}

std::array<std::span<const std::uint8_t>, 2> RingReader::unreleased(std::uint64_t until) const {
  const std::size_t from = released_ % bytes_;
  const auto length = static_cast<std::size_t>(until - released_);
  const std::size_t first = std::min(length, bytes_ - from);
  return {std::span(ring_ + from, first), std::span(ring_, length - first)};
}

std::span<std::uint8_t> RingWriter::reserve(std::size_t datagram_bytes, std::uint64_t slowest) {
  if (!make_room(record_bytes(DATAGRAM_AT, datagram_bytes), slowest)) return {};
  return {ring_ + start_ + DATAGRAM_AT, datagram_bytes};
}

bool RingWriter::reserve_reference(std::uint64_t slowest) {
  return make_room(record_bytes(REFERENCE_AT, sizeof(Reference)), slowest);
}

bool RingWriter::make_room(std::size_t needed, std::uint64_t slowest) {
  const std::uint64_t unread = position_ - slowest;
  if (needed > bytes_ || unread > bytes_) return false;  // the latter only if a reader has broken the rules
  const std::size_t to_end = bytes_ - place_;
  skipped_ = needed > to_end ? to_end : 0;
  if (unread + skipped_ + needed > bytes_) return false;
  start_ = place_;
  if (skipped_ == 0) return true;
  const Record wrap = {WRAP, 0};
  std::memcpy(ring_ + place_, &wrap, sizeof wrap);
  start_ = 0;
  return true;
}

void RingWriter::commit(std::size_t datagram_bytes, std::uint32_t mask) {
  write(static_cast<std::uint32_t>(datagram_bytes), mask, record_bytes(DATAGRAM_AT, datagram_bytes));
}

void RingWriter::refer(std::span<const std::uint8_t> datagram, std::uint64_t at, std::uint32_t mask) {
  Reference reference{.at = at, .begins = {}};
  std::memcpy(reference.begins, datagram.data(), sizeof reference.begins);
  std::memcpy(ring_ + start_ + REFERENCE_AT, &reference, sizeof reference);
  write(static_cast<std::uint32_t>(datagram.size()) | ELSEWHERE, mask, record_bytes(REFERENCE_AT, sizeof reference));
}

// `bytes`: length of the whole record.
void RingWriter::write(std::uint32_t length, std::uint32_t mask, std::size_t bytes) {
  const Record record = {length, mask};
  std::memcpy(ring_ + start_, &record, sizeof record);
  position_ += skipped_ + bytes;
  place_ = start_ + bytes == bytes_ ? 0 : start_ + bytes;
  written_->store(position_, std::memory_order_release);
}

// --- the segment ---

// The first four members are for workers that map the segment, and are read once.
struct SharedMemory::Control {
  std::uint64_t magic;
  std::uint32_t workers;
  std::uint32_t ring_pages;                                            // of each uplink and of the downlink
  std::uint32_t image_pages;                                           // of all images together
  alignas(LINE_BYTES) std::atomic<std::uint32_t> switch_sleeps_until;  // number of workers that must write; 0: awake
  std::atomic<std::uint32_t> written_meanwhile;                        // mask of the workers that have written since
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
  return memory_ + PAGE_BYTES * (std::size_t{workers_} + 1) + ring_bytes_ * worker;
}

std::uint8_t* SharedMemory::downlink_memory() const { return uplink_memory(workers_); }

std::span<std::uint8_t> SharedMemory::image_memory() const { return {uplink_memory(workers_ + 1), image_bytes_}; }

SharedMemory::SharedMemory(int fd, std::uint8_t* memory, std::size_t bytes, std::uint32_t workers,
                           std::size_t ring_bytes, std::size_t image_bytes)
    : fd_(fd),
      mapping_(memory, [bytes](std::uint8_t* mapped) { munmap(mapped, bytes); }),
      memory_(memory),
      workers_(workers),
      ring_bytes_(ring_bytes),
      image_bytes_(image_bytes) {}

std::uint64_t SharedMemory::bytes_for(std::uint32_t workers, std::size_t window_bytes, std::size_t image_bytes) {
  return segment_bytes(workers, ring_bytes_for(window_bytes), whole_pages(image_bytes));
}

SharedMemory SharedMemory::create(std::uint32_t workers, std::size_t window_bytes, std::size_t image_bytes,
                                  std::span<const std::uint64_t> tokens) {
  const std::size_t ring = ring_bytes_for(window_bytes);
  const std::size_t images = whole_pages(image_bytes);
  const std::size_t bytes = segment_bytes(workers, ring, images);
  const int fd = memfd_create(MEMFD_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  const bool sized = ftruncate(fd, static_cast<off_t>(bytes)) == 0 && fcntl(fd, F_ADD_SEALS, SEALS) == 0;
  void* const memory = sized ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (memory == MAP_FAILED) {
    const int error = errno;
    ::close(fd);
    throw std::system_error(error, std::generic_category(), "shared memory of " + std::to_string(bytes) + " bytes");
  }
  SharedMemory segment(fd, static_cast<std::uint8_t*>(memory), bytes, workers, ring, images);
  auto* const control = new (memory) Control{};
  control->workers = workers;
  control->ring_pages = static_cast<std::uint32_t>(ring / PAGE_BYTES);
  control->image_pages = static_cast<std::uint32_t>(images / PAGE_BYTES);
  for (std::uint32_t worker = 0; worker < workers; ++worker)
    (new (&segment.worker_control(worker)) WorkerControl{})->token_fingerprint = fingerprint(tokens[worker], worker);
  control->magic = MAGIC_AND_LAYOUT;
  segment.window_bytes_ = window_bytes;
  segment.writer_ = RingWriter(segment.downlink_memory(), ring, &control->downlink_written);
  return segment;
}

std::optional<SharedMemory> SharedMemory::open(const std::string& path, std::uint32_t worker, std::uint64_t token) {
  // The path comes from the network, and may name anything on this machine: open only memory that `create` has made.
  char target[32];
  const ssize_t length = readlink(path.c_str(), target, sizeof target);
  if (length < 0 || !std::string_view(target, static_cast<std::size_t>(length)).starts_with(MEMFD_LINK))
    return std::nullopt;
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  struct stat about{};
  const int seals = fcntl(fd, F_GET_SEALS);
  const bool sealed = seals >= 0 && (seals & SEALS) == SEALS;
  const std::size_t smallest = PAGE_BYTES * (std::size_t{worker} + 2);
  if (!sealed || fstat(fd, &about) != 0 || !S_ISREG(about.st_mode) ||
      static_cast<std::size_t>(about.st_size) < smallest) {
    ::close(fd);
    return std::nullopt;
  }
  const auto bytes = static_cast<std::size_t>(about.st_size);
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    ::close(fd);
    return std::nullopt;
  }
  std::uint8_t first_line[LINE_BYTES];
  std::memcpy(first_line, memory, sizeof first_line);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler must not read values again after the check
  std::uint64_t magic;
  std::uint32_t workers, ring_pages, image_pages;
  std::memcpy(&magic, first_line + offsetof(Control, magic), sizeof magic);
  std::memcpy(&workers, first_line + offsetof(Control, workers), sizeof workers);
  std::memcpy(&ring_pages, first_line + offsetof(Control, ring_pages), sizeof ring_pages);
  std::memcpy(&image_pages, first_line + offsetof(Control, image_pages), sizeof image_pages);
  SharedMemory segment(fd, static_cast<std::uint8_t*>(memory), bytes, workers, ring_pages * PAGE_BYTES,
                       image_pages * PAGE_BYTES);
  if (magic != MAGIC_AND_LAYOUT || workers > MAX_WORKERS || worker >= workers || ring_pages == 0 ||
      bytes != segment_bytes(workers, segment.ring_bytes_, segment.image_bytes_) ||
      segment.worker_control(worker).token_fingerprint != fingerprint(token, worker))
    return std::nullopt;
  segment.writer_ =
      RingWriter(segment.uplink_memory(worker), segment.ring_bytes_, &segment.worker_control(worker).uplink_written);
  return segment;
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      mapping_(std::move(other.mapping_)),
      memory_(other.memory_),
      workers_(other.workers_),
      ring_bytes_(other.ring_bytes_),
      image_bytes_(other.image_bytes_),
      detached_(other.detached_),
      window_bytes_(other.window_bytes_),
      unannounced_bytes_(other.unannounced_bytes_),
      unannounced_(other.unannounced_),
      writer_(other.writer_) {}

SharedMemory::~SharedMemory() {
  if (fd_ >= 0) ::close(fd_);
}

std::string SharedMemory::path() const { return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_); }

void SharedMemory::detach(std::uint32_t worker) {
  detached_ |= std::uint32_t{1} << worker;
  worker_control(worker).attached.store(0, std::memory_order_release);
}

// --- the switch's side ---

std::uint32_t SharedMemory::attached() const {
  std::uint32_t mask = 0;
  for (std::uint32_t worker = 0; worker < workers_; ++worker)
    if (worker_control(worker).attached.load(std::memory_order_acquire) != 0) mask |= std::uint32_t{1} << worker;
  return mask & ~detached_;
}

bool SharedMemory::all_attached() const { return std::popcount(attached()) == static_cast<int>(workers_); }

RingReader SharedMemory::uplink(std::uint32_t worker) {
  WorkerControl& its = worker_control(worker);
  return {uplink_memory(worker), ring_bytes_, &its.uplink_written, &its.uplink_read, image_memory()};
}

std::shared_ptr<std::uint8_t> SharedMemory::images() const {
  if (image_bytes_ == 0) return nullptr;
  return {mapping_, uplink_memory(workers_ + 1)};
}

std::span<const std::uint8_t> SharedMemory::uplinks() const { return {uplink_memory(0), ring_bytes_ * workers_}; }

bool SharedMemory::holds(std::span<const std::uint8_t> datagram) const {
  const std::uint8_t* const first = image_memory().data();
  const std::less<> before;
  return !before(datagram.data(), first) && before(datagram.data(), first + image_bytes_);
}

std::size_t SharedMemory::publish(std::span<const iovec> train, std::uint32_t mask) {
  const std::uint32_t readers = attached();
  if ((mask & ~readers) != 0) return 0;
  std::uint64_t slowest = writer_.position();
  for (std::uint32_t left = readers; left != 0; left &= left - 1) {
    const auto worker = static_cast<std::uint32_t>(std::countr_zero(left));
    slowest = std::min(slowest, worker_control(worker).downlink_read.load(std::memory_order_acquire));
  }
  const std::uint8_t* const images = image_memory().data();
  std::size_t published = 0;
  for (; published < train.size(); ++published) {
    const std::span datagram(static_cast<const std::uint8_t*>(train[published].iov_base), train[published].iov_len);
    if (holds(datagram)) {
      if (!writer_.reserve_reference(slowest)) break;
      writer_.refer(datagram, static_cast<std::uint64_t>(datagram.data() - images), mask);
    } else {
      const std::span<std::uint8_t> room = writer_.reserve(datagram.size(), slowest);
      if (room.empty()) break;
      std::memcpy(room.data(), datagram.data(), datagram.size());
      writer_.commit(datagram.size(), mask);
    }
    unannounced_bytes_ += datagram.size();
    unannounced_ |= mask;
  }
  return published;
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

bool SharedMemory::enough(std::uint32_t written, std::uint32_t until_written) {
  const std::uint32_t all = written | control().written_meanwhile.fetch_or(written, std::memory_order_relaxed);
  return static_cast<std::uint32_t>(std::popcount(all)) >= until_written;
}

// --- the worker's side ---

void SharedMemory::attach(std::uint32_t worker) {
  WorkerControl& mine = worker_control(worker);
  // Skip records published before, which were for other workers.
  mine.downlink_read.store(control().downlink_written.load(std::memory_order_acquire), std::memory_order_release);
  mine.attached.store(1, std::memory_order_release);
}

std::span<std::uint8_t> SharedMemory::reserve_uplink(std::uint32_t worker, std::size_t datagram_bytes) {
  const WorkerControl& mine = worker_control(worker);
  if (mine.attached.load(std::memory_order_relaxed) == 0) return {};  // the switch no longer reads this uplink
  return writer_.reserve(datagram_bytes, mine.uplink_read.load(std::memory_order_acquire));
}

std::span<std::uint8_t> SharedMemory::reserve_image(std::uint32_t worker, std::size_t at, std::size_t datagram_bytes) {
  if (datagram_bytes < HEADER_BYTES || datagram_bytes > image_bytes_ || at > image_bytes_ - datagram_bytes) return {};
  const WorkerControl& mine = worker_control(worker);
  if (mine.attached.load(std::memory_order_relaxed) == 0) return {};
  if (!writer_.reserve_reference(mine.uplink_read.load(std::memory_order_acquire))) return {};
  return image_memory().subspan(at, datagram_bytes);
}

RingReader SharedMemory::downlink(std::uint32_t worker) {
  WorkerControl& mine = worker_control(worker);
  return {downlink_memory(), ring_bytes_, &control().downlink_written, &mine.downlink_read, image_memory()};
}

bool SharedMemory::rouses_switch(std::uint32_t worker, bool at_once) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic<std::uint32_t>& until = control().switch_sleeps_until;
  const std::uint32_t until_written = until.load(std::memory_order_acquire);
  if (until_written == 0) return false;
  return (enough(std::uint32_t{1} << worker, until_written) || at_once) &&
         until.exchange(0, std::memory_order_relaxed) != 0;
}

void SharedMemory::worker_sleeps(std::uint32_t worker, Sleep how) {
  worker_control(worker).sleeps.store(how, std::memory_order_relaxed);
  if (how != Sleep::awake) std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace fanin
