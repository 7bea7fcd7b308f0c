"""HELLO and BYE of workers: the checks of switch/machine/switch_machine.py that the pipeline leaves to the controller.

A worker is written to the device before it gets WELCOME, so that its first contribution finds its entry. If slots have
to be cleaned for a new job (controller_channel.py), no worker is registered or answered before all of them are clean:
workers repeat HELLO, and each HELLO sends the cleaning packets again that have not come back.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from fanin.formats.frames import Frame
from fanin.protocol.events import SwitchEvent, WorkerJoined, WorkerLeft
from fanin.protocol.wire import Flag, Kind, Packet, Reason
from fanin.switch.p4runtime.controller.controller_channel import ControllerChannel
from fanin.switch.p4runtime.controller.links import Link
from fanin.switch.p4runtime.controller.placed_job import PlacedJob, Worker, group_updates, job_entry, worker_entries
from fanin.switch.p4runtime.controller.vocabulary import INSERT, MODIFY, Vocabulary

TOLD = (Reason.TOKEN, Reason.EVICTED, Reason.STRANGER)
"""Reasons for a refusal that the sender is told."""


class Registration:
    """Registers and deregisters the workers of one device's jobs."""

    def __init__(
        self, link: Link, vocabulary: Vocabulary, channel: ControllerChannel, events: deque[SwitchEvent]
    ) -> None:
        """`events`: receives WorkerJoined and WorkerLeft."""
        self._link, self._words, self._channel, self._events = link, vocabulary, channel, events

    def receive(self, job: PlacedJob, message: Packet, frame: Frame, port: int, now: float) -> None:
        """Handle a HELLO or BYE that arrived at the device's `port`."""
        worker = Worker(frame.source, port)
        reason = _objection(job, message, len(frame.payload), worker)
        if reason is not None:
            job.refused[reason] += 1
            if reason in TOLD:
                words = np.array([job.lost, job.left], np.uint32)
                notice = message.reply(Kind.NOTICE, contributors=reason, words=words)
                self._channel.answer(job, worker, frame.answered(notice.to_bytes()))
        elif message.kind is Kind.HELLO:
            self._hello(job, message, frame, worker, now)
        else:
            self._bye(job, message, frame, worker, now)

    def _hello(self, job: PlacedJob, message: Packet, frame: Frame, worker: Worker, now: float) -> None:
        if job.unclean:
            self._channel.clean(job)
            return
        rank = message.worker
        if job.workers[rank] is None:
            job.workers[rank] = worker
            entries = worker_entries(self._words, INSERT, job, rank, worker)
            self._link.write([*entries, *group_updates(self._words, job)])
            self._events.append(WorkerJoined(job.spec.job, rank))
        job.heard[rank] = now
        words = np.zeros(len(message.words), np.uint32)
        words[:2] = job.lost, job.left
        news = job.uplink.news or 0 if job.uplink is not None else 0
        welcome = message.reply(Kind.WELCOME, bitmap=job.registered, contributors=news, words=words)
        self._channel.answer(job, worker, frame.answered(welcome.to_bytes()))
        if job.uplink is not None and job.registered == job.spec.full_mask:
            job.uplink.presence.start(now)

    def _bye(self, job: PlacedJob, message: Packet, frame: Frame, worker: Worker, now: float) -> None:
        rank = message.worker
        job.heard[rank] = now
        self._channel.answer(job, worker, frame.answered(frame.payload))
        if not job.left >> rank & 1:
            job.left |= 1 << rank
            self._link.write([job_entry(self._words, MODIFY, job), *group_updates(self._words, job)])
            self._events.append(WorkerLeft(job.spec.job, rank))
            self._channel.tell_all(job, Reason.WORKER_LEFT)
        if job.uplink is not None and job.left | job.lost == job.spec.full_mask:
            job.uplink.presence.leave(now)


def _objection(job: PlacedJob, packet: Packet, length: int, worker: Worker) -> Reason | None:
    rank = packet.worker
    if job.spec.checksum and not packet.flags & Flag.CHECKSUM:
        return Reason.CHECKSUM
    if packet.generation != job.spec.generation or rank >= job.spec.workers:
        return Reason.GENERATION
    if packet.codes or len(packet.words) < 2 or length > job.spec.packet_bytes:
        return Reason.LENGTH
    known = job.workers[rank] == worker
    token = int(packet.words[0]) << 32 | int(packet.words[1])
    if token != job.spec.tokens[rank] and not (job.adopted and known):
        return Reason.TOKEN
    if not job.live >> rank & 1:
        return Reason.EVICTED
    return Reason.STRANGER if job.workers[rank] is not None and not known else None
