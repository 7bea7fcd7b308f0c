// Events and counters as Python sees them: the dataclasses of fanin.protocol.events, and dicts.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <variant>

#include "machine/switch_machine.hpp"
#include "machine/worker_events.hpp"

namespace fanin {

struct WorkerEventToPython {
  pybind11::module_ events = pybind11::module_::import("fanin.protocol.events");

  pybind11::object operator()(const Ready&) const { return events.attr("Ready")(); }
  pybind11::object operator()(const ReductionDone& event) const { return events.attr("ReductionDone")(event.ticket); }
  pybind11::object operator()(const MembersChanged& event) const {
    return events.attr("MembersChanged")(event.change, event.members, event.gone, event.come, event.base);
  }
  pybind11::object operator()(const Stands& event) const { return events.attr("Stands")(event.base); }
  pybind11::object operator()(const Spoiled& event) const {
    return events.attr("Spoiled")(event.ticket, event.place, event.first, event.count);
  }
  pybind11::object operator()(const RoundHeard& event) const { return events.attr("RoundHeard")(event.base); }
  pybind11::object operator()(const WorkersGone& event) const {
    return events.attr("WorkersGone")(event.lost, event.left);
  }
  pybind11::object operator()(const SwitchSilent& event) const { return events.attr("SwitchSilent")(event.silent_s); }
  pybind11::object operator()(const PathNarrowed& event) const {
    return events.attr("PathNarrowed")(event.needed_bytes, event.passes_bytes);
  }
  pybind11::object operator()(const PacketRefused& event) const {
    return events.attr("PacketRefused")(pybind11::module_::import("fanin.protocol.wire").attr("Reason")(event.reason));
  }
  pybind11::object operator()(const Departed& event) const { return events.attr("Departed")(event.confirmed); }
};

inline pybind11::object to_python(const WorkerEvent& event) { return std::visit(WorkerEventToPython{}, event); }

inline pybind11::object to_python(const std::optional<SwitchEvent>& event) {
  if (!event) return pybind11::none();
  const pybind11::module_ events = pybind11::module_::import("fanin.protocol.events");
  switch (event->kind) {
    case SwitchEvent::Kind::worker_joined:
      return events.attr("WorkerJoined")(event->job, event->worker);
    case SwitchEvent::Kind::worker_silent:
      return events.attr("WorkerSilent")(event->job, event->worker, event->silent_s);
    case SwitchEvent::Kind::worker_left:
      return events.attr("WorkerLeft")(event->job, event->worker);
    case SwitchEvent::Kind::branch_narrowed:
      return events.attr("BranchNarrowed")(event->job, event->needed_bytes, event->passes_bytes);
  }
  return pybind11::none();
}

inline pybind11::dict to_python(const CounterList& counters) {
  pybind11::dict counts;
  for (const auto& [name, count] : counters) counts[pybind11::str(name)] = count;
  return counts;
}

inline pybind11::list to_python(const std::vector<CounterList>& counters) {
  pybind11::list lists;
  for (const CounterList& each : counters) lists.append(to_python(each));
  return lists;
}

}  // namespace fanin
