"""Histories: sequences of packets for one job, each with its sender, that are played to a switch.

Rules
-----
* A history is a function of its seed and of the results that come. `wanted` says which job it needs.
* Workers may break every rule that a switch must survive. The behaviour that docs/protocol.md leaves open for hardware,
  such as a base beyond the open round, occurs only in histories that declare it (`may_differ`).
* Nothing depends on time: no worker falls silent, and none is lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from fanin.emulation.conformance.subject import STRANGERS, Wanted
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import Flag, Kind, Packet, datagram_bytes

Said = tuple[int, bytes]
"""A datagram and the place that sends it: a worker's number, or STRANGERS or more."""
SIGNATURE, OTHER_SIGNATURE = 5, 6
STRANGER = STRANGERS
NO_FLAGS = Flag(0)


class Voices:
    """Makes the packets of one job's workers, and counts the closed rounds of its slots."""

    def __init__(self, spec: JobSpec, seed: int) -> None:
        self.spec, self.draw = spec, random.Random(seed)
        self.closed = [0] * spec.slots
        """Number of closed rounds, by slot, as far as results have come."""

    def saw(self, packet: Packet) -> None:
        """Count a round as closed if `packet`, which came to a worker, is its result."""
        if packet.kind is Kind.RESULT:
            self.closed[packet.slot] = max(self.closed[packet.slot], packet.base + 1)

    def packet(self, kind: Kind, worker: int, **more: object) -> Packet:
        """A packet of this job with the fields `more`, with the checksum flag if the job has checksums."""
        spec = self.spec
        made = Packet(kind=kind, job=spec.job, worker=worker, generation=spec.generation)
        flags = Flag.CHECKSUM if spec.checksum else NO_FLAGS
        return replace(made, flags=flags | more.pop("flags", NO_FLAGS), **more)  # type: ignore[arg-type, operator]

    def with_token(self, kind: Kind, worker: int, *, padded: bool = False, wrong: int = 0) -> Said:
        """A HELLO or BYE with the worker's token, XORed with `wrong`; `padded` with zeros to the longest packet."""
        token = self.spec.tokens[worker] ^ wrong
        zeros = (self.spec.packet_bytes - datagram_bytes(0, 2)) // 4 if padded else 0
        words = np.array([token >> 32, token & 0xFFFFFFFF, *[0] * zeros], np.uint32)
        return worker, self.packet(kind, worker, words=words).to_bytes()

    def hellos(self) -> Iterator[Said]:
        """Yield the HELLO of every worker."""
        for worker in range(self.spec.workers):
            yield self.with_token(Kind.HELLO, worker, padded=True)

    def gives(
        self,
        worker: int,
        slot: int,
        base: int,
        *,
        count: int | None = None,
        signature: int = SIGNATURE,
        codes: bool = True,
    ) -> Said:
        """A contribution of random words and codes; `count`: words, by default a full packet."""
        spec = self.spec
        drawn = [self.draw.getrandbits(32) for _ in range(spec.words_per_packet if count is None else count)]
        largest = tuple(self.draw.getrandbits(16) for _ in range(spec.codes_per_packet if codes else 0))
        packet = self.packet(
            Kind.CONTRIBUTION,
            worker,
            slot=slot,
            base=base,
            signature=signature,
            codes=largest,
            words=np.array(drawn, np.uint32),
        )
        return worker, packet.to_bytes()

    def passes(self, worker: int, slot: int, base: int) -> Said:
        """A pass, without a signature; marked LATE if its round has closed."""
        late = Flag.LATE if base < self.closed[slot] else NO_FLAGS
        return worker, self.packet(Kind.CONTRIBUTION, worker, slot=slot, base=base, flags=Flag.PASS | late).to_bytes()


@dataclass(frozen=True, slots=True)
class History:
    """A named sequence of packets, and the job that it needs."""

    name: str
    about: str
    wanted: Wanted
    says: Callable[[Voices], Iterator[Said]]
    may_differ: str = ""
    """Reason why hardware may answer differently; empty if it must not."""


def _in_order(voices: Voices) -> Iterator[Said]:
    spec = voices.spec
    for base in range(4):
        for slot in range(spec.slots):
            for worker in range(spec.workers):
                yield voices.gives(worker, slot, base)
    yield voices.gives(0, 0, 3)  # the round has closed, so the worker gets an answer
    yield voices.gives(1, 1, 2)
    for count in (0, 1, 7, spec.words_per_packet):
        for worker in reversed(range(spec.workers)):
            yield voices.gives(worker, 0, voices.closed[0], count=count, codes=count != 7)


def _passing(voices: Voices) -> Iterator[Said]:
    for base in range(3):
        for worker in range(voices.spec.workers):
            slot, passes = base % voices.spec.slots, worker == base
            turn = voices.closed[slot]
            yield voices.passes(worker, slot, turn) if passes else voices.gives(worker, slot, turn)
    for worker in range(voices.spec.workers):  # a round of passes alone
        yield voices.passes(worker, 1, voices.closed[1])


