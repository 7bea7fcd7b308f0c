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
    """What a table must know of an action."""

    name: str
    widths: tuple[int, ...]
    run: Callable[..., None]

    def check(self, data: tuple[int, ...]) -> None:
        """TableError for data that the action does not take."""
        if len(data) != len(self.widths) or any(value >> bits for value, bits in zip(data, self.widths, strict=True)):
            raise TableError(
                TableProblem.INVALID, f"action {self.name} takes values of {list(self.widths)} bits, not {data}"
            )


@dataclass(slots=True, eq=False)
class Member:
    """An action with its data. `run` and `data` are as an entry's."""

    number: int
    action: str
    data: tuple[int, ...]
    run: Callable[..., None]


@dataclass(slots=True, eq=False)
class Group:
    """Members that share the packets of an entry."""

    number: int
    members: tuple[tuple[Member, int], ...]
    """With their weights, in the order in which they were given."""
    max_size: int = 0
    """What the control plane said; kept as it is."""
    spread: tuple[Member, ...] = field(init=False, default=())
    """A member as often as its weight says."""

    def __post_init__(self) -> None:
        ordered = sorted(self.members, key=lambda each: each[0].number)
        self.spread = tuple(member for member, weight in ordered for _ in range(weight))


def nothing(f: list[int], k: object, p: tuple[int, ...]) -> None:
    """What a table without a default action does on a miss."""
