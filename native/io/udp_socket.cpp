#include "io/udp_socket.hpp"

#include <fcntl.h>
#include <linux/pkt_sched.h>
#include <linux/sock_diag.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "wire/wire_constants.hpp"

#ifndef SO_MEMINFO
#define SO_MEMINFO 55
#endif

namespace fanin {

namespace {

// A whole train with its headers is one IP packet inside the kernel: 65,535 bytes less these.
constexpr std::size_t IPV4_TRAIN_BYTES = 65'535 - 20 - 8;
constexpr std::size_t IPV6_TRAIN_BYTES = 65'535 - 40 - 8;

bool set_option(int fd, int level, int name, int value) {
  return setsockopt(fd, level, name, &value, sizeof value) == 0;
}

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

}  // namespace

std::vector<std::pair<std::string, std::uint64_t>> counter_list(const UdpCounters& counters) {
  return {{"socket_system_calls", counters.system_calls},
          {"socket_ahead", counters.ahead},
          {"socket_trains", counters.trains},
          {"socket_coalesced", counters.coalesced},
          {"socket_truncated", counters.truncated},
          {"socket_refused", counters.refused},
          {"socket_send_waits", counters.send_waits},
          {"socket_send_dropped", counters.send_dropped},
          {"socket_send_us", counters.send_ns / 1000}};
}

UdpSocket::UdpSocket(int family, const UdpOptions& options)
    : fd_(socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
  if (fd_ < 0) fail("opening a UDP socket");
  set_option(fd_, SOL_SOCKET, SO_RCVBUF, options.receive_buffer_bytes);
  set_option(fd_, SOL_SOCKET, SO_SNDBUF, options.receive_buffer_bytes);
  if (options.share_port) share_port();
  if (family == AF_INET6) set_option(fd_, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (options.learn_local) {
    if (family == AF_INET6)
      set_option(fd_, IPPROTO_IPV6, IPV6_RECVPKTINFO, 1);
    else
      set_option(fd_, IPPROTO_IP, IP_PKTINFO, 1);
  }
  report_marks(family);
  if (options.capable) be_capable();
  if (options.offload) offload(family);
}

UdpSocket UdpSocket::adopt(int fd) {
  UdpSocket made;
  made.fd_ = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (made.fd_ < 0 || fcntl(made.fd_, F_SETFL, fcntl(made.fd_, F_GETFL) | O_NONBLOCK) != 0)
    fail("adopting a UDP socket");
  made.offload(made.local_address().family());
  return made;
}

void UdpSocket::offload(int family) {
  if (set_option(fd_, SOL_UDP, UDP_SEGMENT, 0)) train_bytes_ = family == AF_INET6 ? IPV6_TRAIN_BYTES : IPV4_TRAIN_BYTES;
  set_option(fd_, SOL_UDP, UDP_GRO, 1);
}

// Have the kernel say how datagrams were marked. A socket for IPv6 may carry IPv4, so it has both options.
void UdpSocket::report_marks(int family) {
  set_option(fd_, IPPROTO_IP, IP_RECVTOS, 1);
  if (family == AF_INET6) set_option(fd_, IPPROTO_IPV6, IPV6_RECVTCLASS, 1);
}

UdpSocket::~UdpSocket() { close(); }

UdpSocket::UdpSocket(UdpSocket&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), train_bytes_(other.train_bytes_), ahead_(other.ahead_) {}

UdpSocket& UdpSocket::operator=(UdpSocket&& other) noexcept {
  close();
  fd_ = std::exchange(other.fd_, -1);
  train_bytes_ = other.train_bytes_;
  ahead_ = other.ahead_;
  return *this;
}

void UdpSocket::send_empty() { [[maybe_unused]] const auto ignored = ::send(fd_, nullptr, 0, 0); }

void UdpSocket::close() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void UdpSocket::bind(const SocketAddress& address) {
  if (::bind(fd_, address.get(), address.length) != 0) fail("binding UDP address " + address.text());
}

void UdpSocket::be_capable() {
  set_option(fd_, IPPROTO_IP, IP_TOS, ECN_CAPABLE);
  set_option(fd_, IPPROTO_IPV6, IPV6_TCLASS, ECN_CAPABLE);
}

void UdpSocket::go_ahead(bool ahead) {
  if (ahead == ahead_) return;
  ahead_ = set_option(fd_, SOL_SOCKET, SO_PRIORITY, ahead ? TC_PRIO_INTERACTIVE : TC_PRIO_BESTEFFORT) && ahead;
}

void UdpSocket::share_port() { set_option(fd_, SOL_SOCKET, SO_REUSEPORT, 1); }

void UdpSocket::connect(const SocketAddress& address) {
  if (::connect(fd_, address.get(), address.length) != 0) fail("connecting to UDP address " + address.text());
}

SocketAddress UdpSocket::local_address() const {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (getsockname(fd_, address.get(), &address.length) != 0) fail("getsockname");
  return address;
}

int UdpSocket::receive_buffer_bytes() const {
  int bytes = 0;
  socklen_t length = sizeof bytes;
  getsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &bytes, &length);
  return bytes;
}

std::uint64_t UdpSocket::dropped_by_kernel() const {
  std::uint32_t values[SK_MEMINFO_VARS] = {};
  socklen_t length = sizeof values;
  if (getsockopt(fd_, SOL_SOCKET, SO_MEMINFO, values, &length) != 0) return 0;
  return values[SK_MEMINFO_DROPS];
}

}  // namespace fanin
