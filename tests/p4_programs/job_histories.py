"""Random histories of one job: what well-behaved workers send, mixed with replays, passes, wrong shapes, strangers."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np

from fanin.protocol.job import JobSpec
from fanin.protocol.wire import Flag, Kind, Packet
from tests.p4_programs.wiring import Place
from tests.support.bench import make_spec

NO_FLAGS = Flag(0)


def random_spec(random: Random, words: int) -> JobSpec:
    """A job of up to 4 workers, with or without quorum and staleness."""
    workers = random.choice([1, 2, 2, 3, 4])
    return make_spec(
        workers=workers,
        quorum=random.choice([workers, random.randint(1, workers)]),
        staleness=random.choice([0, 0, 1, 2, 3]),
        slots=random.randint(1, 3),
        codes=random.choice([1, 2, 4]),
        words=words,
        checksum=random.choice([False, False, True]),
    )


class History:
    """The packets of one random history, made as the results come in."""

    def __init__(self, spec: JobSpec, random: Random) -> None:
        self.spec = spec
        self.random = random
        self._next = [[0] * spec.slots for _ in range(spec.workers)]
        self._closed = [0] * spec.slots
        self._sent: list[tuple[bytes, Place]] = []
        shapes = [spec.words_per_packet, random.randint(0, spec.words_per_packet), 1]
        self._words = [random.choice(shapes) for _ in range(spec.slots)]
        self._codes = [random.choice([0, spec.codes_per_packet]) for _ in range(spec.slots)]

    def packets(self, count: int) -> Iterator[tuple[bytes, Place]]:
        """`count` packets, each with who sends it."""
        for _ in range(count):
            yield self._one()

    def closed(self, slot: int, number: int) -> None:
        """Round `number` of that slot has closed: workers may go on."""
        self._closed[slot] = max(self._closed[slot], number + 1)

    def _one(self) -> tuple[bytes, Place]:
        random = self.random
        if self._sent and random.random() < 0.2:
            return random.choice(self._sent[-20:])
        worker, slot = random.randrange(self.spec.workers), random.randrange(self.spec.slots)
        base = self._next[worker][slot]
        if base > self._closed[slot]:  # it waits for a result: whatever it sends is a replay, or wrong
            base = self._closed[slot] - random.randint(-1, 3)
        else:
            self._next[worker][slot] += 1
        packet = self._contribution(worker, slot, max(base, 0))
        data, place = packet.to_bytes(), Place(worker)
        if random.random() < 0.15:
            data, place = self._spoilt(data, place)
        self._sent.append((data, place))
        return data, place

    def _contribution(self, worker: int, slot: int, base: int) -> Packet:
        random, spec = self.random, self.spec
        passes = random.random() < 0.15
        late = Flag.LATE if passes and base < self._closed[slot] and random.random() < 0.5 else NO_FLAGS
        words = self._words[slot] if random.random() < 0.97 else random.randint(0, spec.words_per_packet)
        drawn = np.array([random.getrandbits(32) for _ in range(words)], np.uint32)
        return Packet(
            kind=Kind.CONTRIBUTION,
            job=spec.job,
            worker=worker,
            generation=spec.generation,
            flags=(Flag.PASS | late if passes else NO_FLAGS) | (Flag.CHECKSUM if spec.checksum else NO_FLAGS),
            slot=slot,
            base=base,
            signature=0 if passes else 7 if random.random() < 0.97 else 8,  # programs look at no pass's
            codes=() if passes else tuple(random.getrandbits(16) for _ in range(self._codes[slot])),
            words=drawn[:0] if passes else drawn,
        )

    def _spoilt(self, data: bytes, place: Place) -> tuple[bytes, Place]:
        """Something that the switch must refuse, or at least survive."""
        random, changed = self.random, bytearray(data)
        match random.randrange(6):
            case 0:
                return data, Place(place.number + 1)  # another worker's address, or a stranger's
            case 1:
                changed[random.randrange(min(12, len(changed)))] ^= 1 << random.randrange(8)
            case 2:
                changed = changed[: random.randrange(len(changed))]
            case 3:
                changed += bytes(random.randrange(1, 9))
            case 4:
                changed[12:16] = (self.spec.slots + random.randrange(3)).to_bytes(4, "big")
            case _:
                changed[3] = random.choice([Kind.PROBE, Kind.RESULT, Kind.NOTICE, 0, 10, 77, 200])
        return bytes(changed), place
