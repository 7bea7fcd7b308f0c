// fanin._native.CarrierRig: both ends of every carrier of the table on loopback, without machines and threads. The
// contract tests (tests/carriers) drive them as flows do.
#include <pybind11/stl.h>

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "bind/bind.hpp"
#include "io/carriers.hpp"

namespace py = pybind11;

namespace fanin {

namespace {

constexpr const char* LOOPBACK = "127.0.0.1";

class Collected final : public Inbox {
 public:
  void take(std::span<const Arrival> batch) override {
    for (const Arrival& arrival : batch)
      datagrams.append(py::make_tuple(
          py::bytes(reinterpret_cast<const char*>(arrival.bytes.data()), arrival.bytes.size()), arrival.source));
    largest_batch = std::max(largest_batch, batch.size());
  }
  void skip(std::span<const Arrival> batch) override { skipped += batch.size(); }
  void respond() override {}

  py::list datagrams;
  std::size_t skipped = 0;
  std::size_t largest_batch = 0;
};

class CarrierRig final : private CarrierHost {
 public:
  CarrierRig(const std::string& name, const py::object& spec) : spec_(job_from_python(spec)) {
    UdpOptions options;
    base_ =
        BASE.open_switch({.address = resolve(LOOPBACK, 0, true), .options = options, .poller = poller_, .host = *this});
    const auto rows = fanin::bypasses();
    const auto row = std::ranges::find_if(rows, [&](const BypassRow& each) { return name == each.name; });
    if (row == rows.end() && name != BASE.name) throw py::value_error("no carrier is called " + name);
    if (row != rows.end()) {
      bypass_ = row->open_switch(*this);
      offer_ = bypass_->offer(spec_);
    }
    for (std::uint32_t worker = 0; worker < spec_.workers; ++worker) {
      const WorkerPath path = {.address = resolve(LOOPBACK, base_->port(), false),
                               .options = options,
                               .worker = worker,
                               .token = spec_.tokens[worker],
                               .offer = offer_};
      bases_.push_back(BASE.open_worker(path));
      if (row != rows.end()) bypasses_.push_back(row->open_worker(path));
      if (row != rows.end() && bypasses_.back() == nullptr)
        throw py::value_error("a worker cannot map what is offered");
    }
  }

  std::string offer() const { return offer_; }

  // Sends a first datagram by the base carrier, like HELLO, and then does what a flow does at its WELCOME.
  void join(std::uint32_t worker) {
    const std::span<std::uint8_t> room = bases_.at(worker)->reserve(1);
    room[0] = static_cast<std::uint8_t>(worker);
    bases_[worker]->commit(1);
    bases_[worker]->flush();
    Collected hello;
    for (const epoll_event& event : poller_.look())
      if (event.data.u64 < Poller::ALARM) base_->serve(event.data.u64, hello);
    if (hello.datagrams.size() != 1) throw std::runtime_error("the first datagram did not come");
    const auto number = hello.datagrams[0].cast<py::tuple>()[1].cast<Address>();
    sources_[worker] = number;
    if (bypass_) bypass_->joined(number, spec_.job);
    base_->joined(number, spec_.job);
  }

  // Sends datagrams to the switch; returns how many had room, and whether the base carrier has to wake the switch.
  std::pair<std::size_t, bool> up(std::uint32_t worker, const std::vector<std::string>& datagrams) {
    WorkerCarrier& carrier = of(worker);
    std::size_t taken = 0;
    for (const std::string& datagram : datagrams) {
      const std::span<std::uint8_t> room = carrier.reserve(datagram.size());
      if (room.empty()) break;
      std::ranges::copy(datagram, room.begin());
      carrier.commit(datagram.size());
      ++taken;
    }
    return {taken, carrier.flush()};
  }

  // All datagrams that wait for the switch, with the numbers of their senders.
  py::list at_switch() {
    Collected collected;
    if (bypass_) {
      while (!bypass_->receive(collected)) {
      }
    }
    for (bool found = true; found;) {
      found = false;
      for (const epoll_event& event : poller_.look()) {
        if (event.data.u64 >= Poller::ALARM) continue;
        base_->serve(event.data.u64, collected);
        found = true;
      }
    }
    base_->handle_timer(monotonic_now());
    skipped_ += collected.skipped;
    return collected.datagrams;
  }

  bool down(const std::vector<std::uint32_t>& workers, const std::vector<std::string>& datagrams) {
    std::vector<iovec> train;
    train.reserve(datagrams.size());
    for (const std::string& datagram : datagrams)
      train.push_back({const_cast<char*>(datagram.data()), datagram.size()});
    std::vector<Address> numbers;
    numbers.reserve(workers.size());
    for (const std::uint32_t worker : workers) numbers.push_back(sources_.at(worker));
    return at_the_switch().carry(spec_.job, numbers, train) == numbers.size();
  }

  void idle() { at_the_switch().idle(); }
  void detach(std::uint32_t worker) { at_the_switch().detach(spec_.job, worker); }
  void close_switch() {
    if (bypass_) bypass_->remove(spec_.job);
    base_->close();
  }
  bool switch_may_sleep(std::uint32_t missing) {
    missing_ = missing;
    return bypass_ == nullptr || bypass_->may_sleep();
  }

  py::list at_worker(std::uint32_t worker) {
    Collected collected;
    while (!of(worker).receive(collected)) {
    }
    py::list bytes;
    for (const auto& each : collected.datagrams) bytes.append(each.cast<py::tuple>()[0]);
    return bytes;
  }

