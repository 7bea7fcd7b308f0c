"""Shared parts of the switch's tests: a job with worker 0, 1, ... at addresses 100, 101, ..., and packets from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fanin.protocol.events import WorkerSilent
from fanin.protocol.job import JobSpec
from fanin.protocol.packet_tag import MemberKeys
from fanin.protocol.tag_algorithm import SIPHASH, TagAlgorithm
from fanin.protocol.wire import Flag, Kind, LaneField, Packet, Reason, datagram_bytes, parse
from fanin.switch.machine.any_switch_machine import AnySwitchMachine
from tests.support.builders import job_spec
from tests.support.machines import SWITCH_MACHINES

GENERATION = 0xABCD1234
NO_FLAGS = Flag(0)
PLENTY = 1 << 24
"""Bytes of switch memory: more than any test needs."""


class Machine(AnySwitchMachine, Protocol):
    """A machine that also tells which jobs it has."""

    def jobs(self) -> list[int]: ...


class MachineType(Protocol):
    def __call__(self, memory_bytes: int) -> Machine: ...


MACHINES: dict[str, MachineType | None] = SWITCH_MACHINES  # type: ignore[assignment]


def make_spec(
    job: int = 1,
    workers: int = 2,
    quorum: int | None = None,
    staleness: int = 0,
    max_staleness: int | None = None,
    slots: int = 2,
    words: int = 8,
    codes: int = 1,
    checksum: bool = False,
    generation: int = GENERATION,
    data_key: bytes = b"",
    tag: TagAlgorithm = SIPHASH,
    accumulators: bool = False,
    branches: bool = False,
) -> JobSpec:
    return job_spec(
        job=job,
        generation=generation,
        workers=workers,
        quorum=workers if quorum is None else quorum,
        staleness=staleness,
        max_staleness=max_staleness,
        slots=slots,
        words_per_packet=words,
        codes_per_packet=codes,
        tokens=tuple((job << 40) + 0x1_0000_0000 * worker + 7 for worker in range(workers)),
        checksum=checksum,
        data_key=data_key,
        tag=tag,
        accumulators=accumulators,
        branches=branches,
    )


def address(worker: int, job: int = 1) -> int:
    return 100 * job + worker


def words_of(*values: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array(values, np.uint32)


class Bench:
    """One machine with one job, and its workers' packets. The machine's packets are parsed on the way out."""

    _now = 0.0
    _said: tuple[tuple[bytes, int], ...] = ()
    """Datagrams that the machine has sent while time passed."""

    def __init__(self, make: MachineType, spec: JobSpec | None = None, registered: bool = True) -> None:
        self.machine = make(PLENTY)
        self.spec = make_spec() if spec is None else spec
        self.machine.admit(self.spec)
        if registered:
            for worker in range(self.spec.workers):
                self.say(self.hello(worker), address(worker, self.spec.job))
            while self.machine.next_event() is not None:
                pass

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, later: float) -> None:
        """Time passes, and the machine is given a turn whenever it wants one: it is not stopped."""
        while (at := self.machine.next_timer()) is not None:
            if at >= later:
                break
            self._now = max(at, self._now)
            self.machine.handle_timer(self._now)
            self._said += tuple(self.machine.datagrams_to_send(self._now))
        self._now = later

    def say(self, data: bytes | Packet, source: int) -> list[tuple[Packet, int]]:
        """Hand one datagram in; return all that the machine sends, as (packet, address)."""
        raw = self.bytes_of(data) if isinstance(data, Packet) else data
        self.machine.receive_datagram(raw, source, self.now)
        return self.sent()

    def bytes_of(self, packet: Packet) -> bytes:
        """The packet as its worker sends it: with its tag, if the job has a data key."""
        token = self.spec.tokens[packet.worker % self.spec.workers]
        return MemberKeys(self.spec.data_key, token, self.spec.tag).finish(packet.to_bytes())

    def sent(self) -> list[tuple[Packet, int]]:
        said = [*self._said, *self.machine.datagrams_to_send(self.now)]
        self._said = ()
        return [(parse(data), destination) for data, destination in said]

    def packet(
        self,
        kind: Kind,
        worker: int,
        *,
        flags: Flag = NO_FLAGS,
        generation: int | None = None,
        slot: int = 0,
        base: int = 0,
        signature: int = 0,
        bitmap: int = 0,
        codes: Sequence[int] = (),
        words: Sequence[int] = (),
        lanes: LaneField | None = None,
    ) -> Packet:
        return Packet(
            kind=kind,
            job=self.spec.job,
            worker=worker,
            flags=flags | (Flag.CHECKSUM if self.spec.checksum else NO_FLAGS),
            generation=self.spec.generation if generation is None else generation,
            slot=slot,
            base=base,
            signature=signature,
            bitmap=bitmap,
            codes=tuple(codes),
            words=words_of(*words),
            lanes=lanes,
        )

    def hello(self, worker: int, *, padded: bool = True, token: int | None = None, slot: int = 0) -> Packet:
        secret = self.spec.tokens[worker % self.spec.workers] if token is None else token
        zeros = (self.spec.packet_bytes - datagram_bytes(0, 2)) // 4 if padded else 0
        return self.packet(Kind.HELLO, worker, slot=slot, words=(secret >> 32, secret & 0xFFFFFFFF, *[0] * zeros))

    def bye(self, worker: int, *, token: int | None = None) -> Packet:
        secret = self.spec.tokens[worker] if token is None else token
        return self.packet(Kind.BYE, worker, words=(secret >> 32, secret & 0xFFFFFFFF))

    def gives(
        self,
        worker: int,
        base: int,
        words: Sequence[int] = (1, 2),
        *,
        slot: int = 0,
        codes: Sequence[int] = (),
        signature: int = 5,
        lanes: LaneField | None = None,
    ) -> list[tuple[Packet, int]]:
        """A contribution of `worker` from its own address."""
        packet = self.packet(
            Kind.CONTRIBUTION, worker, slot=slot, base=base, signature=signature, codes=codes, words=words, lanes=lanes
        )
        return self.say(packet, address(worker, self.spec.job))

    def passes(self, worker: int, base: int, *, slot: int = 0, late: bool = False) -> list[tuple[Packet, int]]:
        flags = Flag.PASS | Flag.LATE if late else Flag.PASS
        packet = self.packet(Kind.CONTRIBUTION, worker, flags=flags, slot=slot, base=base)
        return self.say(packet, address(worker, self.spec.job))

    def counter(self, name: str) -> int:
        return self.machine.counters()[name]

    def dropped(self) -> dict[str, int]:
        """The reasons under which anything was dropped, with how often."""
        prefix = "dropped_"
        counts = self.machine.counters()
        return {name[len(prefix) :]: count for name, count in counts.items() if name.startswith(prefix) and count}


def facts(packet: Packet) -> tuple[object, ...]:
    """The fields by which two packets can be compared."""
    head = (packet.kind, packet.job, packet.worker, packet.flags, packet.generation, packet.slot, packet.base)
    rest = (
        packet.lanes,
        packet.signature,
        packet.bitmap,
        packet.contributors,
        packet.codes,
        tuple(packet.words.tolist()),
    )
    return head + rest


def reasons(sent: list[tuple[Packet, int]]) -> list[tuple[Reason, int]]:
    """The reason and the destination of every NOTICE; nothing else may be among them."""
    assert all(packet.kind is Kind.NOTICE for packet, _ in sent)
    return [(Reason(packet.contributors), destination) for packet, destination in sent]


def first_loss(bench: Bench) -> float:
    """When the next worker counts as lost, if nobody says anything any more; time then is there."""
    while (at := bench.machine.next_timer()) is not None:
        bench.now = at
        bench.machine.handle_timer(at)
        events = iter(bench.machine.next_event, None)
        if any(isinstance(event, WorkerSilent) for event in events):
            return at
    raise AssertionError("nobody is watched")
