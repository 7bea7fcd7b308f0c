// By `python -m fanin.constants native/wire/wire_constants.hpp`, from fanin/protocol/{wire,job,timers,pace,ecn}.py.
// clang-format off
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fanin {

// fanin.protocol.wire
inline constexpr std::uint32_t MAGIC = 64025;
inline constexpr std::uint32_t VERSION = 1;
inline constexpr std::size_t OFFSET_MAGIC = 0;
inline constexpr std::size_t OFFSET_VERSION = 2;
inline constexpr std::size_t OFFSET_KIND = 3;
inline constexpr std::size_t OFFSET_JOB = 4;
inline constexpr std::size_t OFFSET_WORKER = 6;
inline constexpr std::size_t OFFSET_FLAGS = 7;
inline constexpr std::size_t OFFSET_GENERATION = 8;
inline constexpr std::size_t OFFSET_SLOT = 12;
inline constexpr std::size_t OFFSET_BASE = 16;
inline constexpr std::size_t OFFSET_SIGNATURE = 20;
inline constexpr std::size_t OFFSET_BITMAP = 24;
inline constexpr std::size_t OFFSET_CONTRIBUTORS = 28;
inline constexpr std::size_t OFFSET_CODE_COUNT = 30;
inline constexpr std::size_t OFFSET_LANES = 31;
inline constexpr std::size_t OFFSET_CHECKSUM = 32;
inline constexpr std::size_t HEADER_BYTES = 36;
inline constexpr std::size_t WORD_BYTES = 4;
inline constexpr std::size_t CODE_BYTES = 2;
inline constexpr std::uint32_t MAX_WORKERS = 32;
inline constexpr std::uint32_t MAX_CODES = 64;
inline constexpr std::size_t MAX_DATAGRAM_BYTES = 65507;
inline constexpr std::uint32_t MAX_BASE = 4294967295;
inline constexpr std::uint32_t ORDER_MASK = 4294967295;
inline constexpr std::uint32_t SWITCH_WORKER = 255;
inline constexpr std::uint32_t MAX_RUN = 16;
inline constexpr std::uint32_t HELLO_RUNS = 1;
inline constexpr std::uint32_t LANES_SHIFT = 4;
inline constexpr std::uint32_t LANES_UP = 2;
inline constexpr std::uint32_t LANES_DOWN = 0;
inline constexpr std::uint32_t MAX_SHIFT = 15;
inline constexpr std::uint32_t RECEIPT_REPEATED = 1;
inline constexpr std::uint32_t RECEIPT_MARKED = 2;

// fanin.protocol.job
inline constexpr std::size_t DATA_KEY_BYTES = 16;
inline constexpr double HEARTBEAT_INTERVAL_S = 0.5;
inline constexpr double LIVENESS_TIMEOUT_S = 5.0;
inline constexpr double SWITCH_LIVENESS_TIMEOUT_S = 30.0;
inline constexpr double SUSPICION_SETTLES_S = 0.1;
inline constexpr double SUSPICION_TIMEOUT_S = 0.7;
inline constexpr std::uint32_t HEARTBEATS_TO_SILENCE = 3;
inline constexpr std::uint32_t LIVENESS_HEARTBEATS = 10;
inline constexpr double HELLO_RETRY_S = 0.1;
inline constexpr double LEFT_GRACE_S = 1.0;
inline constexpr std::uint32_t LEFT_MIN_TIMEOUTS = 3;
inline constexpr double BYE_RETRY_S = 0.1;
inline constexpr double LEAVE_TIMEOUT_S = 1.0;
inline constexpr std::uint32_t WINDOW_POOLS = 8;
inline constexpr std::size_t CACHE_LINE_BYTES = 64;
inline constexpr std::size_t ENTRY_FACTS_BYTES = 28;
inline constexpr std::size_t ARRIVED_BYTES = 8;
inline constexpr std::size_t SLOT_BYTES = 16;
inline constexpr std::uint32_t MAX_LANES_PER_WORD = 8;
inline constexpr std::uint32_t MAX_TREE_WORKERS = 1024;
inline constexpr std::uint32_t MAX_STALENESS = 1024;
inline constexpr double MIN_JOIN_TIMEOUT_S = 0.01;
inline constexpr double MAX_JOIN_TIMEOUT_S = 86400.0;
inline constexpr std::uint32_t SWITCH_QUEUE_DATAGRAMS = 4096;
inline constexpr std::size_t SWITCH_QUEUE_BYTES = 33554432;

// fanin.protocol.timers
inline constexpr double ALPHA = 0.125;
inline constexpr double BETA = 0.25;
inline constexpr std::uint32_t VARIATION_FACTOR = 4;
inline constexpr double GRANULARITY_S = 0.001;
inline constexpr double INITIAL_TIMEOUT_S = 0.1;
inline constexpr double FIRST_TIMEOUT_S = 0.03;
inline constexpr double MIN_TIMEOUT_S = 0.01;
inline constexpr double PATHS_PER_TIMEOUT = 2.0;
inline constexpr double MAX_TIMEOUT_S = 1.0;
inline constexpr std::uint32_t REORDER_THRESHOLD = 3;
inline constexpr std::uint32_t THIN_REORDER_THRESHOLD = 1;
inline constexpr std::uint32_t RECEIPT_EVERY = 16;
inline constexpr std::uint32_t NO_RECEIPTS_AFTER = 64;
inline constexpr double REORDER_SHARE = 0.25;
inline constexpr double OVERDUE_SHARE = 0.25;
inline constexpr double MORE_WAIT = 0.5;
inline constexpr double LESS_WAIT = 0.25;
inline constexpr double MAX_WAIT = 3.0;
inline constexpr std::uint32_t TRACKED = 32;
inline constexpr std::uint32_t ANSWERS_IN_A_ROW = 3;
inline constexpr std::uint32_t NEXT_RESENT = 2;
inline constexpr std::uint32_t LINEAR_TIMEOUTS = 6;

// fanin.protocol.pace
inline constexpr double INITIAL_WINDOW = 10.0;
inline constexpr std::size_t INITIAL_WINDOW_BYTES = 14600;
inline constexpr double FIRST_SHARE = 0.16666666666666666;
inline constexpr std::size_t LONGEST_FRAME_BYTES = 9216;
inline constexpr double MIN_WINDOW = 2.0;
inline constexpr double DECREASE = 0.7;
inline constexpr double GROWTH = 0.5294117647058825;
inline constexpr double DECREASE_MARKED = 0.85;
inline constexpr double QUEUED_PACKETS = 3.0;
inline constexpr double WINDOWS_WAITING = 1.5;
inline constexpr std::uint32_t OVERDUE_PER_WINDOW = 3;
inline constexpr double SHORTEST_FOR_S = 10.0;
inline constexpr std::uint32_t SILENT_TIMEOUTS = 3;
inline constexpr double PACING_GAIN_SLOW_START = 2.0;
inline constexpr double PACING_GAIN = 1.25;
inline constexpr double MIN_PACED_ROUND_TRIP_S = 0.001;
inline constexpr double LONGEST_UNQUEUED_S = 0.005;
inline constexpr double MAX_PACED_ROUND_TRIP_S = 0.1;
inline constexpr double PATH_DECAY = 0.875;
inline constexpr double BURST_S = 0.001;
inline constexpr double BURST_PACKETS = 4.0;

// fanin.protocol.ecn
inline constexpr std::uint32_t ECN_CAPABLE = 2;
inline constexpr std::uint32_t ECN_CONGESTION = 3;
inline constexpr std::uint32_t ECN_MASK = 3;

// Bits of the flags field.
inline constexpr std::uint8_t FLAG_PASS = 1;
inline constexpr std::uint8_t FLAG_CHECKSUM = 2;
inline constexpr std::uint8_t FLAG_BARE = 4;
inline constexpr std::uint8_t FLAG_LATE = 8;
inline constexpr std::uint8_t FLAG_RUN = 16;

enum class Kind : std::uint8_t {
  contribution = 1,
  result = 2,
  answer = 3,
  hello = 4,
  welcome = 5,
  notice = 6,
  bye = 7,
  probe = 8,
  echo = 9,
  receipt = 10,
};

enum class Reason : std::uint16_t {
  too_short = 1,
  bad_magic = 2,
  version = 3,
  kind = 4,
  length = 5,
  checksum = 6,
  unknown_job = 7,
  generation = 8,
  worker_range = 9,
  stranger = 10,
  token = 11,
  slot_range = 12,
  ancient = 13,
  future = 14,
  mismatch = 15,
  evicted = 16,
  worker_lost = 17,
  worker_left = 18,
  worker_joined = 19,
  branch_lost = 20,
  branch_left = 21,
  tag = 22,
};

// Lower-case names of the reasons, indexed by value: the keys of the drop counters.
inline constexpr std::array<const char*, 23> REASON_NAMES = {
    "",
    "too_short",
    "bad_magic",
    "version",
    "kind",
    "length",
    "checksum",
    "unknown_job",
    "generation",
    "worker_range",
    "stranger",
    "token",
    "slot_range",
    "ancient",
    "future",
    "mismatch",
    "evicted",
    "worker_lost",
    "worker_left",
    "worker_joined",
    "branch_lost",
    "branch_left",
    "tag",
};

// Whether the sender of a packet is told the reason by a NOTICE, indexed by the reason's value.
inline constexpr std::array<bool, 23> TOLD_BY_NOTICE = {
    false,
    false,  // TOO_SHORT
    false,  // BAD_MAGIC
    true,  // VERSION
    false,  // KIND
    false,  // LENGTH
    false,  // CHECKSUM
    true,  // UNKNOWN_JOB
    true,  // GENERATION
    false,  // WORKER_RANGE
    true,  // STRANGER
    true,  // TOKEN
    false,  // SLOT_RANGE
    false,  // ANCIENT
    false,  // FUTURE
    true,  // MISMATCH
    true,  // EVICTED
    false,  // WORKER_LOST
    false,  // WORKER_LEFT
    false,  // WORKER_JOINED
    false,  // BRANCH_LOST
    false,  // BRANCH_LEFT
    false,  // TAG
};

}  // namespace fanin
