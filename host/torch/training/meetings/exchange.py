"""One meeting's exchange: the roll and the deltas of a fragment on their way, through the codec of that fragment."""

from __future__ import annotations

import time

import numpy as np
import torch
import torch.distributed as dist

from fanin.host.codecs.codec import Floats
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.training.codec_buckets import Bucket
from fanin.host.torch.training.codec_flight import CodecFlight, finish
from fanin.host.torch.training.meetings import roll
from fanin.host.torch.training.meetings.buffers import Buffers, BufferSums


class Exchange:
    """A meeting that was launched. Nothing of the model changes until all of it has come (`collect`)."""

    def __init__(
        self,
        group: FaninProcessGroup,
        own: roll.Entry,
        bucket: Bucket,
        delta: torch.Tensor,
        buffers: Buffers | None,
        *,
        fragment: int,
        waits_for_roll: bool,
    ) -> None:
        """Submit everything; with `waits_for_roll`, the deltas only once the roll says that there are any.

        `delta`: shape (count,), float32, which becomes the mean. `fragment`: its number.
        """
        self.fragment = fragment
        self.waited_s = 0.0
        """Seconds for which the thread that trains has waited for this exchange."""
        self.payload_bytes = 0
        """Bytes of the words that this rank has contributed, without headers. After `collect`."""
        self._group, self._number = group, own.number
        self._launched_s = self._submitted_s = time.monotonic()
        self._awaited_s: float | None = None
        """When `collect` was first called; None: it was not."""
        self._table, self._roll_work = roll.start(group, own)
        self._delta = delta
        self._bucket = bucket
        self._flights: list[CodecFlight] = []
        self._buffers: BufferSums | None = None
        self._collected = False
        if waits_for_roll:
            self._wait_for(self._roll_work)
            if not roll.has_deltas(self.roll):
                return
        self._flights = [CodecFlight(group, own.number, piece, delta) for piece in bucket.pieces]
        for each in self._flights:
            each.start(None)
        if buffers is not None:
            self._buffers = buffers.start(group, contributes=bool(own.contributes))
        self._submitted_s = time.monotonic()

    @property
    def roll(self) -> roll.Roll:
        """The rows of all ranks; to be read once the roll has come."""
        return roll.read(self._table)

    def collect(self) -> None:
        """Wait until all of it has come; may be called again after an error. Raises what a collective raises."""
        if self._collected:
            return
        self._awaited_s = self._awaited_s or time.monotonic()
        self._wait_for(self._roll_work)
        started = time.monotonic()
        finish(self._flights)
        if self._buffers is not None:
            self._buffers.wait()
        self.waited_s += time.monotonic() - started
        self.payload_bytes = sum(each.payload_bytes for each in self._bucket.pieces) if self._flights else 0
        self._collected = True
        self._write()

    def _write(self) -> None:
        """Write this meeting into the rank's time line, if it has one."""
        assert self._awaited_s is not None
        if (timeline := self._group.timeline) is not None and self._flights:
            timeline.meeting(
                number=self._number, fragment=self.fragment, launched=self._launched_s, submitted=self._submitted_s,
                awaited=self._awaited_s, landed=time.monotonic(),
            )  # fmt: skip

    def mean(self) -> Floats | None:
        """The mean delta of those who contributed, shape (count,); None where nobody did. After `collect`."""
        count = roll.contributors(self.roll)
        if not self._flights or not count:
            return None
        mean: Floats = self._delta.numpy()
        if count != self._group.size():
            mean *= np.float32(self._group.size() / count)
        return mean

    def take_buffers(self) -> None:
        """Set the model's buffers to what the contributors have agreed on. After `collect`."""
        count = roll.contributors(self.roll)
        if self._buffers is not None and count:
            self._buffers.take(self._group.size() / count)

    def _wait_for(self, work: dist.Work) -> None:
        started = time.monotonic()
        work.wait()
        self.waited_s += time.monotonic() - started
