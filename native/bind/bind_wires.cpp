// fanin._native.Wires: what fanin.emulation.network joins TAP devices with.
#include <pybind11/stl.h>

#include <memory>

#include "bind/bind.hpp"
#include "bind/bind_gil.hpp"
#include "io/process_owned.hpp"
#include "io/wires.hpp"

namespace py = pybind11;

namespace fanin {

namespace {

WireOptions wire_options(double delay_s, double jitter_s, double loss, double duplicate, double reorder,
                         std::uint64_t seed) {
  return {
      .delay_s = delay_s, .jitter_s = jitter_s, .loss = loss, .duplicate = duplicate, .reorder = reorder, .seed = seed};
}

py::dict as_dict(const WireCounters& counters) {
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
  using Bound = ProcessOwned<Wires>;
  py::class_<Bound>(module, "Wires")
      .def(py::init([] { return std::make_unique<Bound>("emulator of wires"); }))
      .def(
          "join",
          [](Bound& self, int fd_a, int fd_b, double delay_s, double jitter_s, double loss, double duplicate,
             double reorder, std::uint64_t seed) {
            return self.get().join(fd_a, fd_b, wire_options(delay_s, jitter_s, loss, duplicate, reorder, seed));
          },
          py::arg("fd_a"), py::arg("fd_b"), py::kw_only(), py::arg("delay_s") = 0.0, py::arg("jitter_s") = 0.0,
          py::arg("loss") = 0.0, py::arg("duplicate") = 0.0, py::arg("reorder") = 0.0, py::arg("seed") = 0)
      .def("start", [](Bound& self) { self.get().start(); })
      .def(
          "cut", [](Bound& self, std::size_t wire, bool down) { self.get().cut(wire, down); }, py::arg("wire"),
          py::arg("down"))
      .def(
          "counters",
          [](Bound& self, std::size_t wire) {
            const auto [up, down] = self.get().counters(wire);
            return py::make_tuple(as_dict(up), as_dict(down));
          },
          py::arg("wire"))
      .def("close", [](Bound& self) {
        if (!self.inherited()) without_gil([&] { self.get().close(); });
      });
}

}  // namespace fanin
