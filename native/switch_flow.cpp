#include "switch_flow.hpp"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <system_error>

#include "packet.hpp"

namespace fanin {

namespace {

std::size_t window_bytes(const JobSpec& spec) {
  return spec.slots * datagram_bytes(spec.codes_per_packet, spec.words_per_packet);
}

}  // namespace

// Gathers what the machine sends, in order, as groups with the same destinations.
class SwitchFlow::Outbox final : public SwitchSink {
 public:
  explicit Outbox(SwitchFlow& flow) : flow_(flow) {}

  void send(std::span<const std::uint8_t> datagram, std::span<const Address> destinations) override {
    const std::uint16_t job = load_be16(datagram.data() + OFFSET_JOB);
    if (groups_.empty() || groups_.back().job != job || !same_destinations(groups_.back(), destinations)) {
      groups_.push_back({job, datagrams_.size(), 0, destinations_.size(), destinations.size()});
      destinations_.insert(destinations_.end(), destinations.begin(), destinations.end());
    }
    datagrams_.push_back({const_cast<std::uint8_t*>(datagram.data()), datagram.size()});
    ++groups_.back().datagrams;
    if (destinations.size() == 1 && datagram[OFFSET_KIND] == static_cast<std::uint8_t>(Kind::welcome))
      welcomed_.push_back({destinations[0], job});
  }

  void flush() {
    for (const auto& [number, job] : welcomed_) {
      AddressBook::Peer* const peer = flow_.book_.find(number);
      if (peer != nullptr && peer->membership(job) == nullptr) flow_.open_socket_for(*peer, number, job);
    }
    for (const Group& group : groups_) flush(group);
    groups_.clear();
    datagrams_.clear();
    destinations_.clear();
    welcomed_.clear();
  }

 private:
  struct Group {
    std::uint16_t job;  // as the datagrams have it
    std::size_t first_datagram;
    std::size_t datagrams;
    std::size_t first_destination;
    std::size_t destinations;
  };

  bool same_destinations(const Group& group, std::span<const Address> destinations) const {
    return group.destinations == destinations.size() &&
           std::equal(destinations.begin(), destinations.end(), destinations_.begin() + group.first_destination);
  }

  // A train to everybody, then the next one: nobody waits for another's whole backlog.
  void flush(const Group& group) {
    std::size_t first = group.first_datagram;
    const std::size_t end = first + group.datagrams;
    while (first < end) {
      std::size_t next = first;
      std::size_t bytes = 0;
      while (next < end && next - first < MAX_TRAIN_PACKETS) {
        bytes += datagrams_[next].iov_len;
        if (bytes > RECEIVE_SLOT_BYTES && next > first) break;
        ++next;
      }
      const std::span<iovec> train = std::span(datagrams_).subspan(first, next - first);
      const std::span<const Address> to = std::span(destinations_).subspan(group.first_destination, group.destinations);
      if (!publish(group.job, to, train)) {
        for (const Address number : to) send_to(number, train);
      }
      first = next;
    }
  }

  // Through the job's shared memory, once for all, if that is where all of them are and have left room.
  bool publish(std::uint16_t job, std::span<const Address> destinations, std::span<const iovec> datagrams) {
    const auto shared = flow_.shared_.find(job);
    if (shared == flow_.shared_.end()) return false;
    SharedMemory& memory = shared->second.memory;
    std::uint32_t mask = 0;
    for (const Address number : destinations) {
      const AddressBook::Peer* const peer = flow_.book_.find(number);
      // A parent's index of a job is not ours: what goes up goes by UDP.
      const AddressBook::Membership* const member = peer == nullptr || peer->pinned ? nullptr : peer->membership(job);
      if (member == nullptr || member->sharing == 0) return false;
      mask |= member->sharing;
    }
    for (const iovec& datagram : datagrams) {
      // What has gone out already is sent again by UDP: the protocol copes with duplicates.
      if (!memory.publish({static_cast<const std::uint8_t*>(datagram.iov_base), datagram.iov_len}, mask)) return false;
      ++flow_.counters_.shared_out;
    }
    if (memory.announces()) flow_.announce(job, memory);
    return true;
  }

  void send_to(Address number, std::span<iovec> datagrams) {
    AddressBook::Peer* const peer = flow_.book_.find(number);
    if (peer == nullptr) {
      flow_.counters_.send_dropped += datagrams.size();
    } else if (peer->socket.is_open()) {
      send_datagrams(peer->socket, datagrams, flow_.counters_);
    } else {
      send_datagrams(flow_.listener_, datagrams, flow_.counters_,
                     {&peer->remote, peer->local ? &*peer->local : nullptr});
    }
  }

