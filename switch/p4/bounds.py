"""Bounds of what a compiled program may declare. Loading checks each before memory of that size is asked for.

A loader takes its document from the network, over P4Runtime: some hundred bytes must not cost gigabytes or minutes. The
largest program of this repository has 54 kbit of fields, 162 kB of source and 25 MB of registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from fanin.errors import UnsupportedError

Lines = TypeVar("Lines", bound=Sequence[str])

MAX_INTEGER = (1 << 32) - 1
"""Largest number that the document may have as a JSON number: an id, a size, an offset, a width."""
MAX_FIELD_BITS = 1 << 16
"""Widest field, parameter, register cell, constant, cast or look-ahead."""
MAX_TYPE_FIELDS = 1 << 12
"""Fields of one header type."""
MAX_PLACES = 1 << 16
"""Fields and validities of all header instances: what is copied for every packet."""
MAX_STATE_BITS = 1 << 20
"""Widths of these together: 128 KiB for a packet."""
MAX_STACK_ELEMENTS = 1 << 10
MAX_KEY_BITS = 1 << 16
"""Widths of all fields of a table's key."""
MAX_PARAMETERS = 1 << 10
"""Parameters of one action."""
MAX_LOOKAHEAD_OFFSET_BITS = 1 << 20
MAX_HASHED_BITS = 1 << 20
"""Widths of a calculation's input, the payload aside."""
MAX_CELLS = 1 << 26
"""Cells of one array of registers, counters or meters."""
MAX_EXTERN_BYTES = 1 << 30
"""Memory of all registers, counters and meters."""
MAX_SOURCE_BYTES = 1 << 24
"""Source that is made of a program, before Python compiles it: a stack of headers that is copied makes many lines."""


class SourceBudget:
    """Counts the source that a program makes while it is made."""

    def __init__(self) -> None:
        self._left = MAX_SOURCE_BYTES

    def spend(self, lines: Lines) -> Lines:
        """The same lines; UnsupportedError where there are too many in all."""
        self._left -= sum(map(len, lines)) + len(lines)
        if self._left < 0:
            raise UnsupportedError(
                f"the program's actions, states and tables make more than {MAX_SOURCE_BYTES:,} bytes"
            )
        return lines
