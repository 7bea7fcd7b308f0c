"""Timeouts of collectives: a number of seconds of the caller's, or the group's default, which may change."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from torch._C import _distributed_c10d as c10d

from fanin.errors import ConfigurationError

ZERO = timedelta(0)
LONGEST = timedelta(days=3650)
"""The longest timeout, which is as good as none: one above it is this one.

gloo and torch's stores add a timeout to the time of day in nanoseconds of 64 bits, which overflows above about 240
years: they hang then, or do not wait.
"""


def bounded(timeout: timedelta) -> timedelta:
    """A timeout of the program's, LONGEST at most."""
    return min(timeout, LONGEST)


def of_group(timeout: timedelta, rank: int, store: c10d.Store) -> timedelta:
    """The timeout of a new group, LONGEST at most, as is that of its store, which torch sets to the world's.

    Raises ConfigurationError for one below 0.
    """
    if timeout < ZERO:  # or what torch makes of more nanoseconds than 64 bits hold
        raise ConfigurationError(
            f"rank {rank}: the group's timeout is {timeout.total_seconds():,.0f} s; must be in 0..{LONGEST.days} days",
            "timeout",
        )
    if timeout > LONGEST:
        store.set_timeout(LONGEST)
    return bounded(timeout)


def seconds_of(timeout: timedelta) -> float:
    """A timeout of the program's in seconds, LONGEST at most."""
    return bounded(timeout).total_seconds()


@dataclass(slots=True)
class DefaultTimeout:
    """The timeout of a group's collectives that are given none. A change holds for waits that begin later."""

    seconds: float


Timeout: TypeAlias = float | DefaultTimeout
"""The timeout of one collective: seconds, or the default of its group."""


def at_present(timeout: Timeout) -> float:
    """A collective's timeout in seconds, for a wait that begins now."""
    return timeout.seconds if isinstance(timeout, DefaultTimeout) else timeout
