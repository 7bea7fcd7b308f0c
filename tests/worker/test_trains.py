"""Packets that arrive together: native machines take a train as twins take its packets one by one, wherever it breaks.

A train is what one system call hands over, of one sender. It may lack packets, hold some twice, be mixed with another
sender's, be cut where a path's MTU cuts it, or hold packets of other jobs, generations, lengths and tags.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.numerics.reduction import EXACT
from fanin.protocol.job import JobSpec
from fanin.protocol.packet_tag import MemberKeys
from fanin.protocol.wire import HEADER_BYTES, OFFSET_GENERATION, OFFSET_JOB, Kind, parse
from tests.support.builders import moved, reduction
from tests.support.cluster import MEMORY_BYTES, SWITCH_MACHINES, WORKER_MACHINES, job, worker_machine
from tests.support.network import SWITCH

pytestmark = pytest.mark.skipif(WORKER_MACHINES["native"] is None, reason="the native extension is not built")

WORKERS = 2
SLOTS = 12
FIRST_PEER = 100
LIMIT_S = 60.0
STEP_S = 0.001

Datagram = tuple[bytes, int]
Train = list[Datagram]
Break = Callable[[Train, Random], list[Train]]


def whole(train: Train, dice: Random) -> list[Train]:
    return [train]


def lacking(train: Train, dice: Random) -> list[Train]:
    """One packet, at any place; now and then."""
    lost = dice.randrange(2 * len(train))
    return [[each for place, each in enumerate(train) if place != lost]]


def lacking_a_row(train: Train, dice: Random) -> list[Train]:
    first = dice.randrange(3 * len(train))
    return [train[:first] + train[first + dice.randint(1, len(train)) :]]


def doubled(train: Train, dice: Random) -> list[Train]:
    """A packet once more, behind itself or later."""
    again = dice.randrange(len(train))
    later = dice.randint(again, len(train))
    return [[*train[:later], train[again], *train[later:]]]


def disordered(train: Train, dice: Random) -> list[Train]:
    mixed = list(train)
    dice.shuffle(mixed)
    return [mixed]


def cut(train: Train, dice: Random) -> list[Train]:
    """In two, one of which may be empty."""
    at = dice.randint(0, len(train))
    return [train[:at], train[at:]]


def with_strangers(train: Train, dice: Random) -> list[Train]:
    """Between its packets some of another job, generation, length or sender, and some that somebody has altered."""

    def altered(data: bytes, at: int) -> bytes:
        """A packet that is too short stays as it is: another break has put it there."""
        return data[:at] + bytes(byte ^ 1 for byte in data[at : at + 1]) + data[at + 1 :]

    made: Train = []
    for data, source in train:
        junk = [
            (altered(data, OFFSET_JOB + 1), source),
            (altered(data, OFFSET_GENERATION), source),
            (altered(data, 0), source),
            (data[:-1], source),
            (data[:-4], source),
            (data + bytes(4), source),
            (data, source + 1000),
            (b"", source),
        ]
        made += [each for each in junk if dice.random() < 0.15]
        made.append((data, source))
    return [made]


BREAKS: tuple[Break, ...] = (whole, lacking, lacking_a_row, doubled, disordered, cut, with_strangers)


class System:
    """A switch and its workers, all twins or all native, who take what they are handed."""

    def __init__(
        self, kind: str, spec: JobSpec, arrays: list[np.ndarray[Any, Any]], lanes: int, *, scatters: bool
    ) -> None:
        self.native = kind == "native"
        self.switch: Any = SWITCH_MACHINES[kind](MEMORY_BYTES)
        self.switch.admit(spec)
        self.workers: list[Any] = [worker_machine(kind, spec, worker) for worker in range(spec.workers)]
        self.arrays = [np.array(array) for array in arrays]
        self.lanes = lanes
        self.scatters = scatters
        """Whether each worker keeps its part of the sum alone."""

    def submit(self) -> None:
        for place, (worker, array) in enumerate(zip(self.workers, self.arrays, strict=True)):
            part = len(array) // len(self.workers)
            kept = {"keep_first": place * part, "keep_count": part} if self.scatters else {}
            kept_at = array[place * part :][:part] if self.scatters else None
            worker.submit(reduction(array, kept_at, lanes=self.lanes, **kept))

    def submit_other(self, array: np.ndarray[Any, Any], lanes: int) -> None:
        """Submit a reduction of one more array per worker, all equal."""
        for worker in self.workers:
            self.arrays.append(np.array(array))
            worker.submit(reduction(self.arrays[-1], lanes=lanes))

    def submit_gather(self, own: np.ndarray[Any, Any]) -> None:
        """Submit a gather of these bytes of each worker, which passes where it owns nothing."""
        for place, worker in enumerate(self.workers):
            self.arrays.append(np.zeros(len(own) * len(self.workers), np.uint8))
            worker.submit(moved(own, place * len(own), len(self.arrays[-1]), self.arrays[-1], 0))

    def take(self, machine: Any, train: Train, now: float) -> None:
        """At once, or one by one."""
        if self.native:
            machine.receive_datagrams(train, now)
        else:
            for data, source in train:
                machine.receive_datagram(data, source, now)

    def counters(self) -> list[dict[str, int]]:
        return [machine.counters() for machine in (self.switch, *self.workers)]


class Pair:
    """Both systems, to whom the same happens; what they say is compared."""

    def __init__(self, spec: JobSpec, dice: Random, *, lanes: int, count: int, scatters: bool = False) -> None:
        rng = np.random.default_rng(dice.randrange(1 << 30))
        arrays = [rng.standard_normal(count).astype(np.float32) for _ in range(spec.workers)]
        self.systems = [System(kind, spec, arrays, lanes, scatters=scatters) for kind in ("twin", "native")]
        self.now = 0.0
        for worker in range(spec.workers):
            self._give_switch(self._from_worker(worker))
        for worker, train in self._from_switch().items():
            self._give_worker(worker, train)

    def submit(self) -> None:
        for system in self.systems:
            system.submit()

    def turn(self, broken: Break, dice: Random, *, together: bool) -> None:
        """Give the workers' packets to the switch, and its answers to the workers; `together`: two trains as one."""
        trains = [self._from_worker(worker) for worker in range(WORKERS)]
        if together:  # a packet of each by turns
            mixed = [each for pair in zip(*trains, strict=False) for each in pair]
            shortest = min(map(len, trains))
            trains = [mixed + [each for train in trains for each in train[shortest:]]]
        for train in filter(None, trains):
            for part in broken(train, dice):
                self._give_switch(part)
            for worker, back in self._from_switch().items():
                for part in broken(back, dice):
                    self._give_worker(worker, part)
        self.now += STEP_S
        for machines in zip(*[(system.switch, *system.workers) for system in self.systems], strict=True):
            timers = [machine.next_timer() for machine in machines]
            assert timers[0] == timers[1]
            if timers[0] is not None and timers[0] <= self.now:
                for machine in machines:
                    machine.handle_timer(self.now)

    def done(self) -> bool:
        twin, native = ([worker.outstanding() for worker in system.workers] for system in self.systems)
        assert twin == native
        return not any(twin)

    def compare(self) -> None:
        self.compare_twins()
        _, native = self.systems
        assert native.scatters or all(array.tobytes() == native.arrays[0].tobytes() for array in native.arrays)

    def compare_twins(self) -> None:
        twin, native = self.systems
        assert twin.counters() == native.counters()
        (number,) = twin.switch.jobs()
        assert twin.switch.job_counters(number) == native.switch.job_counters(number)
        assert twin.switch.member_counters(number) == native.switch.member_counters(number)
        for ours, theirs in zip(twin.arrays, native.arrays, strict=True):
            assert ours.tobytes() == theirs.tobytes()
        for ours, theirs in zip(twin.workers, native.workers, strict=True):
            while (event := ours.next_event()) is not None:
                assert event == theirs.next_event()
            assert theirs.next_event() is None

    def regular(self) -> list[int]:
        """Datagrams that the switch, and each worker, took by the short way (native/machine/regular_run.hpp)."""
        _, native = self.systems
        return [machine.regular() for machine in (native.switch, *native.workers)]

    def regular_sent(self) -> list[int]:
        """Contributions that each worker sent by the short way (native/machine/worker_machine.cpp, Contributions)."""
        return [worker.regular_sent() for worker in self.systems[1].workers]

    def _from_worker(self, worker: int) -> Train:
        said = [system.workers[worker].datagrams_to_send(self.now) for system in self.systems]
        assert said[0] == said[1]
        return [(data, FIRST_PEER + worker) for data, _ in said[0]]

    def _from_switch(self) -> dict[int, Train]:
        said = [system.switch.datagrams_to_send(self.now) for system in self.systems]
        assert said[0] == said[1]
        trains: dict[int, Train] = {}
        for data, to in said[0]:
            if FIRST_PEER <= to < FIRST_PEER + WORKERS:
                trains.setdefault(to - FIRST_PEER, []).append((data, SWITCH))
        return trains

    def _give_switch(self, train: Train) -> None:
        for system in self.systems:
            system.take(system.switch, train, self.now)

    def _give_worker(self, worker: int, train: Train) -> None:
        for system in self.systems:
            system.take(system.workers[worker], train, self.now)


