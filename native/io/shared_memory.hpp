// A second path for a flow's datagrams, between processes of one machine: rings in shared memory beside the UDP
// sockets.
//
// Why: on one machine the kernel's copies cost more than the aggregation itself. The same datagrams, byte for byte, go
// through the rings instead; packets that must work everywhere (HELLO, heartbeats, notices) stay on UDP, as do
// datagrams for which a ring has no room. So the machines know nothing of rings, and no datagram ever waits for room.
//
// One segment per job and flow, made by the switch in anonymous memory that dies with its processes, mapped by workers:
//
//     | control: one page, then a page per worker | uplink of worker 0 | uplink of worker 1 | ... | downlink | images |
//
// * An uplink is a ring with one writer, the worker, and one reader, the switch. The worker quantizes into it, the
//   switch adds up from it: no copy at all. The switch adds a round's contributions together (slot_ring.hpp), so a
//   record stays until its round has closed, or a window has come after it.
// * The downlink is a ring with one writer, the switch, and every worker as a reader with a position of its own. A
//   result is written once for all; a record says in a bit mask whom it is for.
// * Images are where the switch of a job without staleness adds up, so that its results are there already: a record
//   then refers to an image, and nothing is copied. An image is used again two rounds later, when every worker has sent
//   its contribution to the round between, and therefore has had the result. A worker that reads the record later has
//   had the result by another path: a record holds the datagram's first bytes, and is skipped if the image begins with
//   others by then. For the same reason, the only worker that contributes to a round may write into the image itself,
//   as soon as it may send at all, and refer to it.
//
// Records are contiguous: a length, a mask, the datagram (so that words begin on a cache line) or where it is, padding
// to a line. A position counts bytes from the beginning of time; the place in the ring is its remainder, which each
// side keeps beside its own, because divisions would take a third of the time of a record. A writer stores its position
// with release order after the record, a reader its own after it is done with the record; neither ever waits for the
// other.
//
// Trust: every process that maps the segment, and every process of the same user, may write anything anywhere in it, at
// any time. The segment is sealed: it neither shrinks (which would kill readers by SIGBUS) nor grows. The values that
// decide where a process reads or writes (the number of workers, the rings' size, its own positions) are in its own
// memory; those in the segment are read once, when it is mapped, and checked. A position of the other side is read
// once, and is ignored unless it is within one ring of the own position; a record's length is bounded in the same way.
// A ring that breaks these rules is no longer read, and its worker is detached: its datagrams go by UDP from then on,
// and lost ones are sent again (always by UDP). The other words of the segment only say who sleeps: a wrong word wakes
// too many threads, or too few until timers do. Datagrams are untrusted bytes, as from the network, and may change
// while they are read: see parse() in native/wire/packet.hpp. So a process that can write here can stop this job or
// falsify its sums, but the switch and other jobs go on.
//
// Sleeping: a thread that is about to sleep announces it, then checks for records again; a thread that has written
// checks whether the other side sleeps and, if so, wakes it. Both put a full fence between the two steps, so that one
// of them sees the other. A thread that watches sockets sleeps in poll and is woken with an empty datagram. Workers
// that wait for a result sleep on one bell, and the switch wakes all of them at once. The switch announces how many
// workers have to write before a round can close, and is woken by the worker that completes that number, by a worker
// that writes much, and by one that has waited too long. The switch wakes workers when it has nothing left to read, or
// half a window of results is there: a worker then finds enough work to be worth a context switch, if there are more
// processes than cores.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "io/bell.hpp"

namespace fanin {

// Alignment of records, which fill whole cache lines. A position that is read from the segment is rounded to it.
inline constexpr std::uint64_t RECORD_ALIGNMENT = 64;
constexpr std::uint64_t aligned(std::uint64_t position) { return position & ~(RECORD_ALIGNMENT - 1); }

// Length of a record that refers to a datagram among the images.
inline constexpr std::size_t REFERENCE_BYTES = 48;

// Reads, in place, a ring that another process writes. Everything is checked: an invalid ring sets `broken` instead of
// crashing this process.
class RingReader {
 public:
  RingReader() = default;
  RingReader(const std::uint8_t* ring, std::size_t bytes, const std::atomic<std::uint64_t>* written,
             std::atomic<std::uint64_t>* read, std::span<const std::uint8_t> images = {})
      : ring_(ring),
        bytes_(bytes),
        written_(written),
        read_(read),
        images_(images),
        position_(aligned(read->load(std::memory_order_relaxed))),
        place_(position_ % bytes),
        released_(position_) {}

