// A bypass between processes of one machine: rings in shared memory (shared_memory.hpp has the layout and the trust
// rules).
#pragma once

#include <memory>

#include "io/carriers.hpp"

namespace fanin {

std::unique_ptr<WorkerCarrier> open_shared_memory_worker(const WorkerPath& path);
std::unique_ptr<SwitchBypass> open_shared_memory_switch(CarrierHost& host);
CarrierCounters no_shared_memory_counters();

}  // namespace fanin
