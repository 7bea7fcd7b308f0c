#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "bind/bind.hpp"
#include "bind/bind_events.hpp"
#include "machine/slot_ring.hpp"
#include "machine/switch_machine.hpp"

namespace py = pybind11;

namespace fanin {

namespace {

// Collects what the machine sends as [(bytes, address), ...]; a multicast shares one bytes object.
class AddressedList final : public SwitchSink {
 public:
  void send(std::span<const std::uint8_t> datagram, std::span<const Address> destinations) override {
    const py::bytes data(reinterpret_cast<const char*>(datagram.data()), datagram.size());
    for (const Address destination : destinations) datagrams_.emplace_back(data, destination);
  }

  // Called after the machine has returned, because creating objects that the garbage collector tracks may let other
  // threads run.
  py::list list() const {
    py::list list;
    for (const auto& [data, destination] : datagrams_) list.append(py::make_tuple(data, destination));
    return list;
  }

 private:
  std::vector<std::pair<py::bytes, Address>> datagrams_;
};

std::span<const std::uint8_t> bytes_of(const py::buffer_info& info) {
  if (info.ndim != 1 || info.itemsize != 1 || (info.size > 0 && info.strides[0] != 1))
    throw py::type_error("a datagram is a contiguous sequence of bytes");
  return {static_cast<const std::uint8_t*>(info.ptr), static_cast<std::size_t>(info.size)};
}

}  // namespace

void bind_switch_machine(py::module_& module) {
  // NOLINTNEXTLINE(performance-unnecessary-value-param): pybind11 says so
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const JobRefused& refused) {
      const py::object type = py::module_::import("fanin.errors").attr("AdmissionError");
      py::set_error(type, refused.what());
    } catch (const NoSuchJob& unknown) {
      py::set_error(PyExc_KeyError, unknown.what());
    }
  });
  py::class_<SwitchMachine>(module, "SwitchMachine",
                            "Twin of fanin.switch.machine.switch_machine.SwitchMachine, which documents the verbs.")
      .def(py::init<std::uint64_t>(), py::arg("memory_bytes"))
      .def(
          "admit", [](SwitchMachine& self, const py::object& spec) { self.admit(job_from_python(spec)); },
          py::arg("spec"))
      .def(
          "admit_leaf",
          [](SwitchMachine& self, const py::object& spec, const py::object& uplink) {
            self.admit(job_from_python(spec), uplink_from_python(uplink));
          },
          py::arg("spec"), py::arg("uplink"))
      .def("remove", &SwitchMachine::remove, py::arg("job"))
      .def("evict", &SwitchMachine::evict, py::arg("job"), py::arg("worker"), py::arg("now"))
      .def("suspect", &SwitchMachine::suspect, py::arg("job"), py::arg("worker"), py::arg("now"))
      .def("suspect_parent", &SwitchMachine::suspect_parent, py::arg("job"), py::arg("now"))
      .def("overdue", &SwitchMachine::overdue, py::arg("now"))
      .def("sign_of_life", &SwitchMachine::sign_of_life, py::arg("source"), py::arg("now"))
      .def("set_quorum", &SwitchMachine::set_quorum, py::arg("job"), py::arg("quorum"), py::arg("now"))
      .def("set_staleness", &SwitchMachine::set_staleness, py::arg("job"), py::arg("staleness"), py::arg("now"))
      .def("admit_worker", &SwitchMachine::admit_worker, py::arg("job"), py::arg("worker"), py::arg("token"))
      .def("jobs", &SwitchMachine::jobs)
      .def(
          "members",
          [](const SwitchMachine& self, std::uint16_t job) {
            const Members members = self.members(job);
            return py::make_tuple(members.registered, members.lost, members.left);
          },
          py::arg("job"))
      .def("counters", [](const SwitchMachine& self) { return to_python(self.counters()); })
      .def(
          "job_counters",
          [](const SwitchMachine& self, std::uint16_t job) { return to_python(self.job_counters(job)); },
          py::arg("job"))
      .def(
          "member_counters",
          [](const SwitchMachine& self, std::uint16_t job) { return to_python(self.member_counters(job)); },
          py::arg("job"))
      // Does what a carrier with shared memory does: contributions in `lasting` may stay there until they are added.
      .def(
          "use_memory",
          [](SwitchMachine& self, const py::object& spec,
             const py::array_t<std::uint8_t, py::array::c_style>& lasting) {
            const JobSpec job = job_from_python(spec);
            std::shared_ptr<std::uint8_t> images(
                static_cast<std::uint8_t*>(std::aligned_alloc(CACHE_LINE_BYTES, SlotRing::image_bytes(job))),
                std::free);
            if (images == nullptr) throw std::bad_alloc();
            self.use_images(job.job, std::move(images), {lasting.data(), static_cast<std::size_t>(lasting.nbytes())});
          },
          py::arg("spec"), py::arg("lasting").noconvert(), py::keep_alive<1, 3>())
      .def(
          "waits_in",
          [](const SwitchMachine& self, std::uint16_t job,
             const py::array_t<std::uint8_t, py::array::c_style>& memory) {
            return self.waits_in(job, {memory.data(), static_cast<std::size_t>(memory.nbytes())});
          },
          py::arg("job"), py::arg("memory").noconvert())
      .def(
          "let_go",
          [](SwitchMachine& self, std::uint16_t job, const py::array_t<std::uint8_t, py::array::c_style>& memory) {
            self.let_go(job, {memory.data(), static_cast<std::size_t>(memory.nbytes())});
          },
          py::arg("job"), py::arg("memory").noconvert())
      .def(
          "receive_datagram",
          [](SwitchMachine& self, const py::buffer& data, Address source, double now) {
            const py::buffer_info info = data.request();
            self.receive_datagram(bytes_of(info), source, now, is_marked(data));
          },
          py::arg("data"), py::arg("source"), py::arg("now"))
      .def(
          "receive_datagrams",
          [](SwitchMachine& self, const std::vector<std::pair<py::bytes, Address>>& datagrams, double now) {
            self.receive_datagrams(arrivals_of(datagrams), now);
          },
          py::arg("datagrams"), py::arg("now"))
      .def("regular", &SwitchMachine::regular)
      .def(
          "datagrams_to_send",
          [](SwitchMachine& self, double now) {
            AddressedList sink;
            self.datagrams_to_send(now, sink);
            return sink.list();
          },
          py::arg("now"))
      .def("next_timer", &SwitchMachine::next_timer)
      .def("handle_timer", &SwitchMachine::handle_timer, py::arg("now"))
      .def("next_event", [](SwitchMachine& self) { return to_python(self.next_event()); });
}

}  // namespace fanin
