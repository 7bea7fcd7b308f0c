// fanin._native.WorkerMachine: the worker machine for the pump engine, the emulator and the contract tests.
#include <pybind11/stl.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "bind/bind.hpp"
#include "bind/bind_events.hpp"
#include "machine/worker_machine.hpp"

namespace py = pybind11;

namespace fanin {

namespace {

class DatagramList final : public WorkerSink {
 public:
  explicit DatagramList(Address destination) : destination_(destination) {}

  std::span<std::uint8_t> reserve(std::size_t bytes) override {
    PyObject* const made = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes));
    if (made == nullptr) throw py::error_already_set();
    reserved_ = py::reinterpret_steal<py::bytes>(made);
    return {reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(made)), bytes};
  }
  void commit(std::size_t) override { datagrams_.push_back(std::move(reserved_)); }
  std::span<std::uint8_t> last() override {
    if (datagrams_.empty()) return {};
    PyObject* const made = datagrams_.back().ptr();
    return {reinterpret_cast<std::uint8_t*>(PyBytes_AS_STRING(made)), static_cast<std::size_t>(PyBytes_GET_SIZE(made))};
  }

  // Called after the machine has returned, because creating objects that the garbage collector tracks may let other
  // threads run.
  py::list datagrams() const {
    py::list list;
    for (const py::bytes& datagram : datagrams_) list.append(py::make_tuple(datagram, destination_));
    return list;
  }

 private:
  Address destination_;
  py::bytes reserved_;
  std::vector<py::bytes> datagrams_;
};

class BoundWorkerMachine {
 public:
  BoundWorkerMachine(const py::object& spec, std::uint32_t worker, Address switch_address, std::uint64_t token,
                     std::uint32_t flow, std::uint32_t flow_count, double connect_timeout_s, bool newcomer)
      : switch_(switch_address),
        machine_(job_from_python(spec), worker, switch_address, token, flow, flow_count, connect_timeout_s, newcomer) {}

  std::uint64_t submit(const py::object& reduction) {
    try {
      const Reduction native = reduction_from_python(reduction);
      const std::uint64_t ticket = machine_.submit(native);
      owners_.emplace(ticket, reduction);
      return ticket;
    } catch (const std::invalid_argument& error) {
      py::set_error(py::module_::import("fanin.errors").attr("ConfigurationError"), error.what());
      throw py::error_already_set();
    }
  }

  void receive_datagram(const py::buffer& data, Address source, double now) {
    const py::buffer_info view = data.request();
    machine_.receive_datagram({static_cast<const std::uint8_t*>(view.ptr), static_cast<std::size_t>(view.size)}, source,
                              now, is_marked(data));
  }

  void receive_datagrams(const std::vector<std::pair<py::bytes, Address>>& datagrams, double now) {
    machine_.receive_datagrams(arrivals_of(datagrams), now);
  }

  py::list datagrams_to_send(double now) {
    DatagramList sink(switch_);
    machine_.datagrams_to_send(now, sink);
    return sink.datagrams();
  }

  py::object next_event() {
    const std::optional<WorkerEvent> event = machine_.next_event();
    if (!event) return py::none();
    const auto released = std::holds_alternative<ReductionDone>(*event)
                              ? owners_.extract(std::get<ReductionDone>(*event).ticket)
                              : decltype(owners_)::node_type{};
    return to_python(*event);
  }

  py::dict counters() const { return to_python(machine_.counters().list()); }

  WorkerMachine& machine() { return machine_; }

 private:
  Address switch_;
  WorkerMachine machine_;
  std::unordered_map<std::uint64_t, py::object> owners_;  // of the memory of outstanding reductions, by ticket
};

}  // namespace

void bind_worker_machine(py::module_& module) {
  using Bound = BoundWorkerMachine;
  py::class_<Bound>(module, "WorkerMachine")
      .def(py::init<const py::object&, std::uint32_t, Address, std::uint64_t, std::uint32_t, std::uint32_t, double,
                    bool>(),
           py::arg("spec"), py::arg("worker"), py::kw_only(), py::arg("switch"), py::arg("token"), py::arg("flow") = 0,
           py::arg("flow_count") = 1, py::arg("connect_timeout_s") = 5.0, py::arg("newcomer") = false)
      .def("submit", &Bound::submit, py::arg("reduction"))
      .def(
          "leave", [](Bound& self, double now) { self.machine().leave(now); }, py::arg("now"))
      .def(
          "begin", [](Bound& self, std::uint32_t base) { self.machine().begin(base); }, py::arg("base"))
      .def("receive_datagram", &Bound::receive_datagram, py::arg("data"), py::arg("source"), py::arg("now"))
      .def("receive_datagrams", &Bound::receive_datagrams, py::arg("datagrams"), py::arg("now"))
      .def("datagrams_to_send", &Bound::datagrams_to_send, py::arg("now"))
      .def("regular_sent", [](Bound& self) { return self.machine().regular_sent(); })
      .def("next_timer", [](Bound& self) { return self.machine().next_timer(); })
      .def(
          "handle_timer", [](Bound& self, double now) { self.machine().handle_timer(now); }, py::arg("now"))
      .def("next_event", &Bound::next_event)
      .def("regular", [](Bound& self) { return self.machine().regular(); })
      .def("outstanding", [](Bound& self) { return self.machine().outstanding(); })
      .def("counters", &Bound::counters)
      .def("buffer_bytes", [](Bound& self) { return self.machine().buffer_bytes(); })
      .def_property_readonly("ready", [](Bound& self) { return self.machine().ready(); })
      .def_property_readonly("failed", [](Bound& self) { return self.machine().failed(); });
}

}  // namespace fanin