  // The next datagram for a worker in `mask`; empty without one. It has at most MAX_DATAGRAM_BYTES, and stays until
  // `release`.
  std::span<const std::uint8_t> next(std::uint32_t mask);
  // Lets the writer reuse all records that `next` has passed, or those before `position`.
  void release() { release_to(position_); }
  void release_to(std::uint64_t position);
  std::uint64_t position() const { return position_; }
  std::uint64_t released() const { return released_; }
  // The bytes that release_to would free: two pieces where the ring ends between.
  std::array<std::span<const std::uint8_t>, 2> unreleased(std::uint64_t until) const;
  bool has_more() const { return unread_bytes() != 0; }
  std::uint64_t unread_bytes() const { return broken_ ? 0 : written_->load(std::memory_order_acquire) - position_; }
  bool broken() const { return broken_; }

 private:
  const std::uint8_t* ring_ = nullptr;
  std::size_t bytes_ = 0;
  const std::atomic<std::uint64_t>* written_ = nullptr;
  std::atomic<std::uint64_t>* read_ = nullptr;
  std::span<const std::uint8_t> images_;  // to which records may refer
  std::uint64_t position_ = 0;            // of the next record
  std::size_t place_ = 0;                 // the same in the ring
  std::uint64_t released_ = 0;            // value of `read_`; behind `position_` until `release`
  bool broken_ = false;
};

class RingWriter {
 public:
  RingWriter() = default;
  RingWriter(std::uint8_t* ring, std::size_t bytes, std::atomic<std::uint64_t>* written)
      : ring_(ring),
        bytes_(bytes),
        written_(written),
        position_(aligned(written->load(std::memory_order_relaxed))),
        place_(position_ % bytes) {}

  // Room for a datagram of up to `datagram_bytes`, if the slowest reader is at position `slowest`; empty without room.
  std::span<std::uint8_t> reserve(std::size_t datagram_bytes, std::uint64_t slowest);
  // The datagram is complete in the span last reserved.
  void commit(std::size_t datagram_bytes, std::uint32_t mask);
  // Reserves a record that refers to a datagram among the images; false without room.
  bool reserve_reference(std::uint64_t slowest);
  void refer(std::span<const std::uint8_t> datagram, std::uint64_t at, std::uint32_t mask);
  std::uint64_t position() const { return position_; }

 private:
  std::uint8_t* ring_ = nullptr;
  std::size_t bytes_ = 0;
  std::atomic<std::uint64_t>* written_ = nullptr;
  bool make_room(std::size_t needed, std::uint64_t slowest);
  void write(std::uint32_t length, std::uint32_t mask, std::size_t bytes);

  std::uint64_t position_ = 0;  // of the next record
  std::size_t place_ = 0;       // the same in the ring
  std::size_t skipped_ = 0;     // bytes before the record last reserved, if it does not fit before the ring's end
  std::size_t start_ = 0;       // of that record in the ring
};

class SharedMemory {
 public:
  static constexpr std::size_t MUCH_BYTES = 16'000;  // that the switch should not let lie until others have come

  // Returns how much of the switch's memory `create` takes.
  static std::uint64_t bytes_for(std::uint32_t workers, std::size_t window_bytes, std::size_t image_bytes);
  // Creates a segment with a window of `window_bytes` per worker and `image_bytes` of images. Throws std::system_error.
  static SharedMemory create(std::uint32_t workers, std::size_t window_bytes, std::size_t image_bytes,
                             std::span<const std::uint64_t> tokens);
  // Maps the segment at `path` for `worker`. Returns nothing if it cannot be reached from here (another machine, user
  // or process namespace), is not sealed, or does not hold this worker's token.
  static std::optional<SharedMemory> open(const std::string& path, std::uint32_t worker, std::uint64_t token);

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  // Returns the path by which a process of the same user can open it, as long as this process lives.
  std::string path() const;
  // Moves the worker's datagrams of both directions to UDP for good; nobody leaves room for it any more. Both sides may
  // call it.
  void detach(std::uint32_t worker);

