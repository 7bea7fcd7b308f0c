#include "io/udp_batch.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "io/poller.hpp"
#include "wire/wire_constants.hpp"

namespace fanin {

// --- receiving ---

namespace {

constexpr std::size_t RECEIVE_CONTROL_BYTES = 3 * CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(in6_pktinfo));

void read_local(const cmsghdr* header, SocketAddress& local) {
  local = {};
  if (header->cmsg_level == IPPROTO_IPV6) {
    in6_pktinfo info;
    std::memcpy(&info, CMSG_DATA(header), sizeof info);
    auto& address = reinterpret_cast<sockaddr_in6&>(local.storage);
    address.sin6_family = AF_INET6;
    address.sin6_addr = info.ipi6_addr;
    if (IN6_IS_ADDR_LINKLOCAL(&info.ipi6_addr)) address.sin6_scope_id = info.ipi6_ifindex;
    local.length = sizeof address;
  } else {
    in_pktinfo info;
    std::memcpy(&info, CMSG_DATA(header), sizeof info);
    auto& address = reinterpret_cast<sockaddr_in&>(local.storage);
    address.sin_family = AF_INET;
    address.sin_addr = info.ipi_spec_dst;
    local.length = sizeof address;
  }
}

}  // namespace

struct ReceiveBatch::Messages {
  std::vector<std::uint8_t> memory = std::vector<std::uint8_t>(RECEIVE_SLOTS * RECEIVE_SLOT_BYTES);
  std::array<mmsghdr, RECEIVE_SLOTS> headers{};
  std::array<iovec, RECEIVE_SLOTS> buffers{};
  std::array<SocketAddress, RECEIVE_SLOTS> sources{};
  std::array<SocketAddress, RECEIVE_SLOTS> locals{};
  alignas(cmsghdr) std::array<std::array<std::uint8_t, RECEIVE_CONTROL_BYTES>, RECEIVE_SLOTS> controls{};

  void prepare(std::size_t i) {
    buffers[i] = {memory.data() + i * RECEIVE_SLOT_BYTES, RECEIVE_SLOT_BYTES};
    headers[i].msg_hdr = {.msg_name = &sources[i].storage,
                          .msg_namelen = sizeof(sockaddr_storage),
                          .msg_iov = &buffers[i],
                          .msg_iovlen = 1,
                          .msg_control = controls[i].data(),
                          .msg_controllen = RECEIVE_CONTROL_BYTES,
                          .msg_flags = 0};
  }
};

ReceiveBatch::ReceiveBatch() : messages_(std::make_unique<Messages>()) {
  received_.reserve(RECEIVE_SLOTS * MAX_TRAIN_PACKETS);
}

ReceiveBatch::~ReceiveBatch() = default;

std::span<const Received> ReceiveBatch::fill(const UdpSocket& socket, UdpCounters& counters) {
  received_.clear();
  Messages& m = *messages_;
  const std::size_t wanted = long_messages_ ? LONG_MESSAGES : RECEIVE_SLOTS;
  for (std::size_t i = 0; i < wanted; ++i) m.prepare(i);
  int count;
  do {
    count = recvmmsg(socket.fd(), m.headers.data(), static_cast<unsigned>(wanted), MSG_DONTWAIT, nullptr);
    if (count < 0 && errno != EAGAIN && errno != EINTR) counters.last_error = errno;
    if (count < 0 && errno == ECONNREFUSED) ++counters.refused;
  } while (count < 0 && (errno == EINTR || errno == ECONNREFUSED));  // an ICMP error is reported once
  may_have_more_ = count == static_cast<int>(wanted);
  if (count <= 0) return {};
  ++counters.system_calls;

  std::size_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    msghdr& header = m.headers[i].msg_hdr;
    const std::size_t length = m.headers[i].msg_len;
    bytes += length;
    if (header.msg_flags & MSG_TRUNC) {
      ++counters.truncated;
      continue;
    }
    m.sources[i].length = header.msg_namelen;
    std::size_t segment = length;
    const SocketAddress* local = nullptr;
    bool marked = false;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) {
        int value;
        std::memcpy(&value, CMSG_DATA(c), sizeof value);
        if (value > 0) segment = static_cast<std::size_t>(value);
      } else if ((c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) ||
                 (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_TCLASS)) {
        // The mark is a byte for IPv4 and an int for IPv6, whose first byte has it on machines of this byte order. All
        // datagrams of a train have the same mark.
        marked = (*CMSG_DATA(c) & ECN_MASK) == ECN_CONGESTION;
      } else if ((c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_PKTINFO) ||
                 (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_PKTINFO)) {
        read_local(c, m.locals[i]);
        local = &m.locals[i];
      }
    }
    counters.coalesced += segment < length;
    const auto* data = static_cast<const std::uint8_t*>(m.buffers[i].iov_base);
    std::size_t at = 0;
    do {  // at least once, so that an empty datagram is delivered too, and counted as too short
      const std::size_t n = std::min(segment, length - at);
      received_.push_back({{data + at, n}, &m.sources[i], marked, local});
      at += n;
    } while (at < length);
  }
  long_messages_ = bytes >= LONG_MESSAGE_BYTES * static_cast<std::size_t>(count);
  return received_;
}

// --- sending ---

