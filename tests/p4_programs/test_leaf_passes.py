"""A leaf on a Tofino between a parent, which is the twin, and workers that keep the host rules, in one slot.

Everything waits for its turn, which is random: what is in the network above the leaf, where packets get lost, overtake
each other and come twice, and what is between its two passes. Each word of a contribution has the same value, so a
result of two rounds shows, as does a leaf's own sum in the place of the parent's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from fanin.protocol.job import JobSpec, Uplink
from fanin.protocol.wire import SWITCH_WORKER, Flag, Kind, Packet, Reason, parse
from fanin.switch.machine.switch_machine import SwitchMachine
from tests.p4_programs.between import Between, Worker
from tests.p4_programs.subjects import REASONS, OpenSubject, program, write_job
from tests.p4_programs.wiring import UDP_OFFSET, Place, frame_to_switch, payload_for
from tests.support.bench import Bench, address, make_spec, words_of

LEAF = "tna-model-pairs-synchronous-leaf"
WORDS = 8
STEPS = 1500
LOSS, COPY = 0.1, 0.15
PASS = 0.2
SEEDS = range(16)
PARENT = 4
"""Place of the parent: BMv2 has ports 1 to 5 in these tests."""
ROOT = make_spec(job=9, workers=2, generation=0xA0, words=WORDS, branches=True)
UPLINK = Uplink(parent=PARENT, job=9, generation=0xA0, worker=0, token=ROOT.tokens[0])
OTHER = 3
"""Contributors of the other leaf in every round."""
SIGNATURE = 7


def leaf_spec(workers: int = 2) -> JobSpec:
    """A job of the leaf."""
    return replace(make_spec(workers=workers, words=WORDS), total_workers=workers + OTHER)


def value(worker: int, base: int) -> int:
    """Value of each word of a worker's contribution; OTHER's number is that of the other leaf."""
    return (base + 1 << 8 * (worker % 4)) * 2654435761 + worker & 0xFFFF_FFFF


class Scene:
    """The leaf with packets between their passes, its workers, and the network above it."""

    def __init__(self, spec: JobSpec, random: Random) -> None:
        self.spec, self.random = spec, random
        self.subject = Between(LEAF)
        program(self.subject, spec, UPLINK)
        self.root = Bench(SwitchMachine, ROOT).machine
        self.workers = [Worker(number) for number in range(spec.workers)]
        self.other = Worker(1)
        self.given: dict[tuple[int, int], Packet] = {}
        self.up: list[bytes] = []
        self.down: list[bytes] = []
        self.taken: Counter[int] = Counter()
        self.wrong: list[tuple[int, Packet]] = []
        """(worker, result) that is not the tree's."""
        self.faults = True
        self.evicted: int | None = None

    def contribution(self, number: int, base: int) -> Packet:
        """The contribution or the pass of a worker's base, the same at each repetition."""
        if (number, base) not in self.given:
            packet = Packet(
                kind=Kind.CONTRIBUTION, job=self.spec.job, generation=self.spec.generation, worker=number, base=base
            )
            if self.random.random() >= PASS:
                words = words_of(*[value(number, base)] * WORDS)
                packet = replace(packet, signature=SIGNATURE, words=words)
            else:
                packet = replace(packet, flags=Flag.PASS)
            self.given[number, base] = packet
        return self.given[number, base]

    def contribute(self, worker: Worker) -> None:
        """A worker sends its base, again if it has done so before."""
        place = Place(worker.number)
        frame = frame_to_switch(place, self.contribution(worker.number, worker.base).to_bytes())
        self.deliver(self.subject.exchange(place.port, frame))

    def other_leaf(self) -> None:
        """The other leaf does, at the parent."""
        packet = Packet(
            kind=Kind.CONTRIBUTION,
            job=ROOT.job,
            generation=ROOT.generation,
            worker=1,
            base=self.other.base,
            signature=SIGNATURE,
            contributors=OTHER,
            words=words_of(*[value(OTHER, self.other.base)] * WORDS),
        )
        self.to_root(packet.to_bytes(), address(1, ROOT.job))

    def to_root(self, data: bytes, source: int) -> None:
        self.root.receive_datagram(data, source, 0.0)
        for payload, destination in self.root.datagrams_to_send(0.0):
            if destination == address(0, ROOT.job):
                self.down.append(payload)
            elif (packet := parse(payload)).kind in (Kind.RESULT, Kind.ANSWER):
                self.other.takes(packet)

    def to_leaf(self, data: bytes) -> None:
        self.deliver(self.subject.exchange(Place(PARENT).port, frame_to_switch(Place(PARENT), data)))

    def deliver(self, sent: list[tuple[int, bytes]]) -> None:
        """Deliver the leaf's packets to its workers, or send them on their way up."""
        for port, frame in sent:
            payload = frame[UDP_OFFSET : 14 + int.from_bytes(frame[16:18], "big")]
            if port == Place(PARENT).port:
                self.up.append(payload)
                continue
            packet, worker = parse(payload), self.workers[port - 1]
            if worker.number != self.evicted and worker.takes(packet):
                self.taken[packet.base] += 1
                self.wrong += [] if self.is_right(packet) else [(worker.number, packet)]

    def is_right(self, packet: Packet) -> bool:
        """Whether a result is that of the tree; one without a worker may have come before it was evicted or after."""
        held = packet.contributors, packet.signature, packet.words.tolist()
        everybody = {worker.number for worker in self.workers}
        for numbers in (everybody, everybody - {self.evicted}):
            given = [self.given[number, packet.base] for number in numbers if (number, packet.base) in self.given]
            adding = [each for each in given if not each.flags & Flag.PASS]
            total = sum(int(each.words[0]) for each in adding) + value(OTHER, packet.base) & 0xFFFF_FFFF
            if held == (len(adding) + OTHER, SIGNATURE, [total] * WORDS):
                return True
        return False

    def evict(self, number: int) -> None:
        """The controller takes a worker out of the job."""
        self.evicted = number
        write_job(self.subject, self.spec, live=self.spec.full_mask & ~(1 << number), parent=Place(PARENT))

    def step(self) -> None:
        """Let one random event happen."""
        random, between = self.random, self.subject.switch.between
        waiting = [queue for queue in (between, self.up, self.down) if queue]
        busy = sum(map(len, waiting))
        if random.random() >= busy / (busy + 4):
            if random.random() < 0.3:
                self.other_leaf()
            else:
                self.contribute(random.choice([each for each in self.workers if each.number != self.evicted]))
            return
        queue = random.choice(waiting)
        index = random.randrange(len(queue)) if self.faults else 0
        if self.faults and random.random() < LOSS:
            del queue[index]
        elif queue is between:
            self.deliver(self.subject.switch.let_in(index))
        else:
            data = queue[index] if self.faults and random.random() < COPY else queue.pop(index)
            if queue is self.up:
                self.to_root(data, address(0, ROOT.job))
            else:
                self.to_leaf(data)


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_has_a_use_for_a_result_gets_the_trees(seed: int) -> None:
    random = Random(f"leaf {seed}")
    here = Scene(leaf_spec(random.choice([1, 2, 3])), random)
    for _ in range(STEPS):
        here.step()
    assert here.wrong == []
    reached = min(worker.base for worker in here.workers)
    here.faults = False
    for _ in range(STEPS):
        here.step()
    assert here.wrong == []
    assert min(worker.base for worker in here.workers) > reached + 10, "and the job goes on"


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_worker_that_is_evicted_the_others_go_on(seed: int) -> None:
    here = Scene(leaf_spec(3), Random(f"evicted {seed}"))
    for _ in range(STEPS // 2):
        here.step()
    here.evict(0)
    reached = min(worker.base for worker in here.workers[1:])
    for _ in range(STEPS):
        here.step()
    assert here.wrong == []
    assert min(worker.base for worker in here.workers[1:]) > reached + 10


def test_what_goes_up_between_a_result_and_its_copy_is_a_repetition_whatever_its_words() -> None:
    """The leaf asks again; the first question is answered, and the answer takes the round's place, while the second one
    is between its passes. Its upper words are the parent's: who has accepted the base reads none of them."""
    here = scene_without_passes()
    for worker in here.workers:
        here.contribute(worker)
    here.contribute(here.workers[0])
    between = here.subject.switch.between
    assert len(between) == 2
    here.other_leaf()
    here.deliver(here.subject.switch.let_in(0))
    here.to_root(here.up.pop(), address(0, ROOT.job))
    here.to_leaf(here.down.pop())
    here.deliver(here.subject.switch.let_in(1))
    assert here.taken == {0: 2}
    here.deliver(here.subject.switch.let_in(0))
    mixed = parse(here.up[0])
    assert len(set(mixed.words.tolist())) == 2, "a half of the leaf's sum, and a half of the tree's"
    here.to_root(here.up.pop(), address(0, ROOT.job))
    here.to_leaf(here.down.pop())
    here.deliver(here.subject.switch.let_in(0))
    assert (here.taken, here.wrong) == ({0: 2}, [])


def scene_without_passes() -> Scene:
    """A scene with two workers."""
    here = Scene(leaf_spec(), Random(0))
    for worker in here.workers:
        for base in range(4):
            while here.contribution(worker.number, base).flags & Flag.PASS:
                del here.given[worker.number, base]
    return here


def complete(here: Scene) -> None:
    """Both workers and the other leaf contribute; the parent's result is between its passes."""
    for worker in here.workers:
        here.contribute(worker)
    here.other_leaf()
    here.deliver(here.subject.switch.let_in(0))
    here.to_root(here.up.pop(), address(0, ROOT.job))
    here.to_leaf(here.down.pop())
    assert len(here.subject.switch.between) == 1


def test_until_a_result_has_passed_twice_the_leaf_asks_for_it() -> None:
    here = scene_without_passes()
    complete(here)
    here.contribute(here.workers[0])
    here.deliver(here.subject.switch.let_in(1))
    assert len(here.up) == 1
    here.deliver(here.subject.switch.let_in(0))
    assert (here.taken, here.wrong) == ({0: 2}, [])


def test_a_result_that_is_lost_between_its_passes_is_asked_for_again() -> None:
    here = scene_without_passes()
    complete(here)
    here.subject.switch.between.clear()
    here.contribute(here.workers[1])
    here.deliver(here.subject.switch.let_in(0))
    here.to_root(here.up.pop(), address(0, ROOT.job))
    here.to_leaf(here.down.pop())
    here.deliver(here.subject.switch.let_in(0))
    assert (here.taken, here.wrong) == ({0: 2}, [])


@pytest.mark.parametrize("becomes", ["none", "another"])
def test_a_result_whose_job_changes_between_its_passes_is_nobodys(becomes: str) -> None:
    here = scene_without_passes()
    complete(here)
    if becomes == "none":
        here.subject.switch.program.tables["FaninIngress.job.jobs"].clear()
    else:
        write_job(here.subject, replace(here.spec, generation=here.spec.generation + 1), parent=Place(PARENT))
    assert here.subject.switch.let_in(0) == []
    assert here.subject.switch.between == []
    row = 0 if becomes == "none" else 1
    assert here.subject.counter("FaninIngress.tally.drops", row * REASONS + Reason.GENERATION) == 1
    assert here.subject.counter("FaninIngress.tally.rounds", row) == 0


def test_frames_have_the_addresses_that_their_receivers_take(open_subject: OpenSubject) -> None:
    """In the emulator and on BMv2, with packets that pass at once."""
    subject, spec = open_subject(LEAF), leaf_spec()
    program(subject, spec, UPLINK)
    parent, places = Place(PARENT), [Place(0), Place(1)]

    def say(source: Place, packet: Packet) -> list[tuple[Place, Packet]]:
        sent = subject.exchange(source.port, frame_to_switch(source, packet.to_bytes()))
        found = []
        for port, frame in sorted(sent):
            place = Place(port - 1)
            length = 14 + int.from_bytes(frame[16:18], "big")
            assert set(frame[length:]) <= {0}, "padding"
            found.append((place, parse(payload_for(place, frame[:length]))))
        return found

    def gives(worker: int, *words: int, base: int = 0, code: int = 0) -> list[tuple[Place, Packet]]:
        packet = Packet(
            kind=Kind.CONTRIBUTION,
            job=spec.job,
            generation=spec.generation,
            worker=worker,
            base=base,
            signature=SIGNATURE,
            codes=(code,),
            words=words_of(*words),
        )
        return say(Place(worker), packet)

    def result(base: int, *words: int) -> Packet:
        return Packet(
            kind=Kind.RESULT,
            job=ROOT.job,
            generation=ROOT.generation,
            worker=SWITCH_WORKER,
            base=base,
            signature=SIGNATURE,
            contributors=5,
            codes=(9,),
            words=words_of(*words),
        )

    for base in range(5):
        assert gives(0, *range(8), base=base, code=4) == []
        ((place, up),) = gives(1, *[base] * 8, base=base, code=5)
        assert (place, up.job, up.generation, up.worker, up.base) == (parent, ROOT.job, ROOT.generation, 0, base)
        assert (up.words.tolist(), up.codes, up.contributors) == ([base + each for each in range(8)], (5,), 2)
        ((place, again),) = gives(0, *range(8), base=base, code=4)
        assert (place, again.to_bytes()) == (parent, up.to_bytes())
        down = say(parent, result(base, *range(20, 28)))
        assert [place for place, _ in down] == places
        for _, packet in down:
            assert (packet.kind, packet.job, packet.generation) == (Kind.RESULT, spec.job, spec.generation)
            assert (packet.base, packet.bitmap, packet.contributors) == (base, 0b11, 5)
            assert (packet.codes, packet.words.tolist()) == ((9,), list(range(20, 28)))
        assert say(parent, result(base, *range(30, 38))) == []
        ((place, answer),) = gives(1, *[base] * 8, base=base, code=5)
        assert (place, answer.kind, answer.words.tolist()) == (places[1], Kind.ANSWER, list(range(20, 28)))
    assert subject.counter("FaninIngress.tally.rounds", 1) == 5
