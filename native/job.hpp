// What a job is, as in fanin/job.py, which checks the values; here they are taken as legal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fanin {

struct JobSpec {
  std::uint16_t job = 0;
  std::uint32_t generation = 0;
  std::uint32_t workers = 1;
  std::uint32_t quorum = 1;
  std::uint32_t staleness = 0;
  std::uint32_t max_staleness = 0;  // fanin.job.JobSpec.largest_staleness
  std::uint32_t slots = 1;
  std::uint32_t words_per_packet = 8;
  std::uint32_t codes_per_packet = 1;
  std::vector<std::uint64_t> tokens;
  bool checksum = false;
  double liveness_timeout_s = 5.0;
  bool survives_loss = false;

  std::uint32_t history() const { return max_staleness + 2; }
  std::uint32_t contributions() const { return workers * (max_staleness + 1); }
  std::uint32_t full_mask() const { return workers == 32 ? 0xFFFFFFFFu : (1u << workers) - 1u; }
};

}  // namespace fanin
