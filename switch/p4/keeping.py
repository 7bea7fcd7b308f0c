"""Keep what a process has read of its P4 documents, so that making a program of the same document takes less time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

Text = TypeVar("Text", bound=str | bytes)
More = ParamSpec("More")
Read = TypeVar("Read")

PROGRAMS_KEPT = 16
MAX_KEPT_BYTES = 1 << 22
"""Longest document that is kept: what is made of one has several times its length."""


def kept(read: Callable[Concatenate[Text, More], Read]) -> Callable[Concatenate[Text, More], Read]:
    """`read`, whose results for the last PROGRAMS_KEPT documents are kept, and so are for nobody to change."""
    keeping = functools.lru_cache(maxsize=PROGRAMS_KEPT)(read)

    @functools.wraps(read)
    def reading(text: Text, /, *more: More.args, **given: More.kwargs) -> Read:
        if len(text) > MAX_KEPT_BYTES:
            return read(text, *more, **given)
        found: Read = keeping(text, *more, **given)  # type: ignore[arg-type]
        return found

    return reading
