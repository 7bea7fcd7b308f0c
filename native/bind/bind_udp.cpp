// fanin._native.SwitchServer and WorkerEngine: whole event loops, of which Python sees verbs and events.
// Any thread may call anything at any time: see bind_gil.hpp for what that asks of this file.
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <system_error>

#include "bind/bind.hpp"
#include "bind/bind_events.hpp"
#include "bind/bind_gil.hpp"
#include "bind/bind_owners.hpp"
#include "io/process_owned.hpp"
#include "io/switch_server.hpp"
#include "io/worker_engine.hpp"

namespace py = pybind11;

namespace fanin {

namespace {

constexpr double SIGNAL_INTERVAL_S = 0.2;  // longest delay of Ctrl-C
constexpr const char* DESCRIPTION =
    "native machine, native loop over udp";  // as fanin.host.engines.engine words the others
constexpr double LONGEST_WAIT_S = 1e9;       // infinity and beyond

// A timeout in the range that waits accept.
double bounded(double timeout_s) {
  if (std::isnan(timeout_s)) throw py::value_error("a timeout is a number of seconds, and not NaN");
  return std::clamp(timeout_s, 0.0, LONGEST_WAIT_S);
}

// Calls `wait(slice_s)` without the GIL until it returns something true, `over()`, or the time is up; signals interrupt
// it.
template <typename Wait, typename Over>
auto wait_in_slices(double timeout_s, Wait wait, Over over) {
  const double end_s = monotonic_now() + bounded(timeout_s);
  for (;;) {
    const double left_s = end_s - monotonic_now();
    auto result = without_gil([&] { return wait(std::clamp(left_s, 0.0, SIGNAL_INTERVAL_S)); });
    if (result || left_s <= SIGNAL_INTERVAL_S || over()) return result;
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
      : owned_("engine", job_from_python(spec), worker, token, host, ports, connect_timeout_s,
               options_from(receive_buffer_bytes, offload), shared_memory, newcomer) {}

  // NOLINTNEXTLINE(bugprone-exception-escape): only where memory has run out, and then nothing can be put right
  ~BoundWorkerEngine() { close(); }

  std::uint64_t submit(const py::object& reduction) {
    const Reduction native = reduction_from_python(reduction);
    const Owners::Released released = take_done();
    const std::uint64_t ticket = submitted([&] { return engine().submit(native); });
    owners_.keep(ticket, reduction);
    return ticket;
  }

  bool wait(std::uint64_t ticket, double timeout_s) {
    const bool done = wait_in_slices(
        timeout_s,
        [&](double slice_s) { return engine().wait(ticket, slice_s) || engine().failed() || engine().closed(); },
        [] { return false; });
    const Owners::Released released = take_done();
    return done && engine().done(ticket);
  }

  std::uint64_t submit_and_wait(const py::tuple& packed, double timeout_s, py::object owner) {
    const Reduction reduction = reduction_from_packed(packed);
    const double slice_s = std::min(bounded(timeout_s), SIGNAL_INTERVAL_S);
    const std::uint64_t unfinished = submitted([&] {
      const std::uint64_t ticket = engine().submit(reduction);
      return engine().wait(ticket, slice_s) && engine().spoiled() == 0 ? 0 : ticket;
    });
    if (unfinished == 0) return 0;
    owners_.keep(unfinished, std::move(owner));
    return wait(unfinished, timeout_s - slice_s) && engine().spoiled() == 0 ? 0 : unfinished;
  }

  bool done(std::uint64_t ticket) {
    const bool done = engine().done(ticket);
    if (!done) return false;
    const Owners::Released released = take_done();
    return true;
  }

  py::object next_event(double timeout_s) {
    const std::optional<WorkerEvent> event = wait_in_slices(
        timeout_s, [this](double slice_s) { return engine().next_event(slice_s); },
        [this] { return engine().closed(); });
    const Owners::Released released = take_done();
    if (!event) return py::none();
    return to_python(*event);
  }

  void begin(std::uint32_t base) {
    without_gil([&] { engine().begin(base); });
  }

  bool leave(double timeout_s) {
    return without_gil([&, limit_s = bounded(timeout_s)] { return engine().leave(limit_s); });
  }

  void close() {
    if (!owned_.inherited()) without_gil([this] { engine().close(); });
    const Owners::Released released = owners_.take_all();  // the engine no longer writes to their memory
  }

  WorkerEngine& engine() { return owned_.get(); }

 private:
  // Turns a refusal of the engine into a ConfigurationError.
  template <typename Call>
  static std::uint64_t submitted(Call call) {
    try {
      return without_gil(call);
    } catch (const std::invalid_argument& error) {
      py::set_error(py::module_::import("fanin.errors").attr("ConfigurationError"), error.what());
      throw py::error_already_set();
    }
  }

  Owners::Released take_done() {
    return owners_.take_done([this](std::uint64_t ticket) { return engine().done(ticket); });
  }

  ProcessOwned<WorkerEngine> owned_;
  Owners owners_;
};

class BoundSwitchServer {
 public:
  template <typename... Arguments>
  explicit BoundSwitchServer(Arguments&&... arguments) : owned_("server", std::forward<Arguments>(arguments)...) {}
  ~BoundSwitchServer() { close(); }

  void close() {
    if (!owned_.inherited()) without_gil([this] { owned_.get().close(); });
  }
  SwitchServer& server() { return owned_.get(); }

 private:
  ProcessOwned<SwitchServer> owned_;
};

// Wraps a verb of the server for Python, to be called without the GIL.
template <typename Result, typename... Arguments>
auto verb(Result (SwitchServer::*called)(Arguments...)) {
  return [called](BoundSwitchServer& self, Arguments... arguments) -> Result {
    return without_gil([&, server = &self.server()]() -> Result { return (server->*called)(arguments...); });
  };
}

void bind_server(py::module_& module) {
  using Bound = BoundSwitchServer;
  py::class_<Bound>(module, "SwitchServer")
      .def(py::init([](const std::string& host, std::uint16_t port, std::uint32_t flows, std::uint64_t memory_bytes,
                       int receive_buffer_bytes, bool offload, bool share_memory) {
             return std::make_unique<Bound>(host, port, flows, memory_bytes,
                                            options_from(receive_buffer_bytes, offload), share_memory);
           }),
           py::arg("host"), py::arg("port"), py::arg("flows"), py::arg("memory_bytes"), py::kw_only(),
           py::arg("receive_buffer_bytes") = UdpOptions{}.receive_buffer_bytes, py::arg("offload") = true,
           py::arg("share_memory") = true)
      .def_property_readonly("description", [](const Bound&) { return DESCRIPTION; })
      .def_property_readonly("ports", [](Bound& self) { return py::tuple(py::cast(self.server().ports())); })
      .def_property_readonly("receive_buffer_bytes", [](Bound& self) { return self.server().receive_buffer_bytes(); })
      .def("start", [](Bound& self) { self.server().start(); })
      .def(
          "admit",
          [](Bound& self, const py::object& spec, bool share_memory) {
            const JobSpec job = job_from_python(spec);
            without_gil([&, server = &self.server()] { server->admit(job, share_memory); });
          },
          py::arg("spec"), py::kw_only(), py::arg("share_memory") = true)
      .def(
          "admit_leaf",
          [](Bound& self, const py::object& spec, const py::object& route, bool share_memory) {
            const JobSpec job = job_from_python(spec);
            const SwitchServer::Parent parent = {.host = route.attr("host").cast<std::string>(),
                                                 .ports = route.attr("ports").cast<std::vector<std::uint16_t>>(),
                                                 .uplink = uplink_from_python(route)};
            without_gil([&, server = &self.server()] { server->admit(job, share_memory, parent); });
          },
          py::arg("spec"), py::arg("parent"), py::kw_only(), py::arg("share_memory") = true)
      .def(
          "shared_memory",
          [](Bound& self, std::uint16_t job) { return py::tuple(py::cast(verb(&SwitchServer::offers)(self, job))); },
          py::arg("job"))
      .def(
          "ring_bytes",
          [](Bound& self, std::uint16_t job) {
            const RingBytes rings = verb(&SwitchServer::ring_bytes)(self, job);
            return py::make_tuple(rings.held, rings.wanted);
          },
          py::arg("job"))
      .def("remove", verb(&SwitchServer::remove), py::arg("job"))
      .def("evict", verb(&SwitchServer::evict), py::arg("job"), py::arg("worker"))
      .def("suspect", verb(&SwitchServer::suspect), py::arg("job"), py::arg("worker"))
      .def("suspect_parent", verb(&SwitchServer::suspect_parent), py::arg("job"))
      .def("set_quorum", verb(&SwitchServer::set_quorum), py::arg("job"), py::arg("quorum"))
      .def("set_staleness", verb(&SwitchServer::set_staleness), py::arg("job"), py::arg("staleness"))
      .def("admit_worker", verb(&SwitchServer::admit_worker), py::arg("job"), py::arg("worker"), py::arg("token"))
      .def("jobs", verb(&SwitchServer::jobs))
      .def(
          "members",
          [](Bound& self, std::uint16_t job) {
            const Members members = verb(&SwitchServer::members)(self, job);
            return py::make_tuple(members.registered, members.lost, members.left);
          },
          py::arg("job"))
      .def("counters", [](Bound& self) { return to_python(verb(&SwitchServer::counters)(self)); })
      .def(
          "job_counters",
          [](Bound& self, std::uint16_t job) { return to_python(verb(&SwitchServer::job_counters)(self, job)); },
          py::arg("job"))
      .def(
          "member_counters",
          [](Bound& self, std::uint16_t job) { return to_python(verb(&SwitchServer::member_counters)(self, job)); },
          py::arg("job"))
      .def_property_readonly("event_fileno", [](Bound& self) { return self.server().event_fd(); })
      .def(
          "next_event",
          [](Bound& self, double timeout_s) {
            return to_python(wait_in_slices(
                timeout_s, [server = &self.server()](double slice_s) { return server->next_event(slice_s); },
                [server = &self.server()] { return server->closed(); }));
          },
          py::arg("timeout_s"))
      .def("close", &Bound::close);
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
      .def_property_readonly("description",
                             [](Bound& self) {
                               return std::string(DESCRIPTION) +
                                      (self.engine().has_bypass() ? " and shared memory" : "");
                             })
      .def_property_readonly("shares_memory", [](Bound& self) { return self.engine().has_bypass(); })
      .def_property_readonly("receive_buffer_bytes", [](Bound& self) { return self.engine().receive_buffer_bytes(); })
      .def_property_readonly("failed", [](Bound& self) { return self.engine().failed(); })
      .def_property_readonly("spoiled", [](Bound& self) { return self.engine().spoiled(); })
      .def_property_readonly("trouble", [](Bound& self) { return self.engine().trouble(); })
      .def("start", [](Bound& self) { self.engine().start(); })
      .def("submit", &Bound::submit, py::arg("reduction"))
      .def("submit_and_wait", &Bound::submit_and_wait, py::arg("packed"), py::arg("timeout_s"), py::arg("owner"))
      .def("begin", &Bound::begin, py::arg("base"))
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
  // NOLINTNEXTLINE(performance-unnecessary-value-param): pybind11 says so
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
