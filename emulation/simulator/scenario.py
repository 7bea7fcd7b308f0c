"""The input of a simulation: jobs, links, and faults at given times. Read from TOML, and written as TOML.

Rules of this file
------------------
* A scenario is concrete: together with a seed it determines a run. `chaos.py` draws scenarios; `search.py` shortens the
  list of faults of a failing one, and prints the rest as TOML, which `fanin simulate --scenario FILE` takes.
* Faults end: at `quiet_s` links are clean, and whatever was cut, clogged, paused or crashed works again. From then on
  the jobs must be done within `recovery_s`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from fanin.emulation.simulator.links import Link
from fanin.errors import ConfigurationError
from fanin.host.stale.policies import policy_class
from fanin.numerics.reduction import lanes_number
from fanin.protocol import strict
from fanin.protocol.job import LIVENESS_TIMEOUT_S, MAX_TREE_WORKERS, Agreed, AskedRounds
from fanin.protocol.wire import MAX_WORKERS
from fanin.records.dataclass_files import load_toml, read_dataclass
from fanin.settings import Bounds, check_bounds

SCENARIO_FOLDER = Path(__file__).parent / "scenarios"
RECOVERY_S = 40.0
"""Default of `recovery_s`, in virtual seconds. A worker that crashed last is missed for the liveness timeout (5 s),
twice if it crashed while its job was starting; a join that nobody renews is kept for JOIN_LEASE_S (4 s); then the job
forms anew and does all its steps."""

Seconds = Annotated[float, Bounds(0, 3600)]
"""A time or a duration in virtual seconds, at most an hour."""

FaultKind = Literal[
    "cut",
    "clog",
    "degrade",
    "pause",
    "freeze",
    "strangers",
    "crash",
    "leave",
    "restart",
    "evict",
    "quorum",
    "staleness",
]
Direction = Literal["both", "to_switch", "from_switch"]
TUNES = ("quorum", "staleness")
"""Kinds that change a running job, as `fanin tune` does."""
OF_ALL = ("freeze", "strangers")
"""Kinds that affect everything at once, so they have neither a rank nor a leaf."""
OF_A_WORKER = ("crash", "leave", "evict")
"""Kinds that need a rank; without a rank, the other kinds affect the switch or all links of the job."""
OF_A_LEAF = ("cut", "clog", "degrade", "pause", "restart")
"""Kinds that may name a leaf instead of a rank."""


def check(legal: bool, text: str) -> None:
    """Raise ConfigurationError with the text unless `legal`."""
    if not legal:
        raise ConfigurationError(text, "the scenario")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong at `at_s` and is over after `for_s`, both in virtual seconds."""

    kind: FaultKind
    """cut: nothing passes (in one direction or both); clog: links hold packets back; degrade: links get the properties
    in `link`; pause: SIGSTOP and SIGCONT; freeze: a pause of all processes at once, as of a virtual machine; strangers:
    packets from outside the job come to the switches (strangers.py); crash: a worker dies, and is started again after
    `for_s`; leave: a worker says BYE in the middle, and is started again; restart: the switch dies, and is back empty
    after `for_s`; evict: the controller removes a worker; quorum, staleness: an operator sets K or S to `value`."""
    at_s: Seconds
    for_s: Seconds = 0.0
    job: int = 0
    """Position of the job in the scenario."""
    rank: int | None = None
    """The affected worker. None: the switch (pause, restart) or every worker of the job (cut, clog, degrade)."""
    leaf: int | None = None
    """The affected leaf switch (pause, restart), or its link to the root (cut, clog, degrade)."""
    direction: Direction = "both"
    value: int | None = None
    link: Link | None = None

    def __post_init__(self) -> None:
        check_bounds(self, f"fault {self.kind}: ")
        check(self.kind in get_args(FaultKind), f"fault: {self.kind!r} is none of {', '.join(get_args(FaultKind))}")
        check(self.direction in get_args(Direction), f"fault: {self.direction!r} is no direction")
        check(self.rank is not None or self.kind not in OF_A_WORKER, f"fault {self.kind}: rank is missing")
        check(self.leaf is None or self.kind in OF_A_LEAF, f"fault {self.kind}: that happens to no leaf")
        check(self.leaf is None or self.rank is None, f"fault {self.kind}: either a rank or a leaf")
        check(self.rank is None or self.kind not in OF_ALL, f"fault {self.kind}: that happens to everybody")
        check((self.link is not None) == (self.kind == "degrade"), f"fault {self.kind}: link goes with degrade")
        check((self.value is not None) == (self.kind in TUNES), f"fault {self.kind}: value goes with {TUNES}")

    @property
    def ends_s(self) -> float:
        """Time at which the fault is over, in virtual seconds."""
        return self.at_s + self.for_s


