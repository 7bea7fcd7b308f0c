#include "io/socket_address.hpp"

#include <arpa/inet.h>
#include <netdb.h>

#include <cerrno>
#include <string_view>
#include <system_error>

namespace fanin {

namespace {

const sockaddr_in& as_v4(const sockaddr_storage& storage) { return reinterpret_cast<const sockaddr_in&>(storage); }
const sockaddr_in6& as_v6(const sockaddr_storage& storage) { return reinterpret_cast<const sockaddr_in6&>(storage); }

}  // namespace

std::uint16_t SocketAddress::port() const {
  return ntohs(family() == AF_INET6 ? as_v6(storage).sin6_port : as_v4(storage).sin_port);
}

void SocketAddress::set_port(std::uint16_t port) {
  if (family() == AF_INET6)
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
  else
    reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
}

bool SocketAddress::is_wildcard() const {
  if (family() == AF_INET6) return IN6_IS_ADDR_UNSPECIFIED(&as_v6(storage).sin6_addr);
  return as_v4(storage).sin_addr.s_addr == htonl(INADDR_ANY);
}

std::string SocketAddress::text() const {
  char number[INET6_ADDRSTRLEN] = "?";
  const bool v6 = family() == AF_INET6;
  if (v6)
    inet_ntop(AF_INET6, &as_v6(storage).sin6_addr, number, sizeof number);
  else
    inet_ntop(AF_INET, &as_v4(storage).sin_addr, number, sizeof number);
  return (v6 ? "[" + std::string(number) + "]" : std::string(number)) + ":" + std::to_string(port());
}

std::size_t SocketAddressHash::operator()(const SocketAddress& address) const noexcept {
  const auto* bytes = reinterpret_cast<const char*>(&address.storage);
  return std::hash<std::string_view>{}(std::string_view(bytes, address.length));
}

SocketAddress resolve(const std::string& host, std::uint16_t port, bool passive) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = (passive ? AI_PASSIVE : 0) | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error == EAI_SYSTEM) throw std::system_error(errno, std::generic_category(), "resolving " + host);
  if (error != 0) {
    throw std::system_error(EADDRNOTAVAIL, std::generic_category(),
                            "host name '" + host + "' does not resolve (" + gai_strerror(error) + ")");
  }
  SocketAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

}  // namespace fanin
