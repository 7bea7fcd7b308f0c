"""Faults to inject, as text. One grammar for `--fault`, scenario files and FANIN_FAULTS.

Clauses are separated by semicolons (or are several `--fault` options):

* `drop=1%,dup=0.5%,reorder=2%,corrupt=0.01%@seed=7`: to datagrams, all the time. Each part is a probability per
  datagram and direction, `1%` or `0.01`; a part left out is 0, `@seed=` left out is 0.
* `kill=worker:2@step:40`, `kill=worker:2@12s`, `kill=switch@step:40`: SIGKILL, once, when so many optimizer steps are
  done (by that worker; by worker 0 for a switch) or so long after the start.
* `restart=worker:2@step:40`, `restart=switch@12s`: the same, and it is started again.
* `pause=worker:2@12s+3s`: stopped (SIGSTOP) for three seconds.
* `down=link:3@5s+2s`: worker 3's link carries nothing for two seconds.
* `slow=link:3:4x@5s+10s`: worker 3's link has a quarter of its rate for ten seconds.

This module only reads the text. host/transports/faulty.py carries out the faults of datagrams,
host/torch/collectives/timeline.py those of workers at a step, and the emulator (emulation/network/fault_runner.py) the
rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from fanin.errors import ConfigurationError

EXAMPLE = "drop=1%,dup=0.5%,reorder=2%,corrupt=0.01%@seed=7"
SCHEDULED_EXAMPLES = (
    "kill=worker:2@step:40, restart=switch@12s, pause=worker:2@12s+3s, down=link:3@5s+2s or slow=link:3:4x@5s+10s"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """How often each fault strikes a datagram, as probabilities in [0, 1], and the seed of the dice."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """A datagram is held back until a few later ones have passed it."""
    corrupt: float = 0.0
    """One bit is flipped, or the datagram is cut short. The job must use checksums."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("drop", "duplicate", "reorder", "corrupt"):
            probability = getattr(self, name)
            if not 0.0 <= probability <= 1.0:
                raise ConfigurationError(f"faults: {name} = {probability}; must be in 0..1 (or 0%..100%)", "faults")

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """Read the grammar above; ConfigurationError says which part is wrong."""
        faults, at, tail = text.partition("@")
        seed = 0
        if at:
            name, equals, digits = tail.partition("=")
            if name.strip() != "seed" or not equals or not _SEED.fullmatch(digits.strip()):
                raise ConfigurationError(
                    f"faults {text!r}: expected @seed=NUMBER after the @, as in {EXAMPLE}", "faults"
                )
            seed = int(digits)
        values: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in faults.split(","))):
            name, _, value = part.partition("=")
            field = _FIELDS.get(name.strip())
            if field is None:
                said = f"{name!r} is none of {', '.join(_FIELDS)}; as in {EXAMPLE}"
                raise ConfigurationError(f"faults {text!r}: {said}", "faults")
            if field in values:
                raise ConfigurationError(f"faults {text!r}: {name} stands there twice", "faults")
            values[field] = _probability(text, value.strip())
        return cls(**values, seed=seed)


_FIELDS = {"drop": "drop", "dup": "duplicate", "reorder": "reorder", "corrupt": "corrupt"}


def _probability(text: str, value: str) -> float:
    try:
        return float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except ValueError:
        raise ConfigurationError(f"faults {text!r}: {value!r} is no probability; as in {EXAMPLE}", "faults") from None


_SEED = re.compile(r"[0-9]{1,18}")


