// fanin._native.P4Machine: compiled P4 programs. Registers, counters and the counts of entries are Python's memory.
// Calls come with the GIL, which is released while a batch is processed; the owner of the switch holds a lock of its
// own.
#include <pybind11/stl.h>

#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/bind_gil.hpp"
#include "bind/bind_p4.hpp"
#include "p4/p4_machine.hpp"
#include "p4/p4_meter.hpp"
#include "p4/p4_ports.hpp"

namespace py = pybind11;

namespace fanin {

namespace {

using Limbs = std::vector<std::uint64_t>;
using Ranges = std::vector<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t>>;
using Members = std::vector<std::tuple<std::uint32_t, std::uint32_t, Limbs>>;  // action, next node, data
using Replicas = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

// A view of memory of a Python object, which it keeps alive.
class Held {
 public:
  Held(const py::buffer& given, std::size_t bytes) : info_(given.request(true)) {
    if (static_cast<std::size_t>(info_.size * info_.itemsize) < bytes) throw py::value_error("a buffer is too short");
  }
  void* data() const { return info_.ptr; }

 private:
  py::buffer_info info_;
};

std::vector<p4::Replica> replicas_from(const Replicas& given) {
  std::vector<p4::Replica> made;
  for (const auto& [port, instance] : given) made.push_back({port, instance});
  return made;
}

py::list as_list(const std::vector<p4::Sent>& sent) {
  py::list list(sent.size());
  for (std::size_t at = 0; at < sent.size(); ++at)
    list[at] = py::make_tuple(sent[at].port,
                              py::bytes(reinterpret_cast<const char*>(sent[at].data.data()), sent[at].data.size()));
  return list;
}

class BoundMachine {
 public:
  explicit BoundMachine(const py::dict& given) : machine_(program_from(given), tables_from(given)) {}

  std::uint32_t put(std::size_t table, Limbs value, Limbs mask, const Ranges& ranges, std::int64_t rank,
                    std::uint32_t action, std::uint32_t next, Limbs data, const std::optional<py::buffer>& counts,
                    const std::optional<py::buffer>& meter, std::uint32_t choices) {
    p4::TableEntry entry = entry_from(action, next, std::move(data));
    entry.value = std::move(value);
    entry.mask = std::move(mask);
    for (const auto& [shift, bits, low, high] : ranges) entry.ranges.push_back({shift, bits, low, high});
    entry.choices = choices;
    std::optional<Held> held, held_meter;
    if (meter) {
      held_meter.emplace(*meter, p4::METER_CELLS * sizeof(std::int64_t));
      entry.meter = static_cast<std::int64_t*>(held_meter->data());
    }
    if (counts) {
      held.emplace(*counts, 2 * sizeof(std::int64_t));
      entry.counts = static_cast<std::int64_t*>(held->data());
    }
    const std::uint32_t number = machine_.table(table).put(std::move(entry), rank);
    if (held) counts_.insert_or_assign({table, number}, std::move(*held));
    if (held_meter) meters_.insert_or_assign({table, number}, std::move(*held_meter));
    return number;
  }

  void take(std::size_t table, std::uint32_t number) {
    machine_.table(table).take(number);
    const auto released = counts_.extract({table, number});  // dropped at the end, when no container is in use
    const auto released_meter = meters_.extract({table, number});
  }

  void set_action(std::size_t table, std::uint32_t number, std::uint32_t action, std::uint32_t next, Limbs data) {
    machine_.table(table).set_action(number, action, next, std::move(data));
  }

  std::uint32_t add_choices(const Members& members, const std::vector<std::uint32_t>& spread) {
    return machine_.add_choices(choices_from(members, spread));
  }
  void set_choices(std::uint32_t number, const Members& members, const std::vector<std::uint32_t>& spread) {
    machine_.set_choices(number, choices_from(members, spread));
  }
  void remove_choices(std::uint32_t number) { machine_.remove_choices(number); }

