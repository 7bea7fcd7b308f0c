#include "io/udp_carrier.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "io/address_book.hpp"
#include "io/udp_batch.hpp"
#include "wire/wire_constants.hpp"

namespace fanin {

namespace {

constexpr int BATCHES_PER_WAKE = 64;  // at a worker, before timers are looked at

// --- a worker's end ---

class UdpWorker final : public WorkerBase {
 public:
  explicit UdpWorker(const WorkerPath& path) : address_(path.address), socket_(path.address.family(), path.options) {
    socket_.connect(path.address);
    receive_buffer_bytes_ = socket_.receive_buffer_bytes();
  }

  // The machine quantizes into this buffer, and the kernel copies from it: there is no other copy.
  std::span<std::uint8_t> reserve(std::size_t bytes) override {
    if (used_ + bytes > capacity() || count_ == MAX_TRAIN_PACKETS) flush();
    return {buffer_.data() + used_, bytes};
  }

  void commit(std::size_t bytes) override {
    datagrams_[count_++] = {buffer_.data() + used_, bytes};
    used_ += bytes;
  }

  std::span<std::uint8_t> last() override {
    if (count_ == 0) return {};
    const iovec& datagram = datagrams_[count_ - 1];
    return {static_cast<std::uint8_t*>(datagram.iov_base), datagram.iov_len};
  }

  void go_ahead(bool ahead) override {
    if (ahead == socket_.goes_ahead()) return;
    flush();
    socket_.go_ahead(ahead);
  }

  bool flush() override {
    const std::span<iovec> train = std::span(datagrams_).first(count_);
    if (count_ > 0 && tag_) tag_(train);
    if (count_ > 0) send_datagrams(socket_, train, counters_);
    used_ = 0;
    count_ = 0;
    return false;
  }

  bool receive(Inbox& inbox) override {
    for (int i = 0; i < BATCHES_PER_WAKE; ++i) {
      arrivals_.clear();
      for (const Received& received : batch_.fill(socket_, counters_)) {
        Arrival& arrival = arrivals_.emplace_back();  // filled in place: a copy would wait for the stores of its fields
        arrival.bytes = received.bytes;
        arrival.source = THE_SWITCH;
        arrival.marked = received.marked;
      }
      inbox.take(arrivals_);
      if (!batch_.may_have_more()) return true;
      inbox.respond();
    }
    return false;
  }

  bool works() const override { return socket_.is_open(); }
  // The switch gets ICMP "port unreachable" for datagrams that it sends from now on.
  void close() override {
    overflows_at_close_ = overflows();
    socket_.close();
  }

  int fd() const override { return socket_.fd(); }
  void tag_with(Tag tag) override { tag_ = std::move(tag); }
  void ring() override { socket_.send_empty(); }
  void be_capable() override { socket_.be_capable(); }
  int receive_buffer_bytes() const override { return receive_buffer_bytes_; }
  CarrierCounters counters() const override { return counter_list(counters_); }
  std::uint64_t send_ns() const override { return counters_.send_ns; }
  std::size_t buffer_bytes() const override { return RECEIVE_SLOTS * RECEIVE_SLOT_BYTES + buffer_.size(); }

  std::uint64_t overflows() const override {
    return socket_.is_open() ? socket_.dropped_by_kernel() : overflows_at_close_;
  }

  std::string trouble() const override {
    if (counters_.last_error == 0) return "";
    if (counters_.last_error == ECONNREFUSED)
      return "nobody listens at UDP " + address_.text() + " (connection refused)";
    return "UDP " + address_.text() + ": " + std::strerror(counters_.last_error);
  }

 private:
  std::size_t capacity() const { return socket_.train_bytes() > 0 ? socket_.train_bytes() : MAX_DATAGRAM_BYTES; }

  SocketAddress address_;
  UdpSocket socket_;
  int receive_buffer_bytes_ = 0;
  ReceiveBatch batch_;
  std::vector<Arrival> arrivals_;
  std::vector<std::uint8_t> buffer_ = std::vector<std::uint8_t>(MAX_DATAGRAM_BYTES);
  std::array<iovec, MAX_TRAIN_PACKETS> datagrams_{};
  std::size_t used_ = 0;
  std::size_t count_ = 0;
  Tag tag_;
  UdpCounters counters_;
  std::uint64_t overflows_at_close_ = 0;
};

// --- the switch's end ---

class UdpSwitch final : public SwitchBase {
 public:
  static constexpr std::size_t MAX_MEMBER_SOCKETS = 4096;
  static constexpr int BATCHES_PER_SOCKET = 8;  // before the next socket has its turn: a window of trains
  static constexpr int BATCHES_OF_STRANGERS = 64;
  static constexpr double REST_S = 0.005;                        // of the listening socket, after a flood was seen
  static constexpr double STRANGERS_DATAGRAMS_PER_S = 20'000.0;  // of all strangers together
  static constexpr double STRANGERS_DATAGRAMS_AT_ONCE = 4096.0;
  static constexpr std::uint32_t GOLDEN = 0x9E3779B9;  // 2^32 over the golden ratio
  static constexpr std::uint64_t LISTENER = 0;  // as a poller's key; others are address numbers, which start at 1

