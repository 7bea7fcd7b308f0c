"""Actions with their data, as entries, members and groups name them, and why the control plane may be refused one.

What an action does is compiled (program.py); tables.py and action_profiles.py keep who runs which.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from fanin.errors import FaninError


class TableProblem(enum.Enum):
    """Why a change is refused; P4Runtime has a code for each."""

    EXISTS = enum.auto()
    NOT_FOUND = enum.auto()
    FULL = enum.auto()
    IMMUTABLE = enum.auto()
    IN_USE = enum.auto()
    INVALID = enum.auto()


class TableError(FaninError):
    """A change that a table refuses."""

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
    """An action with its data. `run` and `data` are as an entry's."""

    number: int
    action: str
    data: tuple[int, ...]
    run: Callable[..., None]


@dataclass(frozen=True, slots=True)
class Watch:
    """The port without which a member gets no packets."""

    port: int
    by_number: bool = False
    """Said in `watch`, P4Runtime's older field: it is read as it was written."""


@dataclass(frozen=True, slots=True)
class Share:
    """A member's part in a group."""

    member: Member
    weight: int
    watch: Watch | None = None


@dataclass(slots=True, eq=False)
class Group:
    """Members that share the packets of an entry."""

    number: int
    shares: tuple[Share, ...]
    """In the order in which they were given."""
    max_size: int = 0
    """Size that the control plane gave; it is kept unchanged."""
    _down: frozenset[int] | None = field(init=False, default=None)
    """The ports that were down when `_spread` was made; None: it is to be made."""
    _spread: tuple[Member, ...] = field(init=False, default=())

    def take(self, other: Group) -> None:
        """Have another group's members from now on."""
        self.shares, self._down = other.shares, None

    def spread(self, down: frozenset[int]) -> tuple[Member, ...]:
        """A member as often as its weight says, but for those whose port is among `down`, in order of their numbers.

        Nobody changes `down`: ports that come up or go down make another set.
        """
        if self._down is not down:
            ordered = sorted(self.shares, key=lambda each: each.member.number)
            up = (each for each in ordered if each.watch is None or each.watch.port not in down)
            self._down, self._spread = down, tuple(each.member for each in up for _ in range(each.weight))
        return self._spread


def nothing(f: list[int], k: object, p: tuple[int, ...]) -> None:
    """Do nothing: the miss of a table without a default action."""
