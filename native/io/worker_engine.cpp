#include "io/worker_engine.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace fanin {

namespace {

using Seconds = std::chrono::duration<double>;

}  // namespace

WorkerEngine::WorkerEngine(const JobSpec& spec, std::uint32_t worker, std::uint64_t token, const std::string& host,
                           const std::vector<std::uint16_t>& ports, double connect_timeout_s, const UdpOptions& options,
                           const std::vector<std::string>& offers, bool newcomer) {
  if (ports.empty()) throw std::invalid_argument("an engine needs at least one port of the switch");
  const auto flow_count = static_cast<std::uint32_t>(ports.size());
  heard_.resize(flow_count);
  for (std::uint32_t flow = 0; flow < flow_count; ++flow) {
    WorkerFlow::Listener listener{[this, flow](const WorkerEvent& event) { take_event(flow, event); },
                                  [this](const WorkerEvent& event) { fail(event); }};
    JobSpec of_this_flow = spec;
    of_this_flow.data_key = of_flow(spec.data_key, flow);
    const WorkerPath path = {.address = resolve(host, ports[flow], false),
                             .options = options,
                             .worker = worker,
                             .token = token,
                             .offer = flow < offers.size() ? offers[flow] : ""};
    flows_.push_back(std::make_unique<WorkerFlow>(of_this_flow, path, flow, flow_count, connect_timeout_s, newcomer,
                                                  std::move(listener)));
  }
}

WorkerEngine::~WorkerEngine() { close(); }

void WorkerEngine::start() {
  for (const auto& flow : flows_) flow->start();
}

std::uint64_t WorkerEngine::submit(const Reduction& reduction) {
  const std::lock_guard submitting(submit_lock_);
  std::uint64_t ticket;
  {
    const std::lock_guard lock(state_lock_);  // the ticket must exist before the first flow can report it done
    if (remaining_.empty()) busy_since_s_ = monotonic_now();
    remaining_.push_back(static_cast<std::uint32_t>(flows_.size()));
    ticket = first_ticket_ + remaining_.size() - 1;
    if (failed() || closed_) return ticket;
  }
  bool taken = false;
  try {
    for (const auto& flow : flows_) {
      flow->submit(reduction);
      taken = true;
    }
  } catch (...) {
    // A refusal comes from the first flow, before any flow holds the reduction; after that the ticket is kept.
    const std::lock_guard lock(state_lock_);
    if (!taken) remaining_.pop_back();
    throw;
  }
  return ticket;
}

bool WorkerEngine::is_done(std::uint64_t ticket) const {
  if (ticket < first_ticket_) return true;
  const std::uint64_t index = ticket - first_ticket_;
  return index < remaining_.size() && remaining_[index] == 0;
}

bool WorkerEngine::wait(std::uint64_t ticket, double timeout_s) {
  const auto over = [&] { return done(ticket) || failed(); };
  // With several flows, the flows' own threads move the packets, since one thread cannot drive one flow and sleep on
  // all.
  if (flows_.size() == 1 && flows_.front()->drive(over, monotonic_now() + timeout_s)) return done(ticket);
  std::unique_lock lock(state_lock_);
  progress_.wait_for(lock, Seconds(timeout_s), [&] { return is_done(ticket) || failed() || closed_; });
  return is_done(ticket);
}

bool WorkerEngine::done(std::uint64_t ticket) {
  const std::lock_guard lock(state_lock_);
  return is_done(ticket);
}

void WorkerEngine::subscribe() {
  const std::lock_guard lock(state_lock_);
  subscribed_ = true;
}

std::optional<WorkerEvent> WorkerEngine::next_event(double timeout_s) {
  std::unique_lock lock(state_lock_);
  events_changed_.wait_for(lock, Seconds(timeout_s), [this] { return !events_.empty() || closed_; });
  if (events_.empty()) return std::nullopt;
  const WorkerEvent event = events_.front();
  events_.pop_front();
  return event;
}

void WorkerEngine::publish(const WorkerEvent& event) {
  if (events_.size() == MAX_EVENTS) events_.pop_front();
  events_.push_back(event);
  events_changed_.notify_all();
}

