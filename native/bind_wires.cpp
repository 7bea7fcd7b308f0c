// fanin._native.Wires: what fanin.emulation.network joins TAP devices with.
#include <pybind11/stl.h>

#include "bind.hpp"
#include "wires.hpp"

namespace py = pybind11;

namespace fanin {

namespace {

WireOptions wire_options(double delay_s, double jitter_s, double loss, double duplicate, double reorder,
                         std::uint64_t seed) {
  return {.delay_s = delay_s, .jitter_s = jitter_s, .loss = loss, .duplicate = duplicate, .reorder = reorder,
          .seed = seed};
}

py::dict to_python(const WireCounters& counters) {
  py::dict named;
  named["frames"] = counters.frames;
  named["bytes"] = counters.bytes;
  named["lost"] = counters.lost;
  named["duplicated"] = counters.duplicated;
  named["reordered"] = counters.reordered;
  named["overflowed"] = counters.overflowed;
  named["refused"] = counters.refused;
  return named;
}

}  // namespace

void bind_wires(py::module_& module) {
  py::class_<Wires>(module, "Wires")
      .def(py::init<>())
      .def("join", [](Wires& self, int fd_a, int fd_b, double delay_s, double jitter_s, double loss, double duplicate,
                      double reorder, std::uint64_t seed) {
            return self.join(fd_a, fd_b, wire_options(delay_s, jitter_s, loss, duplicate, reorder, seed));
          },
          py::arg("fd_a"), py::arg("fd_b"), py::kw_only(), py::arg("delay_s") = 0.0, py::arg("jitter_s") = 0.0,
          py::arg("loss") = 0.0, py::arg("duplicate") = 0.0, py::arg("reorder") = 0.0, py::arg("seed") = 0)
      .def("start", &Wires::start)
      .def("cut", &Wires::cut, py::arg("wire"), py::arg("down"))
      .def("counters", [](Wires& self, std::size_t wire) {
            const auto [up, down] = self.counters(wire);
            return py::make_tuple(to_python(up), to_python(down));
          }, py::arg("wire"))
      .def("close", &Wires::close, py::call_guard<py::gil_scoped_release>());
}

}  // namespace fanin
