#include "io/carriers.hpp"

#include "io/shared_memory_carrier.hpp"
#include "io/udp_carrier.hpp"

namespace fanin {

namespace {

constexpr BypassRow BYPASSES[] = {
    {"shared memory", open_shared_memory_worker, open_shared_memory_switch, no_shared_memory_counters},
};

}  // namespace

const BaseRow BASE = {"udp", open_udp_worker, open_udp_switch};

std::span<const BypassRow> bypasses() { return BYPASSES; }

}  // namespace fanin
