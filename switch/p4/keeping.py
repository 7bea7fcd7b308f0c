"""Cache the results of reading P4 documents, so that loading the same document again takes less time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

Text = TypeVar("Text", bound=str | bytes)
More = ParamSpec("More")
Read = TypeVar("Read")

PROGRAMS_KEPT = 16
MAX_KEPT_BYTES = 1 << 22
"""Longest document whose result is cached: a result takes several times the memory of its document."""


def kept(read: Callable[Concatenate[Text, More], Read]) -> Callable[Concatenate[Text, More], Read]:
    """Decorate `read` with a cache of its last PROGRAMS_KEPT results, which callers share and must not change."""
    keeping = functools.lru_cache(maxsize=PROGRAMS_KEPT)(read)

    @functools.wraps(read)
    def reading(text: Text, /, *more: More.args, **given: More.kwargs) -> Read:
        if len(text) > MAX_KEPT_BYTES:
            return read(text, *more, **given)
        found: Read = keeping(text, *more, **given)  # type: ignore[arg-type]
        return found

    return reading
