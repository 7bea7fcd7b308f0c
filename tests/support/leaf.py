"""Shared parts of the tests of a leaf: one with two workers, its parent's packets, and histories of all of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any, Protocol, cast

from fanin.protocol.ecn import Marked
from fanin.protocol.job import JobSpec, Uplink
from fanin.protocol.wire import OFFSET_BASE, OFFSET_KIND, OFFSET_SLOT, SWITCH_WORKER, Flag, Kind, Packet, Reason
from tests.support.bench import NO_FLAGS, Bench, Machine, MachineType, address, make_spec, words_of

PARENT = 5000
UPLINK = Uplink(parent=PARENT, job=77, generation=0xBEEF, worker=3, token=0x1111_2222_3333_4444)


class LeafMachine(Machine, Protocol):
    """A machine that can be a leaf."""

    def admit_leaf(self, spec: JobSpec, uplink: Uplink) -> None: ...


class Leaf(Bench):
    """A leaf with two workers, and its parent's voice."""

    def __init__(self, make: MachineType, slots: int = 2, checksum: bool = False) -> None:
        self.machine = make(1 << 24)
        self.spec = replace(make_spec(slots=slots, checksum=checksum), total_workers=8)
        cast("LeafMachine", self.machine).admit_leaf(self.spec, UPLINK)
        self.now = 0.0
        said = [packet for worker in range(2) for packet in self.say(self.hello(worker), address(worker))]
        hello, destination = said[-1]
        assert (hello.kind, hello.job, hello.worker, hello.generation, destination) == (
            Kind.HELLO,
            77,
            3,
            0xBEEF,
            PARENT,
        )
        assert hello.words[:2].tolist() == [0x1111_2222, 0x3333_4444]
        assert len(hello.to_bytes()) == self.spec.packet_bytes, "the path must carry whole packets"
        self.parent_says(Kind.WELCOME, words=[0] * len(hello.words))

    def parent_says(
        self, kind: Kind, *, worker: int = 3, generation: int = 0xBEEF, flags: Flag = NO_FLAGS, **fields: Any
    ) -> list[Any]:
        """The leaf's packets after one of its parent. As in `packet`, there is a checksum where the job has them."""
        words, flags = words_of(*fields.pop("words", ())), flags | (Flag.CHECKSUM if self.spec.checksum else NO_FLAGS)
        packet = Packet(kind=kind, job=77, worker=worker, generation=generation, flags=flags, words=words, **fields)
        return self.say(packet, PARENT)

    def result(self, base: int, *words: int, kind: Kind = Kind.RESULT, contributors: int = 8) -> list[Any]:
        return self.parent_says(
            kind, worker=SWITCH_WORKER, base=base, signature=5, contributors=contributors, words=words
        )


def parent_packet(random: Random, base: int) -> bytes:
    """A random packet of a parent, or of somebody with its address."""
    kind = random.choice([Kind.RESULT] * 6 + [Kind.ANSWER] * 2 + [Kind.RECEIPT, Kind.WELCOME, Kind.NOTICE, Kind.BYE])
    if random.random() < 0.05:
        kind = Kind.HELLO
    news, told = kind is Kind.NOTICE, kind is Kind.RECEIPT
    count = random.choice([2, 2, 2, 0, 8, 9])
    packet = Packet(
        kind=kind,
        job=77,
        worker=random.choice([3, SWITCH_WORKER, SWITCH_WORKER, 4]),
        generation=random.choice([0xBEEF] * 9 + [1]),
        flags=random.choice([Flag(0)] * 8 + [Flag.BARE, Flag.CHECKSUM]),
        slot=random.randrange(20) if told else random.choice([0, 0, 1, 7]),  # of a receipt, the order that it answers
        base=max(0, base - random.choice([0, 0, 0, 1, -1])),
        signature=random.randrange(20) if told else 5,
        bitmap=random.getrandbits(32) if told else 0,
        contributors=random.choice([*Reason, 0, 999]) if news else random.randrange(4) if told else 8,
        codes=(9,) * random.choice([0, 1, 1, 2]),
        words=words_of(*(random.choice([0, 0, 1]) if news else random.getrandbits(32) for _ in range(count))),
    )
    data = bytearray(packet.to_bytes())
    if random.random() < 0.1:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


class LeafHistory:
    """Packets of a leaf's workers and its parent, and of somebody with their addresses: made up as rounds close."""

    def __init__(self, leaf: Leaf, random: Random) -> None:
        self._leaf, self._random = leaf, random
        self._closed = [0, 0]

    @property
    def rounds(self) -> int:
        """How many the leaf has closed."""
        return sum(self._closed)

    def datagram(self) -> tuple[bytes, int]:
        """The next datagram, and whose it is."""
        random, leaf = self._random, self._leaf
        slot, what = random.randrange(2), random.random()
        if what < 0.55:
            base = max(0, self._closed[slot] - random.choice([0, 0, 0, 0, 1]))
            flags = random.choice([Flag(0)] * 5 + [Flag.PASS])
            words = () if flags else (random.getrandbits(32), 1)
            packet = leaf.packet(
                Kind.CONTRIBUTION,
                random.randrange(2),
                flags=flags,
                slot=slot,
                base=base,
                signature=5,
                bitmap=random.choice([0, random.randrange(self.rounds + 1, self.rounds + 9)]),
                codes=(3,) * len(words[:1]),
                words=words,
            )
            return self._on_the_way(packet.to_bytes()), address(packet.worker)
        if what < 0.95:
            return self._on_the_way(parent_packet(random, self._closed[slot])), PARENT
        data = random.choice([leaf.hello, leaf.bye])(random.randrange(2)).to_bytes()
        return data, random.choice([address(0), address(1)])

    def _on_the_way(self, data: bytes) -> bytes:
        return Marked(data) if self._random.random() < 0.2 else data

    def sent(self, datagrams: Iterable[bytes]) -> None:
        """Take in the leaf's datagrams."""
        for each in datagrams:
            if each[OFFSET_KIND] == Kind.RESULT:
                slot, base = (int.from_bytes(each[at : at + 4], "big") for at in (OFFSET_SLOT, OFFSET_BASE))
                self._closed[slot] = base + 1
