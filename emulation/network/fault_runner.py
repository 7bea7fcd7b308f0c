"""Carries out a scenario's faults at their time or step: kills, restarts, pauses, links down and slowed."""

from __future__ import annotations

import heapq
import itertools
import signal
from collections.abc import Callable
from pathlib import Path

from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.launch import Workers
from fanin.emulation.network.switches import Switches
from fanin.emulation.network.timelines import steps_in
from fanin.faults import FaultSchedule, ScheduledFault
from fanin.records.record import Event

END_OF = "end of "
"""Prefix of a lasting fault's text in the event that ends it."""


class FaultRunner:
    """Carries out faults that are due. A worker dies at a step by itself (host/torch/collectives/timeline.py)."""

    def __init__(
        self,
        schedule: FaultSchedule,
        fabric: Fabric,
        switches: Switches,
        workers: Workers,
        timeline_of_worker_0: Path,
        note: Callable[[Event], None],
    ) -> None:
        self._fabric, self._switches, self._workers = fabric, switches, workers
        self._steps = timeline_of_worker_0
        self._note = note
        self._order = itertools.count()
        self._due: list[tuple[float, int, str, Callable[[], None]]] = []
        self._at_step = [each for each in schedule.scheduled if each.at_step is not None and not each.by_worker]
        for each in schedule.scheduled:
            if each.at_s is not None:
                self._plan(each.at_s, each.text, self._begin(each, each.at_s))

    def run_due(self, time_s: float) -> None:
        """Start or end every fault that is due at `time_s`, in seconds since the start of the run."""
        if self._at_step:
            steps = steps_in(self._steps)
            reached = [each for each in self._at_step if each.at_step is not None and each.at_step <= steps]
            self._at_step = [each for each in self._at_step if each not in reached]
            for each in reached:
                self._plan(time_s, each.text, self._begin(each, time_s))
        while self._due and self._due[0][0] <= time_s:
            _, _, text, action = heapq.heappop(self._due)
            self._note(Event(time_s=time_s, kind="fault", text=text))
            action()

    def missed(self) -> list[str]:
        """Texts of the faults that never began, because the run ended first."""
        begun = [text for _, _, text, _ in self._due if not text.startswith(END_OF)]
        return begun + [each.text for each in self._at_step]

    def _plan(self, time_s: float, text: str, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time_s, next(self._order), text, action))

    def _begin(self, fault: ScheduledFault, at_s: float) -> Callable[[], None]:
        """Return the action that starts a fault; a fault that lasts plans its own end."""
        begin, end = {
            "link": self._link_actions,
            "worker": self._worker_actions,
            "switch": self._switch_actions,
        }[fault.target](fault)
        lasts_s = fault.lasts_s
        if lasts_s is None or end is None:
            return begin
        finish = end

        def both() -> None:
            begin()
            self._plan(at_s + lasts_s, END_OF + fault.text, finish)

        return both

    def _link_actions(self, fault: ScheduledFault) -> tuple[Callable[[], None], Callable[[], None] | None]:
        assert fault.index is not None
        cable = self._fabric.cables[fault.index]  # cables of hosts come first, in order
        if fault.action == "down":
            return lambda: self._fabric.cut(cable, True), lambda: self._fabric.cut(cable, False)
        rate = cable.link.rate_bit_s
        slowed = None if rate is None else rate / fault.factor
        return lambda: self._fabric.set_rate(cable, slowed), lambda: self._fabric.set_rate(cable, rate)

    def _worker_actions(self, fault: ScheduledFault) -> tuple[Callable[[], None], Callable[[], None] | None]:
        rank = fault.index
        assert rank is not None
        if fault.action == "pause":
            return (
                lambda: self._workers.signal(rank, signal.SIGSTOP),
                lambda: self._workers.signal(rank, signal.SIGCONT),
            )
        return lambda: self._workers.kill_program(rank), None

    def _switch_actions(self, fault: ScheduledFault) -> tuple[Callable[[], None], Callable[[], None] | None]:
        root = self._switches.root
        if fault.action == "pause":
            return lambda: root.signal(signal.SIGSTOP), lambda: root.signal(signal.SIGCONT)
        if fault.action == "kill":
            return root.kill, None
        return self._switches.restart, None
