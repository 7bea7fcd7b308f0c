"""A job that is placed on a device, and the table entries and multicast groups that configure the pipeline for it.

Table `jobs` has an entry per job, `members` one per registered worker (with its source address), `workers` one per
replica (with the addresses to write into it). Each job has its own range of slots, ring entries, counters and groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fanin.formats.frames import IPV4, UDP, Endpoint
from fanin.protocol.job import HEARTBEATS_TO_SILENCE, JobSpec
from fanin.protocol.wire import SWITCH_WORKER, Reason
from fanin.switch.machine.suspicion import silent_at, stands
from fanin.switch.p4runtime.controller.capacity import RECIRCULATION_PORT
from fanin.switch.p4runtime.controller.leaf_uplink import LeafUplink
from fanin.switch.p4runtime.controller.vocabulary import DELETE, INSERT, MODIFY, Vocabulary

OWN_PRIORITY = 1 << 16
"""Priority of the entry for a parent's packet of the right generation. The entry for any other generation has the
job's row, from 1 on, as its priority.
"""
GROUPS_PER_JOB = 64
"""Number of group ids per job: one group for all workers, and for each worker one that also sends it a bare answer."""
PORT_IN_PIPE = 0x7F
"""Bits of a Tofino's port number that number the ports of one pipe."""
TURN_IN, ASK = 16, 19
"""Values of the key field `fate` in table `descents` (p4/tna/types.p4)."""
BARE_INSTANCE = 0x100
"""Replica instance w + 1 is the result for worker w, BARE_INSTANCE + w a bare answer to it (p4/shared/sizes.p4)."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A registered worker: its address, and the switch port behind which it is."""

    end: Endpoint
    port: int


@dataclass(slots=True)
class PlacedJob:
    """A job on the device: its allocation, workers and timers."""

    spec: JobSpec
    row: int
    first_slot: int
    first_entry: int
    live: int
    quorum: int
    staleness: int
    workers: list[Worker | None]
    heard: list[float]
    lost: int = 0
    left: int = 0
    groups: set[int] = field(default_factory=set)
    """The job's multicast groups that exist on the device."""
    refused: Counter[Reason] = field(default_factory=Counter)
    """HELLOs and BYEs that the controller refused, by reason; the pipeline does not count these."""
    adopted: bool = False
    """Whether the job was found on the device: its tokens are unknown, so that workers are known by their addresses."""
    excused: dict[int, float] = field(default_factory=dict)
    """By rank, the value of `heard` after the last stop of the controller (SwitchJob.was_stopped)."""
    uplink: LeafUplink | None = None
    """A leaf's presence at the parent; None for other jobs."""
    unclean: set[tuple[int, int]] = field(default_factory=set)
    """(slot, ring entry) pairs that may still hold another job's state (controller_channel.py)."""
    suspected: dict[int, float] = field(default_factory=dict)
    """By rank, when a worker was last suspected of having died."""
    sent: int = 0
    """Packets that the controller sent for the job; the pipeline counts its own."""

    @property
    def registered(self) -> int:
        """Mask of the workers that have an address and are not evicted."""
        return sum(1 << rank for rank, worker in enumerate(self.workers) if worker is not None) & self.live

    @property
    def audience(self) -> list[tuple[int, Worker]]:
        """Workers that get results, with their ranks: registered ones that are not evicted and have not left."""
        return self.of(self.registered & ~self.left)

    def of(self, mask: int) -> list[tuple[int, Worker]]:
        """Registered workers whose bits are set in `mask`, with their ranks, in ascending order."""
        return [(rank, each) for rank, each in enumerate(self.workers) if each is not None and mask >> rank & 1]

    @property
    def group(self) -> int:
        """The first of its multicast groups."""
        return self.row * GROUPS_PER_JOB

    @property
    def entries(self) -> int:
        """Number of ring entries that the job holds."""
        return self.spec.slots * self.spec.history

    def watched(self) -> Iterator[tuple[int, float]]:
        """Present workers, by rank, each with the time at which it counts as lost unless it is heard before."""
        for rank, _ in self.audience:
            if not self.lost >> rank & 1:
                yield rank, silent_at(self.heard[rank], self.suspected.get(rank), self.spec.liveness_timeout_s)

    def was_stopped(self, seconds: float, now: float) -> None:
        """Move deadlines by the time for which the controller itself was stopped, as SwitchJob.was_stopped does."""
        fresh = now - self.spec.liveness_timeout_s + HEARTBEATS_TO_SILENCE * self.spec.heartbeat_s
        for rank, _ in self.watched():
            heard = self.heard[rank] + seconds
            if self.heard[rank] != self.excused.get(rank):
                heard = max(heard, fresh)
            if (suspected := self.suspected.get(rank)) is not None and stands(self.heard[rank], suspected):
                self.suspected[rank] = max(suspected + seconds, heard)
            self.heard[rank] = self.excused[rank] = heard
        if self.uplink is not None:
            self.uplink.presence.was_stopped(seconds)

    def facts(self) -> dict[str, int]:
        """Parameters of the job's entry in table `jobs`, by name."""
        return {
            "row": self.row,
            "generation": self.spec.generation,
            "workers": self.spec.workers,
            "live": self.live,
            "quorum": min(self.quorum, self.live.bit_count()),
            "staleness": self.staleness,
            "history": self.spec.history,
            "slots": self.spec.slots,
            "first_slot": self.first_slot,
            "first_entry": self.first_entry,
            "codes": self.spec.codes_per_packet,
            "words": self.spec.words_per_packet,
            "group": self.group,
            "lost": self.lost,
            "left": self.left,
            "checksum": int(self.spec.checksum),
            "branches": int(self.spec.branches),
            "leaf": int(self.uplink is not None),
            "parent_port": 0 if self.uplink is None else self.uplink.port,
        }


