"""When fragments of a model meet: a state machine of local steps, without sockets, clock or tensors.

Verbs
-----
`begin(steps)` starts a period, `stepped()` counts a local step and returns what is due after it, `recall()` ends the
period and returns what is still under way.

Rules
-----
* Meetings are numbered from 0. Meeting m is of fragment m mod F, so every rank has the same ones in the same order,
  whatever its periods are and wherever a flush has cut them off.
* In a period of H steps every fragment meets once; the i-th of them after ceil((i + 1) H / F) steps.
* A meeting lands `overlap` steps after it was launched: at once with 0.
* At most one meeting of a fragment is under way between two steps. One that is still under way when the next meeting of
  its fragment is due lands right after that was launched: what was handed in then still belongs to the old base.
* Landings are in the order of launches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from fanin.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Launch:
    """Hand in what fragment `fragment` has learned, as meeting `number`."""

    number: int
    fragment: int


@dataclass(frozen=True, slots=True)
class Land:
    """Take the result of meeting `number`."""

    number: int
    fragment: int


Action = Launch | Land


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A meeting that was launched and has not landed."""

    number: int
    fragment: int
    due_step: int
    """Step after which it lands, at the latest."""


@dataclass(frozen=True, slots=True)
class Next:
    """The next meeting to be launched, if the period goes on as it is."""

    number: int
    fragment: int
    in_steps: int


class Schedule:
    """The meetings of one rank."""

    def __init__(self, fragments: int = 1, overlap: int = 0) -> None:
        if fragments < 1 or overlap < 0:
            raise ConfigurationError(
                f"{fragments} fragments, overlap {overlap}; at least 1, and 0 steps", "fragments and overlap"
            )
        self.fragments = fragments
        self.overlap = overlap
        self.step = 0
        """Local steps that are done."""
        self.number = 0
        """Number of the next meeting."""
        self.period: int | None = None
        """Steps of the period under way; None: none has begun."""
        self._offset = 0
        self._met = 0
        """Meetings of this period that were launched."""
        self._under_way: deque[UnderWay] = deque()

    @property
    def under_way(self) -> tuple[UnderWay, ...]:
        """Meetings that were launched and have not landed, in order."""
        return tuple(self._under_way)

    def begin(self, steps: int) -> None:
        """Start a period of so many steps, where none is under way."""
        assert self.period is None
        assert steps >= 1
        self.period, self._offset, self._met = steps, 0, 0

    def stepped(self) -> list[Action]:
        """Count a step of a period that has begun; returns the actions that are due after it, in order."""
        assert self.period is not None
        self.step += 1
        self._offset += 1
        actions: list[Action] = []
        while self._met < self.fragments and self._offset_of(self._met) == self._offset:
            actions += self._launch()
        actions += self._landings(lambda each: each.due_step <= self.step)
        if self._offset == self.period:
            self.period = None
        return actions

    def next_meeting(self, period: int | None = None) -> Next | None:
        """The next launch; `period`: steps of the next period where none is under way. None: not known yet."""
        if self.period is None:
            if period is None:
                return None
            return Next(self.number, self.number % self.fragments, -(-period // self.fragments))
        return Next(self.number, self.number % self.fragments, self._offset_of(self._met) - self._offset)

    def closing(self) -> Launch:
        """The next meeting of a flush, after `recall`: it has landed before the next call."""
        assert self.period is None
        assert not self._under_way
        self.number += 1
        return Launch(self.number - 1, (self.number - 1) % self.fragments)

    def go_to(self, step: int) -> None:
        """Set the step after a flush, to that of the ranks that have trained furthest, from which all go on."""
        assert self.period is None
        assert step >= self.step
        self.step = step

    @property
    def met(self) -> int:
        """Meetings of the period under way that were launched, or of the last one."""
        return self._met

    def resume(
        self, number: int, step: int, period: int, met: int, *, skipped: int = 0, following: int | None = None
    ) -> None:
        """Go on where another's schedule is right after the launch of its meeting `number`, the `met`-th of a `period`.

        `step`: of the other at that launch. `following`: steps of the next period, where they are known. `skipped`:
        steps that the other has made since; as many of them count here as leave one before the next launch.
        """
        self.number, self.step, self.period = number + 1, step, period
        self._met, self._offset = met, self._offset_of(met - 1)
        if self._offset == period:
            self.period = None
            if following is None:
                return
            self.begin(following)
        skipped = max(0, min(skipped, self._offset_of(self._met) - self._offset - 1))
        self.step += skipped
        self._offset += skipped

    def recall(self) -> list[Land]:
        """End the period where it is; returns the landings of all that is under way."""
        self.period = None
        return self._landings(lambda _: True)

    def _offset_of(self, place: int) -> int:
        assert self.period is not None
        return -(-(place + 1) * self.period // self.fragments)

    def _launch(self) -> list[Action]:
        launch = Launch(self.number, self.number % self.fragments)
        self.number += 1
        self._met += 1
        earlier = self._landings(lambda each: each.fragment == launch.fragment)
        self._under_way.append(UnderWay(launch.number, launch.fragment, self.step + self.overlap))
        return [launch, *earlier]

    def _landings(self, due: Callable[[UnderWay], bool]) -> list[Land]:
        """Take off what is due, with all that was launched before it."""
        last = max((place for place, each in enumerate(self._under_way) if due(each)), default=-1)
        return [Land(each.number, each.fragment) for each in (self._under_way.popleft() for _ in range(last + 1))]