  std::vector<std::pair<std::uint32_t, Limbs>> take_digests() {
    std::vector<std::pair<std::uint32_t, Limbs>> taken;
    for (p4::Digest& each : machine_.take_digests()) taken.emplace_back(each.list, std::move(each.limbs));
    return taken;
  }

  void set_miss(std::size_t table, std::uint32_t action, std::uint32_t next, Limbs data) {
    machine_.table(table).set_miss(entry_from(action, next, std::move(data)));
  }

  void set_group(std::uint32_t number, const std::optional<Replicas>& replicas) {
    if (replicas)
      machine_.set_group(number, replicas_from(*replicas));
    else
      machine_.remove_group(number);
  }

  void set_mirror(std::uint32_t number, const std::optional<Replicas>& replicas, std::uint64_t cut) {
    if (replicas)
      machine_.set_mirror(number, {replicas_from(*replicas), cut});
    else
      machine_.remove_mirror(number);
  }

  std::uint64_t endless() const { return machine_.endless(); }

  // Processes packets; returns the leaving packets, bytes in and out, numbers of dropped and lost packets, and the
  // reason of the last loss.
  py::tuple process(const std::vector<std::pair<std::uint32_t, py::bytes>>& packets, std::uint64_t now_us) {
    std::vector<std::pair<std::uint32_t, std::span<const std::uint8_t>>> given;
    given.reserve(packets.size());
    for (const auto& [port, data] : packets)
      given.emplace_back(port, std::span(reinterpret_cast<const std::uint8_t*>(PyBytes_AS_STRING(data.ptr())),
                                         static_cast<std::size_t>(PyBytes_GET_SIZE(data.ptr()))));
    const std::uint64_t dropped = machine_.dropped();
    std::vector<p4::Sent> sent;
    std::uint64_t lost = 0;
    std::string reason;
    const auto work = [&] {
      for (const auto& [port, data] : given) {
        try {
          machine_.process(port, data, now_us, sent);
        } catch (const p4::PacketLost& error) {
          ++lost;
          reason = error.what();
        }
      }
    };
    if (given.size() > 1)
      without_gil(work);
    else
      work();
    std::uint64_t bytes_in = 0, bytes_out = 0;
    for (const auto& [port, data] : given) bytes_in += data.size();
    for (const p4::Sent& each : sent) bytes_out += each.data.size();
    return py::make_tuple(as_list(sent), bytes_in, bytes_out, machine_.dropped() - dropped, lost, reason);
  }

  // Processes the frames of the ports' last receive(). Frames that leave through one of the ports wait there for
  // flush(); frames for other ports are returned as by process(), followed by the number of all packets that left.
  py::tuple process_ports(p4::Ports& ports, std::uint64_t now_us) {
    const std::uint64_t dropped = machine_.dropped();
    std::vector<p4::Sent> others;
    std::uint64_t lost = 0, bytes_in = 0, bytes_out = 0, packets_out = 0;
    std::string reason;
    without_gil([&] {
      std::vector<p4::Sent> sent;
      for (const p4::Frame& data : ports.frames()) {
        bytes_in += data.size();
        sent.clear();
        try {
          machine_.process(ports.number(), data, now_us, sent);
        } catch (const p4::PacketLost& error) {
          ++lost;
          reason = error.what();
          continue;
        }
        packets_out += sent.size();
        for (p4::Sent& each : sent) {
          bytes_out += each.data.size();
          if (!ports.send(each.port, each.data)) others.push_back(std::move(each));
        }
      }
    });
    return py::make_tuple(as_list(others), bytes_in, bytes_out, machine_.dropped() - dropped, lost, reason,
                          packets_out);
  }

 private:
  p4::TableEntry entry_from(std::uint32_t action, std::uint32_t next, Limbs data) {
    p4::TableEntry entry;
    entry.action = action;
    entry.next = next;
    entry.data = std::move(data);
    return entry;
  }

