#include "p4/p4_ports.hpp"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <unordered_map>
#include <utility>

namespace fanin::p4 {

namespace {

constexpr std::size_t HEAD_BYTES = 14 + 20 + 8;  // Ethernet, IPv4 without options, UDP
constexpr std::size_t MACS_BYTES = 12;
constexpr std::size_t VLAN_TAG_BYTES = 4;
constexpr std::uint16_t ETHERTYPE_IPV4 = 0x0800;
constexpr std::uint16_t ETHERTYPE_VLAN = 0x8100;

std::uint16_t read16(const std::uint8_t* at) { return static_cast<std::uint16_t>(at[0] << 8 | at[1]); }

void write16(std::uint8_t* at, std::size_t value) {
  at[0] = static_cast<std::uint8_t>(value >> 8);
  at[1] = static_cast<std::uint8_t>(value);
}

void write32(std::uint8_t* at, std::uint32_t value) {
  write16(at, value >> 16);
  write16(at + 2, value & 0xFFFF);
}

// fanin.formats.frames.mac_of: a sender's MAC address is derived from its IPv4 address.
void write_mac(std::uint8_t* at, std::uint32_t address) {
  write16(at, 0x0200);
  write32(at + 2, address);
}

// --- UDP ---

class UdpPort : public Port {
 public:
  UdpPort(int fd, std::uint32_t number, std::uint32_t address, std::uint16_t udp_port)
      : Port(number), socket_(UdpSocket::adopt(fd)), address_(address), udp_port_(udp_port) {}

  int fd() const override { return socket_.fd(); }

  bool take_in(Arrivals& arrivals) override {
    const std::span<const Received> received = arrivals.datagrams.fill(socket_, counters_);
    std::size_t bytes = 0;
    for (const Received& each : received) bytes += HEAD_BYTES + each.bytes.size();
    arrivals.whole.resize(bytes);
    std::uint8_t* at = arrivals.whole.data();
    for (const Received& each : received) {
      write_head(at, reinterpret_cast<const sockaddr_in&>(each.source->storage), each.bytes.size());
      std::copy(each.bytes.begin(), each.bytes.end(), at + HEAD_BYTES);
      arrivals.frames.emplace_back(at, HEAD_BYTES + each.bytes.size());
      at += HEAD_BYTES + each.bytes.size();
    }
    return arrivals.datagrams.may_have_more();
  }

  // Accepts whole UDP datagrams over IPv4 without options, as read_frame of fanin/formats/frames.py does.
  bool queue(std::vector<std::uint8_t> frame) override {
    const std::uint8_t* const d = frame.data();
    if (frame.size() < HEAD_BYTES || read16(d + 12) != ETHERTYPE_IPV4 || d[14] != 0x45 || (read16(d + 20) & 0x3FFF) ||
        d[23] != IPPROTO_UDP)
      return false;
    const std::size_t length = read16(d + 38);
    if (length < 8 || 34 + length > frame.size() || 20 + length > read16(d + 16)) return false;
    std::uint64_t to = 0;
    std::memcpy(&to, d + 30, 4);
    std::memcpy(reinterpret_cast<std::uint8_t*>(&to) + 4, d + 36, 2);
    const auto [found, fresh] = places_.try_emplace(to, routes_.size());
    if (fresh) {
      Leaving& made = routes_.emplace_back();
      auto& address = reinterpret_cast<sockaddr_in&>(made.to.storage);
      address.sin_family = AF_INET;
      std::memcpy(&address.sin_addr, d + 30, 4);
      std::memcpy(&address.sin_port, d + 36, 2);
      made.to.length = sizeof address;
    }
    Leaving& route = routes_[found->second];
    route.datagrams.push_back({frame.data() + HEAD_BYTES, length - 8});
    frames_.push_back(std::move(frame));
    return true;
  }

  // Sends to each host in order; datagrams of equal length leave as a train, which passes the kernel as one packet.
  std::uint64_t flush() override {
    const std::uint64_t before = counters_.send_dropped;
    for (Leaving& route : routes_) send_datagrams(socket_, route.datagrams, counters_, {&route.to, nullptr});
    routes_.clear();
    places_.clear();
    frames_.clear();
    return counters_.send_dropped - before;
  }

