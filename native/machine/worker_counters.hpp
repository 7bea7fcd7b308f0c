// Counters of a worker machine; names and meaning as in host/machine/worker_machine.py.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "wire/wire_constants.hpp"

namespace fanin {

struct WorkerCounters {
  std::uint64_t packets_out = 0;
  std::uint64_t packets_in = 0;
  std::uint64_t bytes_out = 0;
  std::uint64_t bytes_in = 0;
  std::uint64_t retransmissions = 0;
  std::uint64_t gaps = 0;
  std::uint64_t timeouts = 0;
  std::uint64_t results = 0;
  std::uint64_t duplicates = 0;
  std::uint64_t unacknowledged = 0;  // results that came before this worker's contribution was known to be accepted
  std::uint64_t forecasts = 0;       // correct forecasts of scale codes, and wrong ones
  std::uint64_t forecasts_missed = 0;
  std::uint64_t receipts = 0;        // receipts of arrived transmissions
  std::uint64_t losses = 0;          // contributions and results known to have been lost
  std::uint64_t spurious = 0;        // contributions that were sent again and had arrived, or were answered, before
  std::uint64_t paced = 0;           // times that pacing delayed a packet
  std::uint64_t marks = 0;           // congestion marks: on received packets, and on contributions by receipts
  std::uint64_t path_questions = 0;  // HELLOs that tested whether long packets pass
  std::uint64_t path_suspected = 0;  // 1: too many of these in a row were lost for chance
  std::uint64_t cuts = 0;            // cuts of the congestion window
  std::uint64_t window = 0;          // current congestion window, in packets
  std::uint64_t srtt_us = 0;
  std::array<std::uint64_t, REASON_NAMES.size()> dropped{};  // by fanin.protocol.wire.Reason

  // Names and values, in a fixed order.
  std::vector<std::pair<std::string, std::uint64_t>> list() const {
    std::vector<std::pair<std::string, std::uint64_t>> counts = {
        {"packets_out", packets_out},
        {"packets_in", packets_in},
        {"bytes_out", bytes_out},
        {"bytes_in", bytes_in},
        {"retransmissions", retransmissions},
        {"gaps", gaps},
        {"timeouts", timeouts},
        {"results", results},
        {"duplicates", duplicates},
        {"unacknowledged", unacknowledged},
        {"forecasts", forecasts},
        {"forecasts_missed", forecasts_missed},
        {"receipts", receipts},
        {"losses", losses},
        {"spurious", spurious},
        {"paced", paced},
        {"marks", marks},
        {"path_questions", path_questions},
        {"cuts", cuts},
        {"window", window},
        {"path_suspected", path_suspected},
        {"srtt_us", srtt_us},
    };
    for (std::size_t reason = 1; reason < dropped.size(); ++reason)
      counts.emplace_back(std::string("dropped_") + REASON_NAMES[reason], dropped[reason]);
    return counts;
  }
};

}  // namespace fanin