  explicit UdpSwitch(const SwitchPlace& place)
      : options_(place.options), address_(place.address), poller_(place.poller), host_(place.host) {
    options_.learn_local = address_.is_wildcard();
    listener_ = UdpSocket(address_.family(), options_);
    listener_.bind(address_);
    listener_.share_port();  // after bind: otherwise two switches of one user could share a port and its packets
    options_.learn_local = false;
    options_.share_port = true;
    options_.capable = true;  // members react to marks; a leaf's parent, reached through the listener, may not
    address_.set_port(listener_.local_address().port());
    receive_buffer_bytes_ = listener_.receive_buffer_bytes();
    poller_.watch(listener_.fd(), LISTENER);
  }

  std::uint16_t port() const override { return address_.port(); }
  int receive_buffer_bytes() const override { return receive_buffer_bytes_; }

  Address number_of_parent(const SocketAddress& address) override {
    const Address number = book_.number(address, nullptr);
    book_.find(number)->pinned = true;
    return number;
  }

  // Each train starts with another destination. The worker that is served last contributes last to the next round, and
  // if the path to the switch is a full queue, the last contribution is dropped: with a fixed order it would always be
  // the same worker's window that is cut, which would slow down its job.
  std::size_t carry(std::uint16_t, std::span<Address> destinations, std::span<iovec> train) override {
    turn_ += GOLDEN;  // evenly spread, and not in step with how many trains a round makes (Weyl's sequence)
    const std::size_t first = std::uint64_t{turn_} * destinations.size() >> 32;
    for (const Address number : destinations.subspan(first)) send_to(number, train);
    for (const Address number : destinations.first(first)) send_to(number, train);
    return destinations.size();
  }

  bool ring(Address number) override {
    AddressBook::Peer* const peer = book_.find(number);
    if (peer == nullptr || !peer->socket.is_open()) return false;
    peer->socket.send_empty();
    return true;
  }

  void serve(std::uint64_t key, Inbox& inbox) override {
    if (key == LISTENER) {
      receive_from_strangers(inbox);
    } else {
      receive_from_member(static_cast<Address>(key), inbox);
    }
  }

  void handle_timer(double now) override {
    if (!rests_until_ || !listener_.is_open()) return;
    if (now < *rests_until_) return poller_.alarm_at(rests_until_);
    poller_.set_watched(listener_.fd(), LISTENER, true);
    rests_until_.reset();
  }

  // Opens a socket for a new member before its WELCOME is sent, which goes out through that socket.
  void joined(Address number, std::uint16_t job) override {
    AddressBook::Peer* const peer = book_.find(number);
    if (peer == nullptr || peer->is_member_of(job)) return;
    peer->jobs.push_back(job);
    if (!peer->socket.is_open() && member_sockets_ < MAX_MEMBER_SOCKETS) open_socket_for(*peer, number);
  }

  void vacated(Address number, std::uint16_t job) override {
    counting_what_closes([&] { book_.forget_member(number, job); });
  }

  void remove(std::uint16_t job) override {
    counting_what_closes([&] { book_.forget_job(job); });
  }

  // Workers that send to a closed socket get an ICMP error, so that they need not wait for the liveness timeout.
  void close() override {
    if (!listener_.is_open()) return;
    closed_drops_ += listener_.dropped_by_kernel() + drops_of_members();
    book_.close_sockets();
    listener_.close();
  }

  CarrierCounters counters() const override { return counter_list(counters_); }
  std::uint64_t flooded() const override { return flooded_; }
  std::uint64_t overflows() const override {
    return closed_drops_ + (listener_.is_open() ? listener_.dropped_by_kernel() : 0) + drops_of_members();
  }

 private:
  template <typename Close>
  void counting_what_closes(Close close) {
    const std::uint64_t before = drops_of_members();
    close();
    closed_drops_ += before - drops_of_members();
    member_sockets_ = 0;
    book_.for_each_socket([this](const UdpSocket&) { ++member_sockets_; });
  }

