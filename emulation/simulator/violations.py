"""Errors of the checkers. Each names the seed, the event's number and the time, and ends with the last steps."""

from __future__ import annotations

from collections.abc import Sequence

from fanin.errors import FaninError


class ViolationError(FaninError):
    """An invariant of the protocol does not hold, because of a defect of a machine or of the simulator."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.seed = 0
        self.event_number = 0
        self.time_s = 0.0
        self.trace: tuple[str, ...] = ()

    def locate(self, seed: int, event_number: int, time_s: float, trace: Sequence[str]) -> None:
        """Set where the violation was found; the simulation calls this."""
        self.seed, self.event_number, self.time_s, self.trace = seed, event_number, time_s, tuple(trace)

    @property
    def kind(self) -> str:
        """Name of the violated invariant: `conservation`, `staleness`, ..."""
        return type(self).__name__.removesuffix("Error").lower()

    def __reduce__(self) -> tuple[object, ...]:  # keeps all facts when it is pickled for another process
        return _rebuild, (type(self), self.text, self.seed, self.event_number, self.time_s, self.trace)

    def __str__(self) -> str:
        where = f"seed {self.seed}, event {self.event_number}, {self.time_s:.6f} s"
        return "\n  ".join([f"{self.kind}: {self.text} ({where})", *self.trace])


class ConservationError(ViolationError):
    """A contribution is in no round, in two rounds, or in one with other words."""


class StalenessError(ViolationError):
    """A contribution landed in a round outside b..b + S, or a round closed too early."""


class AgreementError(ViolationError):
    """Two workers were told, or hold, different results of one round."""


class IsolationError(ViolationError):
    """A packet of another job, generation or sender had an effect."""


class MemoryBoundError(ViolationError):
    """A machine holds more than its pool, its rings or its queue may."""


class ProgressError(ViolationError):
    """Work is not done within the bound after the faults stopped, a due round stays open, or a machine never rests."""


class TrainError(ViolationError):
    """A switch machine made something else of a train than of its datagrams one by one."""


class CrashError(ViolationError):
    """A machine or the controller raised an unexpected exception."""


def _rebuild(
    violation: type[ViolationError], text: str, seed: int, event_number: int, time_s: float, trace: tuple[str, ...]
) -> ViolationError:
    found = violation(text)
    found.locate(seed, event_number, time_s, trace)
    return found
