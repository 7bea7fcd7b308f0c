"""Ways to break a train of datagrams, and native machines that break every train before they take it in."""

from __future__ import annotations

from collections.abc import Callable

from fanin.emulation.simulator.trains import Train

Change = Callable[[Train], Train]


def leave(train: Train) -> Train:
    return train


def lose_one(train: Train) -> Train:
    return train[:1] + train[2:]


def turn(train: Train) -> Train:
    return train[::-1]


def double_one(train: Train) -> Train:
    return [*train, train[-1]]


class ChangesTrains:
    """A native machine that changes every train before it takes it in."""

    def __init__(self, machine: object, change: Change, lengths: list[int] | None = None) -> None:
        """`lengths`: gets the number of datagrams of each train, as it came."""
        self._machine, self._change, self._lengths = machine, change, lengths

    def receive_datagrams(self, datagrams: Train, now: float) -> None:
        if self._lengths is not None:
            self._lengths.append(len(datagrams))
        self._machine.receive_datagrams(self._change(datagrams), now)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._machine, name)