  p4::Choices choices_from(const Members& members, const std::vector<std::uint32_t>& spread) {
    p4::Choices made;
    for (const auto& [action, next, data] : members) made.members.push_back(entry_from(action, next, data));
    for (const std::uint32_t each : spread)
      if (each >= made.members.size()) throw py::value_error("a choice of no member");
    if (spread.empty()) throw py::value_error("nothing to choose from");
    made.spread = spread;
    return made;
  }

  static std::vector<p4::Extent> extents_from(const py::handle& given, std::size_t limbs) {
    std::vector<p4::Extent> extents;
    for (const auto& [first, count] : given.cast<std::vector<std::pair<std::uint32_t, std::uint32_t>>>()) {
      if (std::size_t{first} + count > limbs) throw py::value_error("an extent beyond the fields");
      extents.push_back({first, count});
    }
    return extents;
  }

  static std::vector<p4::Table> tables_from(const py::dict& given) {
    std::vector<p4::Table> tables;
    for (const auto& [limbs, exact] : given["tables"].cast<std::vector<std::pair<std::uint32_t, bool>>>())
      tables.emplace_back(limbs, exact);
    return tables;
  }

  p4::Program program_from(const py::dict& given) {
    p4::Program program;
    const auto number = [&](const char* name) { return given[name].cast<std::uint32_t>(); };
    const auto code = given["code"].cast<std::string>();
    if (code.size() % sizeof(p4::Instruction)) throw py::value_error("code is no sequence of instructions");
    program.code.resize(code.size() / sizeof(p4::Instruction));
    std::memcpy(program.code.data(), code.data(), code.size());
    program.blank = given["blank"].cast<Limbs>();
    program.beginning = extents_from(given["beginning"], program.blank.size());
    program.carried = extents_from(given["carried"], program.blank.size());
    program.constants = given["constants"].cast<Limbs>();
    program.parameters = number("parameters");
    program.constants_at = number("constants_at");
    const std::size_t frame = std::size_t{program.constants_at} + program.constants.size();
    if (frame > p4::MAX_FRAME_LIMBS || program.blank.size() > frame || program.parameters > frame)
      throw py::value_error("a frame of " + std::to_string(frame) + " limbs is longer than one may be, or too short");
    program.parser = number("parser");
    program.ingress = number("ingress");
    program.egress = number("egress");
    program.verify = number("verify");
    program.update = number("update");
    program.deparse = number("deparse");
    program.no_error = number("no_error");
    program.max_states = number("max_states");
    program.max_passes = number("max_passes");
    program.drop_port = number("drop_port");
    program.failures = given["failures"].cast<std::vector<std::string>>();
    for (const auto& [list, fields] : given["field_lists"].cast<py::dict>())
      program.field_lists[list.cast<std::uint32_t>()] = extents_from(fields, program.blank.size());
    program.metadata = extents_from(given["metadata"], program.blank.size());
    const auto place = [places = given["places"].cast<py::dict>()](const char* name) {
      return places.contains(name) ? places[name].cast<std::uint32_t>() : p4::ABSENT;
    };
    program.places = {place("ingress_port"),
                      place("packet_length"),
                      place("instance_type"),
                      place("egress_spec"),
                      place("egress_port"),
                      place("parser_error"),
                      place("checksum_error"),
                      place("mcast_grp"),
                      place("egress_rid"),
                      place("ingress_global_timestamp"),
                      place("egress_global_timestamp"),
                      place("enq_timestamp")};
    for (const auto& each : given["registers"]) {
      const auto [cells, size, limbs, cell_bytes] =
          each.cast<std::tuple<py::buffer, std::uint32_t, std::uint32_t, std::size_t>>();
      arrays_.emplace_back(cells, cell_bytes * size);
      program.registers.push_back({arrays_.back().data(), size, limbs});
    }
    for (const auto& each : given["counters"]) {
      const auto [packets, bytes, size] = each.cast<std::tuple<py::buffer, py::buffer, std::uint32_t>>();
      arrays_.emplace_back(packets, sizeof(std::int64_t) * size);
      auto* const first = static_cast<std::int64_t*>(arrays_.back().data());
      arrays_.emplace_back(bytes, sizeof(std::int64_t) * size);
      program.counters.push_back({first, static_cast<std::int64_t*>(arrays_.back().data()), size});
    }
    for (const auto& each : given["meters"]) {
      const auto [cells, size] = each.cast<std::tuple<py::buffer, std::uint32_t>>();
      if (size == 0) {
        program.meters.push_back({nullptr, 0});
        continue;
      }
      arrays_.emplace_back(cells, p4::METER_CELLS * sizeof(std::int64_t) * size);
      program.meters.push_back({static_cast<std::int64_t*>(arrays_.back().data()), size});
    }
    for (const auto& [list, fields] : given["learn_lists"].cast<py::dict>())
      program.learn_lists[list.cast<std::uint32_t>()] = extents_from(fields, program.blank.size());
    return program;
  }