namespace {

constexpr std::size_t SEND_CONTROL_BYTES = CMSG_SPACE(sizeof(std::uint16_t)) + CMSG_SPACE(sizeof(in6_pktinfo));

struct Outgoing {
  std::array<mmsghdr, MAX_MESSAGES> headers;
  alignas(cmsghdr) std::array<std::array<std::uint8_t, SEND_CONTROL_BYTES>, MAX_MESSAGES> controls;
};

// Number of datagrams from `first` on that can go as one train; 1 if trains are not possible.
std::size_t train_length(std::span<const iovec> datagrams, std::size_t first, std::size_t train_bytes) {
  const std::size_t segment = datagrams[first].iov_len;
  std::size_t bytes = segment;
  std::size_t end = first + 1;
  while (end < datagrams.size() && end - first < MAX_TRAIN_PACKETS && datagrams[end - 1].iov_len == segment &&
         datagrams[end].iov_len <= segment && datagrams[end].iov_len > 0 &&
         bytes + datagrams[end].iov_len <= train_bytes) {
    bytes += datagrams[end].iov_len;
    ++end;
  }
  return end - first;
}

template <typename Value>
cmsghdr* put_control(msghdr& header, cmsghdr* at, int level, int type, const Value& value) {
  at->cmsg_level = level;
  at->cmsg_type = type;
  at->cmsg_len = CMSG_LEN(sizeof value);
  std::memcpy(CMSG_DATA(at), &value, sizeof value);
  header.msg_controllen += CMSG_SPACE(sizeof value);
  return reinterpret_cast<cmsghdr*>(reinterpret_cast<std::uint8_t*>(at) + CMSG_SPACE(sizeof value));
}

void put_local(msghdr& header, cmsghdr* at, const SocketAddress& local) {
  if (local.family() == AF_INET6) {
    in6_pktinfo info{};
    const auto& address = reinterpret_cast<const sockaddr_in6&>(local.storage);
    info.ipi6_addr = address.sin6_addr;
    info.ipi6_ifindex = address.sin6_scope_id;
    put_control(header, at, IPPROTO_IPV6, IPV6_PKTINFO, info);
  } else {
    in_pktinfo info{};
    info.ipi_spec_dst = reinterpret_cast<const sockaddr_in&>(local.storage).sin_addr;
    put_control(header, at, IPPROTO_IP, IP_PKTINFO, info);
  }
}

void fill_message(Outgoing& out, std::size_t i, std::span<iovec> datagrams, const Route& route) {
  msghdr& header = out.headers[i].msg_hdr;
  header = {};
  header.msg_iov = datagrams.data();
  header.msg_iovlen = datagrams.size();
  if (route.remote != nullptr) {
    header.msg_name = const_cast<sockaddr*>(route.remote->get());
    header.msg_namelen = route.remote->length;
  }
  auto* control = reinterpret_cast<cmsghdr*>(out.controls[i].data());
  header.msg_control = control;
  if (datagrams.size() > 1)
    control = put_control(header, control, SOL_UDP, UDP_SEGMENT, static_cast<std::uint16_t>(datagrams[0].iov_len));
  if (route.local != nullptr) put_local(header, control, *route.local);
  if (header.msg_controllen == 0) header.msg_control = nullptr;
}

bool wait_for_room(const UdpSocket& socket) {
  pollfd waiting{socket.fd(), POLLOUT, 0};
  return poll(&waiting, 1, SEND_WAIT_MS) > 0;
}

enum class Reaction { again, skip, without_trains };

// Decides what to do with a message that the kernel did not accept.
Reaction judge(int error, bool train, UdpSocket& socket, UdpCounters& counters, int& patience) {
  if (error == EINTR) return Reaction::again;
  if (error == ECONNREFUSED) {  // reported for an earlier datagram; this one was not sent yet
    ++counters.refused;
    counters.last_error = error;
    return patience-- > 0 ? Reaction::again : Reaction::skip;
  }
  if (error == EAGAIN || error == ENOBUFS) {
    ++counters.send_waits;
    return patience-- > 0 && wait_for_room(socket) ? Reaction::again : Reaction::skip;
  }
  if (train && (error == EINVAL || error == EIO || error == EMSGSIZE || error == EOPNOTSUPP)) {
    return Reaction::without_trains;
  }
  counters.last_error = error;
  return Reaction::skip;
}

}  // namespace

void send_datagrams(UdpSocket& socket, std::span<iovec> datagrams, UdpCounters& counters, Route route) {
  constexpr int PATIENCE = 3;
  Outgoing out;
  const double began_s = monotonic_now();
  std::size_t first = 0;
  int patience = PATIENCE;
  while (first < datagrams.size()) {
    std::size_t messages = 0;
    std::size_t end = first;
    while (end < datagrams.size() && messages < MAX_MESSAGES) {
      const std::size_t length = train_length(datagrams, end, socket.train_bytes());
      fill_message(out, messages++, datagrams.subspan(end, length), route);
      end += length;
    }
    const int sent = messages == 1 ? (sendmsg(socket.fd(), &out.headers[0].msg_hdr, 0) < 0 ? -1 : 1)
                                   : sendmmsg(socket.fd(), out.headers.data(), static_cast<unsigned>(messages), 0);
    if (sent > 0) {
      ++counters.system_calls;
      patience = PATIENCE;
      for (int i = 0; i < sent; ++i) {
        if (socket.goes_ahead()) counters.ahead += out.headers[i].msg_hdr.msg_iovlen;
        first += out.headers[i].msg_hdr.msg_iovlen;
        counters.trains += out.headers[i].msg_hdr.msg_iovlen > 1;
      }
      continue;
    }
    const std::size_t stuck = out.headers[0].msg_hdr.msg_iovlen;
    const Reaction reaction = judge(errno, stuck > 1, socket, counters, patience);
    if (reaction == Reaction::without_trains) socket.give_up_trains();
    if (reaction == Reaction::skip) {
      counters.send_dropped += stuck;
      first += stuck;
      patience = PATIENCE;
    }
  }
  counters.send_ns += static_cast<std::uint64_t>((monotonic_now() - began_s) * 1e9);
}

}  // namespace fanin