 private:
  struct Leaving {
    SocketAddress to;
    std::vector<iovec> datagrams;
  };

  // Writes the headers in front of a payload, as Frame.to_bytes of fanin/formats/frames.py does.
  void write_head(std::uint8_t* frame, const sockaddr_in& source, std::size_t payload_bytes) const {
    const std::uint32_t from = ntohl(source.sin_addr.s_addr);
    write_mac(frame, address_);
    write_mac(frame + 6, from);
    write16(frame + MACS_BYTES, ETHERTYPE_IPV4);
    std::uint8_t* const ip = frame + 14;
    std::memset(ip, 0, 20);
    ip[0] = 0x45;
    write16(ip + 2, 20 + 8 + payload_bytes);
    write16(ip + 6, 0x4000);
    ip[8] = 64;
    ip[9] = IPPROTO_UDP;
    write32(ip + 12, from);
    write32(ip + 16, address_);
    std::uint32_t sum = 0;
    for (int at = 0; at < 20; at += 2) sum += read16(ip + at);
    sum = (sum & 0xFFFF) + (sum >> 16);
    sum = (sum & 0xFFFF) + (sum >> 16);
    write16(ip + 10, ~sum & 0xFFFF);
    std::uint8_t* const udp = frame + 34;
    write16(udp, ntohs(source.sin_port));
    write16(udp + 2, udp_port_);
    write16(udp + 4, 8 + payload_bytes);
    write16(udp + 6, 0);
  }

  UdpSocket socket_;
  UdpCounters counters_;
  std::uint32_t address_;
  std::uint16_t udp_port_;
  std::vector<std::vector<std::uint8_t>> frames_;  // memory of the datagrams
  std::vector<Leaving> routes_;
  std::unordered_map<std::uint64_t, std::size_t> places_;  // in routes_, by address and port
};

// --- whole frames ---

class RawPort : public Port {
 public:
  RawPort(int fd, std::uint32_t number) : Port(number), fd_(fd) {}

  int fd() const override { return fd_; }

  bool take_in(Arrivals& arrivals) override {
    constexpr std::size_t COUNT = Arrivals::MAX_RAW_FRAMES;
    constexpr std::size_t STRIDE = VLAN_TAG_BYTES + Arrivals::RAW_FRAME_BYTES;  // room for a tag that is put back
    constexpr std::size_t CONTROL_BYTES = CMSG_SPACE(sizeof(tpacket_auxdata));
    if (arrivals.raw == nullptr) arrivals.raw.reset(new std::uint8_t[COUNT * STRIDE]);
    std::array<mmsghdr, COUNT> headers{};
    std::array<iovec, COUNT> parts{};
    std::array<sockaddr_ll, COUNT> sources{};
    alignas(cmsghdr) std::array<std::array<std::uint8_t, CONTROL_BYTES>, COUNT> controls{};
    for (std::size_t at = 0; at < COUNT; ++at) {
      parts[at] = {arrivals.raw.get() + at * STRIDE + VLAN_TAG_BYTES, Arrivals::RAW_FRAME_BYTES};
      headers[at].msg_hdr = {.msg_name = &sources[at],
                             .msg_namelen = sizeof sources[at],
                             .msg_iov = &parts[at],
                             .msg_iovlen = 1,
                             .msg_control = controls[at].data(),
                             .msg_controllen = CONTROL_BYTES,
                             .msg_flags = 0};
    }
    const int got = recvmmsg(fd_, headers.data(), COUNT, MSG_DONTWAIT, nullptr);
    for (int at = 0; at < got; ++at) {
      if (sources[at].sll_pkttype == PACKET_OUTGOING) continue;
      arrivals.frames.push_back(
          tagged(static_cast<std::uint8_t*>(parts[at].iov_base), headers[at].msg_len, headers[at].msg_hdr));
    }
    return got == static_cast<int>(COUNT);
  }

  bool queue(std::vector<std::uint8_t> frame) override {
    frames_.push_back(std::move(frame));
    return true;
  }

