"""The trace of a simulated run: steps, rounds and packets of the real machines in virtual time.

A switch is a process whose tracks are the rounds of each job, from the first contribution to the result. A worker is a
process with its steps, its computing, its rounds (from the contribution that it sends to the result that it gets) and
its packets (from leaving one end to reaching the other). A packet that does not arrive, lost or still under way at the
end, is a moment called "never came". The trace is a function of scenario, seed and kind of machine.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from fanin.emulation.simulator.machines import Kind
from fanin.emulation.simulator.scenario import Scenario
from fanin.emulation.simulator.simulation import Simulation
from fanin.emulation.simulator.virtual_network import Datagrams
from fanin.emulation.simulator.worker import Process
from fanin.emulation.tracing.replay import Closing, Move, replay
from fanin.emulation.tracing.trace_events import Lanes, Trace
from fanin.errors import ConfigurationError
from fanin.protocol.wire import Flag, Packet, WireError, parse
from fanin.protocol.wire import Kind as PacketKind

MAX_PACKETS = 200_000
"""Packets of a trace; a longer run's later ones are left out, which `facts` say."""
TRACKS_PER_GROUP = 1000
"""Distance between the track numbers of two groups."""
GROUPS = ("steps", "computing", "rounds", "to the switch", "from the switch")
RESULTS = (PacketKind.RESULT, PacketKind.ANSWER)


