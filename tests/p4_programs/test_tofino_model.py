"""The controls of the Tofino program, run for v1model (p4/tna/model.p4), beside the twin.

No Tofino and no model of one was at hand; what is executed here is the same source, with a register read, changed and
written where a stateful ALU would do all three. The workers of these histories keep the host rules (bases in order,
none left out), as the Tofino program relies on them where p4/README.md says so; strangers and the network do what they
like.
"""

from __future__ import annotations

import dataclasses
from random import Random

import pytest

from fanin.protocol.job import JobSpec
from fanin.protocol.wire import Flag, Kind, Packet, Reason, parse
from fanin.switch.machine.switch_machine import SwitchMachine
from tests.p4_programs.model_histories import Lawful, ModelSides
from tests.p4_programs.subjects import CPU_PORT, REASONS, OpenSubject, Subject, write_job
from tests.p4_programs.wiring import Place, frame_to_switch
from tests.support.bench import Bench, make_spec, words_of

RING = {
    "tna-model": 4,
    "tna-model-pairs": 4,
    "tna-model-synchronous": 2,
    "tna-model-pairs-synchronous": 2,
    "tna-model-pairs-synchronous-leaf": 2,
}
"""Entries of each ring, by configuration; in those with pairs, packets with a round's words pass twice. No job here has
a parent: test_leaf_passes.py."""
STALE = tuple(name for name, entries in RING.items() if entries == 4)
SYNCHRONOUS = tuple(name for name in RING if name not in STALE)
WORDS = 8
PACKETS = 200
CONTROLLER = Place(30)


def spec_for(random: Random, configuration: str) -> JobSpec:
    """A job that the configuration takes."""
    workers = random.choice([1, 2, 3, 4])
    staleness = random.choice([0, 1, 2]) if configuration in STALE else 0
    return make_spec(
        workers=workers, quorum=random.randint(1, workers), staleness=staleness, slots=random.randint(1, 3), words=WORDS
    )


def contribution(spec: JobSpec, worker: int, *values: int, slot: int = 0, base: int = 0, signature: int = 0) -> bytes:
    packet = Packet(
        kind=Kind.CONTRIBUTION,
        job=spec.job,
        generation=spec.generation,
        worker=worker,
        slot=slot,
        base=base,
        signature=signature,
        words=words_of(*values),
    )
    return packet.to_bytes()


def clean(subject: Subject, spec: JobSpec, slot: int, entry: int) -> list[tuple[int, bytes]]:
    """The packets after the controller has cleaned one ring entry of a slot."""
    return subject.command("clean", frame_to_switch(CONTROLLER, contribution(spec, 0, slot=slot, base=entry)))


def used_up(subject: Subject, configuration: str, random: Random) -> tuple[ModelSides, JobSpec]:
    """A job that has left something in every register of its slots; the facts of the next one in its place."""
    old = make_spec(workers=2, staleness=RING[configuration] - 2, slots=2, words=WORDS)
    sides = ModelSides(subject, old)
    sides.play(Lawful(old, random), PACKETS)
    new = dataclasses.replace(old, generation=old.generation + 1)
    sides.twin = Bench(SwitchMachine, new).machine
    write_job(subject, new)
    return sides, new


@pytest.mark.parametrize("configuration", RING)
@pytest.mark.parametrize("seed", range(16))
def test_a_random_history_has_the_twins_results(open_subject: OpenSubject, configuration: str, seed: int) -> None:
    random = Random(f"tofino {seed}")
    spec = spec_for(random, configuration)
    sides = ModelSides(open_subject(configuration), spec)
    assert Kind.RESULT in sides.play(Lawful(spec, random), PACKETS)


@pytest.mark.parametrize("configuration", RING)
def test_a_result_that_leaves_in_the_place_of_a_pass_has_its_rounds_words(
    open_subject: OpenSubject, configuration: str
) -> None:
    spec = make_spec(workers=2, words=WORDS)
    sides = ModelSides(open_subject(configuration), spec)
    passes = Packet(
        kind=Kind.CONTRIBUTION, job=spec.job, generation=spec.generation, worker=1, flags=Flag.PASS
    ).to_bytes()
    for words in range(1, WORDS + 1):
        base = words - 1
        assert not sides.say(contribution(spec, 0, *range(words), base=base, signature=9), Place(0))
        sent = sides.say(_at(passes, base), Place(1))
        assert [len(parse(payload).words) for payload in sent[Place(0).twin_address]] == [words]


@pytest.mark.parametrize("configuration", RING)
def test_a_round_that_a_pass_opens_has_nothing_of_the_one_before_in_its_entry(
    open_subject: OpenSubject, configuration: str
) -> None:
    spec = make_spec(workers=2, words=WORDS)
    sides = ModelSides(open_subject(configuration), spec)
    passes = [
        Packet(kind=Kind.CONTRIBUTION, job=spec.job, generation=spec.generation, worker=worker, flags=Flag.PASS)
        for worker in range(2)
    ]
    for base in range(2 * RING[configuration]):
        passing, giving = (base % 2, 1 - base % 2)
        assert not sides.say(_at(passes[passing].to_bytes(), base), Place(passing))
        values = range(100 * base, 100 * base + WORDS)
        sent = sides.say(contribution(spec, giving, *values, base=base, signature=9), Place(giving))
        assert list(parse(sent[Place(0).twin_address][0]).words) == list(values)


