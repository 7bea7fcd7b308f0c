// Specification of a job, as in fanin/protocol/job.py, which checks the values; here they are assumed to be legal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "wire/packet_tag.hpp"
#include "wire/sinks.hpp"

namespace fanin {

struct JobSpec {
  std::uint16_t job = 0;
  std::uint32_t generation = 0;
  std::uint32_t workers = 1;
  std::uint32_t quorum = 1;
  std::uint32_t staleness = 0;
  std::uint32_t max_staleness = 0;
  std::uint32_t slots = 1;
  std::uint64_t window_items = 8;  // a worker sends no item this many ahead of its oldest unfinished one
  std::uint32_t words_per_packet = 8;
  std::uint32_t codes_per_packet = 1;
  std::vector<std::uint64_t> tokens;
  bool checksum = false;
  DataKey data_key;  // the job's key in engines and servers; the flow's key in machines
  double liveness_timeout_s = 5.0;
  bool survives_loss = false;
  std::uint32_t total_workers = 1;    // number of workers at all switches of a tree
  std::vector<std::uint32_t> places;  // by worker: its place among those of all switches; empty: its number
  bool accumulators = false;          // whether the switch keeps an accumulator for each lane
  bool branches = false;              // whether the workers are leaves, whose packets count their contributions

  std::uint32_t place(std::uint32_t worker) const { return places.empty() ? worker : places[worker]; }
  std::uint32_t history() const { return max_staleness + 2; }
  std::uint32_t contributions() const { return total_workers * (max_staleness + 1); }
  // Bytes of one accumulator, which wraps around.
  std::uint32_t accumulator_bytes() const { return std::uint64_t{contributions()} << 7 < 1u << 15 ? 2 : 4; }
  bool waits_for_all() const { return quorum == workers && max_staleness == 0; }
  bool synchronous() const { return waits_for_all() && !survives_loss; }
  // If no slot gets its next item before all workers have the result of the one before: slots of a flow; otherwise 0.
  std::uint32_t slots_in_step() const { return waits_for_all() ? slots : 0; }
  std::uint32_t full_mask() const { return workers == 32 ? 0xFFFFFFFFu : (1u << workers) - 1u; }
};

template <typename T>
struct JobFact {
  const char* name;
  T JobSpec::* field;
};
template <typename T>
JobFact(const char*, T JobSpec::*) -> JobFact<T>;  // clang before 17 deduces no arguments of aggregates by itself

// Fields that are read from the attribute of the same name of fanin.protocol.job.JobSpec; `data_key` is read from two.
inline constexpr std::tuple JOB_FACTS{
    JobFact{"job", &JobSpec::job},
    JobFact{"generation", &JobSpec::generation},
    JobFact{"workers", &JobSpec::workers},
    JobFact{"quorum", &JobSpec::quorum},
    JobFact{"staleness", &JobSpec::staleness},
    JobFact{"max_staleness", &JobSpec::max_staleness},
    JobFact{"slots", &JobSpec::slots},
    JobFact{"window_items", &JobSpec::window_items},
    JobFact{"words_per_packet", &JobSpec::words_per_packet},
    JobFact{"codes_per_packet", &JobSpec::codes_per_packet},
    JobFact{"checksum", &JobSpec::checksum},
    JobFact{"liveness_timeout_s", &JobSpec::liveness_timeout_s},
    JobFact{"survives_loss", &JobSpec::survives_loss},
    JobFact{"total_workers", &JobSpec::total_workers},
    JobFact{"accumulators", &JobSpec::accumulators},
    JobFact{"branches", &JobSpec::branches},
    JobFact{"tokens", &JobSpec::tokens},
    JobFact{"places", &JobSpec::places},
};

// A leaf's part in its parent's job, where it is one worker, whose contributions are the leaf's rounds.
struct Uplink {
  Address parent = 0;
  std::uint16_t job = 0;
  std::uint32_t generation = 0;
  std::uint8_t worker = 0;
  std::uint64_t token = 0;
  DataKey data_key;  // of the parent's job, as in JobSpec
};

}  // namespace fanin