  // --- the switch's side ---
  std::uint32_t attached() const;  // the workers that have mapped it, as a bit mask
  RingReader uplink(std::uint32_t worker);
  // Returns the memory in which results are added up, or nothing if `create` was not asked for any. It stays mapped as
  // long as anybody holds it.
  std::shared_ptr<std::uint8_t> images() const;
  std::span<const std::uint8_t> uplinks() const;  // all of them
  // Whether the datagram lies among the images.
  bool holds(std::span<const std::uint8_t> datagram) const;
  // Copies the datagrams into the downlink, or where one lies among the images says so there; returns how many: not
  // all where one in `mask` reads none, or has left no room.
  std::size_t publish(std::span<const iovec> train, std::uint32_t mask);
  // Whether so much was published since take_unannounced() that who sleeps has half a window to work on.
  bool announces() const { return 2 * unannounced_bytes_ >= window_bytes_; }
  // For whom that was.
  std::uint32_t take_unannounced() {
    unannounced_bytes_ = 0;
    return std::exchange(unannounced_, 0);
  }
  Sleep rouse(std::uint32_t worker);  // how it sleeps; it counts as awake from now on
  // It sleeps until so many workers have written (0: it is awake), and looks once more: with those in `written` there
  // may be `enough`, that is `until_written` of them, already.
  void switch_sleeps(std::uint32_t until_written);
  bool enough(std::uint32_t written, std::uint32_t until_written);

  // --- the worker's side ---
  void attach(std::uint32_t worker);
  bool all_attached() const;  // every worker of the job, as far as the segment says
  std::span<std::uint8_t> reserve_uplink(std::uint32_t worker, std::size_t datagram_bytes);
  void commit_uplink(std::size_t datagram_bytes) { writer_.commit(datagram_bytes, 1); }
  // The same in place, `at` bytes behind the start of the images.
  std::span<std::uint8_t> reserve_image(std::uint32_t worker, std::size_t at, std::size_t datagram_bytes);
  void commit_image(std::size_t at, std::size_t datagram_bytes) {
    writer_.refer(image_memory().subspan(at, datagram_bytes), at, 1);
  }
  RingReader downlink(std::uint32_t worker);
  // This worker has written. Whether it has to wake the switch, which then counts as awake; `at_once` if it sleeps at
  // all.
  bool rouses_switch(std::uint32_t worker, bool at_once);
  void worker_sleeps(std::uint32_t worker, Sleep how);

  // From either side: a worker waits on it under the bit of its rank.
  Bell bell() const;

 private:
  struct Control;
  struct WorkerControl;

  SharedMemory(int fd, std::uint8_t* memory, std::size_t bytes, std::uint32_t workers, std::size_t ring_bytes,
               std::size_t image_bytes);
  Control& control() const;
  WorkerControl& worker_control(std::uint32_t worker) const;
  std::uint8_t* uplink_memory(std::uint32_t worker) const;
  std::uint8_t* downlink_memory() const;
  std::span<std::uint8_t> image_memory() const;

  int fd_ = -1;
  std::shared_ptr<std::uint8_t> mapping_;
  std::uint8_t* memory_ = nullptr;  // the same
  std::uint32_t workers_ = 0;
  std::size_t ring_bytes_ = 0;    // of each uplink and of the downlink
  std::size_t image_bytes_ = 0;   // of all images
  std::uint32_t detached_ = 0;    // by this side, as a bit mask: whatever the segment says
  std::size_t window_bytes_ = 0;  // this and the next two: the switch's
  std::size_t unannounced_bytes_ = 0;
  std::uint32_t unannounced_ = 0;
  RingWriter writer_;  // the downlink's at the switch, the own uplink's at a worker
};

}  // namespace fanin
