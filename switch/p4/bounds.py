"""Bounds on the declarations of a compiled program. Loading checks each before it allocates memory of that size.

Documents come from the network, over P4Runtime: some hundred bytes must not cost gigabytes or minutes. The largest
program of this repository has 54 kbit of fields, 162 kB of source and 25 MB of registers.
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
"""Fields and validities of all header instances, a list that is copied for every packet."""
MAX_STATE_BITS = 1 << 20
"""Total width of all fields and validities: 128 KiB for a packet."""
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
"""Python source generated from a program, checked before it is compiled: copying a header stack makes many lines."""


class SourceBudget:
    """Counts the source generated from a program, to bound it while it is generated."""

    def __init__(self) -> None:
        self._left = MAX_SOURCE_BYTES

    def spend(self, lines: Lines) -> Lines:
        """Count `lines` and return them. UnsupportedError if the program has more than MAX_SOURCE_BYTES in total."""
        self._left -= sum(map(len, lines)) + len(lines)
        if self._left < 0:
            raise UnsupportedError(
                f"the program's actions, states and tables make more than {MAX_SOURCE_BYTES:,} bytes"
            )
        return lines