def _refused(voices: Voices) -> Iterator[Said]:
    spec, good = voices.spec, voices.gives(0, 0, 0)[1]
    yield STRANGER, good
    yield STRANGER, voices.with_token(Kind.HELLO, 1)[1]
    yield STRANGER, voices.with_token(Kind.HELLO, 0, wrong=1)[1]
    yield voices.with_token(Kind.BYE, 0, wrong=1 << 40)
    for changed in (
        replace(voices.packet(Kind.CONTRIBUTION, 0), generation=spec.generation ^ 1),
        replace(voices.packet(Kind.CONTRIBUTION, 0), job=spec.job ^ 0x4000),
        voices.packet(Kind.CONTRIBUTION, spec.workers),
        voices.packet(Kind.CONTRIBUTION, 0, slot=spec.slots),
        voices.packet(Kind.RESULT, 0),
        voices.packet(Kind.NOTICE, 0),
        voices.packet(Kind.WELCOME, 0),
    ):
        yield 0, changed.to_bytes()
    for length in (0, 1, 3, 7, len(good) - 1):
        yield 0, good[:length]
    yield 0, good + b"\0\0\0\0"
    for at in (0, 1, 2, 3):  # magic, version and kind
        damaged = bytearray(good)
        damaged[at] ^= 0x55
        yield 0, bytes(damaged)
    yield STRANGER, voices.packet(Kind.PROBE, 9, slot=77).to_bytes()
    for worker in range(spec.workers):  # none of these packets may have changed a slot
        yield voices.gives(worker, 0, 0)


def _mismatched(voices: Voices) -> Iterator[Said]:
    full = voices.spec.words_per_packet
    yield voices.gives(0, 0, 0)
    yield voices.gives(1, 0, 0, signature=OTHER_SIGNATURE)
    yield voices.gives(1, 0, 0, count=full - 1)
    yield voices.gives(1, 0, 0, codes=False)
    for worker in range(1, voices.spec.workers):
        yield voices.gives(worker, 0, 0)


def _stale(voices: Voices) -> Iterator[Said]:
    """History in which the last worker sends each base one round after the others."""
    late = voices.spec.workers - 1
    for base in range(6):
        for worker in range(late):
            yield voices.gives(worker, 0, base)
        if base:
            yield voices.gives(late, 0, base - 1) if base % 3 else voices.passes(late, 0, base - 1)
            yield voices.gives(late, 0, base - 1)


def _departing(voices: Voices) -> Iterator[Said]:
    yield voices.with_token(Kind.HELLO, 1)
    for worker in range(voices.spec.workers):
        yield voices.gives(worker, 0, 0)
    yield voices.with_token(Kind.BYE, 1)
    yield voices.with_token(Kind.BYE, 1)
    yield voices.with_token(Kind.HELLO, 0)
    yield voices.gives(0, 1, 0)
    yield voices.gives(1, 1, 0)


def _random(voices: Voices) -> Iterator[Said]:
    """Workers obey the host rules, through a network that repeats packets and lets strangers resend them."""
    draw, spec = voices.draw, voices.spec
    following = [[0] * spec.slots for _ in range(spec.workers)]
    sent: list[Said] = []
    for _ in range(STEPS):
        if sent and draw.random() < 0.25:
            place, data = draw.choice(sent[-3 * spec.workers :])
            yield (STRANGER if draw.random() < 0.1 else place), data
            continue
        worker, slot = draw.randrange(spec.workers), draw.randrange(spec.slots)
        base = following[worker][slot]
        if base > voices.closed[slot]:
            continue  # it waits for a result
        following[worker][slot] += 1
        sent.append(voices.passes(worker, slot, base) if draw.random() < 0.15 else voices.gives(worker, slot, base))
        yield sent[-1]


def _lawless(voices: Voices) -> Iterator[Said]:
    draw, spec = voices.draw, voices.spec
    for _ in range(STEPS):
        worker, slot = draw.randrange(spec.workers), draw.randrange(spec.slots)
        base = max(0, voices.closed[slot] + draw.choice((-3, -2, -1, 0, 0, 0, 0, 1, 2)))
        if draw.random() < 0.15:
            yield voices.passes(worker, slot, base)
        else:
            signature = SIGNATURE if draw.random() < 0.95 else OTHER_SIGNATURE
            count = spec.words_per_packet if draw.random() < 0.9 else draw.randrange(spec.words_per_packet)
            yield voices.gives(worker, slot, base, count=count, signature=signature)


STEPS = 150
"""Number of steps in a random history."""
SYNCHRONOUS = Wanted(workers=3, quorum=3)
STALE = Wanted(workers=3, quorum=2, staleness=1)
HOST_RULES = "workers that keep the host rules never meet it"
HISTORIES = (
    History("in order", "rounds of all slots, packets of every length, repetitions", SYNCHRONOUS, _in_order),
    History("one worker", "a job of one gets its own words back", Wanted(workers=1, quorum=1), _in_order),
    History("passes", "rounds with passes, and of passes alone", SYNCHRONOUS, _passing),
    History("refusals", "strangers, wrong tokens and numbers, damaged and foreign packets", SYNCHRONOUS, _refused),
    History(
        "mismatches",
        "workers that call different collectives",
        SYNCHRONOUS,
        _mismatched,
        may_differ="workers compare signatures and shapes themselves",
    ),
    History("stale", "K of N with S = 1: late contributions and passes", STALE, _stale),
    History("departures", "HELLO again, BYE, and rounds afterwards", SYNCHRONOUS, _departing),
    History("random", "workers that keep the rules, repetitions, strangers", SYNCHRONOUS, _random),
    History("random, stale", "the same with a quorum and S = 1", STALE, _random),
    History("lawless", "any base, shape and signature", SYNCHRONOUS, _lawless, may_differ=HOST_RULES),
    History("lawless, stale", "the same with a quorum and S = 1", STALE, _lawless, may_differ=HOST_RULES),
)
RANDOM = ("random", "random, stale", "lawless", "lawless, stale")
"""Names of the histories that depend on a seed."""