def spec_of(slots: int = SLOTS, **fields: Any) -> JobSpec:
    return job(workers=WORKERS, slots=slots, words_per_packet=16, codes_per_packet=2, **fields)


@pytest.mark.parametrize("broken", BREAKS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("together", [False, True], ids=["one sender", "two senders"])
def test_a_train_is_taken_as_its_packets_are(broken: Break, together: bool) -> None:
    dice = Random(f"{broken.__name__} {together}")
    kinds: list[tuple[int, dict[str, Any]]] = [(8, {"data_key": bytes(range(16))}), (16, {"checksum": True})]
    if broken is not with_strangers:  # which end a job that believes them
        kinds.append((32, {}))
    for lanes, fields in kinds:
        count, scatters = dice.choice([300, 1000, 1001]), dice.random() < 0.3
        pair = Pair(spec_of(**fields), dice, lanes=lanes, count=count, scatters=scatters)
        for _ in range(2):
            pair.submit()
            while not pair.done():
                assert pair.now < LIMIT_S
                pair.turn(broken, dice, together=together)
        pair.compare()


@pytest.mark.parametrize("lost", range(SLOTS))
@pytest.mark.parametrize("of", ["contributions", "results"])
def test_a_packet_is_missing_at_each_place_of_the_first_train(lost: int, of: str) -> None:
    pair = Pair(spec_of(data_key=bytes(16)), Random(lost), lanes=32, count=16 * 2 * SLOTS)
    pair.submit()
    seen: set[bool] = set()

    def without(train: Train, dice: Random) -> list[Train]:
        from_switch = train[0][1] == SWITCH
        if from_switch != (of == "results") or from_switch in seen or len(train) < SLOTS:
            return [train]
        seen.add(from_switch)
        return [train[:lost] + train[lost + 1 :]]

    while not pair.done():
        assert pair.now < LIMIT_S
        pair.turn(without, Random(0), together=False)
    assert seen
    pair.compare()


@pytest.mark.parametrize("lost", [0, 1, 30, 31, 32, 40, 63, 64, 69])
def test_a_receipt_tells_of_a_lost_result_in_any_of_its_words(lost: int) -> None:
    slots = 70
    pair = Pair(spec_of(slots), Random(lost), lanes=16, count=32 * 3 * slots)
    pair.submit()
    wanted = [True]

    def without(train: Train, dice: Random) -> list[Train]:
        at = [place for place, (data, source) in enumerate(train) if source == SWITCH and is_result_of(data, lost)]
        if not at or not wanted:
            return [train]
        wanted.clear()
        return [[each for place, each in enumerate(train) if place not in at]]

    while not pair.done():
        assert pair.now < LIMIT_S
        pair.turn(without, Random(0), together=False)
    assert not wanted
    pair.compare()
    assert sum(worker.counters()["gaps"] for worker in pair.systems[1].workers) > 0


def is_result_of(data: bytes, slot: int) -> bool:
    packet = parse(data)
    return packet.kind is Kind.RESULT and packet.slot == slot


def test_a_tag_that_is_wrong_costs_one_packet_of_its_train() -> None:
    spec = spec_of(data_key=bytes(16))
    pair = Pair(spec, Random(1), lanes=8, count=64 * SLOTS)
    keys = [MemberKeys(spec.data_key, token) for token in spec.tokens]
    pair.submit()

    def forged(train: Train, dice: Random) -> list[Train]:
        if train[0][1] == SWITCH:
            return [train]
        place = dice.randrange(len(train))
        data, source = train[place]
        packet = parse(data)
        of_another = keys[1 - (source - FIRST_PEER)].finish(replace(packet, signature=packet.signature ^ 1).to_bytes())
        return [[*train[:place], (of_another, source), *train[place:]]]

    dice = Random(2)
    while not pair.done():
        assert pair.now < LIMIT_S
        pair.turn(forged, dice, together=False)
    pair.compare()
    assert pair.systems[1].switch.counters()["dropped_tag"] > 0
    assert all(worker.counters()["retransmissions"] == 0 for worker in pair.systems[1].workers)


@pytest.mark.parametrize("fields", [{}, {"data_key": bytes(16)}], ids=["plain", "tagged"])
def test_trains_take_the_short_way(fields: dict[str, Any]) -> None:
    trains = 20
    pair = Pair(spec_of(70, **fields), Random(5), lanes=32, count=16 * 70 * trains)
    pair.submit()
    while not pair.done():
        assert pair.now < LIMIT_S
        pair.turn(whole, Random(0), together=False)
    pair.compare()
    at_switch, *at_workers = pair.regular()
    assert at_switch > 0.8 * WORKERS * 70 * trains
    assert all(regular > 0.7 * 70 * trains for regular in at_workers)
    assert all(regular > 0.8 * 70 * trains for regular in pair.regular_sent())


@pytest.mark.parametrize("broken", [whole, lacking], ids=lambda each: each.__name__)
@pytest.mark.parametrize("chunks", range(1, SLOTS))
def test_another_operation_begins_at_each_place_of_a_train(chunks: int, broken: Break) -> None:
    """Its codec, signature, lanes and length are others; its last chunk is short, or its worker passes."""
    dice = Random(f"{chunks} {broken.__name__}")
    pair = Pair(spec_of(data_key=bytes(16), accumulators=True), dice, lanes=32, count=16 * chunks - 3)
    rng = np.random.default_rng(chunks)
    integers = rng.integers(-1000, 1000, 16 * chunks - 3).astype(np.int32)
    floats = rng.standard_normal(16 * 4 * chunks - 5).astype(np.float32)
    own = rng.integers(0, 255, 64 * chunks - 7).astype(np.uint8)
    for system in pair.systems:
        for lanes in (32, EXACT, 8):
            system.submit_other(integers, 32)
            system.submit_gather(own)
            system.submit_other(integers[::-1], 32)
            system.submit_other(floats, lanes)
    while not pair.done():
        assert pair.now < LIMIT_S
        pair.turn(broken, dice, together=False)
    pair.compare_twins()
    assert all(pair.regular_sent())


def test_checksums_leave_no_short_way_but_for_what_is_sent() -> None:
    pair = Pair(spec_of(checksum=True), Random(6), lanes=32, count=16 * SLOTS)
    pair.submit()
    while not pair.done():
        assert pair.now < LIMIT_S
        pair.turn(whole, Random(0), together=False)
    pair.compare()
    assert pair.regular() == [0] * (1 + WORKERS)
    assert all(pair.regular_sent())


@pytest.mark.parametrize("at", range(HEADER_BYTES))
def test_a_header_may_differ_in_any_byte_in_the_midst_of_a_train(at: int) -> None:
    """With another value there, packets may well be taken for others, and end the job: twins do likewise."""
    dice = Random(at)
    pair = Pair(spec_of(), dice, lanes=32, count=16 * 10 * SLOTS)

    def altered(train: Train, dice: Random) -> list[Train]:
        place = dice.randrange(len(train))
        data, source = train[place]
        other = data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]
        return [[*train[:place], (other, source), *train[place + dice.randrange(2) :]]]

    pair.submit()
    for turn in range(16):
        pair.turn(altered if turn % 2 == 1 else whole, dice, together=False)
        pair.compare_twins()
    assert max(pair.regular()) > 0


@settings(max_examples=60)
@given(dice=st.randoms(use_true_random=False), lanes=st.sampled_from([8, 16, 32]), tagged=st.booleans())
def test_any_trains_are_taken_as_their_packets_are(dice: Random, lanes: int, tagged: bool) -> None:
    """Trains that break anew in every turn, in several ways at once, with any bits changed, also of the words."""

    def broken(train: Train, dice: Random) -> list[Train]:
        trains = [train]
        for each in dice.choices(BREAKS, k=dice.randrange(3)):
            trains = [part for whole_train in trains if whole_train for part in each(whole_train, dice)]
        return [[mangled(*each, dice) for each in part] for part in trains]

    def mangled(data: bytes, source: int, dice: Random) -> Datagram:
        if not data or dice.random() > 0.03:
            return data, source
        at = dice.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :], source

    fields: dict[str, Any] = {"data_key": bytes(16)} if tagged else {}
    pair = Pair(spec_of(**fields), dice, lanes=lanes, count=16 * 4 * SLOTS, scatters=dice.random() < 0.3)
    pair.submit()
    for _ in range(12):
        pair.turn(broken, dice, together=dice.random() < 0.3)
        pair.compare_twins()