@pytest.mark.parametrize("configuration", RING)
def test_after_an_eviction_whoever_asks_again_gets_the_result(open_subject: OpenSubject, configuration: str) -> None:
    spec = make_spec(workers=3, words=WORDS)
    subject = open_subject(configuration)
    sides = ModelSides(subject, spec)
    for worker in (0, 1):
        assert not sides.say(contribution(spec, worker, 5 + worker), Place(worker))
    sides.twin.evict(spec.job, 2, 0.0)
    write_job(subject, spec, live=0b011)
    results = [parse(payload) for payload, _ in sides.twin.datagrams_to_send(0.0) if payload[3] == Kind.RESULT]
    got = sides.exchange(contribution(spec, 0, 5), Place(0))
    answer = parse(got[Place(0).twin_address][0])
    assert list(answer.words) == list(results[0].words) == [11]
    assert answer.contributors == results[0].contributors == 2
    assert set(got) >= ({Place(0).twin_address, Place(1).twin_address} if configuration in STALE else set())
    sides.say(contribution(spec, 2, 9), Place(2))


@pytest.mark.parametrize("configuration", SYNCHRONOUS)
def test_a_synchronous_mismatch_leaves_no_trace(open_subject: OpenSubject, configuration: str) -> None:
    spec = make_spec(workers=2, words=WORDS)
    sides = ModelSides(open_subject(configuration), spec)
    sides.say(contribution(spec, 0, 1, signature=3), Place(0))
    for wrong in (contribution(spec, 1, 1, signature=4), contribution(spec, 1, 1, 2, signature=3)):
        (refused,) = sides.say(wrong, Place(1))[Place(1).twin_address]
        assert parse(refused).contributors == Reason.MISMATCH
    assert sides.say(contribution(spec, 1, 1, signature=3), Place(1))


@pytest.mark.parametrize("configuration", STALE)
def test_a_stale_mismatch_counts_as_a_pass_and_its_sender_is_told(
    open_subject: OpenSubject, configuration: str
) -> None:
    spec = make_spec(workers=2, staleness=1, words=WORDS)
    sides = ModelSides(open_subject(configuration), spec)
    sides.say(contribution(spec, 0, 1, signature=3), Place(0))
    ((refused,),) = sides.exchange(contribution(spec, 1, 1, signature=4), Place(1)).values()
    assert parse(refused).contributors == Reason.MISMATCH
    ((payload,),) = sides.exchange(contribution(spec, 0, 1, signature=3), Place(0)).values()
    answer = parse(payload)
    assert (answer.kind, answer.contributors, list(answer.words)) == (Kind.ANSWER, 1, [1])


@pytest.mark.parametrize("configuration", RING)
def test_the_first_base_of_a_job_is_ancient_in_slots_that_were_not_cleaned(
    open_subject: OpenSubject, configuration: str
) -> None:
    subject = open_subject(configuration)
    _, new = used_up(subject, configuration, Random(1))
    before = subject.counter("FaninIngress.tally.drops", REASONS + Reason.ANCIENT)
    for worker in range(2):
        assert not subject.exchange(Place(worker).port, frame_to_switch(Place(worker), contribution(new, worker, 1)))
    assert subject.counter("FaninIngress.tally.drops", REASONS + Reason.ANCIENT) == before + 2


@pytest.mark.parametrize("configuration", RING)
@pytest.mark.parametrize("seed", range(4))
def test_slots_that_were_cleaned_are_as_new(open_subject: OpenSubject, configuration: str, seed: int) -> None:
    random, subject = Random(f"clean {seed}"), open_subject(configuration)
    sides, new = used_up(subject, configuration, random)
    for slot in range(new.slots):
        for entry in range(RING[configuration]):
            ((port, back),) = clean(subject, new, slot, entry)
            frame = frame_to_switch(CONTROLLER, contribution(new, 0, slot=slot, base=entry))
            assert (port, back) == (CPU_PORT, (CPU_PORT << 7).to_bytes(2, "big") + frame), "the controller is told"
    assert Kind.RESULT in sides.play(Lawful(new, random), PACKETS)


@pytest.mark.parametrize("configuration", RING)
def test_cleaning_touches_no_other_slot_and_none_of_another_generation(
    open_subject: OpenSubject, configuration: str
) -> None:
    spec, subject = make_spec(workers=2, slots=3, words=WORDS), open_subject(configuration)
    sides = ModelSides(subject, spec)
    for slot in (0, 1, 2):
        sides.say(contribution(spec, 0, 5, slot=slot), Place(0))
    stranger = dataclasses.replace(spec, generation=spec.generation + 1)
    for entry in range(RING[configuration]):
        clean(subject, spec, 1, entry)
        clean(subject, spec, 3, entry)
        clean(subject, stranger, 0, entry)
    for slot in (0, 2):
        assert sides.say(contribution(spec, 1, 6, slot=slot), Place(1))
    frame = frame_to_switch(Place(1), contribution(spec, 1, 6, slot=1))
    assert not subject.exchange(Place(1).port, frame), "what worker 0 gave is forgotten"


def _at(payload: bytes, base: int) -> bytes:
    """The same packet for another base."""
    return payload[:16] + base.to_bytes(4, "big") + payload[20:]


@pytest.mark.parametrize("configuration", RING)
def test_every_packet_of_a_worker_is_counted_once(open_subject: OpenSubject, configuration: str) -> None:
    spec, subject = make_spec(workers=2, words=WORDS), open_subject(configuration)
    sides = ModelSides(subject, spec)
    for worker in (0, 1, 0):
        sides.say(contribution(spec, worker, 1, signature=3), Place(worker))
    names = ("packets", "contributions", "duplicates", "rounds", "answers")
    assert [subject.counter(f"FaninIngress.tally.{name}", 1) for name in names] == [3, 2, 1, 1, 1]
