// The base carrier of every flow: UDP, in batches (udp_batch.hpp).
//
// At the switch, everybody's first packet comes in at the listening socket. Once the machine has welcomed a worker, the
// carrier opens a socket that is bound to the same port and connected to that worker: the kernel then queues its
// packets there. So each worker has a receive buffer to itself, and windows add up to no more than any of them holds,
// however many workers.
//
// Non-members are rate-limited, each and in total. Datagrams above the limits are dropped unread and unanswered, and
// counted (dropped_flood); the listening socket then rests, so that a flood is read in large batches, at
// most so often, and the kernel drops what does not fit its buffer.
#pragma once

#include <memory>

#include "io/carriers.hpp"

namespace fanin {

std::unique_ptr<WorkerBase> open_udp_worker(const WorkerPath& path);
std::unique_ptr<SwitchBase> open_udp_switch(const SwitchPlace& place);

}  // namespace fanin