  std::vector<Held> arrays_;
  std::map<std::pair<std::size_t, std::uint32_t>, Held> counts_;
  std::map<std::pair<std::size_t, std::uint32_t>, Held> meters_;
  p4::Machine machine_;
};

}  // namespace

void bind_p4(py::module_& module) {
  module.attr("P4_OPERATIONS") = py::tuple(py::cast(p4::operation_names()));
  py::class_<p4::Ports>(
      module, "P4Ports",
      "Twin of the ports of fanin.switch.p4runtime.server, whose sockets it uses; one thread at a time.")
      .def(py::init<>())
      .def("add_udp", &p4::Ports::add_udp, py::arg("fd"), py::arg("number"), py::arg("address"), py::arg("udp_port"))
      .def("add_raw", &p4::Ports::add_raw, py::arg("fd"), py::arg("number"))
      .def("receive", [](p4::Ports& ports) { return without_gil([&] { return ports.receive(); }); })
      .def("frames",
           [](p4::Ports& ports) {
             std::vector<p4::Sent> frames;
             for (const p4::Frame& each : ports.frames())
               frames.push_back({ports.number(), {each.begin(), each.end()}});
             return as_list(frames);
           })
      .def("flush", [](p4::Ports& ports) { return without_gil([&] { return ports.flush(); }); })
      .def("stop", &p4::Ports::stop);
  py::class_<BoundMachine>(module, "P4Machine",
                           "Twin of fanin.switch.p4.v1model.V1Switch; fanin.switch.p4.native makes what it is given.")
      .def(py::init<const py::dict&>(), py::arg("program"))
      .def("put", &BoundMachine::put, py::arg("table"), py::arg("value"), py::arg("mask"), py::arg("ranges"),
           py::arg("rank"), py::arg("action"), py::arg("next"), py::arg("data"), py::arg("counts"), py::arg("meter"),
           py::arg("choices"))
      .def("set_action", &BoundMachine::set_action, py::arg("table"), py::arg("number"), py::arg("action"),
           py::arg("next"), py::arg("data"))
      .def("add_choices", &BoundMachine::add_choices, py::arg("members"), py::arg("spread"))
      .def("set_choices", &BoundMachine::set_choices, py::arg("number"), py::arg("members"), py::arg("spread"))
      .def("remove_choices", &BoundMachine::remove_choices, py::arg("number"))
      .def("take_digests", &BoundMachine::take_digests)
      .def("take", &BoundMachine::take, py::arg("table"), py::arg("number"))
      .def("set_miss", &BoundMachine::set_miss, py::arg("table"), py::arg("action"), py::arg("next"), py::arg("data"))
      .def("set_group", &BoundMachine::set_group, py::arg("number"), py::arg("replicas"))
      .def("set_mirror", &BoundMachine::set_mirror, py::arg("number"), py::arg("replicas"), py::arg("cut"))
      .def("endless", &BoundMachine::endless)
      .def("process", &BoundMachine::process, py::arg("packets"), py::arg("now_us"))
      .def("process_ports", &BoundMachine::process_ports, py::arg("ports"), py::arg("now_us"));
}

}  // namespace fanin
