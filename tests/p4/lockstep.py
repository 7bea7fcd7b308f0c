"""A switch whose every packet goes through both interpreters, from the same state to the same state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fanin.errors import PacketError
from fanin.switch.p4 import V1Switch
from fanin.switch.p4.externs import WideCells

Sent = list[tuple[int, bytes]]


@dataclass(slots=True)
class LockstepSwitch(V1Switch):
    """For small programs: all that a program keeps is copied for every packet."""

    def process(self, port: int, data: bytes, now: float) -> Sent:
        """Process the packet as V1Switch does, in both interpreters."""
        if self._machine is None:
            return super(LockstepSwitch, self).process(port, data, now)
        before, tally, learned = self._saved(), copy.copy(self.tally), self.digests.copy()
        expected, lost = _outcome(lambda: self._process_here(port, data, now))
        after, counted, told = self._saved(), self.tally, self.digests
        self._restore(before)
        self.tally, self.digests = tally, learned
        got, also_lost = _outcome(lambda: super(LockstepSwitch, self).process(port, data, now))
        assert (got, also_lost is None) == (expected, lost is None), (lost, also_lost)
        assert self._saved() == after
        assert self.tally == counted
        assert self.digests == told
        if also_lost is not None:
            raise also_lost
        return got

    def _arrays(self) -> Iterator[memoryview]:
        for register in self.program.registers.values():
            cells = register.cells
            yield memoryview(cells.memory if isinstance(cells, WideCells) else cells)  # type: ignore[arg-type]
        for counter in self.program.counters.values():
            yield memoryview(counter.packets)  # type: ignore[arg-type]
            yield memoryview(counter.bytes)  # type: ignore[arg-type]
        for table in self.program.tables.values():
            for entry in table:
                yield memoryview(entry.counts)
                if entry.meter is not None:
                    yield memoryview(entry.meter.cells)
        for meters in self.program.meters.values():
            yield memoryview(meters.cells)

    def _saved(self) -> list[bytes]:
        return [array.tobytes() for array in self._arrays()]

    def _restore(self, kept: list[bytes]) -> None:
        for array, before in zip(self._arrays(), kept, strict=True):
            if before:
                array.cast("B")[:] = before


def _outcome(process: Callable[[], Sent]) -> tuple[Sent, PacketError | None]:
    try:
        return process(), None
    except PacketError as error:
        return [], error
