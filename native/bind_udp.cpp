// fanin._native.SwitchServer and WorkerEngine: whole event loops, of which Python sees verbs and events.
#include <pybind11/stl.h>

#include <algorithm>
#include <deque>
#include <system_error>

#include "bind.hpp"
#include "bind_events.hpp"
#include "switch_server.hpp"
#include "worker_engine.hpp"

namespace py = pybind11;

namespace fanin {

namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

constexpr double SIGNAL_INTERVAL_S = 0.2;  // how long Ctrl-C may have to wait
constexpr const char* DESCRIPTION = "native machine, native loop over udp";  // as fanin.host.engine words the others
constexpr double LONGEST_WAIT_S = 1e9;     // infinity and beyond

// Calls `wait(slice_s)` without the GIL until it returns something true or the time is up; signals interrupt it.
template <typename Wait>
auto wait_in_slices(double timeout_s, Wait wait) {
  const double end_s = monotonic_now() + std::clamp(timeout_s, 0.0, LONGEST_WAIT_S);
  for (;;) {
    const double left_s = end_s - monotonic_now();
    auto result = [&] {
      const py::gil_scoped_release released;
      return wait(std::clamp(left_s, 0.0, SIGNAL_INTERVAL_S));
    }();
    if (result || left_s <= SIGNAL_INTERVAL_S) return result;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
}

UdpOptions options_from(int receive_buffer_bytes, bool offload) {
  UdpOptions options;
  options.receive_buffer_bytes = receive_buffer_bytes;
  options.offload = offload;
  return options;
}

class BoundWorkerEngine {
 public:
  BoundWorkerEngine(const py::object& spec, std::uint32_t worker, std::uint64_t token, const std::string& host,
                    const std::vector<std::uint16_t>& ports, double connect_timeout_s, int receive_buffer_bytes,
                    bool offload, const std::vector<std::string>& shared_memory, bool newcomer)
      : engine_(job_from_python(spec), worker, token, host, ports, connect_timeout_s,
                options_from(receive_buffer_bytes, offload), shared_memory, newcomer) {}

  ~BoundWorkerEngine() {
    const py::gil_scoped_release released;
    engine_.close();
  }

  std::uint64_t submit(const py::object& reduction) {
    const Reduction native = reduction_from_python(reduction);
    release_owners();
    const std::uint64_t ticket = without_gil([&] { return engine_.submit(native); });
    owners_.emplace_back(ticket, reduction);
    return ticket;
  }

  bool wait(std::uint64_t ticket, double timeout_s) {
    const bool done = wait_in_slices(timeout_s, [&](double slice_s) {
      return engine_.wait(ticket, slice_s) || engine_.failed() || engine_.closed();
    });
    release_owners();
    return done && engine_.done(ticket);
  }

  std::uint64_t sum_in_place(std::uintptr_t address, std::uint64_t count, int element, std::uint32_t lanes,
                             std::uint8_t tag, double timeout_s, py::object owner) {
    auto* const memory = reinterpret_cast<std::uint8_t*>(address);
    const Reduction reduction{.source = memory,
                              .destination = memory,
                              .count = count,
                              .element = static_cast<Element>(element),
                              .lanes = lanes,
                              .keep_count = count,
                              .tag = tag};
    const double slice_s = std::min(timeout_s, SIGNAL_INTERVAL_S);
    const std::uint64_t unfinished = without_gil([&] {
      const std::uint64_t ticket = engine_.submit(reduction);
      return engine_.wait(ticket, slice_s) ? 0 : ticket;
    });
    if (unfinished == 0) return 0;
    owners_.emplace_back(unfinished, std::move(owner));
    return wait(unfinished, timeout_s - slice_s) ? 0 : unfinished;
  }

  bool done(std::uint64_t ticket) {
    const bool done = engine_.done(ticket);
    if (done) release_owners();
    return done;
  }

  py::object next_event(double timeout_s) {
    const std::optional<WorkerEvent> event =
        wait_in_slices(timeout_s, [this](double slice_s) { return engine_.next_event(slice_s); });
    release_owners();
    if (!event) return py::none();
    return to_python(*event);
  }

  bool leave(double timeout_s) {
    const py::gil_scoped_release released;
    return engine_.leave(timeout_s);
  }

  void close() {
    {
      const py::gil_scoped_release released;
      engine_.close();
    }
    owners_.clear();  // nothing is written any more
  }

  WorkerEngine& engine() { return engine_; }

 private:
  // What the engine refuses is a ConfigurationError.
  template <typename Call>
  static std::uint64_t without_gil(Call call) {
    try {
      const py::gil_scoped_release released;
      return call();
    } catch (const std::invalid_argument& error) {
      py::set_error(py::module_::import("fanin.errors").attr("ConfigurationError"), error.what());
      throw py::error_already_set();
    }
  }

  // Lets go of the memory of what is done. Tickets are done in order, or nearly.
  void release_owners() {
    while (!owners_.empty() && engine_.done(owners_.front().first)) owners_.pop_front();
  }

  WorkerEngine engine_;
  std::deque<std::pair<std::uint64_t, py::object>> owners_;
};

void bind_server(py::module_& module) {
  py::class_<SwitchServer>(module, "SwitchServer")
      .def(py::init([](const std::string& host, std::uint16_t port, std::uint32_t flows, std::uint64_t memory_bytes,
                       int receive_buffer_bytes, bool offload, bool share_memory) {
             return std::make_unique<SwitchServer>(host, port, flows, memory_bytes,
                                                   options_from(receive_buffer_bytes, offload), share_memory);
           }),
           py::arg("host"), py::arg("port"), py::arg("flows"), py::arg("memory_bytes"), py::kw_only(),
           py::arg("receive_buffer_bytes") = UdpOptions{}.receive_buffer_bytes, py::arg("offload") = true,
           py::arg("share_memory") = true)
      .def_property_readonly("description", [](const SwitchServer&) { return DESCRIPTION; })
      .def_property_readonly("ports", [](const SwitchServer& self) { return py::tuple(py::cast(self.ports())); })
      .def_property_readonly("receive_buffer_bytes", &SwitchServer::receive_buffer_bytes)
      .def("start", &SwitchServer::start)
      .def("admit", [](SwitchServer& self, const py::object& spec, bool share_memory) {
            const JobSpec job = job_from_python(spec);
            const py::gil_scoped_release released;
            self.admit(job, share_memory);
          }, py::arg("spec"), py::kw_only(), py::arg("share_memory") = true)
      .def("admit_leaf", [](SwitchServer& self, const py::object& spec, const py::object& route, bool share_memory) {
            const JobSpec job = job_from_python(spec);
            const SwitchServer::Parent parent = {.host = route.attr("host").cast<std::string>(),
                                                 .ports = route.attr("ports").cast<std::vector<std::uint16_t>>(),
                                                 .uplink = uplink_from_python(route.attr("uplink")(0))};
            const py::gil_scoped_release released;
            self.admit(job, share_memory, parent);
          }, py::arg("spec"), py::arg("parent"), py::kw_only(), py::arg("share_memory") = true)
      .def("shared_memory", [](SwitchServer& self, std::uint16_t job) {
            const std::vector<std::string> paths = [&] {
              const py::gil_scoped_release released;
              return self.shared_memory(job);
            }();
            return py::tuple(py::cast(paths));
          }, py::arg("job"))
      .def("remove", &SwitchServer::remove, py::arg("job"), NoGil())
      .def("evict", &SwitchServer::evict, py::arg("job"), py::arg("worker"), NoGil())
      .def("set_quorum", &SwitchServer::set_quorum, py::arg("job"), py::arg("quorum"), NoGil())
      .def("set_staleness", &SwitchServer::set_staleness, py::arg("job"), py::arg("staleness"), NoGil())
      .def("admit_worker", &SwitchServer::admit_worker, py::arg("job"), py::arg("worker"), py::arg("token"), NoGil())
      .def("jobs", &SwitchServer::jobs, NoGil())
      .def("members", [](SwitchServer& self, std::uint16_t job) {
            const Members members = [&] {
              const py::gil_scoped_release released;
              return self.members(job);
            }();
            return py::make_tuple(members.registered, members.lost, members.left);
          }, py::arg("job"))
      .def("counters", [](SwitchServer& self) { return to_python(self.counters()); })
      .def("job_counters", [](SwitchServer& self, std::uint16_t job) { return to_python(self.job_counters(job)); },
           py::arg("job"))
      .def_property_readonly("event_fileno", &SwitchServer::event_fd)
      .def("next_event", [](SwitchServer& self, double timeout_s) {
            return to_python(
                wait_in_slices(timeout_s, [&self](double slice_s) { return self.next_event(slice_s); }));
          }, py::arg("timeout_s"))
      .def("close", &SwitchServer::close, NoGil());
}

void bind_engine(py::module_& module) {
  using Bound = BoundWorkerEngine;
  py::class_<Bound>(module, "WorkerEngine")
      .def(py::init<const py::object&, std::uint32_t, std::uint64_t, const std::string&,
                    const std::vector<std::uint16_t>&, double, int, bool, const std::vector<std::string>&, bool>(),
           py::arg("spec"), py::arg("worker"), py::arg("token"), py::arg("host"), py::arg("ports"),
           py::arg("connect_timeout_s") = 5.0, py::kw_only(),
           py::arg("receive_buffer_bytes") = UdpOptions{}.receive_buffer_bytes, py::arg("offload") = true,
           py::arg("shared_memory") = std::vector<std::string>{}, py::arg("newcomer") = false)
      .def_property_readonly("description", [](Bound& self) {
            return std::string(DESCRIPTION) + (self.engine().shares_memory() ? " and shared memory" : "");
          })
      .def_property_readonly("shares_memory", [](Bound& self) { return self.engine().shares_memory(); })
      .def_property_readonly("receive_buffer_bytes", [](Bound& self) { return self.engine().receive_buffer_bytes(); })
      .def_property_readonly("failed", [](Bound& self) { return self.engine().failed(); })
      .def_property_readonly("trouble", [](Bound& self) { return self.engine().trouble(); })
      .def("start", [](Bound& self) { self.engine().start(); })
      .def("submit", &Bound::submit, py::arg("reduction"))
      .def("sum_in_place", &Bound::sum_in_place, py::arg("address"), py::arg("count"), py::arg("element"),
           py::arg("lanes"), py::arg("tag"), py::arg("timeout_s"), py::arg("owner"))
      .def("begin", [](Bound& self, std::uint32_t base) { self.engine().begin(base); }, py::arg("base"), NoGil())
      .def("wait", &Bound::wait, py::arg("ticket"), py::arg("timeout_s"))
      .def("done", &Bound::done, py::arg("ticket"))
      .def("subscribe", [](Bound& self) { self.engine().subscribe(); })
      .def("next_event", &Bound::next_event, py::arg("timeout_s"))
      .def("counters", [](Bound& self) { return to_python(self.engine().counters()); })
      .def("buffer_bytes", [](Bound& self) { return self.engine().buffer_bytes(); })
      .def("leave", &Bound::leave, py::arg("timeout_s"))
      .def("close", &Bound::close);
}

}  // namespace

void bind_udp(py::module_& module) {
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const std::system_error& failed) {
      const py::object value = py::reinterpret_borrow<py::object>(PyExc_OSError)(failed.code().value(), failed.what());
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())), value.ptr());
    }
  });
  bind_server(module);
  bind_engine(module);
}

}  // namespace fanin
