"""Actions with their data, as entries, members and groups name them, and the errors of refused changes.

program.py compiles actions; tables.py and action_profiles.py keep the entries, members and groups that run them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from fanin.errors import FaninError


class TableProblem(enum.Enum):
    """Reason for which a change is refused; P4Runtime has a code for each."""

    EXISTS = enum.auto()
    NOT_FOUND = enum.auto()
    FULL = enum.auto()
    IMMUTABLE = enum.auto()
    IN_USE = enum.auto()
    INVALID = enum.auto()


class TableError(FaninError):
    """Raised for a change that a table or an action profile refuses."""

    def __init__(self, problem: TableProblem, text: str) -> None:
        super().__init__(text)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class ActionFacts:
    """Facts about an action that a table needs."""

    name: str
    widths: tuple[int, ...]
    run: Callable[..., None]

    def check(self, data: tuple[int, ...]) -> None:
        """TableError for data that the action does not take."""
        if len(data) != len(self.widths) or any(value >> bits for value, bits in zip(data, self.widths, strict=True)):
            raise TableError(
                TableProblem.INVALID,
                f"action {self.name} takes values of {list(self.widths)} bits, not of "
                f"{[value.bit_length() for value in data]}",
            )


@dataclass(slots=True, eq=False)
class Member:
    """An action with its data. `run` and `data` mean the same as in tables.Entry."""

    number: int
    action: str
    data: tuple[int, ...]
    run: Callable[..., None]


@dataclass(frozen=True, slots=True)
class Watch:
    """The port that must be up for a member to get packets."""

    port: int
    by_number: bool = False
    """Whether P4Runtime's older field `watch` named the port, so that it is read back in the same field."""


@dataclass(frozen=True, slots=True)
class Share:
    """A member of a group, with its weight and the port that it watches."""

    member: Member
    weight: int
    watch: Watch | None = None


@dataclass(slots=True, eq=False)
class Group:
    """Members that share the packets of an entry."""

    number: int
    shares: tuple[Share, ...]
    """Members in the order in which the control plane gave them."""
    max_size: int = 0
    """Size that the control plane gave; it is kept unchanged."""
    _down: frozenset[int] | None = field(init=False, default=None)
    """The ports that were down when `_spread` was computed; None: it must be computed again."""
    _spread: tuple[Member, ...] = field(init=False, default=())

    def take(self, other: Group) -> None:
        """Replace the members by those of another group."""
        self.shares, self._down = other.shares, None

    def spread(self, down: frozenset[int]) -> tuple[Member, ...]:
        """Members in order of their numbers, each as often as its weight, without those whose port is in `down`.

        `down` must be a new set whenever a port comes up or goes down: the result is cached for the same object.
        """
        if self._down is not down:
            ordered = sorted(self.shares, key=lambda each: each.member.number)
            up = (each for each in ordered if each.watch is None or each.watch.port not in down)
            self._down, self._spread = down, tuple(each.member for each in up for _ in range(each.weight))
        return self._spread


def nothing(f: list[int], k: object, p: tuple[int, ...]) -> None:
    """Do nothing: the miss of a table without a default action."""