  bool may_sleep(std::uint32_t worker, bool on_bell) {
    return of(worker).may_sleep(on_bell ? Sleep::on_bell : Sleep::in_poll);
  }
  void awake(std::uint32_t worker) { of(worker).awake(); }
  py::object bell(std::uint32_t worker) {
    const Bell bell = of(worker).bell();
    return bell ? py::cast(bell.read()) : py::none();
  }
  void close_worker(std::uint32_t worker) { of(worker).close(); }
  bool works(std::uint32_t worker) { return of(worker).works(); }
  // The descriptor that wakes a thread of the worker that sleeps in poll.
  int worker_fd(std::uint32_t worker) { return bases_.at(worker)->fd(); }
  void silence(std::uint32_t worker) {
    Collected doorbells;
    while (!bases_.at(worker)->receive(doorbells)) {
    }
  }
  std::string trouble(std::uint32_t worker) { return bases_.at(worker)->trouble(); }
  std::uint64_t overflows() const { return base_->overflows(); }
  std::uint32_t source_of(std::uint32_t worker) { return sources_.at(worker); }
  std::size_t skipped() const { return skipped_; }
  void set_waits(bool waits) { waits_ = waits; }
  bool waits() const { return waits_; }
  std::size_t let_go_bytes() const { return let_go_; }
  CarrierCounters worker_counters(std::uint32_t worker) { return of(worker).counters(); }
  CarrierCounters switch_counters() { return at_the_switch().counters(); }

 private:
  std::optional<Address> source(std::uint16_t, std::uint32_t worker) const override {
    const auto found = sources_.find(worker);
    return found == sources_.end() ? std::nullopt : std::optional(found->second);
  }
  std::uint32_t missing(std::uint16_t) const override { return missing_; }
  std::uint32_t slots_in_step(std::uint16_t) const override { return 0; }
  bool ring(Address number) override { return base_->ring(number); }
  bool is_parent(Address) const override { return false; }
  // The test sets whether received bytes are still in use.
  bool waits_in(std::uint16_t, std::span<const std::uint8_t>) const override { return waits_; }
  void let_go(std::uint16_t, std::span<const std::uint8_t> memory) override { let_go_ += memory.size(); }

  WorkerCarrier& of(std::uint32_t worker) {
    if (worker >= spec_.workers) throw py::index_error();
    return bypasses_.empty() ? static_cast<WorkerCarrier&>(*bases_[worker]) : *bypasses_[worker];
  }
  SwitchCarrier& at_the_switch() {
    return bypass_ == nullptr ? static_cast<SwitchCarrier&>(*base_) : static_cast<SwitchCarrier&>(*bypass_);
  }

  JobSpec spec_;
  Poller poller_;
  std::unique_ptr<SwitchBase> base_;
  std::unique_ptr<SwitchBypass> bypass_;
  std::string offer_;
  std::vector<std::unique_ptr<WorkerBase>> bases_;
  std::vector<std::unique_ptr<WorkerCarrier>> bypasses_;
  std::map<std::uint32_t, Address> sources_;
  std::uint32_t missing_ = 1;
  std::size_t skipped_ = 0;
  bool waits_ = false;
  std::size_t let_go_ = 0;  // bytes
};

std::vector<std::string> names() {
  std::vector<std::string> all = {BASE.name};
  for (const BypassRow& row : fanin::bypasses()) all.emplace_back(row.name);
  return all;
}

}  // namespace

void bind_carriers(py::module_& module) {
  module.def("carriers", &names);
  py::class_<CarrierRig>(module, "CarrierRig")
      .def(py::init<const std::string&, const py::object&>(), py::arg("name"), py::arg("spec"))
      .def_property_readonly("offer", &CarrierRig::offer)
      .def_property_readonly("overflows", &CarrierRig::overflows)
      .def_property_readonly("skipped", &CarrierRig::skipped)
      .def_property_readonly("let_go_bytes", &CarrierRig::let_go_bytes)
      .def_property("waits", &CarrierRig::waits, &CarrierRig::set_waits)
      .def("join", &CarrierRig::join, py::arg("worker"))
      .def("up", &CarrierRig::up, py::arg("worker"), py::arg("datagrams"))
      .def("at_switch", &CarrierRig::at_switch)
      .def("down", &CarrierRig::down, py::arg("workers"), py::arg("datagrams"))
      .def("idle", &CarrierRig::idle)
      .def("detach", &CarrierRig::detach, py::arg("worker"))
      .def("close_switch", &CarrierRig::close_switch)
      .def("switch_may_sleep", &CarrierRig::switch_may_sleep, py::arg("missing"))
      .def("at_worker", &CarrierRig::at_worker, py::arg("worker"))
      .def("may_sleep", &CarrierRig::may_sleep, py::arg("worker"), py::arg("on_bell") = false)
      .def("awake", &CarrierRig::awake, py::arg("worker"))
      .def("bell", &CarrierRig::bell, py::arg("worker"))
      .def("close_worker", &CarrierRig::close_worker, py::arg("worker"))
      .def("works", &CarrierRig::works, py::arg("worker"))
      .def("worker_fd", &CarrierRig::worker_fd, py::arg("worker"))
      .def("silence", &CarrierRig::silence, py::arg("worker"))
      .def("trouble", &CarrierRig::trouble, py::arg("worker"))
      .def("source_of", &CarrierRig::source_of, py::arg("worker"))
      .def(
          "worker_counters",
          [](CarrierRig& self, std::uint32_t worker) {
            py::dict named;
            for (const auto& [name, value] : self.worker_counters(worker)) named[py::str(name)] = value;
            return named;
          },
          py::arg("worker"))
      .def("switch_counters", [](CarrierRig& self) {
        py::dict named;
        for (const auto& [name, value] : self.switch_counters()) named[py::str(name)] = value;
        return named;
      });
}

}  // namespace fanin
