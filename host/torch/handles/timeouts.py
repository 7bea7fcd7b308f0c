"""Timeouts of collectives: a number of seconds of the caller's, or the group's default, which may change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(slots=True)
class DefaultTimeout:
    """The timeout of a group's collectives that are given none. A change holds for waits that begin later."""

    seconds: float


Timeout: TypeAlias = float | DefaultTimeout
"""The timeout of one collective: seconds, or the default of its group."""


def at_present(timeout: Timeout) -> float:
    """A collective's timeout in seconds, for a wait that begins now."""
    return timeout.seconds if isinstance(timeout, DefaultTimeout) else timeout
