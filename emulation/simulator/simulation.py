"""One run: a scenario and a seed, machines of one kind, and checkers that see every event.

`simulate` is a function of its arguments alone: the same scenario, seed, kind and commit give the same events, to the
bit. All chance, and the workers' arrays, come from generators seeded by `seed`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from fanin.bounds import SEED
from fanin.emulation.simulator.control_channel import CONTROL_RETRY_S
from fanin.emulation.simulator.event_queue import EventQueue
from fanin.emulation.simulator.leaf_host import LeafHost
from fanin.emulation.simulator.ledger import JobLedger
from fanin.emulation.simulator.links import Link, Pipe
from fanin.emulation.simulator.machine_kinds import leaf_type, switch_type, worker_type
from fanin.emulation.simulator.machines import Kind, SwitchType
from fanin.emulation.simulator.peer_addresses import OPERATOR_ADDRESS, SWITCH_ADDRESS
from fanin.emulation.simulator.recorder import Recorder
from fanin.emulation.simulator.scenario import Fault, Scenario
from fanin.emulation.simulator.simulated_job import SimulatedJob
from fanin.emulation.simulator.strangers import Strangers
from fanin.emulation.simulator.switch_host import SwitchHost, SwitchSetup
from fanin.emulation.simulator.trains import TICK_S
from fanin.emulation.simulator.violations import CrashError, ProgressError, ViolationError
from fanin.emulation.simulator.virtual_network import Network, ends
from fanin.emulation.simulator.worker import Process
from fanin.errors import ConfigurationError
from fanin.host.transports.pcap import PcapWriter
from fanin.protocol import control

MAX_EVENTS = 2_000_000
"""Most events in one run; a run with more has a machine that never rests."""
OPERATOR = b"operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The outcome of a run without a violation."""

    seed: int
    virtual_s: float
    quiet_s: float
    """Time at which the last fault was over."""
    events: int
    packets: int
    """Packets sent by all nodes."""
    contributions: int
    """Contributions that reached a switch machine, each of which was checked against a ledger."""
    attempts: int
    """Generations that all jobs together needed."""
    forecasts: int
    """Small reductions whose scales were foreseen (host/machine/scale_forecast.py), counted per worker."""
    forecasts_missed: int
    regular: int
    """Datagrams that machines of kind `trains` handled as part of a regular run."""

    @property
    def recovery_s(self) -> float:
        """Virtual time from the end of the faults to the end of all work."""
        return max(0.0, self.virtual_s - self.quiet_s)


def simulate(
    scenario: Scenario,
    seed: int,
    *,
    kind: Kind = "native",
    switch: SwitchType | None = None,
    leaf: SwitchType | None = None,
    show: Callable[[str], None] | None = None,
    pcap: PcapWriter | None = None,
) -> Report:
    """Run until all jobs are complete. A ViolationError says what does not hold.

    `switch` replaces the switch machine, and `leaf` that of leaves; `leaf` is `switch` if it is left out.
    `show` gets a line per packet and event, `pcap` every packet that is sent.
    """
    return Simulation(scenario, seed, kind=kind, switch=switch, leaf=leaf, show=show, pcap=pcap).run()


