// The parts of the Python module, one function per file.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "wire/job.hpp"
#include "wire/packet.hpp"
#include "wire/reduction.hpp"
#include "wire/sinks.hpp"

namespace fanin {

void bind_flags(pybind11::module_& module);
void bind_kernels(pybind11::module_& module);
void bind_switch_machine(pybind11::module_& module);
void bind_worker_machine(pybind11::module_& module);
void bind_udp(pybind11::module_& module);
void bind_carriers(pybind11::module_& module);
void bind_wires(pybind11::module_& module);

// The algorithm of a fanin.protocol.tag_algorithm.TagAlgorithm, for which this processor must have the instructions.
inline TagAlgorithm tag_algorithm_from_python(const std::string& name) {
  if (name == "siphash") return TagAlgorithm::siphash;
  if (name != "gcm-siv") throw pybind11::value_error("a tag's algorithm is none of TagAlgorithm");
  if (!gcm_siv_runs_here()) throw pybind11::value_error("this processor computes no tags by gcm-siv");
  return TagAlgorithm::gcm_siv;
}

inline SecretKey secret_key_from_python(std::string_view bytes, const std::string& algorithm) {
  SecretKey key = {{}, tag_algorithm_from_python(algorithm)};
  if (bytes.size() != sizeof key.bits) throw pybind11::value_error("a data key has 16 bytes");
  std::memcpy(&key.bits.low, bytes.data(), sizeof key.bits.low);
  std::memcpy(&key.bits.high, bytes.data() + sizeof key.bits.low, sizeof key.bits.high);
  return key;
}

// The data key of a fanin.protocol.job.JobSpec, Uplink or ParentRoute; none if it is empty.
inline DataKey data_key_from_python(const pybind11::handle& given) {
  const auto bytes = given.attr("data_key").cast<std::string>();
  if (bytes.empty()) return std::nullopt;
  return secret_key_from_python(bytes, given.attr("tag").cast<std::string>());
}

// Whether a datagram is a fanin.protocol.ecn.Marked. Most are plain bytes, which is quick to check.
inline bool is_marked(const pybind11::handle& datagram) {
  return PyBytes_CheckExact(datagram.ptr()) == 0 &&
         pybind11::getattr(datagram, "marked", pybind11::bool_(false)).cast<bool>();
}

// A batch of received datagrams; their bytes live as long as `datagrams`.
inline std::vector<Arrival> arrivals_of(const std::vector<std::pair<pybind11::bytes, Address>>& datagrams) {
  std::vector<Arrival> arrivals;
  for (const auto& [data, source] : datagrams) {
    const std::string_view bytes = data;
    arrivals.push_back({{reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()}, source, is_marked(data)});
  }
  return arrivals;
}

inline JobSpec job_from_python(const pybind11::handle& spec) {
  JobSpec job;
  const auto read = [&]<typename T>(const JobFact<T>& fact) {
    job.*fact.field = spec.attr(fact.name).template cast<T>();
  };
  std::apply([&](const auto&... fact) { (read(fact), ...); }, JOB_FACTS);
  job.data_key = data_key_from_python(spec);
  // fanin.protocol.job.JobSpec has checked all of this, but the object may be no JobSpec.
  const bool legal = job.workers >= 1 && job.workers <= MAX_WORKERS && job.tokens.size() == job.workers &&
                     job.quorum >= 1 && job.quorum <= job.workers && job.staleness <= job.max_staleness &&
                     job.max_staleness <= MAX_STALENESS && job.slots >= 1 && job.slots <= 1 << 20 &&
                     job.codes_per_packet >= 1 && job.codes_per_packet <= MAX_CODES && job.words_per_packet > 0 &&
                     job.words_per_packet % (8 * job.codes_per_packet) == 0 &&
                     datagram_bytes(job.codes_per_packet, job.words_per_packet) <= MAX_DATAGRAM_BYTES;
  if (!legal) throw pybind11::value_error("no legal fanin.protocol.job.JobSpec");
  return job;
}

// The uplink of a fanin.protocol.job.Uplink, or of a ParentRoute, whose parent has no address number yet.
inline Uplink uplink_from_python(const pybind11::handle& given) {
  return Uplink{.parent = pybind11::hasattr(given, "parent") ? given.attr("parent").cast<Address>() : Address{},
                .job = given.attr("job").cast<std::uint16_t>(),
                .generation = given.attr("generation").cast<std::uint32_t>(),
                .worker = given.attr("worker").cast<std::uint8_t>(),
                .token = given.attr("token").cast<std::uint64_t>(),
                .data_key = data_key_from_python(given)};
}

inline Element element_from_python(int element) {
  if (element < 0 || element > static_cast<int>(Element::int64))
    throw pybind11::value_error("element is none of fanin.numerics.reduction.Element");
  return static_cast<Element>(element);
}

inline Operator operator_from_python(int with) {
  if (with < 0 || with > static_cast<int>(Operator::bxor))
    throw pybind11::value_error("operator is none of fanin.numerics.reduction.Operator");
  return static_cast<Operator>(with);
}

// An attribute's name as a Python string, created and hashed once, because a reduction is read for every collective.
class Attribute {
 public:
  explicit Attribute(const char* name) : name_(PyUnicode_InternFromString(name)) {}

