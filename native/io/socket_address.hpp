// An IPv4 or IPv6 address with its port, as the kernel takes it.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace fanin {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  int family() const { return storage.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  std::uint16_t port() const;
  void set_port(std::uint16_t port);
  bool is_wildcard() const;  // 0.0.0.0 or ::
  std::string text() const;  // 127.0.0.1:4000, [::1]:4000
  bool operator==(const SocketAddress& other) const {
    return length == other.length && std::memcmp(&storage, &other.storage, length) == 0;
  }
};

struct SocketAddressHash {
  std::size_t operator()(const SocketAddress& address) const noexcept;
};

// The first address that `host` (a name or a number) has for UDP. Throws std::system_error, which names the host.
// `passive`: for a server to bind; an empty host is then every interface.
SocketAddress resolve(const std::string& host, std::uint16_t port, bool passive);

}  // namespace fanin
