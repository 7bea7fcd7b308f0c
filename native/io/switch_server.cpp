#include "io/switch_server.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "machine/member_tally.hpp"

namespace fanin {

SwitchServer::SwitchServer(const std::string& host, std::uint16_t port, std::uint32_t flows, std::uint64_t memory_bytes,
                           const UdpOptions& options, bool share_memory)
    : share_memory_(share_memory) {
  if (flows == 0) throw std::invalid_argument("a switch has at least one flow");
  for (std::uint32_t flow = 0; flow < flows; ++flow) {
    const SocketAddress address = resolve(host, static_cast<std::uint16_t>(port == 0 ? 0 : port + flow), true);
    flows_.push_back(std::make_unique<SwitchFlow>(address, options, memory_bytes / flows,
                                                  [this](const SwitchEvent& event) { take_event(event); }));
  }
}

SwitchServer::~SwitchServer() { close(); }

void SwitchServer::start() {
  for (const auto& flow : flows_) flow->start();
}

void SwitchServer::close() {
  for (const auto& flow : flows_) flow->close();
  const std::lock_guard lock(events_lock_);
  closed_ = true;
  events_changed_.notify_all();
}

std::vector<std::uint16_t> SwitchServer::ports() const {
  std::vector<std::uint16_t> ports;
  for (const auto& flow : flows_) ports.push_back(flow->port());
  return ports;
}

int SwitchServer::receive_buffer_bytes() const { return flows_.front()->receive_buffer_bytes(); }

void SwitchServer::admit(const JobSpec& spec, bool share_memory, const std::optional<Parent>& parent) {
  const std::lock_guard control(control_);
  std::size_t admitted = 0;
  try {
    for (const auto& flow : flows_) {
      JobSpec of_this_flow = spec;
      of_this_flow.data_key = of_flow(spec.data_key, static_cast<std::uint32_t>(admitted));
      std::optional<Uplink> uplink;
      if (parent) {
        uplink = parent->uplink;
        uplink->data_key = of_flow(parent->uplink.data_key, static_cast<std::uint32_t>(admitted));
        uplink->parent = flow->number_of_parent(resolve(parent->host, parent->ports.at(admitted), false));
      }
      flow->with_machine([&](SwitchMachine& machine, double) { machine.admit(of_this_flow, uplink); });
      flow->wake();
      ++admitted;
    }
  } catch (...) {
    for (std::size_t i = 0; i < admitted; ++i)
      flows_[i]->with_machine([&](SwitchMachine& machine, double) { machine.remove(spec.job); });
    throw;
  }
  if (!share_memory || !share_memory_ || spec.branches) return;  // switches below this one use sockets
  Offer offer;
  offer.bytes.wanted = flows_.front()->offer_bytes(spec) * flows_.size();
  for (const auto& flow : flows_) offer.texts.push_back(flow->offer_bypass(spec));
  if (std::ranges::none_of(offer.texts, &std::string::empty)) {
    offer.bytes.held = offer.bytes.wanted;
  } else {  // on every flow or on none: a worker maps all or none
    offer.texts.clear();
    for (const auto& flow : flows_) flow->withdraw_bypass(spec.job);
  }
  offers_[spec.job] = std::move(offer);
}

std::vector<std::string> SwitchServer::offers(std::uint16_t job) {
  const std::lock_guard control(control_);
  const auto found = offers_.find(job);
  return found == offers_.end() ? std::vector<std::string>{} : found->second.texts;
}

RingBytes SwitchServer::ring_bytes(std::uint16_t job) {
  const std::lock_guard control(control_);
  const auto found = offers_.find(job);
  return found == offers_.end() ? RingBytes{} : found->second.bytes;
}

void SwitchServer::remove(std::uint16_t job) {
  const std::lock_guard control(control_);
  for (const auto& flow : flows_) flow->remove(job);
  offers_.erase(job);
  const std::lock_guard lock(events_lock_);
  std::erase_if(seen_, [job](const auto& entry) { return entry.first >> 8 == job; });
}

void SwitchServer::evict(std::uint16_t job, std::uint32_t worker) {
  const std::lock_guard control(control_);
  for (const auto& flow : flows_) flow->evict(job, worker);
}

void SwitchServer::suspect(std::uint16_t job, std::uint32_t worker) {
  const std::lock_guard control(control_);
  for (const auto& flow : flows_) {
    flow->with_machine([&](SwitchMachine& machine, double now) { machine.suspect(job, worker, now); });
    flow->wake();  // its timer is due sooner
  }
}

void SwitchServer::suspect_parent(std::uint16_t job) {
  const std::lock_guard control(control_);
  for (const auto& flow : flows_) {
    flow->with_machine([&](SwitchMachine& machine, double now) { machine.suspect_parent(job, now); });
    flow->wake();  // its timer is due sooner
  }
}

void SwitchServer::set_quorum(std::uint16_t job, std::uint32_t quorum) {
  const std::lock_guard control(control_);
  for (const auto& flow : flows_) {
    flow->with_machine([&](SwitchMachine& machine, double now) { machine.set_quorum(job, quorum, now); });
    flow->wake();
  }
}

void SwitchServer::set_staleness(std::uint16_t job, std::uint32_t staleness) {
  const std::lock_guard control(control_);
  for (const auto& flow : flows_) {
    flow->with_machine([&](SwitchMachine& machine, double now) { machine.set_staleness(job, staleness, now); });
    flow->wake();
  }
}

void SwitchServer::admit_worker(std::uint16_t job, std::uint32_t worker, std::uint64_t token) {
  const std::lock_guard control(control_);
  for (const auto& flow : flows_) flow->admit_worker(job, worker, token);
  // Drop unread events, which concern the previous process in that place, and report events again from now on.
  const std::lock_guard lock(events_lock_);
  seen_.erase(std::uint32_t{job} << 8 | worker);
  std::erase_if(events_, [=](const SwitchEvent& event) { return event.job == job && event.worker == worker; });
  if (events_.empty()) events_bell_.silence();
}

std::vector<std::uint16_t> SwitchServer::jobs() {
  return flows_.front()->with_machine([](SwitchMachine& machine, double) { return machine.jobs(); });
}

Members SwitchServer::members(std::uint16_t job) {
  Members all{~0u, 0, 0};
  for (const auto& flow : flows_) {
    const Members one = flow->with_machine([job](SwitchMachine& machine, double) { return machine.members(job); });
    all = {all.registered & one.registered, all.lost | one.lost, all.left | one.left};
  }
  return all;
}

CounterList SwitchServer::counters() {
  CounterList total;
  CarrierCounters carriers;
  std::uint64_t overflows = 0;
  std::uint64_t flooded = 0;
  for (const auto& flow : flows_) {
    flooded += flow->flooded();
    add_counters(total, flow->with_machine([](SwitchMachine& machine, double) { return machine.counters(); }));
    add_counters(carriers, flow->carrier_counters());
    overflows += flow->overflows();
  }
  total.insert(total.end(), carriers.begin(), carriers.end());
  total.emplace_back("socket_overflows", overflows);
  total.emplace_back("dropped_flood", flooded);
  return total;
}

CounterList SwitchServer::job_counters(std::uint16_t job) {
  CounterList total;
  for (const auto& flow : flows_)
    add_counters(total,
                 flow->with_machine([job](SwitchMachine& machine, double) { return machine.job_counters(job); }));
  return total;
}

std::vector<CounterList> SwitchServer::member_counters(std::uint16_t job) {
  std::vector<CounterList> total;
  for (const auto& flow : flows_) {
    const auto more =
        flow->with_machine([job](SwitchMachine& machine, double) { return machine.member_counters(job); });
    total.resize(more.size());
    for (std::size_t worker = 0; worker < more.size(); ++worker) add_member_counters(total[worker], more[worker]);
  }
  return total;
}

void SwitchServer::take_event(const SwitchEvent& event) {
  const std::lock_guard lock(events_lock_);
  Seen& seen = seen_[std::uint32_t{event.job} << 8 | event.worker];
  switch (event.kind) {
    case SwitchEvent::Kind::worker_joined:
      if (++seen.joined != flows_.size()) return;
      break;
    case SwitchEvent::Kind::worker_silent:
      if (std::exchange(seen.silent, true)) return;
      break;
    case SwitchEvent::Kind::worker_left:
      if (std::exchange(seen.left, true)) return;
      break;
    case SwitchEvent::Kind::branch_narrowed:
      if (std::exchange(seen.narrowed, true)) return;
      break;
  }
  if (events_.size() == MAX_EVENTS) events_.pop_front();  // bounds memory if nobody reads events
  events_.push_back(event);
  events_bell_.ring();
  events_changed_.notify_all();
}

bool SwitchServer::closed() {
  const std::lock_guard lock(events_lock_);
  return closed_;
}

std::optional<SwitchEvent> SwitchServer::next_event(double timeout_s) {
  std::unique_lock lock(events_lock_);
  events_changed_.wait_for(lock, std::chrono::duration<double>(timeout_s),
                           [this] { return !events_.empty() || closed_; });
  if (events_.empty()) return std::nullopt;
  const SwitchEvent event = events_.front();
  events_.pop_front();
  if (events_.empty()) events_bell_.silence();
  return event;
}

}  // namespace fanin
