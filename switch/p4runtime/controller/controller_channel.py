"""Packets of the controller itself: answers and notices to workers, pokes and cleanings to the pipeline."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fanin.formats.frames import Endpoint, Frame
from fanin.protocol.wire import SWITCH_WORKER, Flag, Kind, Packet, Reason
from fanin.switch.p4runtime.controller.links import Link
from fanin.switch.p4runtime.controller.placed_job import PlacedJob, Worker
from fanin.switch.p4runtime.controller.vocabulary import Vocabulary


class ControllerChannel:
    """Packets from the controller of one device, in the switch's name."""

    def __init__(self, link: Link, vocabulary: Vocabulary, end: Endpoint) -> None:
        """`end` is the switch, as workers see it."""
        self._link, self._words = link, vocabulary
        self.end = end

    def answer(self, job: PlacedJob, worker: Worker, frame: Frame) -> None:
        """A frame to one worker."""
        job.sent += 1
        self._link.send(self._words.packet_out(frame.to_bytes(), egress_port=worker.port))

    def tell(self, job: PlacedJob, reason: Reason, rank: int, audience: Iterable[Worker]) -> None:
        """NOTICE about worker `rank` on the switch's own account."""
        notice = Packet(
            kind=Kind.NOTICE,
            job=job.spec.job,
            worker=rank,
            flags=Flag.CHECKSUM if job.spec.checksum else Flag(0),
            generation=job.spec.generation,
            contributors=reason,
            words=np.array([job.lost, job.left], np.uint32),
        )
        for worker in audience:
            self.answer(job, worker, Frame(self.end, worker.end, notice.to_bytes()))

    def tell_all(self, job: PlacedJob, reason: Reason) -> None:
        """Send NOTICE to all workers that get results."""
        self.tell(job, reason, SWITCH_WORKER, (worker for _, worker in job.audience))

    def say_up(self, job: PlacedJob, parent: Endpoint, port: int, packet: Packet) -> None:
        """A packet to the job's parent."""
        job.sent += 1
        frame = Frame(self.end, parent, packet.to_bytes())
        self._link.send(self._words.packet_out(frame.to_bytes(), egress_port=port))

    def poke(self, job: PlacedJob) -> None:
        """Have every slot ask again whether its round can close; a poke moves its floor by one base at most."""
        for slot in range(job.spec.slots):
            for _ in range(job.spec.history):
                self._to_slot(job, slot, 0, poke=1)

    def clean(self, job: PlacedJob) -> None:
        """Have what may be another job's in this job's slots cleaned; what was cleaned comes back as a packet."""
        for slot, entry in sorted(job.unclean):
            self._to_slot(job, slot, entry, clean=1)

    def _to_slot(self, job: PlacedJob, slot: int, base: int, **metadata: int) -> None:
        packet = Packet(kind=Kind.CONTRIBUTION, job=job.spec.job, generation=job.spec.generation, slot=slot, base=base)
        frame = Frame(self.end, self.end, packet.to_bytes())
        self._link.send(self._words.packet_out(frame.to_bytes(), **metadata))
