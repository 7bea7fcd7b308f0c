// The parts of the Python module, one function per file.
#pragma once

#include <pybind11/pybind11.h>

#include "job.hpp"
#include "reduction.hpp"

namespace fanin {

void bind_kernels(pybind11::module_& module);
void bind_switch_machine(pybind11::module_& module);
void bind_worker_machine(pybind11::module_& module);
void bind_udp(pybind11::module_& module);
void bind_wires(pybind11::module_& module);

inline JobSpec job_from_python(const pybind11::handle& spec) {
  JobSpec job;
  job.job = spec.attr("job").cast<std::uint16_t>();
  job.generation = spec.attr("generation").cast<std::uint32_t>();
  job.workers = spec.attr("workers").cast<std::uint32_t>();
  job.quorum = spec.attr("quorum").cast<std::uint32_t>();
  job.staleness = spec.attr("staleness").cast<std::uint32_t>();
  job.max_staleness = spec.attr("largest_staleness").cast<std::uint32_t>();
  job.slots = spec.attr("slots").cast<std::uint32_t>();
  job.words_per_packet = spec.attr("words_per_packet").cast<std::uint32_t>();
  job.codes_per_packet = spec.attr("codes_per_packet").cast<std::uint32_t>();
  for (const auto& token : spec.attr("tokens")) job.tokens.push_back(token.cast<std::uint64_t>());
  job.checksum = spec.attr("checksum").cast<bool>();
  job.all_workers = spec.attr("all_workers").cast<std::uint32_t>();
  job.branches = spec.attr("branches").cast<bool>();
  job.survives_loss = spec.attr("survives_loss").cast<bool>();
  job.liveness_timeout_s = spec.attr("liveness_timeout_s").cast<double>();
  return job;
}

inline Uplink uplink_from_python(const pybind11::handle& given) {
  return Uplink{.parent = given.attr("parent").cast<Address>(),
                .job = given.attr("job").cast<std::uint16_t>(),
                .generation = given.attr("generation").cast<std::uint32_t>(),
                .worker = given.attr("worker").cast<std::uint8_t>(),
                .token = given.attr("token").cast<std::uint64_t>()};
}

inline Reduction reduction_from_python(const pybind11::handle& given) {
  Reduction reduction;
  const auto address = [&](const char* name) { return given.attr(name).cast<std::uintptr_t>(); };
  reduction.source = reinterpret_cast<const std::uint8_t*>(address("source"));
  reduction.destination = reinterpret_cast<std::uint8_t*>(address("destination"));
  reduction.count = given.attr("count").cast<std::uint64_t>();
  reduction.element = static_cast<Element>(given.attr("element").cast<int>());
  reduction.lanes = given.attr("lanes").cast<std::uint32_t>();
  reduction.divisor = given.attr("divisor").cast<double>();
  reduction.factor = given.attr("factor").cast<double>();
  reduction.residual = reinterpret_cast<float*>(address("residual"));
  reduction.keep_first = given.attr("keep_first").cast<std::uint64_t>();
  reduction.keep_count = given.attr("kept").cast<std::uint64_t>();
  reduction.signature = given.attr("signature").cast<std::uint32_t>();
  reduction.scale_code = given.attr("scale_code").cast<std::uint16_t>();
  reduction.passes = given.attr("passes").cast<bool>();
  reduction.counts = reinterpret_cast<std::uint32_t*>(address("counts"));
  return reduction;
}

}  // namespace fanin