@dataclass(slots=True)
class Stretch:
    """A slice that has no track yet; if `end_s` is None, a moment."""

    pid: int
    group: str
    name: str
    start_s: float
    end_s: float | None
    kind: str
    arguments: dict[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class _Round:
    """An open round at a switch."""

    began_s: float
    ranks: list[int] = field(default_factory=list)


class TraceRecorder:
    """Records one simulation; implements `network.Watcher` and `worker.StepWatcher`."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._queue = simulation.queue
        self._switches = dict(simulation.recorder.names)
        self._workers = {each.address: each for job in simulation.jobs for each in job.processes}
        self._pids = {address: number for number, address in enumerate([*self._switches, *self._workers], 1)}
        self.stretches: list[Stretch] = []
        self.packets = 0
        self._under_way: dict[tuple[int, int, bytes], deque[float]] = defaultdict(deque)
        self._begun: dict[tuple[int, int, int], float] = {}
        """By address, life and step, the time at which the step was submitted."""
        self._idle_s: dict[tuple[int, int], float] = {}
        """By address and life, the time since which the worker computes."""
        self._contributed: dict[tuple[int, int, int, int], float] = {}
        """By address, generation, slot and base, the time at which the worker first sent the contribution."""
        self._open: dict[tuple[int, int, int, int], _Round] = {}
        """Open rounds, by switch, job, generation and slot."""
        self._closed: dict[tuple[int, int, int, int], int] = {}
        """By switch, job, generation and slot, the base of the last result."""
        simulation.network.watchers.append(self)
        for job in simulation.jobs:
            job.step_watchers.append(self)

    # --- watching ---

    def stepped(self, address: int, received: tuple[bytes, int] | None, sent: Datagrams) -> None:
        """Record the packets of one step of a machine."""
        if received is not None:
            self._arrived(address, *received)
        for data, destination in sent:
            if self.packets < MAX_PACKETS:
                self._under_way[address, destination, data].append(self._queue.now)
            self.packets += 1
            self._sent(address, destination, data)

    def step_begun(self, process: Process, step: int) -> None:
        """Record that a worker begins a step, and that it has computed until now."""
        now, life = self._queue.now, (process.address, process.life)
        since_s = self._idle_s.pop(life, None)
        if since_s is not None and since_s < now:
            self._add(process.address, "computing", "compute", since_s, now, "compute")
        self._begun[process.address, process.life, step] = now

    def step_done(self, process: Process, step: int) -> None:
        """Record that a worker has done a step; it computes from now on, unless other steps are under way."""
        key = (process.address, process.life, step)
        began_s = self._begun.pop(key, None)
        if began_s is not None:
            self._add(process.address, "steps", f"step {step}", began_s, self._queue.now, "step", step=step)
        if not any(each[:2] == key[:2] for each in self._begun):
            self._idle_s[key[:2]] = self._queue.now

    def _arrived(self, address: int, data: bytes, source: int) -> None:
        now, waiting = self._queue.now, self._under_way.get((source, address, data))
        group = "to the switch" if address in self._switches else "from the switch"
        owner = source if source in self._workers else address
        packet = _read(data)
        name = _name(packet, data)
        if waiting:
            facts = {"from": self._name(source), "to": self._name(address), "bytes": len(data)}
            self._add(owner, group, name, waiting.popleft(), now, "packet", **facts)
        elif owner in self._workers:
            self._add(owner, group, f"copy or damaged: {name}", now, None, "packet", bytes=len(data))
        if packet is None:
            return
        if address in self._switches and packet.kind is PacketKind.CONTRIBUTION and source in self._workers:
            self._contribution(address, source, packet)
        elif address in self._workers and packet.kind in RESULTS and not (packet.flags & Flag.BARE):
            began_s = self._contributed.pop((address, packet.generation, packet.slot, packet.base), None)
            if began_s is not None:
                facts = {"slot": packet.slot, "contributors": packet.contributors}
                self._add(address, "rounds", f"slot {packet.slot} round {packet.base}", began_s, now, "round", **facts)

    def _contribution(self, switch: int, source: int, packet: Packet) -> None:
        for slot, base in self._items(source, packet):
            key = (switch, packet.job, packet.generation, slot)
            if base <= self._closed.get(key, -1) and not self._late_counts(source):
                continue
            opened = self._open.setdefault(key, _Round(self._queue.now))
            opened.ranks.append(self._workers[source].rank)

    def _late_counts(self, source: int) -> bool:
        return self._simulation.jobs[self._workers[source].job.index].plan.largest_staleness > 0

    def _items(self, worker: int, packet: Packet) -> list[tuple[int, int]]:
        """Slot and base of each item of a packet; a run has several."""
        spec = self._workers[worker].spec
        if packet.run == 1 or spec is None:
            return [(packet.slot, packet.base)]
        first = packet.base * spec.slots + packet.slot
        return [((first + index) % spec.slots, (first + index) // spec.slots) for index in range(packet.run)]

    def _sent(self, address: int, destination: int, data: bytes) -> None:
        packet = _read(data)
        if packet is None:
            return
        if address in self._workers and packet.kind is PacketKind.CONTRIBUTION:
            for slot, base in self._items(address, packet):
                self._contributed.setdefault((address, packet.generation, slot, base), self._queue.now)
        elif address in self._switches and packet.kind is PacketKind.RESULT and destination in self._workers:
            for slot, base in self._items(destination, packet):
                self._close(address, destination, packet, slot, base)

    def _close(self, switch: int, member: int, packet: Packet, slot: int, base: int) -> None:
        key = (switch, packet.job, packet.generation, slot)
        opened = self._open.get(key)
        if base <= self._closed.get(key, -1):
            return
        self._closed[key] = base
        began_s, ranks = (self._queue.now, []) if opened is None else (opened.began_s, opened.ranks)
        self._open.pop(key, None)
        job = self._workers[member].job.index
        facts = {"job": job, "slot": slot, "order of ranks": ranks, "contributors": packet.contributors}
        name = f"slot {slot} round {base}"
        self._add(switch, f"rounds of job {job}", name, began_s, self._queue.now, "round", **facts)

    # --- the trace ---

    def trace(self, step: int | None) -> Trace:
        """The whole trace or, with `step`, its part from that step's beginning on any worker to its end on all.

        Steps are those of the first job. ConfigurationError if no worker has done that step.
        """
        self._note_what_never_came()
        chosen = self.stretches if step is None else self._of_step(step)
        made = Trace()
        for address, pid in self._pids.items():
            made.process(pid, self._name(address))
        self._deal_out(made, chosen)
        return made

    def replay(self, step: int, title: str) -> str:
        """One step of the first job as an animated SVG (replay.py). ConfigurationError if no worker has done it."""
        self._note_what_never_came()
        chosen = self._of_step(step)
        processes = self._simulation.jobs[0].processes
        rows = {self._pids[process.address]: row for row, process in enumerate(processes)}
        moves = [
            Move(rows[each.pid], each.group == "to the switch", each.start_s, each.end_s, each.name)
            for each in chosen
            if each.kind == "packet" and each.pid in rows
        ]
        rounds = [
            Closing(each.start_s, each.end_s)
            for each in chosen
            if each.kind == "round" and each.pid not in rows and each.end_s is not None
        ]
        return replay([f"rank {process.rank}" for process in processes], moves, rounds, title)

    def _note_what_never_came(self) -> None:
        for (source, destination, data), waiting in self._under_way.items():
            owner = source if source in self._workers else destination
            for sent_s in waiting:
                if owner in self._workers:
                    group = "from the switch" if source in self._switches else "to the switch"
                    self._add(owner, group, f"never came: {_name(_read(data), data)}", sent_s, None, "packet")
        self._under_way.clear()

    def _of_step(self, step: int) -> list[Stretch]:
        first = {self._pids[each.address] for each in self._simulation.jobs[0].processes}
        own = [each for each in self.stretches if each.kind == "step" and each.pid in first]
        own = [each for each in own if each.arguments["step"] == step]
        if not own:
            raise ConfigurationError(
                f"--step {step}: no worker of the first job has done it. Remedy: a step of 0 to "
                f"{self._simulation.jobs[0].plan.steps - 1}"
            )
        since_s, until_s = min(each.start_s for each in own), max(each.end_s or 0.0 for each in own)
        return [
            each
            for each in self.stretches
            if since_s <= each.start_s <= until_s and (each.end_s is None or each.end_s <= until_s)
        ]

    def _deal_out(self, made: Trace, stretches: list[Stretch]) -> None:
        lanes: dict[tuple[int, str], Lanes] = defaultdict(Lanes)
        groups = [*GROUPS, *sorted({each.group for each in stretches} - set(GROUPS))]
        for each in sorted(stretches, key=lambda stretch: (stretch.start_s, -(stretch.end_s or 0.0))):
            first = groups.index(each.group) * TRACKS_PER_GROUP + 1
            there = lanes[each.pid, each.group]
            if each.end_s is None:
                there.at_least_one()
                made.moment(each.pid, first, each.name, each.start_s, each.kind, **each.arguments)
            else:
                lane = there.take(each.start_s, each.end_s)
                made.slice(each.pid, first + lane, each.name, each.start_s, each.end_s, each.kind, **each.arguments)
        for (pid, group), there in lanes.items():
            for lane in range(len(there)):
                name = group if lane == 0 else f"{group}, {lane + 1}"
                made.track(pid, groups.index(group) * TRACKS_PER_GROUP + 1 + lane, name)

    def _add(
        self, address: int, group: str, name: str, start_s: float, end_s: float | None, kind: str, **arguments: object
    ) -> None:
        self.stretches.append(Stretch(self._pids[address], group, name, start_s, end_s, kind, arguments))

    def _name(self, address: int) -> str:
        if address in self._switches:
            return self._switches[address]
        process = self._workers.get(address)
        return "a stranger" if process is None else f"job {process.job.index} rank {process.rank}"


def _read(data: bytes) -> Packet | None:
    try:
        return parse(data)
    except WireError:
        return None


def _name(packet: Packet | None, data: bytes) -> str:
    if packet is None:
        return f"illegal, {len(data)} bytes"
    what = packet.kind.name.lower() + (" (pass)" if packet.flags & Flag.PASS else "")
    if packet.kind in (PacketKind.CONTRIBUTION, *RESULTS):
        return f"{what} slot {packet.slot} round {packet.base}"
    return what


def replay_of_simulation(scenario: Scenario, seed: int, *, kind: Kind = "native", step: int = 0) -> str:
    """A replay of one step of a run's first job, as SVG. Raises as `trace_of_simulation`."""
    simulation = Simulation(scenario, seed, kind=kind)
    recorder = TraceRecorder(simulation)
    simulation.run()
    return recorder.replay(step, f"Step {step} of {scenario.name or 'a drawn scenario'}, seed {seed}")


def trace_of_simulation(scenario: Scenario, seed: int, *, kind: Kind = "native", step: int | None = None) -> Trace:
    """The trace of one run, or of one step of its first job with everything that happened meanwhile.

    Raises a ViolationError as `simulate` does, and ConfigurationError for a step that no worker has done.
    """
    simulation = Simulation(scenario, seed, kind=kind)
    recorder = TraceRecorder(simulation)
    report = simulation.run()
    trace = recorder.trace(step)
    trace.facts |= {
        "source": f"simulation of {scenario.name or 'a drawn scenario'}, seed {seed}, {kind} machines",
        "packets": report.packets,
        "packets left out": max(report.packets - MAX_PACKETS, 0),
        "clocks": {"all": "virtual time: one clock"},
    }
    return trace