Collective = Literal["all_reduce", "reduce_scatter", "all_gather", "broadcast"]
MOVES: tuple[Collective, ...] = ("all_gather", "broadcast")
"""Collectives that move parts and add nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan(Agreed, AskedRounds):
    """A job and its work: every worker reduces `steps` arrays of `chunks` packets each, one after another."""

    workers: Annotated[int, Bounds(1, MAX_TREE_WORKERS)] = 2
    slots: Annotated[int, Bounds(1, 65_536)] = 2
    """Number of slots. If several steps may share a round, it must equal `chunks`, and elements must be int32."""
    words_per_packet: Annotated[int, Bounds(8, 16_000)] = 8
    element: Literal["int32", "float32"] = "int32"
    chunks: Annotated[int, Bounds(1)] = 2
    short: int = 0
    """Words by which the last packet of an array is shorter; float32 only. In an array of one packet, two free words
    are room for a forecast of its scales (host/machine/scale_forecast.py)."""
    lanes: str = ""
    """Bits up / bits down of wide sums; float32 only. A tree allows 4/8 and 2/8, whose leaves lose no bits. Empty:
    lanes of 32 bits."""
    collective: Collective = "all_reduce"
    """Collective of every step: each worker keeps the whole sum, or a part of it; or there is no sum, and each part has
    an owner (ranks broadcast in turn). All but the first must be synchronous.
    """
    steady_steps: Annotated[int, Bounds(1, 100_000)] = 1
    """Number of steps after which the largest magnitude of a worker's array changes; float32 only."""
    steps: Annotated[int, Bounds(1, 100_000)] = 6
    ahead: Annotated[int, Bounds(1, 64)] = 1
    """Most steps that a worker has under way at once."""
    think_s: Seconds = 0.0
    """Mean time that a worker computes between two steps."""
    slow: Annotated[tuple[float, ...], Bounds(0, 1e6)] = ()
    """By rank, the factor of `think_s`; 1 for ranks beyond its end."""
    passes: Annotated[float, Bounds(0, 1)] = 0.0
    """Probability that a worker passes a step without a policy."""
    policy: str | None = None
    """Policy of a stale worker for late gradients (docs/staleness.md): host/stale then decides about each base, and S
    passes follow the steps as a flush. None: one step after another, as in a synchronous job.
    """
    tree: bool = False
    """Whether its workers are at the scenario's leaves, dealt out in turn; synchronous only."""
    checksum: bool = True
    start_s: Seconds = 0.0
    """Time at which its workers start, in virtual seconds."""

    def __post_init__(self) -> None:
        check_bounds(self, "job: ")
        most = MAX_TREE_WORKERS if self.tree else MAX_WORKERS
        check(self.workers <= most, f"job: workers = {self.workers}; must be in 1..{most}")
        check(self.quorum is None or self.quorum <= self.workers, f"job: quorum = {self.quorum} of {self.workers}")
        check(self.staleness <= self.largest_staleness <= 64, "job: staleness must be in 0..max_staleness <= 64")
        check(self.on_worker_loss in ("raise", "continue"), f"job: on_worker_loss = {self.on_worker_loss!r}")
        check(self.element in ("int32", "float32"), f"job: element {self.element!r} is neither int32 nor float32")
        if self.policy is not None:
            policy_class(self.policy)  # raises ConfigurationError for an unknown policy
        check(0 <= self.short < self.words_per_packet, f"job: short = {self.short} of {self.words_per_packet} words")
        floating = self.element == "float32"
        check(floating or (self.short, self.steady_steps) == (0, 1), "job: short and steady_steps go with float32")
        if self.lanes:
            lanes_number(self.lanes)
            check(floating, "job: lanes go with float32")
            check(not self.tree or self.lanes in ("4/8", "2/8"), f"job: lanes = {self.lanes} in a tree lose bits twice")
        check(self.policy is None or not self.passes, "job: with a policy, that decides who passes: passes must be 0")
        if self.every_chunk_has_a_slot:
            check(self.chunks == self.slots, "job: with staleness, quorum or passes, chunks must be slots")
            check(self.element == "int32", "job: with staleness, quorum or passes, element must be int32")
            check(self.collective == "all_reduce", "job: with staleness, quorum or passes, collective is all_reduce")
            check(not self.tree, "job: a tree is synchronous: no staleness, quorum, passes or on_worker_loss")

    @property
    def every_chunk_has_a_slot(self) -> bool:
        """Whether rounds may hold contributions of several steps."""
        alone = self.on_worker_loss == "continue"  # then a newcomer begins at the same base of every slot
        stale = self.largest_staleness > 0 or self.quorum not in (None, self.workers)
        return alone or stale or self.passes > 0 or self.policy is not None

    @property
    def bases(self) -> int:
        """Number of bases of each slot that a worker goes through: its steps and, with a policy, the flush."""
        return self.steps if self.policy is None else self.steps + self.largest_staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Jobs, links and faults of a run; with a seed it determines the run."""

    name: str = "unnamed"
    about: str = ""
    jobs: tuple[JobPlan, ...] = (JobPlan(),)
    leaves: Annotated[int, Bounds(0, MAX_WORKERS)] = 0
    """Number of leaf switches below the switch; workers of jobs with `tree` are at these."""
    link: Link = field(default_factory=Link)
    faults: tuple[Fault, ...] = ()
    noise_s: Seconds = 0.0
    """Least time for which links have the properties of `link`; from `quiet_s` on they only delay."""
    memory_bytes: int = 1 << 24
    liveness_timeout_s: Seconds = LIVENESS_TIMEOUT_S
    recovery_s: Seconds = RECOVERY_S

    def __post_init__(self) -> None:
        check(len(self.jobs) >= 1, "scenario: at least one job")
        check_bounds(self, "scenario: ")
        check(self.liveness_timeout_s > 0, "scenario: liveness_timeout_s must be positive")
        for job in self.jobs:
            check(not job.tree or self.leaves > 0, "scenario: a tree needs leaves")
            check(not job.tree or job.workers <= MAX_WORKERS * self.leaves, f"scenario: {MAX_WORKERS} workers per leaf")
        for fault in self.faults:
            check(fault.leaf is None or 0 <= fault.leaf < self.leaves, f"fault {fault.kind}: no leaf {fault.leaf}")
            check(0 <= fault.job < len(self.jobs), f"fault {fault.kind}: there is no job {fault.job}")
            workers = self.jobs[fault.job].workers
            check(
                not (fault.kind == "evict" and self.jobs[fault.job].tree), "fault evict: nobody is evicted from a tree"
            )
            check(fault.rank is None or 0 <= fault.rank < workers, f"fault {fault.kind}: no rank {fault.rank}")
            if fault.kind == "quorum" and fault.value is not None:
                check(1 <= fault.value <= workers, f"fault quorum: {fault.value} of {workers}")
            if fault.kind == "staleness" and fault.value is not None:
                largest = self.jobs[fault.job].largest_staleness
                check(0 <= fault.value <= largest, f"fault staleness: {fault.value}, at most {largest}")
        damaging = [self.link, *(fault.link for fault in self.faults if fault.link is not None)]
        if any(link.corrupt for link in damaging):
            check(all(job.checksum for job in self.jobs), "scenario: corrupt needs checksum = true in every job")

    @property
    def quiet_s(self) -> float:
        """Time from which on no fault is active and every job has started."""
        return max([self.noise_s, *(fault.ends_s for fault in self.faults), *(job.start_s for job in self.jobs)])

    def with_faults(self, faults: tuple[Fault, ...]) -> Scenario:
        """The same scenario with these faults."""
        return dataclasses.replace(self, faults=faults)


# --- TOML ---


def load(name_or_path: str) -> Scenario:
    """Load a shipped scenario by its name, or one from a file. ConfigurationError says what is wrong with it."""
    path = Path(name_or_path)
    if not path.suffix and not path.exists():
        path = SCENARIO_FOLDER / f"{name_or_path}.toml"
        if not path.exists():
            known = ", ".join(sorted(each.stem for each in SCENARIO_FOLDER.glob("*.toml")))
            raise ConfigurationError(f"no scenario {name_or_path!r}. Remedy: the path of a file, or one of {known}")
    return of_tables(load_toml(path, "scenario"), path.stem)


def parse(text: str, default_name: str = "unnamed") -> Scenario:
    """A scenario from TOML text."""
    try:
        given = strict.load_toml(text.encode())
    except strict.RecordError as error:
        raise ConfigurationError(f"scenario {default_name!r}: {error}", "the scenario") from None
    return of_tables(given, default_name)


def of_tables(given: dict[str, Any], default_name: str) -> Scenario:
    """A scenario from the tables of a TOML file."""
    given = {"name": default_name, **given}
    for table, field_name in (("job", "jobs"), ("fault", "faults")):
        if field_name in given:
            raise ConfigurationError(f"scenario: unknown field {field_name!r}; write [[{table}]]", "that field")
        if table in given:
            given[field_name] = given.pop(table)
    return read_dataclass(given, Scenario, "scenario")


def to_toml(scenario: Scenario) -> str:
    """The scenario as TOML that `parse` reads back; fields with their defaults are left out."""
    lines = _lines(scenario, skip=("jobs", "faults", "link"))
    if scenario.link != Link():
        lines += ["", "[link]", *_lines(scenario.link)]
    for job in scenario.jobs:
        lines += ["", "[[job]]", *_lines(job)]
    for fault in scenario.faults:
        lines += ["", "[[fault]]", *_lines(fault, skip=("link",))]
        if fault.link is not None:
            lines += ["[fault.link]", *_lines(fault.link)]
    return "\n".join(lines) + "\n"


def _lines(values: Any, skip: tuple[str, ...] = ()) -> list[str]:
    lines = []
    for each in dataclasses.fields(values):
        value = getattr(values, each.name)
        if each.name not in skip and value is not None and value != each.default:
            lines.append(f"{each.name} = {_literal(value)}")
    return lines


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, tuple):
        return f"[{', '.join(map(_literal, value))}]"
    return repr(value)