Action = Literal["kill", "restart", "pause", "down", "slow"]
TARGETS: dict[Action, tuple[str, ...]] = {
    "kill": ("worker", "switch"),
    "restart": ("worker", "switch"),
    "pause": ("worker", "switch"),
    "down": ("link",),
    "slow": ("link",),
}
"""Targets that each action can have."""
LASTING: tuple[Action, ...] = ("pause", "down", "slow")
"""Actions that have a duration."""
_SCHEDULED = re.compile(
    r"(?P<action>[a-z]+)=(?P<target>worker|switch|link)(?::(?P<index>\d{1,9}))?(?::(?P<factor>\d{1,9}(?:\.\d+)?)x)?"
    r"@(?:step:(?P<step>\d{1,9})|(?P<at>\d{1,9}(?:\.\d+)?)s)(?:\+(?P<lasts>\d{1,9}(?:\.\d+)?)s)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledFault:
    """Something that happens once to a part of the cluster, at a step or at a time."""

    action: Action
    target: str
    """worker, switch or link."""
    index: int | None
    """Rank of the worker (a link has its worker's); None for a switch."""
    at_step: int | None = None
    at_s: float | None = None
    """Seconds after the start; exactly one of the two is given."""
    lasts_s: float | None = None
    factor: float = 1.0
    """How much slower, for `slow`."""
    text: str
    """The clause as it was given."""

    @property
    def by_worker(self) -> bool:
        """Whether the worker carries out the fault itself, which strikes it at exactly the given step."""
        return self.target == "worker" and self.at_step is not None

    @classmethod
    def parse(cls, text: str) -> ScheduledFault:
        """Read one clause; ConfigurationError says what is wrong."""
        match = _SCHEDULED.fullmatch(text.strip())
        if match is None or match["action"] not in TARGETS:
            raise ConfigurationError(f"fault {text!r}: expected {EXAMPLE}, {SCHEDULED_EXAMPLES}", "faults")
        action: Action = match["action"]
        fault = cls(
            action=action,
            target=match["target"],
            index=None if match["index"] is None else int(match["index"]),
            at_step=None if match["step"] is None else int(match["step"]),
            at_s=None if match["at"] is None else float(match["at"]),
            lasts_s=None if match["lasts"] is None else float(match["lasts"]),
            factor=float(match["factor"] or 1.0),
            text=text.strip(),
        )
        fault._check()
        return fault

    def _check(self) -> None:
        def check(legal: bool, why: str) -> None:
            if not legal:
                raise ConfigurationError(f"fault {self.text!r}: {why}; as in {SCHEDULED_EXAMPLES}", "faults")

        check(self.target in TARGETS[self.action], f"{self.action} happens to {' or '.join(TARGETS[self.action])}")
        check((self.index is None) == (self.target == "switch"), "workers and links have a number, the switch has none")
        check((self.lasts_s is not None) == (self.action in LASTING), f"only {', '.join(LASTING)} last, with +SECONDS")
        check((self.factor > 1) == (self.action == "slow"), "slow, and nothing else, has a factor above 1")
        check(self.at_step != 0, "steps are counted from 1")
        check(self.at_step is None or self.action != "pause", "a pause begins at a time, not at a step")


def check_worker(worker: int, workers: int, named_in: str = "") -> None:
    """Raise ConfigurationError unless a job of so many workers has this one, which was `named_in` an option."""
    if not 0 <= worker < workers:
        before = f"{named_in}: " if named_in else ""
        raise ConfigurationError(
            f"{before}there is no worker {worker}: workers are 0..{workers - 1}. Remedy: name one of these"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultSchedule:
    """All faults to inject: those of datagrams, and scheduled ones."""

    packets: FaultPlan | None = None
    scheduled: tuple[ScheduledFault, ...] = ()

    @classmethod
    def parse(cls, text: str) -> FaultSchedule:
        """Read clauses separated by semicolons; ConfigurationError says which part is wrong."""
        packets: FaultPlan | None = None
        scheduled = []
        for clause in filter(None, (clause.strip() for clause in text.split(";"))):
            if clause.partition("=")[0].strip() in _FIELDS:
                if packets is not None:
                    raise ConfigurationError(
                        f"faults {text!r}: faults of datagrams stand there twice. Remedy: join them by commas"
                    )
                packets = FaultPlan.parse(clause)
            else:
                scheduled.append(ScheduledFault.parse(clause))
        return cls(packets=packets, scheduled=tuple(scheduled))

    def check_workers(self, workers: int) -> None:
        """Raise ConfigurationError for a fault at a worker that a job of so many does not have."""
        for each in self.scheduled:
            if each.target == "worker" and each.index is not None:
                check_worker(each.index, workers, f"fault {each.text!r}")

    def for_workers(self, text: str) -> str:
        """The clauses of `text`, from which this was read, that workers carry out themselves: FANIN_FAULTS."""
        mine = [fault.text for fault in self.scheduled if fault.by_worker]
        packets = [clause.strip() for clause in text.split(";") if clause.partition("=")[0].strip() in _FIELDS]
        return ";".join(packets + mine)
