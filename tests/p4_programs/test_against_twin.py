"""The compiled program and the twin, fed the same history, send the same bytes to the same workers."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from fanin.protocol.wire import Kind, Packet, parse
from fanin.switch.machine.switch_machine import SwitchMachine
from tests.p4_programs.job_histories import History, random_spec
from tests.p4_programs.sides import ProgramSides
from tests.p4_programs.subjects import OpenSubject
from tests.p4_programs.wiring import Place
from tests.support.bench import Bench
from tests.support.builders import job_spec

WORDS = {"v1model-64": 64, "v1model-256": 256}
PACKETS = 150


@pytest.mark.parametrize("configuration", WORDS)
@pytest.mark.parametrize("seed", range(12))
def test_a_random_history_has_the_twins_results(open_subject: OpenSubject, configuration: str, seed: int) -> None:
    random, subject = Random(seed), open_subject(configuration)
    spec = random_spec(random, min(WORDS[configuration], subject.most_words_added))
    assert Kind.RESULT in ProgramSides(subject, spec).play(History(spec, random), PACKETS)


@pytest.mark.parametrize("words", [0, 1, 2, 3, 31, 63, 64, 65, 127, 128, 191, 192, 255, 256])
def test_words_of_every_length_add_and_wrap_around(open_subject: OpenSubject, words: int) -> None:
    spec = job_spec(job=1, generation=5, slots=1, words_per_packet=256)
    sides, random = ProgramSides(open_subject("v1model-256"), spec), Random(words)
    for worker in range(2):
        drawn = np.array([random.choice([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]) for _ in range(words)], np.uint32)
        packet = Packet(kind=Kind.CONTRIBUTION, job=1, generation=5, worker=worker, words=drawn)
        sent = sides.say(packet.to_bytes(), Place(worker))
    assert len(sent) == 2


@pytest.mark.parametrize("codes", [1, 2, 3, 4, 7, 8, 63, 64])
def test_the_larger_of_each_code_wins_whatever_its_top_bit(open_subject: OpenSubject, codes: int) -> None:
    spec = job_spec(job=1, generation=5, workers=3, slots=1, words_per_packet=8 * codes, codes_per_packet=codes)
    sides, random = ProgramSides(open_subject("v1model-256"), spec), Random(codes)
    for worker in range(3):
        drawn = tuple(random.choice([0, 1, 0x7FFF, 0x8000, 0xFFFF, random.getrandbits(16)]) for _ in range(codes))
        packet = Packet(kind=Kind.CONTRIBUTION, job=1, generation=5, worker=worker, codes=drawn)
        sent = sides.say(packet.to_bytes(), Place(worker))
    assert len(sent) == 3


def test_random_histories_reach_every_kind_of_answer_and_every_reason_to_drop() -> None:
    seen: set[object] = set()
    for seed in range(30):
        random = Random(f"reach {seed}")
        spec = random_spec(random, 64)
        machine, history = Bench(SwitchMachine, spec).machine, History(spec, random)
        for data, source in history.packets(PACKETS):
            machine.receive_datagram(data, source.twin_address, 0.0)
            sent = [parse(payload) for payload, _ in machine.datagrams_to_send(0.0)]
            seen |= {packet.kind for packet in sent}
            if {Kind.RESULT, Kind.ANSWER} <= {packet.kind for packet in sent}:
                seen.add("a late contribution that closes a round")
            for packet in sent:
                if packet.kind is Kind.RESULT:
                    history.closed(packet.slot, packet.base)
        seen |= {name for name, count in machine.counters().items() if count}
    reasons = {
        "too_short", "bad_magic", "version", "kind", "length", "unknown_job", "generation", "worker_range", "stranger",
        "slot_range", "ancient", "future", "mismatch", "checksum",
    }  # fmt: skip
    kinds = {Kind.RESULT, Kind.ANSWER, Kind.NOTICE, Kind.ECHO}
    missing = {*kinds, "a late contribution that closes a round", *(f"dropped_{name}" for name in reasons)} - seen
    assert not missing