  template <typename T>
  T of(const pybind11::handle& object) const {
    PyObject* const value = PyObject_GetAttr(object.ptr(), name_);
    if (value == nullptr) throw pybind11::error_already_set();
    return pybind11::reinterpret_steal<pybind11::object>(value).cast<T>();
  }

 private:
  PyObject* name_;  // never released
};

inline Reduction reduction_from_python(const pybind11::handle& given) {
  static const Attribute source("source"), destination("destination"), count("count"), element("element"),
      lanes("lanes"), with("operator"), divisor("divisor"), factor("factor"), residual("residual"),
      keep_first("keep_first"), kept("kept"), own_first("own_first"), own_count("own_count"), tag("tag"),
      signature("signature"), scale_code("scale_code"), passes("passes"), counts("counts"), arrivals("arrivals");
  Reduction reduction;
  reduction.source = reinterpret_cast<const std::uint8_t*>(source.of<std::uintptr_t>(given));
  reduction.destination = reinterpret_cast<std::uint8_t*>(destination.of<std::uintptr_t>(given));
  reduction.count = count.of<std::uint64_t>(given);
  reduction.element = element_from_python(element.of<int>(given));
  reduction.lanes = lanes.of<std::uint32_t>(given);
  reduction.with = operator_from_python(with.of<int>(given));
  reduction.divisor = divisor.of<double>(given);
  reduction.factor = factor.of<double>(given);
  reduction.residual = reinterpret_cast<float*>(residual.of<std::uintptr_t>(given));
  reduction.keep_first = keep_first.of<std::uint64_t>(given);
  reduction.keep_count = kept.of<std::uint64_t>(given);
  if (const auto owns = own_count.of<std::int64_t>(given); owns >= 0) {
    reduction.owned = true;
    reduction.own_first = own_first.of<std::uint64_t>(given);
    reduction.own_count = static_cast<std::uint64_t>(owns);
  }
  reduction.tag = tag.of<std::uint32_t>(given);
  reduction.signature = signature.of<std::uint32_t>(given);
  reduction.scale_code = scale_code.of<std::uint16_t>(given);
  reduction.passes = passes.of<bool>(given);
  reduction.counts = reinterpret_cast<std::uint32_t*>(counts.of<std::uintptr_t>(given));
  reduction.arrivals = reinterpret_cast<std::uint32_t*>(arrivals.of<std::uintptr_t>(given));
  return reduction;
}

// The reduction of a fanin.numerics.reduction.PackedReduction, whose values are not checked yet.
inline Reduction reduction_from_packed(const pybind11::tuple& packed) {
  if (packed.size() != 11)
    throw pybind11::value_error("a packed reduction has eleven fields: fanin.numerics.reduction.PackedReduction");
  Reduction reduction;
  reduction.source = reinterpret_cast<const std::uint8_t*>(packed[0].cast<std::uintptr_t>());
  reduction.destination = reinterpret_cast<std::uint8_t*>(packed[1].cast<std::uintptr_t>());
  reduction.count = packed[2].cast<std::uint64_t>();
  reduction.element = element_from_python(packed[3].cast<int>());
  reduction.lanes = packed[4].cast<std::uint32_t>();
  reduction.tag = packed[5].cast<std::uint32_t>();
  reduction.keep_first = packed[6].cast<std::uint64_t>();
  const auto kept = packed[7].cast<std::int64_t>();
  reduction.keep_count = kept < 0 ? reduction.count : static_cast<std::uint64_t>(kept);
  reduction.own_first = packed[8].cast<std::uint64_t>();
  const auto owns = packed[9].cast<std::int64_t>();
  reduction.owned = owns >= 0;
  reduction.own_count = reduction.owned ? static_cast<std::uint64_t>(owns) : 0;
  reduction.divisor = packed[10].cast<double>();
  const auto within = [&](std::uint64_t first, std::uint64_t some) {
    return some <= reduction.count && first <= reduction.count - some;
  };
  if (!within(reduction.keep_first, reduction.keep_count) || !within(reduction.own_first, reduction.own_count) ||
      (reduction.owned && reduction.lanes != COPIED))
    throw pybind11::value_error("a packed reduction keeps or owns elements that it does not have");
  return reduction;
}

}  // namespace fanin
