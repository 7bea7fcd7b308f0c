// The table of carriers: how a flow opens each of them, by preference.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "io/carrier.hpp"
#include "io/poller.hpp"
#include "io/udp_socket.hpp"

namespace fanin {

// Arguments for opening a worker's carrier.
struct WorkerPath {
  SocketAddress address;  // of the flow at the switch
  UdpOptions options;
  std::uint32_t worker;
  std::uint64_t token;
  std::string offer;  // result of SwitchCarrier::offer; empty: no offer
};

// Arguments for opening a switch's carrier. All of them outlive the carrier.
struct SwitchPlace {
  SocketAddress address;
  UdpOptions options;
  Poller& poller;
  CarrierHost& host;
};

struct BaseRow {
  const char* name;
  std::unique_ptr<WorkerBase> (*open_worker)(const WorkerPath&);  // these two throw std::system_error
  std::unique_ptr<SwitchBase> (*open_switch)(const SwitchPlace&);
};

struct BypassRow {
  const char* name;
  std::unique_ptr<WorkerCarrier> (*open_worker)(const WorkerPath&);  // null if it does not reach the switch
  std::unique_ptr<SwitchBypass> (*open_switch)(CarrierHost&);
  CarrierCounters (*no_counters)();  // for a worker without this carrier: the same names, all 0
};

extern const BaseRow BASE;
std::span<const BypassRow> bypasses();  // the preferred one first

}  // namespace fanin
