"""Packets that the controller itself sends: replies and notices to workers, pokes and cleaning packets to slots."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fanin.formats.frames import Endpoint, Frame
from fanin.protocol.wire import SWITCH_WORKER, Flag, Kind, Packet, Reason
from fanin.switch.p4runtime.controller.links import Link
from fanin.switch.p4runtime.controller.placed_job import PlacedJob, Worker
from fanin.switch.p4runtime.controller.vocabulary import Vocabulary


class ControllerChannel:
    """Sends the controller's packets through one device, with the switch's address as their source."""

    def __init__(self, link: Link, vocabulary: Vocabulary, end: Endpoint) -> None:
        """`end`: the switch's address for workers."""
        self._link, self._words = link, vocabulary
        self.end = end

    def answer(self, job: PlacedJob, worker: Worker, frame: Frame) -> None:
        """Send a frame to one worker."""
        job.sent += 1
        self._link.send(self._words.packet_out(frame.to_bytes(), egress_port=worker.port))

    def tell(self, job: PlacedJob, reason: Reason, rank: int, audience: Iterable[Worker]) -> None:
        """Send NOTICE about worker `rank`, which answers no packet, to `audience`."""
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
        """Send a packet to the job's parent."""
        job.sent += 1
        frame = Frame(self.end, parent, packet.to_bytes())
        self._link.send(self._words.packet_out(frame.to_bytes(), egress_port=port))

    def poke(self, job: PlacedJob) -> None:
        """Poke every slot, to check whether its round can close now; H times, as a poke raises floor by at most one."""
        for slot in range(job.spec.slots):
            for _ in range(job.spec.history):
                self._to_slot(job, slot, 0, poke=1)

    def clean(self, job: PlacedJob) -> None:
        """Send a cleaning packet for each ring entry that may hold another job's state; each comes back when done."""
        for slot, entry in sorted(job.unclean):
            self._to_slot(job, slot, entry, clean=1)

    def _to_slot(self, job: PlacedJob, slot: int, base: int, **metadata: int) -> None:
        packet = Packet(kind=Kind.CONTRIBUTION, job=job.spec.job, generation=job.spec.generation, slot=slot, base=base)
        frame = Frame(self.end, self.end, packet.to_bytes())
        self._link.send(self._words.packet_out(frame.to_bytes(), **metadata))
