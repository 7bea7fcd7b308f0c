#include "io/wires.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>

namespace fanin {

std::size_t Wires::join(int fd_a, int fd_b, const WireOptions& options) {
  if (thread_.started()) throw std::logic_error("wires are joined before they are started");
  const std::size_t wire = directions_.size() / 2;
  for (const auto& [from, to] : {std::pair{fd_a, fd_b}, std::pair{fd_b, fd_a}}) {
    Direction& direction = directions_.emplace_back();
    direction.from = from;
    direction.to = to;
    direction.options = options;
    direction.dice.seed(options.seed * 1'000'003 + directions_.size());
    poller_.watch(from, directions_.size() - 1);
  }
  return wire;
}

void Wires::start() {
  thread_.start([this] { run(); });
}

void Wires::cut(std::size_t wire, bool down) {
  const std::lock_guard lock(lock_);
  if (wire >= directions_.size() / 2) throw std::out_of_range("no such wire");
  for (const std::size_t i : {2 * wire, 2 * wire + 1}) {
    Direction& direction = directions_[i];
    direction.down = down;
    direction.counters.lost += direction.queue.size() + (direction.held_for > 0);
    direction.queue.clear();
    direction.held_for = 0;
  }
}

std::pair<WireCounters, WireCounters> Wires::counters(std::size_t wire) {
  const std::lock_guard lock(lock_);
  if (wire >= directions_.size() / 2) throw std::out_of_range("no such wire");
  return {directions_[2 * wire].counters, directions_[2 * wire + 1].counters};
}

void Wires::close() {
  closing_.store(true);
  poller_.ring();
  thread_.join();
}

void Wires::run() {
  while (!closing_.load()) {
    const auto events = poller_.wait();
    const std::lock_guard lock(lock_);
    for (const epoll_event& event : events) {
      if (event.data.u64 < Poller::ALARM) receive(directions_[event.data.u64], monotonic_now());
    }
    std::optional<double> next;
    for (Direction& direction : directions_) {
      deliver(direction, monotonic_now());
      if (!direction.queue.empty() && (!next || direction.queue.front().due_s < *next))
        next = direction.queue.front().due_s;
    }
    poller_.alarm_at(next);
  }
}

void Wires::receive(Direction& direction, double now) {
  for (int i = 0; i < FRAMES_PER_TURN; ++i) {  // level-triggered: what is left makes the next wait return at once
    const ssize_t bytes = ::read(direction.from, buffer_.data(), buffer_.size());
    if (bytes <= 0) return;
    take(direction, static_cast<std::size_t>(bytes), now);
  }
}

void Wires::take(Direction& direction, std::size_t bytes, double now) {
  const WireOptions& options = direction.options;
  ++direction.counters.frames;
  direction.counters.bytes += bytes;
  if (direction.down || strikes(direction, options.loss)) {
    ++direction.counters.lost;
    return;
  }
  std::vector<std::uint8_t> frame;
  if (!spare_.empty()) {
    frame = std::move(spare_.back());
    spare_.pop_back();
  }
  frame.assign(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(bytes));
  if (direction.held_for == 0 && strikes(direction, options.reorder)) {
    ++direction.counters.reordered;
    direction.held = std::move(frame);
    direction.held_for = REORDER_FRAMES;
    return;
  }
  if (strikes(direction, options.duplicate)) {
    ++direction.counters.duplicated;
    append(direction, frame, now);
  }
  append(direction, std::move(frame), now);
  if (direction.held_for > 0 && --direction.held_for == 0) append(direction, std::move(direction.held), now);
}

void Wires::append(Direction& direction, std::vector<std::uint8_t> bytes, double now) {
  if (direction.queue.size() >= MAX_FRAMES) {
    ++direction.counters.overflowed;
    return;
  }
  double due_s = now + direction.options.delay_s;
  if (direction.options.jitter_s > 0.0)
    due_s += direction.options.jitter_s * std::uniform_real_distribution<double>(0.0, 1.0)(direction.dice);
  if (!direction.queue.empty()) due_s = std::max(due_s, direction.queue.back().due_s);
  direction.queue.push_back({due_s, std::move(bytes)});
}

void Wires::deliver(Direction& direction, double now) {
  while (!direction.queue.empty() && direction.queue.front().due_s <= now) {
    std::vector<std::uint8_t>& bytes = direction.queue.front().bytes;
    ssize_t written;
    do {
      written = ::write(direction.to, bytes.data(), bytes.size());
    } while (written < 0 && errno == EINTR);
    if (written < 0) ++direction.counters.refused;
    if (spare_.size() < MAX_FRAMES) spare_.push_back(std::move(bytes));
    direction.queue.pop_front();
  }
}

bool Wires::strikes(Direction& direction, double probability) {
  return probability > 0.0 && std::uniform_real_distribution<double>(0.0, 1.0)(direction.dice) < probability;
}

}  // namespace fanin