  std::uint64_t flush() override {
    std::array<mmsghdr, MAX_MESSAGES> headers;
    std::array<iovec, MAX_MESSAGES> parts;
    std::uint64_t lost = 0;
    for (std::size_t first = 0; first < frames_.size();) {
      const std::size_t count = std::min(MAX_MESSAGES, frames_.size() - first);
      for (std::size_t at = 0; at < count; ++at) {
        parts[at] = {frames_[first + at].data(), frames_[first + at].size()};
        headers[at] = {};
        headers[at].msg_hdr.msg_iov = &parts[at];
        headers[at].msg_hdr.msg_iovlen = 1;
      }
      const int sent = sendmmsg(fd_, headers.data(), static_cast<unsigned>(count), MSG_DONTWAIT);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) ++lost;  // longer than the MTU allows, or the interface is down or full
      first += sent <= 0 ? 1 : static_cast<std::size_t>(sent);
    }
    frames_.clear();
    return lost;
  }

 private:
  // The frame with its VLAN tag, which the kernel has removed and for which there is room before the frame.
  static Frame tagged(std::uint8_t* frame, std::size_t bytes, msghdr& header) {
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA || bytes < MACS_BYTES) continue;
      tpacket_auxdata data;
      std::memcpy(&data, CMSG_DATA(c), sizeof data);
      if (!(data.tp_status & TP_STATUS_VLAN_VALID)) continue;
      std::uint8_t* const longer = frame - VLAN_TAG_BYTES;
      std::memmove(longer, frame, MACS_BYTES);
      const bool named = data.tp_status & TP_STATUS_VLAN_TPID_VALID;
      write16(longer + MACS_BYTES, named ? data.tp_vlan_tpid : ETHERTYPE_VLAN);
      write16(longer + MACS_BYTES + 2, data.tp_vlan_tci);
      return {longer, bytes + VLAN_TAG_BYTES};
    }
    return {frame, bytes};
  }

  int fd_;
  std::vector<std::vector<std::uint8_t>> frames_;
};

}  // namespace

// --- all of them ---

void Ports::add_udp(int fd, std::uint32_t number, std::uint32_t address, std::uint16_t udp_port) {
  add(std::make_unique<UdpPort>(fd, number, address, udp_port));
}

void Ports::add_raw(int fd, std::uint32_t number) { add(std::make_unique<RawPort>(fd, number)); }

void Ports::add(std::unique_ptr<Port> port) {
  ports_.push_back(std::move(port));
  ready_.push_back(false);
}

std::size_t Ports::receive() {
  arrivals_.clear();
  while (!stopped_) {
    for (; next_ < ports_.size(); ++next_) {
      if (!ready_[next_]) continue;
      Port& port = *ports_[next_];
      ready_[next_] = port.take_in(arrivals_);
      if (arrivals_.frames.empty()) continue;
      current_ = port.number();
      ++next_;
      return arrivals_.frames.size();
    }
    next_ = 0;
    wait();
  }
  return 0;
}

// Waits until a port may have frames; if one may have more already, checks all ports without waiting.
void Ports::wait() {
  std::vector<pollfd> waiting;
  waiting.reserve(ports_.size() + 1);
  for (const auto& port : ports_) waiting.push_back({port->fd(), POLLIN, 0});
  waiting.push_back({stop_event_.fd(), POLLIN, 0});
  const bool more = std::any_of(ready_.begin(), ready_.end(), [](std::uint8_t each) { return each; });
  if (poll(waiting.data(), waiting.size(), more ? 0 : -1) <= 0) return;
  for (std::size_t at = 0; at < ports_.size(); ++at) ready_[at] |= waiting[at].revents != 0;
}

bool Ports::send(std::uint32_t number, std::vector<std::uint8_t>& frame) {
  for (const auto& port : ports_) {
    if (port->number() != number) continue;
    lost_ += !port->queue(std::move(frame));
    return true;
  }
  return false;
}

std::uint64_t Ports::flush() {
  for (const auto& port : ports_) lost_ += port->flush();
  return std::exchange(lost_, 0);
}

void Ports::stop() {
  stopped_ = true;
  stop_event_.ring();
}

}  // namespace fanin::p4
