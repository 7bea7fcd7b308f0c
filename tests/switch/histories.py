"""Random histories for a switch: what well-behaved workers send, and everything else that may come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from fanin.numerics.reduction import WIDE_SUMS
from fanin.protocol.ecn import Marked
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import HELLO_RUNS, MAX_RUN, Flag, Kind, LaneField, Packet, parse
from tests.support.bench import MACHINES, NO_FLAGS, Bench, Machine, address, make_spec
from tests.support.machines import GUARDS

WIDTHS = tuple(WIDE_SUMS.values())
WORDS = 12
"""Words of a contribution: a result in lanes of four times the bits still fits a packet."""
TWIN = MACHINES["twin"]
NATIVE = MACHINES["native"]


def random_spec(random: Random) -> JobSpec:
    workers = random.choice([1, 2, 2, 3, 4])
    staleness = random.choice([0, 0, 1, 1, 2, 3])
    return make_spec(
        workers=workers,
        quorum=random.choice([workers, random.randint(1, workers)]),
        staleness=staleness,
        max_staleness=random.choice([None, staleness + 2]),
        slots=random.choice([1, 2, 2, 5]),
        codes=random.randint(1, 3),
        words=48,
        accumulators=random.random() < 0.7,
        **random.choice(GUARDS),
    )


class Pair:
    """Both machines side by side, and what an observer of the network knows."""

    def __init__(self, spec: JobSpec, *, in_trains: bool = False) -> None:
        assert TWIN is not None
        assert NATIVE is not None
        self.bench = Bench(TWIN, spec)
        self.twin = self.bench.machine
        self.native: Any = Bench(NATIVE, spec).machine
        self.spec = spec
        self.lanes: LaneField | None = None
        """Lane field of workers that keep the rules."""
        self.now = 0.0
        self.seen: list[tuple[bytes, int]] = []
        self.closed = [0] * spec.slots
        """Rounds that each slot has closed."""
        self.next_base = [[0] * spec.slots for _ in range(spec.workers)]
        """Next base of each worker's contribution if it keeps the host rules."""
        self.orders = [0] * spec.workers
        """Transmissions of each worker, some of which are lost."""
        self.in_trains = in_trains
        """Whether the native machine is handed what comes between two other verbs at once."""
        self._train: list[tuple[bytes, int]] = []
        self._train_at = 0.0

    def order(self, worker: int, random: Random) -> int:
        """The next transmission's order, or none."""
        self.orders[worker] += random.choice([1, 1, 1, 1, 1, 2, 40])
        return random.choice([self.orders[worker]] * 9 + [0])

    def both(self) -> tuple[Machine, Machine]:
        self._hand_over()
        return self.twin, self.native

    def _hand_over(self) -> None:
        if self._train:
            self.native.receive_datagrams(self._train, self._train_at)
        self._train = []

    def deliver(self, data: bytes, source: int) -> None:
        """Every fifth datagram has met congestion."""
        self.seen.append((data, source))
        if len(self.seen) % 5 == 0:
            data = Marked(data)
        if not self.in_trains:
            for machine in self.both():
                machine.receive_datagram(data, source, self.now)
            return
        if self.now != self._train_at:
            self._hand_over()
        self._train.append((data, source))
        self._train_at = self.now
        self.twin.receive_datagram(data, source, self.now)

    def compare(self) -> None:
        self._hand_over()
        expected = self.twin.datagrams_to_send(self.now)
        assert self.native.datagrams_to_send(self.now) == expected
        for data, destination in expected:
            self._observe(parse(data), destination)
        assert self.native.next_timer() == self.twin.next_timer()
        assert self.native.members(1) == self.twin.members(1)
        while (event := self.twin.next_event()) is not None:
            assert self.native.next_event() == event
        assert self.native.next_event() is None
        assert self.native.job_counters(1) == self.twin.job_counters(1)
        assert self.native.member_counters(1) == self.twin.member_counters(1)
        assert self.native.counters() == self.twin.counters()

    def _observe(self, packet: Packet, destination: int) -> None:
        if packet.run > 1:
            for index in range(packet.run):
                self._observe(packet.part(index, self.spec.slots), destination)
            return
        if packet.kind not in (Kind.RESULT, Kind.ANSWER):
            return
        assert packet.contributors <= self.spec.contributions, "lanes would overflow"
        self.closed[packet.slot] = max(self.closed[packet.slot], packet.base + 1)
        worker = destination - address(0)
        if 0 <= worker < self.spec.workers and packet.bitmap >> worker & 1:
            self.next_base[worker][packet.slot] = max(self.next_base[worker][packet.slot], packet.base + 1)


