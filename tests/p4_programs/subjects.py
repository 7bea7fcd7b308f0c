"""The compiled program, run: by fanin's emulator, or by BMv2 itself. Both are programmed with the same entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from fanin.protocol.job import JobSpec, Uplink
from fanin.protocol.wire import SWITCH_WORKER
from fanin.switch.p4 import V1Switch
from fanin.switch.p4.program_file import read_program
from fanin.switch.p4.replication import Replica
from fanin.switch.p4.tables import Match
from fanin.switch.p4runtime.server.p4info import read_p4info
from tests.p4_programs.wiring import SERVICE_PORT, SWITCH_ADDRESS, SWITCH_MAC, Place

BUILD = Path(__file__).resolve().parents[2] / "p4" / "build"
PROGRAMS = ("v1model-64", "v1model-256", "tna-model", "tna-model-synchronous", "tna-model-pairs")
"""Configurations of our programs that every implementation of a switch must run alike."""
CPU_PORT = 510
GROUP = 7
BARE_INSTANCE = 0x100
RECIRCULATION_PORT = 68
TURN_IN, ASK = 16, 19
"""Fates of packets from a parent, as p4/tna/types.p4 numbers them."""
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

    def command(self, verb: str, frame: bytes) -> list[tuple[int, bytes]]:
        """The same with a packet of the controller's to a slot: "poke" asks it to close, "clean" makes it as new."""

    def parameters(self, action: str) -> Sequence[str]:
        """Names of an action's parameters."""

    def counter(self, name: str, index: int) -> int:
        """Packets in one cell of a counter."""


OpenSubject = Callable[[str], Subject]
"""Starts a subject with the configuration of that name."""


class Emulated:
    """The emulator of fanin as a subject."""

    most_words_added = 256

    def __init__(self, configuration: str, native: bool | None = None, machine: type[V1Switch] = V1Switch) -> None:
        self.switch = machine.from_json(read_program(BUILD / f"{configuration}.json.gz"), native=native)
        text = (BUILD / f"{configuration}.p4info.txtpb").read_text(encoding="utf-8")
        self._info = read_p4info(text)

    def entry(self, table: str, key: Sequence[int], action: str, data: Sequence[int], *, modify: bool = False) -> None:
        facts = self.switch.program.tables[table]
        matches = tuple(Match(value) for value in key)
        change = facts.modify if modify else facts.insert
        change(matches, 0, action, tuple(data))

    def group(self, number: int, replicas: Sequence[tuple[int, int]]) -> None:
        self.switch.groups[number] = tuple(Replica(port, instance) for port, instance in replicas)

    def exchange(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        return self.switch.process(port, frame, 0.0)

    def command(self, verb: str, frame: bytes) -> list[tuple[int, bytes]]:
        return self.switch.process(CPU_PORT, (1 << 6).to_bytes(2, "big") + frame, 0.0)

    def parameters(self, action: str) -> Sequence[str]:
        return parameters(self._info, action)

    def counter(self, name: str, index: int) -> int:
        return int(self.switch.program.counters[name].packets[index])


def parameters(info: Any, action: str) -> list[str]:
    """Names of an action's parameters, by a P4Info."""
    return [each.name for called in info.actions if called.preamble.name == action for each in called.params]


def write_job(
    subject: Subject,
    spec: JobSpec,
    *,
    live: int | None = None,
    quorum: int | None = None,
    parent: Place | None = None,
    modify: bool = True,
) -> None:
    """The entry of a job: as much of it as the program asks for. With `parent` its rounds close there."""
    live = spec.full_mask if live is None else live
    facts = {
        "row": 1,
        "generation": spec.generation,
        "workers": spec.workers,
        "live": live,
        "quorum": min(spec.quorum if quorum is None else quorum, live.bit_count()),
        "staleness": spec.staleness,
        "history": spec.history,
        "slots": spec.slots,
        "first_slot": FIRST_SLOT,
        "first_entry": FIRST_ENTRY,
        "codes": spec.codes_per_packet,
        "words": spec.words_per_packet,
        "group": GROUP,
        "lost": 0,
        "left": 0,
        "checksum": int(spec.checksum),
        "branches": int(spec.branches),
        "leaf": int(parent is not None),
        "parent_port": parent.port if parent else 0,
    }
    action = "FaninIngress.job.job"
    data = [facts[name] for name in subject.parameters(action)]
    subject.entry("FaninIngress.job.jobs", (spec.job,), action, data, modify=modify)


def program(subject: Subject, spec: JobSpec, uplink: Uplink | None = None) -> None:
    """Write the entries of a job all of whose workers have said HELLO; with `uplink`, those of a leaf on a Tofino."""
    parent = Place(uplink.parent) if uplink else None
    places = [Place(worker) for worker in range(spec.workers)]
    subject.entry("FaninIngress.services", (SWITCH_ADDRESS, SERVICE_PORT), "FaninIngress.ours", ())
    write_job(subject, spec, parent=parent, modify=False)
    results = [(place.port, place.number + 1) for place in places]
    subject.group(GROUP, results)
    for place in places:
        key = (spec.job, place.number, place.address, place.udp_port)
        subject.entry("FaninIngress.job.members", key, "FaninIngress.job.registered", ())
        way = (place.mac, place.address, place.udp_port)
        for instance in (place.number + 1, BARE_INSTANCE + place.number):
            subject.entry("FaninEgress.multicast.workers", (spec.job, instance), "FaninEgress.multicast.to_worker", way)
        subject.group(GROUP + 1 + place.number, [*results, (place.port, BARE_INSTANCE + place.number)])
    if uplink:
        program_uplink(subject, spec, uplink)


def program_uplink(subject: Subject, spec: JobSpec, uplink: Uplink) -> None:
    """Write the entries of the way to a parent, which is at a Place, and back."""
    parent, ingress, egress = Place(uplink.parent), "FaninIngress", "FaninEgress.ascent"
    way = (uplink.job, uplink.generation, uplink.worker, parent.mac, parent.address, parent.udp_port)
    subject.entry(f"{egress}.uplinks", (spec.job,), f"{egress}.to_parent", way)
    for worker in (uplink.worker, SWITCH_WORKER):
        key = (uplink.job, uplink.generation, worker, parent.address, parent.udp_port)
        subject.entry(f"{ingress}.parents.parents", key, f"{ingress}.parents.from_parent", (spec.job,))
    descents, udp_bytes = f"{ingress}.descents", 8 + spec.packet_bytes
    descend = (spec.generation, RECIRCULATION_PORT)
    subject.entry(f"{descents}.descents", (TURN_IN, spec.job), f"{descents}.descend", descend)
    ask = (uplink.worker, spec.codes_per_packet, udp_bytes, 20 + udp_bytes)
    subject.entry(f"{descents}.descents", (ASK, spec.job), f"{descents}.ask", ask)


__all__ = [
    "BUILD",
    "CPU_PORT",
    "GROUP",
    "REASONS",
    "SWITCH_MAC",
    "Emulated",
    "Subject",
    "parameters",
    "program",
    "program_uplink",
    "write_job",
]
