"""The compiled program, run: by fanin's emulator, or by BMv2 itself. Both are programmed with the same entries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from fanin.job import JobSpec
from fanin.switch.p4 import V1Switch
from fanin.switch.p4.replication import Replica
from fanin.switch.p4.tables import Match
from tests.p4_programs.frames import SERVICE_PORT, SWITCH_ADDRESS, SWITCH_MAC, Place

BUILD = Path(__file__).resolve().parents[2] / "p4" / "build"
CPU_PORT = 510
GROUP = 7
BARE_INSTANCE = 0x100
REASONS = 32
"""Drop counters of one job, as tally.p4 lays them out."""
FIRST_SLOT, FIRST_ENTRY = 96, 1000
"""Anything but 0, so that indices are seen to be relative to a job's pool."""


class Subject(Protocol):
    """A switch that runs the program."""

    most_words_added: int
    """Words of a result that may leave in the place of a packet without words, such as a pass."""

    def entry(self, table: str, key: Sequence[int], action: str, data: Sequence[int], *, modify: bool = False) -> None:
        """Insert an entry of exact matches, in the order in which the program declares them; or modify one."""

    def group(self, number: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Make a multicast group of (port, instance)."""

    def exchange(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Let a frame in at a port; all that comes out of it, as (port, frame), in order for each port."""

    def poke(self, frame: bytes) -> list[tuple[int, bytes]]:
        """The same with a packet of the controller's that asks a slot to close."""

    def counter(self, name: str, index: int) -> int:
        """Packets in one cell of a counter."""


class Emulated:
    """fanin's emulator."""

    most_words_added = 256

    def __init__(self, configuration: str) -> None:
        self._switch = V1Switch.from_json((BUILD / f"{configuration}.json").read_bytes())

    def entry(self, table: str, key: Sequence[int], action: str, data: Sequence[int], *, modify: bool = False) -> None:
        facts = self._switch.program.tables[table]
        matches = tuple(Match(value) for value in key)
        change = facts.modify if modify else facts.insert
        change(matches, 0, action, tuple(data))

    def group(self, number: int, replicas: Sequence[tuple[int, int]]) -> None:
        self._switch.groups[number] = tuple(Replica(port, instance) for port, instance in replicas)

    def exchange(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        return self._switch.process(port, frame, 0.0)

    def poke(self, frame: bytes) -> list[tuple[int, bytes]]:
        return self._switch.process(CPU_PORT, (1 << 6).to_bytes(2, "big") + frame, 0.0)

    def counter(self, name: str, index: int) -> int:
        return int(self._switch.program.counters[name].packets[index])


def job_data(spec: JobSpec, *, live: int | None = None, quorum: int | None = None, row: int = 1) -> tuple[int, ...]:
    """The parameters of a job's entry."""
    live = spec.full_mask if live is None else live
    arrivals = min(spec.quorum if quorum is None else quorum, live.bit_count())
    return (
        row, spec.generation, spec.workers, live, arrivals, spec.staleness, spec.history, spec.slots, FIRST_SLOT,
        FIRST_ENTRY, spec.codes_per_packet, spec.words_per_packet, GROUP, 0, 0, int(spec.checksum), int(spec.branches),
    )  # fmt: skip


def program(subject: Subject, spec: JobSpec) -> None:
    """What a controller writes for a job all of whose workers have said HELLO."""
    places = [Place(worker) for worker in range(spec.workers)]
    subject.entry("FaninIngress.services", (SWITCH_ADDRESS, SERVICE_PORT), "FaninIngress.ours", ())
    subject.entry("FaninIngress.job.jobs", (spec.job,), "FaninIngress.job.job", job_data(spec))
    results = [(place.port, place.number + 1) for place in places]
    subject.group(GROUP, results)
    for place in places:
        key = (spec.job, place.number, place.address, place.udp_port)
        subject.entry("FaninIngress.job.members", key, "FaninIngress.job.registered", ())
        way = (place.mac, place.address, place.udp_port)
        for instance in (place.number + 1, BARE_INSTANCE + place.number):
            subject.entry("FaninEgress.multicast.workers", (spec.job, instance), "FaninEgress.multicast.to_worker", way)
        subject.group(GROUP + 1 + place.number, [*results, (place.port, BARE_INSTANCE + place.number)])


__all__ = ["BUILD", "CPU_PORT", "GROUP", "REASONS", "SWITCH_MAC", "Emulated", "Subject", "job_data", "program"]