def keep_the_rules(pair: Pair, random: Random, worker: int | None = None) -> None:
    if worker is None:
        worker = random.randrange(pair.spec.workers)
    slot = random.randrange(pair.spec.slots)
    base = pair.next_base[worker][slot]
    order = pair.order(worker, random)
    bare = random.choice([NO_FLAGS, NO_FLAGS, Flag.BARE])
    if random.random() < 0.1:
        flags = Flag.PASS | Flag.LATE if random.random() < 0.5 else Flag.PASS
        packet = pair.bench.packet(Kind.CONTRIBUTION, worker, flags=flags, slot=slot, base=base, bitmap=order)
    else:
        words = [random.getrandbits(32) for _ in range(WORDS)]
        codes = [random.getrandbits(16) for _ in range(pair.spec.codes_per_packet)]
        packet = pair.bench.packet(
            Kind.CONTRIBUTION,
            worker,
            flags=bare,
            slot=slot,
            base=base,
            bitmap=order,
            codes=codes,
            words=words,
            lanes=pair.lanes,
        )
    pair.deliver(pair.bench.bytes_of(packet), address(worker))


def keep_them_in_a_row(pair: Pair, random: Random) -> None:
    worker = random.randrange(pair.spec.workers)
    for _ in range(random.randint(2, 12)):
        keep_the_rules(pair, random, worker)


def pass_a_run(pair: Pair, random: Random) -> None:
    """Passes in one datagram: where all of its slots stand alike they keep the rules."""
    worker, slot = random.randrange(pair.spec.workers), random.randrange(pair.spec.slots)
    run = random.randint(2, random.choice([pair.spec.slots, MAX_RUN]) + 1)
    packet = pair.bench.packet(
        Kind.CONTRIBUTION,
        worker,
        flags=Flag.PASS | Flag.RUN | random.choice([NO_FLAGS, Flag.BARE]),
        slot=slot,
        base=pair.next_base[worker][slot],
        bitmap=pair.order(worker, random),
    )
    pair.orders[worker] += run - 1
    pair.deliver(pair.bench.bytes_of(replace(packet, run=run)), address(worker))


def break_the_rules(pair: Pair, random: Random) -> None:
    spec = pair.spec
    worker, slot = random.randrange(spec.workers), random.randrange(spec.slots)
    base = max(0, pair.closed[slot] - random.choice([0, 0, 0, 1, 1, 2, 3, 4, -1]))
    count = random.choice([WORDS] * 9 + [0, 1, 48])
    other = LaneField(*random.choice(WIDTHS), shift=random.choice([0, 0, 1, 15]))
    packet = pair.bench.packet(
        Kind.CONTRIBUTION,
        worker,
        slot=slot,
        base=base,
        bitmap=random.choice([0, 0, 1, 5, random.getrandbits(32)]),
        signature=random.choice([0] * 9 + [6]),
        codes=[random.getrandbits(16)] * random.choice([spec.codes_per_packet] * 5 + [0]),
        words=[random.getrandbits(32) for _ in range(count)],
        lanes=random.choice([pair.lanes] * 5 + [None, other]),
    )
    pair.deliver(pair.bench.bytes_of(packet), address(worker))


def replay(pair: Pair, random: Random) -> None:
    if pair.seen:
        pair.deliver(*random.choice(pair.seen))


def mutate(pair: Pair, random: Random) -> None:
    if pair.seen:
        data, source = random.choice(pair.seen)
        changed = bytearray(data)
        for _ in range(random.randint(0, 3)):
            if changed:
                changed[random.randrange(min(len(changed), 48))] = random.getrandbits(8)
        length = random.choice([len(changed)] * 3 + [0, 7, 35, 36, 40, max(0, len(changed) - 1), 48])
        pair.deliver(bytes(changed[:length]).ljust(length, b"\1"), source)


def greet(pair: Pair, random: Random) -> None:
    worker = random.randrange(pair.spec.workers)
    packet = random.choice(
        [
            replace(pair.bench.hello(worker, padded=random.random() < 0.5), bitmap=random.choice([0, HELLO_RUNS])),
            pair.bench.packet(Kind.PROBE, 0, flags=random.choice([NO_FLAGS, Flag.CHECKSUM]), words=[1, 2, 3]),
            pair.bench.bye(worker),
        ]
    )
    pair.deliver(pair.bench.bytes_of(packet), random.choice([address(worker)] * 3 + [7]))


def control(pair: Pair, random: Random) -> None:
    worker = random.randrange(pair.spec.workers)
    verb = random.choice(["evict", "quorum", "staleness"])
    staleness = random.randint(0, pair.spec.max_staleness)
    for machine in pair.both():
        if verb == "evict":
            machine.evict(1, worker, pair.now)
        elif verb == "quorum":
            machine.set_quorum(1, worker + 1, pair.now)
        else:
            machine.set_staleness(1, staleness, pair.now)


def wait(pair: Pair, random: Random) -> None:
    pair.now += random.choice([0.1, 2.0, 6.0])
    for machine in pair.both():
        machine.handle_timer(pair.now)


STEPS: dict[Callable[[Pair, Random], None], int] = {
    keep_the_rules: 30, pass_a_run: 4, break_the_rules: 6, replay: 6, mutate: 4, greet: 3, control: 1, wait: 2,
}  # fmt: skip
"""Possible next events, with their likelihoods."""
STEPS_IN_TRAINS = STEPS | {keep_them_in_a_row: 20}
