#include "bind/bind.hpp"
#include "bind/bind_p4.hpp"

PYBIND11_MODULE(_native, module) {
  module.doc() = "The hot path of fanin. Every part has a readable Python twin; see native/README.md.";
  fanin::bind_flags(module);
  fanin::bind_kernels(module);
  fanin::bind_switch_machine(module);
  fanin::bind_worker_machine(module);
  fanin::bind_udp(module);
  fanin::bind_carriers(module);
  fanin::bind_wires(module);
  fanin::bind_p4(module);
}