  SwitchFlow& flow_;
  std::vector<Group> groups_;
  std::vector<iovec> datagrams_;
  std::vector<Address> destinations_;
  std::vector<std::pair<Address, std::uint16_t>> welcomed_;
};

SwitchFlow::SwitchFlow(const SocketAddress& address, const UdpOptions& options, std::uint64_t memory_bytes,
                       OnEvent on_event)
    : options_(options),
      address_(address),
      on_event_(std::move(on_event)),
      machine_(memory_bytes),
      outbox_(std::make_unique<Outbox>(*this)) {
  options_.learn_local = address.is_wildcard();
  listener_ = UdpSocket(address.family(), options_);
  listener_.bind(address);
  listener_.share_port();  // only now: two switches of one user on one port would take each other's packets
  options_.learn_local = false;
  options_.share_port = true;
  port_ = listener_.local_address().port();
  receive_buffer_bytes_ = listener_.receive_buffer_bytes();
  address_.set_port(port_);
  poller_.watch(listener_.fd(), LISTENER);
}

SwitchFlow::~SwitchFlow() { close(); }

void SwitchFlow::start() { thread_.start([this] { run(); }); }

void SwitchFlow::close() {
  closing_.store(true);
  poller_.ring();
  thread_.join();
  // Workers that send to a closed socket are told so by ICMP: they need not wait for silence to explain itself.
  const std::lock_guard lock(turnstile_);
  if (!listener_.is_open()) return;
  closed_drops_ += listener_.dropped_by_kernel();
  book_.for_each_socket([this](const UdpSocket& socket) { closed_drops_ += socket.dropped_by_kernel(); });
  book_.close_sockets();
  listener_.close();
}

void SwitchFlow::run() {
  bool drained = true;
  while (!closing_.load()) {
    if (drained) sleep();
    const std::lock_guard lock(turnstile_);
    drained = receive_shared();
    const double now = monotonic_now();
    const std::optional<double> timer = machine_.next_timer();
    if (timer && *timer <= now) machine_.handle_timer(now);
    send(now);
    if (drained)
      for (auto& [job, shared] : shared_) announce(job, shared.memory);
    end_rest(now);
    poller_.alarm_at(machine_.next_timer());
  }
}

// Wakes those workers that sleep while results lie there for them.
void SwitchFlow::announce(std::uint16_t job, SharedMemory& shared) {
  std::uint32_t on_bell = 0;
  for (std::uint32_t told = shared.take_unannounced(); told != 0; told &= told - 1) {
    const auto worker = static_cast<std::uint32_t>(std::countr_zero(told));
    const Sleep how = shared.rouse(worker);
    if (how == Sleep::on_bell) on_bell |= std::uint32_t{1} << worker;
    if (how != Sleep::in_poll) continue;
    const std::optional<Address> source = machine_.source(job, worker);
    AddressBook::Peer* const peer = source ? book_.find(*source) : nullptr;
    if (peer == nullptr || !peer->socket.is_open()) continue;
    peer->socket.send_empty();
    ++counters_.doorbells;
  }
  if (on_bell == 0) return;
  shared.bell().ring(on_bell);
  ++counters_.doorbells;
}

// As WorkerFlow::linger, after a round of work only: what is idle stays asleep.
bool SwitchFlow::linger() {
  const double until = monotonic_now() + LINGER_S;
  do {
    sched_yield();
    const std::lock_guard lock(turnstile_);
    if (shared_.empty()) return false;
    for (auto& [job, shared] : shared_) {
      const Unread unread = shared.unread();
      if (unread.much || std::popcount(unread.workers) >= static_cast<int>(machine_.missing(job))) return true;
    }
  } while (monotonic_now() < until);
  return false;
}

// Says that it sleeps, looks once more, and only then does: see native/shared_memory.hpp.
void SwitchFlow::sleep() {
  if (linger()) return;
  bool busy = false;
  {
    const std::lock_guard lock(turnstile_);
    for (auto& [job, shared] : shared_) {
      shared.sleeps_until = machine_.missing(job);
      shared.memory.switch_sleeps(shared.sleeps_until);
      const Unread unread = shared.unread();
      busy = busy || unread.much || shared.memory.enough(unread.workers, shared.sleeps_until);
    }
  }
  const std::span<const epoll_event> ready = busy ? poller_.look() : poller_.wait();
  {
    const std::lock_guard lock(turnstile_);
    shared_turn_ = 0;
    for (auto& [job, shared] : shared_) shared.memory.switch_sleeps(0);
  }
  for (const epoll_event& event : ready) {
    const std::lock_guard lock(turnstile_);
    serve(event.data.u64);
  }
}

// With the lock held.
void SwitchFlow::look_at_sockets() {
  shared_turn_ = 0;
  for (const epoll_event& event : poller_.look()) serve(event.data.u64);
}

SwitchFlow::Unread SwitchFlow::Shared::unread() const {
  Unread found;
  for (std::uint32_t worker = 0; worker < uplinks.size(); ++worker) {
    const std::uint64_t bytes = uplinks[worker].unread_bytes();
    if (bytes != 0) found.workers |= std::uint32_t{1} << worker;
    found.much = found.much || bytes >= SharedMemory::MUCH_BYTES;
  }
  return found;
}

void SwitchFlow::report() {
  while (const std::optional<SwitchEvent> event = machine_.next_event()) {
    const auto shared = shared_.find(event->job);
    // Who is gone does not read any more: the others must not wait for it.
    if (event->kind != SwitchEvent::Kind::worker_joined && shared != shared_.end())
      shared->second.memory.detach(event->worker);
    on_event_(*event);
  }
}

bool SwitchFlow::receive_shared() {
  bool drained = true;
  for (auto& [job, shared] : shared_) {
    for (std::uint32_t worker = 0; worker < shared.uplinks.size(); ++worker) {
      RingReader& uplink = shared.uplinks[worker];
      if (!uplink.has_more()) continue;
      std::size_t bytes = 0;
      int datagrams = 0;
      for (; datagrams < SHARED_DATAGRAMS_PER_WORKER; ++datagrams) {
        const std::span<const std::uint8_t> datagram = uplink.front(~std::uint32_t{0});
        if (datagram.empty()) break;
        const double now = monotonic_now();
        const std::optional<Address> source = machine_.source(job, worker);
        if (source) machine_.receive_datagram(datagram, *source, now);
        bytes += datagram.size();
        count_shared(datagram.size());
        uplink.pop();
        ++counters_.shared_in;
        if (shared_turn_ >= SHARED_TURN) {
          send(now);
          look_at_sockets();
          bytes = 0;
        } else if (bytes >= SEND_AFTER_BYTES) {
          send(now);
          bytes = 0;
        }
      }
      drained = drained && datagrams < SHARED_DATAGRAMS_PER_WORKER;
      send(monotonic_now());
      if (uplink.broken()) {
        shared.memory.detach(worker);
        ++counters_.shared_broken;
      }
    }
  }
  return drained;
}

Address SwitchFlow::number_of_parent(const SocketAddress& address) {
  const std::lock_guard lock(turnstile_);
  const Address number = book_.number(address, nullptr);
  book_.find(number)->pinned = true;
  return number;
}

std::string SwitchFlow::share_memory(const JobSpec& spec) {
  const std::lock_guard lock(turnstile_);
  if (!machine_.hold(spec.job, ring_bytes(spec))) return "";
  try {
    SharedMemory memory = SharedMemory::create(spec.workers, window_bytes(spec), spec.tokens);
    Shared& shared = shared_.emplace(spec.job, Shared{std::move(memory), {}}).first->second;
    for (std::uint32_t worker = 0; worker < spec.workers; ++worker)
      shared.uplinks.push_back(shared.memory.uplink(worker));
    return shared.memory.path();
  } catch (const std::system_error& error) {  // no memory to be had for it: UDP does
    machine_.hold(spec.job, 0);
    counters_.last_error = error.code().value();
    return "";
  }
}

std::uint64_t SwitchFlow::ring_bytes(const JobSpec& spec) {
  return SharedMemory::bytes_for(spec.workers, window_bytes(spec));
}

void SwitchFlow::stop_sharing(std::uint16_t job) {
  const std::lock_guard lock(turnstile_);
  if (shared_.erase(job) != 0) machine_.hold(job, 0);
}

// A worker maps the memory before it says HELLO, so that the first WELCOME is the time to look.
std::uint32_t SwitchFlow::sharing(Address number, std::uint16_t job) {
  const auto shared = shared_.find(job);
  if (shared == shared_.end()) return 0;
  std::uint32_t its = 0;
  for (std::uint32_t attached = shared->second.memory.attached(); attached != 0; attached &= attached - 1) {
    const auto worker = static_cast<std::uint32_t>(std::countr_zero(attached));
    if (machine_.source(job, worker) == number) its |= std::uint32_t{1} << worker;
  }
  return its;
}

void SwitchFlow::serve(std::uint64_t key) {
  if (key >= Poller::ALARM) return;
  if (key == LISTENER) {
    receive_from_strangers();
  } else if (AddressBook::Peer* const peer = book_.find(static_cast<Address>(key)); peer != nullptr) {
    if (peer->socket.is_open()) receive(peer->socket);  // a job may have been removed since the poller looked
  }
}

void SwitchFlow::receive(UdpSocket& socket) {
  for (int i = 0; i < BATCHES_PER_SOCKET; ++i) {
    const std::span<const Received> batch = batch_.fill(socket, counters_);
    const double now = monotonic_now();
    const SocketAddress* source = nullptr;
    Address number = 0;
    for (const Received& received : batch) {
      if (received.bytes.empty() && !shared_.empty()) continue;  // a doorbell: it has done its work
      if (received.source != source) {
        source = received.source;
        number = book_.number(*source, received.local);
      }
      machine_.receive_datagram(received.bytes, number, now);
    }
    send(now);
    if (!batch_.may_have_more()) return;
  }
}

void SwitchFlow::receive_from_strangers() {
  const std::uint64_t flooded_before = flooded_;
  for (int i = 0; i < BATCHES_OF_STRANGERS; ++i) {
    const std::span<const Received> batch = batch_.fill(listener_, counters_);
    const double now = monotonic_now();
    for (const Received& received : batch) {
      const Address number = book_.number(*received.source, received.local);
      if (!allowed(number, now))
        ++flooded_;
      else if (!received.bytes.empty() || shared_.empty())  // otherwise a doorbell: it has done its work
        machine_.receive_datagram(received.bytes, number, now);
    }
    send(now);
    if (!batch_.may_have_more()) break;
  }
  if (flooded_ == flooded_before) return;
  poller_.set_watched(listener_.fd(), LISTENER, false);
  rests_until_ = monotonic_now() + REST_S;
}

// Members are here when they have no socket of their own, and so is a leaf's parent: they may send what they like.
bool SwitchFlow::allowed(Address number, double now) {
  AddressBook::Peer* const peer = book_.find(number);
  if (peer == nullptr || peer->is_member() || peer->pinned) return true;
  return peer->allowance.spend(now) && strangers_.spend(now);
}

void SwitchFlow::end_rest(double now) {
  if (!rests_until_ || !listener_.is_open()) return;
  if (now < *rests_until_) return poller_.alarm_at(rests_until_);
  poller_.set_watched(listener_.fd(), LISTENER, true);
  rests_until_.reset();
}

void SwitchFlow::send(double now) {
  // Events first: who has heard a WELCOME can rely on it that the joining was reported before anything that follows.
  report();
  machine_.datagrams_to_send(now, *outbox_);
  outbox_->flush();
}

void SwitchFlow::open_socket_for(AddressBook::Peer& peer, Address number, std::uint16_t job) {
  peer.memberships.push_back({.job = job, .sharing = sharing(number, job)});
  if (peer.socket.is_open() || member_sockets_ >= MAX_MEMBER_SOCKETS) return;
  try {
    UdpSocket socket(address_.family(), options_);
    SocketAddress local = peer.local ? *peer.local : address_;
    local.set_port(port_);
    socket.bind(local);
    socket.connect(peer.remote);
    poller_.watch(socket.fd(), number);
    peer.socket = std::move(socket);
    ++member_sockets_;
  } catch (const std::system_error& error) {  // out of descriptors: it stays at the listening socket
    counters_.last_error = error.code().value();
  }
}

void SwitchFlow::remove(std::uint16_t job) {
  const std::lock_guard lock(turnstile_);
  machine_.remove(job);
  std::uint64_t before = 0;
  std::uint64_t after = 0;
  member_sockets_ = 0;
  book_.for_each_socket([&](const UdpSocket& socket) { before += socket.dropped_by_kernel(); });
  book_.forget_job(job);
  shared_.erase(job);
  book_.for_each_socket([&](const UdpSocket& socket) {
    after += socket.dropped_by_kernel();
    ++member_sockets_;
  });
  closed_drops_ += before - after;
}

std::uint64_t SwitchFlow::flooded() {
  const std::lock_guard lock(turnstile_);
  return flooded_;
}

std::pair<UdpCounters, std::uint64_t> SwitchFlow::socket_counters() {
  const std::lock_guard lock(turnstile_);
  std::uint64_t drops = closed_drops_;
  if (listener_.is_open()) drops += listener_.dropped_by_kernel();
  book_.for_each_socket([&](const UdpSocket& socket) { drops += socket.dropped_by_kernel(); });
  return {counters_, drops};
}

}  // namespace fanin
