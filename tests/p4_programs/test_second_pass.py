"""The Tofino program with two words per register: what may happen between the two passes of a packet.

A result carries the lower words of its round when it goes round again, and fetches the upper ones some time later. Here
that time is arbitrary: packets between their passes wait, overtake each other and get lost, while workers, which keep
the host rules, go on. Each word of a contribution has the same value, so a result of two rounds shows.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from fanin.protocol.job import JobSpec
from fanin.protocol.wire import Kind, Packet, parse
from fanin.switch.machine.switch_machine import SwitchMachine
from tests.p4_programs.between import Between, Worker
from tests.p4_programs.subjects import OpenSubject, program, write_job
from tests.p4_programs.wiring import UDP_OFFSET, Place, frame_to_switch
from tests.support.bench import Bench, make_spec, words_of
from tests.support.thorough import thorough

STALE, SYNCHRONOUS = "tna-model-pairs", "tna-model-pairs-synchronous"
WORDS = 8
STEPS = 600
LOSS = 0.1
SEEDS = range(12)
LATE_SEEDS = range(6)


class Scene:
    """One slot, its workers, and packets between their passes."""

    def __init__(self, configuration: str, spec: JobSpec, random: Random) -> None:
        self.spec, self.random = spec, random
        self.subject = Between(configuration)
        self.twin = Bench(SwitchMachine, spec).machine
        self.workers = [Worker(number) for number in range(spec.workers)]
        self.live = spec.full_mask
        self.rounds: dict[int, list[int]] = {}
        """Words of each round, as the twin has closed it."""
        self.taken: Counter[int] = Counter()
        self.mixed: list[tuple[int, int]] = []
        """(worker, base) of each result with a use that is not its round's."""
        program(self.subject, spec)

    def contribute(self, worker: Worker) -> None:
        """The worker sends its base, again if it has done so before."""
        value = (worker.base + 1 << 8 * worker.number) * 2654435761 & 0xFFFF_FFFF
        packet = Packet(
            kind=Kind.CONTRIBUTION,
            job=self.spec.job,
            generation=self.spec.generation,
            worker=worker.number,
            base=worker.base,
            signature=7,
            words=words_of(*[value] * WORDS),
        ).to_bytes()
        self.twin.receive_datagram(packet, Place(worker.number).twin_address, 0.0)
        for payload, _ in self.twin.datagrams_to_send(0.0):
            if (sent := parse(payload)).kind is Kind.RESULT:
                self.rounds.setdefault(sent.base, [int(word) for word in sent.words])
        place = Place(worker.number)
        self.deliver(self.subject.exchange(place.port, frame_to_switch(place, packet)))

    def deliver(self, sent: list[tuple[int, bytes]]) -> None:
        """Deliver the switch's packets to its workers."""
        for port, frame in sent:
            worker = self.workers[port - 1]
            packet = parse(frame[UDP_OFFSET : 14 + int.from_bytes(frame[16:18], "big")])
            if worker.takes(packet):
                self.taken[packet.base] += 1
                words = [int(word) for word in packet.words]
                right = self.rounds.get(packet.base, words) == words == [words[0]] * WORDS
                self.mixed += [] if right else [(worker.number, packet.base)]

    def second_pass(self, *, in_order: bool) -> None:
        """One of the packets in between goes on, or is lost."""
        waiting = self.subject.switch.between
        index = 0 if in_order else self.random.randrange(len(waiting))
        if self.random.random() < LOSS:
            del waiting[index]
        else:
            self.deliver(self.subject.switch.let_in(index))

    def step(self, *, in_order: bool = False) -> None:
        """Somebody sends, or a packet passes again; those in between may become many."""
        waiting = len(self.subject.switch.between)
        if waiting and self.random.random() < waiting / (waiting + 6):
            self.second_pass(in_order=in_order)
        else:
            worker = self.random.choice(self.workers)
            self.contribute(worker)

    def evict(self, worker: int) -> None:
        """The controller takes a worker out of the job; the twin stands aside from here on."""
        self.live &= ~(1 << worker)
        write_job(self.subject, self.spec, live=self.live)
        self.rounds.clear()
        self.twin = Bench(SwitchMachine, self.spec).machine


def scene(configuration: str, seed: int, staleness: int) -> Scene:
    random = Random(f"second pass {configuration} {seed} {staleness}")
    workers = random.choice([2, 3, 4])
    quorum = random.randint(1, workers)
    return Scene(configuration, make_spec(workers=workers, quorum=quorum, staleness=staleness, words=WORDS), random)


CASES = [(SYNCHRONOUS, 0), (STALE, 0), (STALE, 1), (STALE, 2)]


@pytest.mark.parametrize(("configuration", "staleness"), CASES)
@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_has_a_use_for_a_result_gets_both_halves_of_one_round(
    configuration: str, staleness: int, seed: int
) -> None:
    here = scene(configuration, seed, staleness)
    for _ in range(STEPS):
        here.step()
    assert here.mixed == []
    assert len(here.taken) > 10, "the job went on"


LATE_CASES = [CASES[0], *(thorough(*case) for case in CASES[1:])]


@pytest.mark.parametrize(("configuration", "staleness"), LATE_CASES)
def test_a_lost_worker_or_a_late_one_gets_no_mixture_either(configuration: str, staleness: int) -> None:
    for seed in LATE_SEEDS:
        here = scene(configuration, seed, staleness)
        for at in range(STEPS):
            if at == STEPS // 2:
                here.evict(0)
            here.step(in_order=True)
        assert here.mixed == []
        assert here.subject.counter("FaninIngress.tally.rounds", 1) > 5


def test_rings_that_are_an_entry_too_short_are_found_out() -> None:
    """The canary: in rings of S_max + 1 an entry is written again while somebody still waits for it."""
    assert any(_mixes(seed) for seed in range(40))


def _mixes(seed: int) -> bool:
    here = scene(STALE, seed, 3)
    for _ in range(STEPS):
        here.step()
    return bool(here.mixed)


def test_a_packet_passes_again_only_where_it_carries_words(open_subject: OpenSubject) -> None:
    here = Scene(SYNCHRONOUS, make_spec(workers=2, words=WORDS), Random(0))
    between, (one, other) = here.subject.switch.between, here.workers
    here.contribute(one)
    assert between == []
    here.contribute(other)
    assert len(between) == 1
    assert here.taken == {}
    here.contribute(one)
    assert len(between) == 2, "nobody has the result yet: whoever asks again is answered, behind it"
    here.deliver(here.subject.switch.let_in(0))
    assert here.taken == {0: 2}


def test_an_answer_to_a_worker_that_was_evicted_in_between_is_none() -> None:
    here = Scene(STALE, make_spec(workers=2, words=WORDS), Random(0))
    between, (one, other) = here.subject.switch.between, here.workers
    here.contribute(one)
    here.contribute(other)
    here.contribute(one)
    here.evict(0)
    assert here.subject.switch.let_in(1) == []
    assert {port for port, _ in here.subject.switch.let_in(0)} == {1, 2}
    assert between == []


def test_nothing_from_a_port_of_a_worker_is_taken_for_a_second_pass(open_subject: OpenSubject) -> None:
    """Only the port says which pass it is: a frame that looks like one in between is other traffic."""
    here = Scene(SYNCHRONOUS, make_spec(workers=2, words=WORDS), Random(0))
    for worker in here.workers:
        here.contribute(worker)
    (forged,) = here.subject.switch.between
    subject = open_subject(SYNCHRONOUS)
    program(subject, here.spec)
    assert subject.exchange(1, forged.data) == []