  void receive_from_member(Address member, Inbox& inbox) {
    for (int i = 0; i < BATCHES_PER_SOCKET; ++i) {
      const AddressBook::Peer* const peer = book_.find(member);
      if (peer == nullptr || !peer->socket.is_open()) return;  // it left, since the poll or by the last batch
      // Datagrams of strangers from between this socket's bind and its connect are here too, all to the bound address.
      const std::optional<SocketAddress> local = peer->local;
      arrivals_.clear();
      const SocketAddress* source = nullptr;
      Address number = 0;
      for (const Received& received : batch_.fill(peer->socket, counters_)) {
        if (received.source != source) {  // datagrams of a train have the same source
          source = received.source;
          number = book_.number(*source, local ? &*local : nullptr);
        }
        Arrival& arrival = arrivals_.emplace_back();
        arrival.bytes = received.bytes;
        arrival.source = number;
        arrival.marked = received.marked;
      }
      inbox.take(arrivals_);
      inbox.respond();
      if (!batch_.may_have_more()) return;
    }
  }

  void receive_from_strangers(Inbox& inbox) {
    const std::uint64_t flooded_before = flooded_;
    for (int i = 0; i < BATCHES_OF_STRANGERS; ++i) {
      arrivals_.clear();
      const std::span<const Received> batch = batch_.fill(listener_, counters_);
      const double now = monotonic_now();
      for (const Received& received : batch) {
        const Address number = book_.number(*received.source, received.local);
        if (allowed(number, now))
          arrivals_.push_back({received.bytes, number, received.marked});
        else
          ++flooded_;
      }
      inbox.take(arrivals_);
      inbox.respond();
      if (!batch_.may_have_more()) break;
    }
    if (flooded_ == flooded_before) return;
    poller_.set_watched(listener_.fd(), LISTENER, false);
    rests_until_ = monotonic_now() + REST_S;
  }

  // Whether a datagram at the listening socket is accepted. Members without a socket of their own, such as a leaf's
  // parent, are not limited.
  bool allowed(Address number, double now) {
    AddressBook::Peer* const peer = book_.find(number);
    if (peer == nullptr || peer->is_member() || peer->pinned) return true;
    return peer->allowance.spend(now) && strangers_.spend(now);
  }

  void open_socket_for(AddressBook::Peer& peer, Address number) {
    try {
      UdpSocket socket(address_.family(), options_);
      SocketAddress local = peer.local ? *peer.local : address_;
      local.set_port(port());
      socket.bind(local);
      socket.connect(peer.remote);
      poller_.watch(socket.fd(), number);
      peer.socket = std::move(socket);
      ++member_sockets_;
    } catch (const std::system_error& error) {  // no descriptors left: the member stays at the listening socket
      counters_.last_error = error.code().value();
    }
  }

  void send_to(Address number, std::span<iovec> datagrams) {
    AddressBook::Peer* const peer = book_.find(number);
    if (peer == nullptr) {
      counters_.send_dropped += datagrams.size();
    } else if (peer->socket.is_open()) {
      peer->socket.go_ahead(peer->bare_row.goes_ahead(datagrams, slots_of(*peer)));
      send_datagrams(peer->socket, datagrams, counters_);
    } else {
      send_datagrams(listener_, datagrams, counters_, {&peer->remote, peer->local ? &*peer->local : nullptr});
    }
  }

  // Sum of slots_in_step over the jobs of which it is a member; 0 if one of these has none.
  std::uint32_t slots_of(const AddressBook::Peer& peer) const {
    std::uint32_t slots = 0;
    for (const std::uint16_t job : peer.jobs) {
      const std::uint32_t more = host_.slots_in_step(job);
      if (more == 0) return 0;
      slots += more;
    }
    return slots;
  }

  std::uint64_t drops_of_members() const {
    std::uint64_t drops = 0;
    book_.for_each_socket([&drops](const UdpSocket& socket) { drops += socket.dropped_by_kernel(); });
    return drops;
  }

  UdpOptions options_;
  SocketAddress address_;
  Poller& poller_;
  CarrierHost& host_;
  UdpSocket listener_;
  int receive_buffer_bytes_ = 0;
  AddressBook book_;
  ReceiveBatch batch_;
  std::vector<Arrival> arrivals_;
  UdpCounters counters_;
  std::uint64_t closed_drops_ = 0;  // drops by the kernel at sockets that are closed now
  std::size_t member_sockets_ = 0;
  std::uint32_t turn_ = 0;
  Allowance strangers_{STRANGERS_DATAGRAMS_PER_S, STRANGERS_DATAGRAMS_AT_ONCE};
  std::uint64_t flooded_ = 0;
  std::optional<double> rests_until_;  // end of the listening socket's pause
};

}  // namespace

std::unique_ptr<WorkerBase> open_udp_worker(const WorkerPath& path) { return std::make_unique<UdpWorker>(path); }

std::unique_ptr<SwitchBase> open_udp_switch(const SwitchPlace& place) { return std::make_unique<UdpSwitch>(place); }

}  // namespace fanin