void WorkerEngine::take_event(std::uint32_t flow, const WorkerEvent& event) {
  {
    const std::lock_guard lock(state_lock_);
    if (const auto* done = std::get_if<ReductionDone>(&event)) {
      if (--remaining_[done->ticket - first_ticket_] > 0) return;
      while (!remaining_.empty() && remaining_.front() == 0) {
        remaining_.pop_front();
        ++first_ticket_;
      }
      if (remaining_.empty()) communicating_s_ += monotonic_now() - busy_since_s_;
      if (subscribed_) publish(event);
    } else if (std::holds_alternative<Spoiled>(event)) {
      publish(event);
      ++spoiled_;
    } else if (const auto* changed = std::get_if<MembersChanged>(&event)) {
      if (change_ && changed->change <= change_->change) return;  // another flow has reported it
      // A newcomer enters each flow separately, in one before a loss and in another after it: so news of this flow may
      // already be known from another flow's report.
      MembersChanged news = *changed;
      if (change_) {
        news.gone = change_->members & ~news.members;
        news.come = news.members & ~change_->members;
      }
      change_ = news;
      publish(news);
    } else if (const auto* stands = std::get_if<Stands>(&event)) {
      stands_ = std::max(stands_, stands->base);
      if (++standing_flows_ < flows_.size()) return;
      publish(Stands{stands_});
    } else if (const auto* heard = std::get_if<RoundHeard>(&event)) {
      const std::uint64_t before = *std::ranges::min_element(heard_);
      heard_[flow] = heard->base + 1;
      const std::uint64_t all = *std::ranges::min_element(heard_);
      if (!subscribed_ || all <= before) return;  // other flows have not heard of it yet
      publish(RoundHeard{.base = all - 1});
    } else if (std::holds_alternative<Ready>(event)) {
      if (++ready_flows_ < flows_.size()) return;
      publish(event);
    } else if (const auto* departed = std::get_if<Departed>(&event)) {
      all_confirmed_ = all_confirmed_ && departed->confirmed;
      if (++departed_flows_ < flows_.size()) return;
      publish(Departed{all_confirmed_});
    }
  }
  progress_.notify_all();
}

void WorkerEngine::fail(const WorkerEvent& event) {
  if (failing_.exchange(true)) return;  // a failure is reported once
  // Halt all flows before the failure is reported, because its receiver may free memory that a flow would write to.
  for (const auto& flow : flows_) flow->halt();
  {
    const std::lock_guard lock(state_lock_);
    failed_.store(true);
    publish(event);
  }
  progress_.notify_all();
}

void WorkerEngine::begin(std::uint32_t base) {
  const std::lock_guard submitting(submit_lock_);
  for (const auto& flow : flows_) flow->begin(base);
}

bool WorkerEngine::leave(double timeout_s) {
  {
    const std::lock_guard submitting(submit_lock_);
    for (const auto& flow : flows_) flow->leave();
  }
  std::unique_lock lock(state_lock_);
  progress_.wait_for(lock, Seconds(timeout_s),
                     [this] { return departed_flows_ == flows_.size() || failed() || closed_; });
  return departed_flows_ == flows_.size() && all_confirmed_;
}

void WorkerEngine::close() {
  for (const auto& flow : flows_) flow->close();
  {
    const std::lock_guard lock(state_lock_);
    closed_ = true;
    events_changed_.notify_all();
  }
  progress_.notify_all();
}

bool WorkerEngine::closed() {
  const std::lock_guard lock(state_lock_);
  return closed_;
}

std::vector<std::pair<std::string, std::uint64_t>> WorkerEngine::counters() {
  std::vector<std::pair<std::string, std::uint64_t>> total;
  CarrierCounters carriers;
  std::uint64_t overflows = 0;
  std::uint64_t packing_us = 0;
  std::uint64_t decoding_us = 0;
  for (const auto& flow : flows_) {
    const auto list = flow->counters().list();
    if (total.empty()) total.resize(list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      total[i].first = list[i].first;
      total[i].second =
          list[i].first == "srtt_us" ? std::max(total[i].second, list[i].second) : total[i].second + list[i].second;
    }
    add_counters(carriers, flow->carrier_counters());
    overflows += flow->overflows();
    packing_us += flow->packing_us();
    decoding_us += flow->decoding_us();
  }
  total.insert(total.end(), carriers.begin(), carriers.end());
  total.emplace_back("socket_overflows", overflows);
  total.emplace_back("packing_us", packing_us);
  total.emplace_back("decoding_us", decoding_us);
  const std::lock_guard lock(state_lock_);
  const double under_way_s = remaining_.empty() ? 0.0 : monotonic_now() - busy_since_s_;
  total.emplace_back("communicating_us", static_cast<std::uint64_t>((communicating_s_ + under_way_s) * 1e6));
  return total;
}

std::size_t WorkerEngine::buffer_bytes() {
  std::size_t bytes = 0;
  for (const auto& flow : flows_) bytes += flow->buffer_bytes();
  return bytes;
}

int WorkerEngine::receive_buffer_bytes() const { return flows_.front()->receive_buffer_bytes(); }

bool WorkerEngine::has_bypass() const {
  return std::ranges::all_of(flows_, [](const auto& flow) { return flow->has_bypass(); });
}

std::string WorkerEngine::trouble() {
  for (const auto& flow : flows_) {
    if (std::string text = flow->trouble(); !text.empty()) return text;
  }
  return "";
}

}  // namespace fanin