class Simulation:
    """A run in progress."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        *,
        kind: Kind = "native",
        switch: SwitchType | None = None,
        leaf: SwitchType | None = None,
        show: Callable[[str], None] | None = None,
        pcap: PcapWriter | None = None,
    ) -> None:
        if seed not in SEED:
            raise ConfigurationError(f"seed = {seed}; must be {SEED}", "--seed")
        self.scenario = scenario
        self.seed = seed
        self.queue = EventQueue()
        self.recorder = Recorder(self.queue, show=show, pcap=pcap)
        dice = random.Random(seed)
        self.network = Network(self.queue, scenario.link, dice, tick_s=TICK_S if kind == "trains" else 0.0)
        self.network.watchers.append(self.recorder)
        self._operator = _Operator(self.recorder.note)
        setup = SwitchSetup(
            network=self.network,
            make=switch or switch_type(kind),
            make_leaf=leaf or switch or leaf_type(kind),
            dice=dice,
            memory_bytes=scenario.memory_bytes,
            liveness_timeout_s=scenario.liveness_timeout_s,
            note=self.recorder.note,
            evicted=self._reconsider,
        )
        self.switch = SwitchHost(setup, address=SWITCH_ADDRESS, name="switch")
        self.leaves = [
            LeafHost(setup, self.switch, address=SWITCH_ADDRESS + 1 + leaf, name=f"leaf {leaf}")
            for leaf in range(scenario.leaves)
        ]
        self.recorder.names = {SWITCH_ADDRESS: "switch"}
        self.recorder.names |= {leaf.address: f"leaf{index}" for index, leaf in enumerate(self.leaves)}
        for host in self.hosts:
            host.start()
        self.jobs: list[SimulatedJob] = []
        address = SWITCH_ADDRESS + 1 + scenario.leaves
        for index, plan in enumerate(scenario.jobs):
            job = SimulatedJob(
                plan,
                index,
                address,
                network=self.network,
                switches=self.leaves if plan.tree else [self.switch],
                worker_type=worker_type(kind),
                dice=dice,
                seed=seed,
                note=self.recorder.note,
            )
            self.jobs.append(job)
            self.queue.at(plan.start_s, job.start)
            address += plan.workers
        self._strangers = Strangers(
            self.network, [host.address for host in self.hosts], random.Random(f"strangers {seed}")
        )
        if any(fault.kind == "strangers" for fault in scenario.faults):
            self.network.watchers.append(self._strangers)
        for fault in scenario.faults:
            self.queue.at(fault.at_s, self._strike, fault)
        self.queue.at(scenario.quiet_s, self._quiet)

    @property
    def hosts(self) -> list[SwitchHost]:
        """The switch, or the root and the leaves."""
        return [self.switch, *self.leaves]

    def run(self) -> Report:
        """Run to the end; a ViolationError ends it, and names seed, event and time."""
        try:
            self._run()
        except ViolationError as violation:
            violation.locate(self.seed, self.queue.happened, self.queue.now, self.recorder.tail())
            raise
        except OSError:
            raise  # from `show` or `pcap`: machines do no input or output
        except Exception as error:
            crash = CrashError(f"{type(error).__name__}: {error}")
            crash.locate(self.seed, self.queue.happened, self.queue.now, self.recorder.tail())
            raise crash from error
        processes = [process for job in self.jobs for process in job.processes]
        return Report(
            seed=self.seed,
            virtual_s=self.queue.now,
            quiet_s=self.scenario.quiet_s,
            events=self.queue.happened,
            packets=self.network.packets,
            contributions=sum(host.checked_contributions for host in self.hosts),
            attempts=sum(job.attempts for job in self.jobs),
            forecasts=sum(process.forecasts[0] for process in processes),
            forecasts_missed=sum(process.forecasts[1] for process in processes),
            regular=sum(each.regular for each in processes) + sum(host.regular for host in self.hosts),
        )

    def _run(self) -> None:
        limit_s = self.scenario.quiet_s + self.scenario.recovery_s
        while not all(job.complete for job in self.jobs):
            if self.queue.next_at() > limit_s:
                raise ProgressError(
                    f"not done {self.scenario.recovery_s:g} s after the last fault: "
                    + "; ".join(f"{process} is {process.phase.name}" for job in self.jobs for process in job.processes)
                )
            if self.queue.happened >= MAX_EVENTS:
                raise ProgressError(f"{MAX_EVENTS} events, and no end: a machine never rests")
            self.queue.step()

    # --- faults ---

    def _quiet(self) -> None:
        link = self.scenario.link
        self.network.link = Link(delay_s=link.delay_s, bytes_per_s=link.bytes_per_s, queue_bytes=link.queue_bytes)
        self.recorder.note("all faults are over")

    def _strike(self, fault: Fault) -> None:
        self.recorder.note(f"fault: {fault}")
        job = self.jobs[fault.job]
        process = None if fault.rank is None else job.processes[fault.rank]
        host = self.switch if fault.leaf is None else self.leaves[fault.leaf]
        match fault.kind:
            case "cut" | "clog":
                self._obstruct(fault)
            case "degrade":
                self._degrade(fault)
            case "pause":
                self._pause(fault, process, host)
            case "freeze":
                self._freeze(fault)
            case "strangers":
                self._strangers.visit(fault.for_s)
            case "restart":
                host.stop()
                self.queue.at(fault.ends_s, _restart, host)
            case "crash" | "leave":
                assert process is not None
                process.held_until = fault.ends_s
                if fault.kind == "crash":
                    process.crash()
                    self.queue.at(fault.ends_s, job.start_again)
                else:
                    process.leave()
            case "evict":
                self._evict(fault, job)
            case "quorum" | "staleness":
                tune = control.Tune(job=job.name, **{fault.kind: fault.value})
                self.switch.request(OPERATOR, self._operator, tune)

    def _links(self, fault: Fault) -> list[tuple[int, int]]:
        """The links that a fault affects: (lower end, switch at the upper end) of each."""
        if fault.leaf is not None:
            return [(self.leaves[fault.leaf].address, self.switch.address)]
        processes = self.jobs[fault.job].processes
        return [(each.address, each.switch.address) for each in processes if fault.rank in (None, each.rank)]

    def _obstruct(self, fault: Fault) -> None:
        for lower, upper in self._links(fault):
            up = [self.network.pipe(lower, upper)] if fault.direction != "from_switch" else []
            down = [self.network.pipe(upper, lower)] if fault.direction != "to_switch" else []
            for pipe in up + down:
                if fault.kind == "clog":
                    pipe.clog(fault.ends_s)
                else:
                    pipe.blocked += 1
                    self.queue.at(fault.ends_s, _unblock, pipe)

    def _degrade(self, fault: Fault) -> None:
        assert fault.link is not None
        for lower, upper in self._links(fault):
            self.network.links[ends(lower, upper)] = fault.link
            self.queue.at(fault.ends_s, self._mend, ends(lower, upper), fault.link)

    def _mend(self, where: tuple[int, int], link: Link) -> None:
        if self.network.links.get(where) is link:
            del self.network.links[where]

    def _pause(self, fault: Fault, process: Process | None, host: SwitchHost) -> None:
        if process is None:
            self.queue.at(fault.ends_s, host.resume, host.pause())
        elif process.node is not None:
            self.network.pause(process.node)
            self.queue.at(fault.ends_s, self.network.resume, process.node)

    def _freeze(self, fault: Fault) -> None:
        for host in self.hosts:
            self.queue.at(fault.ends_s, host.resume, host.pause())
        for process in (process for job in self.jobs for process in job.processes):
            self._pause(fault, process, self.switch)

    def _evict(self, fault: Fault, job: SimulatedJob) -> None:
        """Evict a worker from the job that runs now, if one does; if the switch is paused, when it goes on."""
        assert fault.rank is not None
        if self.switch.paused:
            self.queue.after(CONTROL_RETRY_S, self._evict, fault, job)
            return
        for ledger in list(self.switch.auditor.ledgers.values()):
            if any(process.ledger is ledger for process in job.processes):
                self.switch.evict(ledger.spec.job, fault.rank)
                self.switch.lose(ledger.spec.job, fault.rank)

    def _reconsider(self, ledger: JobLedger) -> None:
        for job in self.jobs:
            if any(process.ledger is ledger for process in job.processes):
                job.reconsider(ledger)


class _Operator:
    """An operator who runs `fanin tune`; implements the protocol `switch_host.Client`."""

    address = OPERATOR_ADDRESS

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note

    def hears(self) -> bool:
        return True

    def replied(self, peer: bytes, reply: control.Reply) -> None:
        self._note(str(reply))


def _restart(host: SwitchHost) -> None:
    host.stop()  # if restarts overlap, the later one decides
    host.start()


def _unblock(pipe: Pipe) -> None:
    pipe.blocked -= 1