def job_entry(words: Vocabulary, kind: int, job: PlacedJob) -> Any:
    action = "" if kind == DELETE else "job"
    return words.entry(kind, "jobs", {"job": job.spec.job}, action, job.facts())


def uplink_entries(words: Vocabulary, kind: int, job: PlacedJob) -> list[Any]:
    """Updates of the entries that send rounds to the parent and accept its results; empty unless at a leaf."""
    if job.uplink is None:
        return []
    add = kind != DELETE
    up = words.entry(
        kind, "uplinks", {"job": job.spec.job}, "to_parent" if add else "", job.uplink.facts() if add else {}
    )
    source, generation = job.uplink.source(), {"generation": job.uplink.presence.uplink.generation}
    action, facts = ("from_parent", {"index": job.spec.job}) if add else ("", {})
    if words.has_table("descents"):
        addressed = (job.uplink.presence.uplink.worker, SWITCH_WORKER)
        said = [source | generation | {"worker": worker} for worker in addressed]
        return [up, *(words.entry(kind, "parents", each, action, facts) for each in said), *_descents(words, kind, job)]
    return [
        up,
        words.entry(kind, "parents", source | generation, action, facts, priority=OWN_PRIORITY),
        words.entry(kind, "parents", source, action, facts, priority=job.row),
    ]


def _descents(words: Vocabulary, kind: int, job: PlacedJob) -> list[Any]:
    """Updates of `descents` at a leaf on a Tofino: for the parent's results, and for asking again in full length."""
    assert job.uplink is not None
    descend = {"generation": job.spec.generation, "port": job.uplink.port & ~PORT_IN_PIPE | RECIRCULATION_PORT}
    udp_bytes = UDP.size + job.spec.packet_bytes
    ask = {
        "worker": job.uplink.presence.uplink.worker,
        "codes": job.spec.codes_per_packet,
        "udp_bytes": udp_bytes,
        "ipv4_bytes": IPV4.size + udp_bytes,
    }
    return [
        words.entry(kind, "descents", {"fate": fate, "job": job.spec.job}, "" if kind == DELETE else action, facts)
        for fate, action, facts in ((TURN_IN, "descend", descend), (ASK, "ask", ask))
    ]


def worker_entries(words: Vocabulary, kind: int, job: PlacedJob, rank: int, worker: Worker) -> list[Any]:
    add = kind != DELETE
    source = {"job": job.spec.job, "worker": rank, "address": worker.end.address, "port": worker.end.port}
    ends = {"mac": int.from_bytes(worker.end.mac, "big"), "address": worker.end.address, "port": worker.end.port}
    updates = [words.entry(kind, "members", source, "registered" if add else "")]
    for instance in (rank + 1, BARE_INSTANCE + rank):
        match = {"job": job.spec.job, "instance": instance}
        updates.append(words.entry(kind, "workers", match, "to_worker" if add else "", ends))
    return updates


def group_updates(words: Vocabulary, job: PlacedJob) -> list[Any]:
    """Updates that write the job's multicast groups for its current audience."""
    all_ = [(worker.port, rank + 1) for rank, worker in job.audience]
    wanted = {job.group: all_}
    if job.spec.max_staleness:
        for rank, worker in job.of(job.registered):  # earlier packets of one that has left may still close a round
            wanted[job.group + 1 + rank] = [*all_, (worker.port, BARE_INSTANCE + rank)]
    updates = [
        words.group(MODIFY if number in job.groups else INSERT, number, replicas) for number, replicas in wanted.items()
    ]
    job.groups |= wanted.keys()
    return updates
