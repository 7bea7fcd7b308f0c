"""Our controller and the Tofino program (p4/tna/model.p4, which has its tables): jobs come, go, and get slots again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fanin.errors import ConfigurationError, ProgramError
from fanin.numerics.reduction import Element
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import Kind
from tests.support.bench import Bench, address, make_spec
from tests.support.cluster import SWITCH_MACHINES, Cluster, expected, job
from tests.support.leaf import UPLINK
from tests.support.network import Link

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from fanin.switch.p4runtime.controller.adoption import adopt
from fanin.switch.p4runtime.controller.capacity import Capacity
from fanin.switch.p4runtime.controller.job_control import JobControl, Placement
from fanin.switch.p4runtime.controller.vocabulary import Vocabulary
from fanin.switch.p4runtime.opening import BUILD
from fanin.switch.p4runtime.server.p4info import read_p4info
from tests.p4.emulated import SWITCH, P4Machine
from tests.p4.tofino import LEAF, artefacts, tofino

WORDS = 8
STALE, SYNCHRONOUS = "tna-model", "tna-model-synchronous"
PAIRS, SYNCHRONOUS_PAIRS = "tna-model-pairs", "tna-model-pairs-synchronous"
LOSSLESS, HOSTILE = Link(), Link(loss=0.05, duplicate=0.05, reorder=0.2)


def vocabulary(configuration: str) -> Vocabulary:
    return Vocabulary(read_p4info((BUILD / f"{configuration}.p4info.txtpb").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("configuration", "room"),
    [
        ("v1model-64", (63, 4096, 16384, 64, 64, None, True, True, False)),
        ("v1model-256", (63, 4096, 16384, 256, 64, None, True, True, False)),
        (STALE, (63, 4096, 16384, 8, 1, 4, False, False, False)),
        (SYNCHRONOUS, (63, 4096, 8192, 8, 1, 2, False, False, False)),
        (PAIRS, (63, 4096, 16384, 8, 1, 4, False, False, True)),
        (SYNCHRONOUS_PAIRS, (63, 4096, 8192, 8, 1, 2, False, False, True)),
        (LEAF, (63, 4096, 8192, 16, 1, 2, False, True, True)),
        ("tofino-16", (63, 4096, 16384, 16, 1, 4, False, False, False)),
        ("tofino-32-synchronous", (63, 4096, 8192, 32, 1, 2, False, False, False)),
        ("tofino-32", (63, 4096, 16384, 32, 1, 4, False, False, True)),
        ("tofino-40", (63, 4096, 16384, 40, 1, 4, False, False, True)),
        ("tofino-56-synchronous", (63, 4096, 8192, 56, 1, 2, False, False, True)),
        ("tofino-48-synchronous-leaf", (63, 4096, 8192, 48, 1, 2, False, True, True)),
        ("tofino2-48", (63, 4096, 16384, 48, 1, 4, False, False, False)),
    ],
)
def test_what_a_program_has_room_for_is_read_from_its_p4info(configuration: str, room: tuple[Any, ...]) -> None:
    has = Capacity.of(vocabulary(configuration))
    sizes = has.jobs, has.slots, has.entries, has.words_per_packet, has.codes_per_packet, has.depth
    assert room == (*sizes, has.checksums, has.leaf, has.two_passes)
    assert has.pokes != has.cleans
    assert has.root == has.checksums


def test_a_pipe_in_front_of_names_as_tofinos_compiler_writes_them_is_no_matter() -> None:
    info = read_p4info(artefacts(STALE).p4info)
    for kind in (info.tables, info.actions, info.counters, info.registers):
        for each in kind:
            each.preamble.name = f"pipe.{each.preamble.name}"
    assert Capacity.of(Vocabulary(info)) == Capacity.of(vocabulary(STALE))


def test_a_p4info_without_registers_says_what_is_missing() -> None:
    info = read_p4info(artefacts(STALE).p4info)
    del info.registers[:]
    with pytest.raises(ProgramError, match="facts"):
        Capacity.of(Vocabulary(info))


@pytest.mark.parametrize(
    ("configuration", "spec", "reason"),
    [
        (STALE, make_spec(words=WORDS, checksum=True), "checksums"),
        (STALE, make_spec(words=WORDS, data_key=bytes(16)), "no keyed tags"),
        ("v1model-64", make_spec(words=WORDS, data_key=bytes(16)), "no keyed tags"),
        ("v1model-64", make_spec(words=WORDS, accumulators=True), "keeps no accumulators"),
        (STALE, make_spec(words=WORDS, accumulators=True), "keeps no accumulators"),
        (STALE, make_spec(words=2 * WORDS), "words_per_packet = 16"),
        (STALE, make_spec(words=WORDS, staleness=3), "4 entries take 2"),
        (STALE, make_spec(words=WORDS, max_staleness=1), "for good"),
        (SYNCHRONOUS, make_spec(words=WORDS, staleness=1), "2 entries take 0"),
        (STALE, make_spec(words=WORDS, branches=True), "no root of trees"),
        (LEAF, make_spec(words=WORDS, branches=True), "no root of trees"),
        (LEAF, make_spec(words=WORDS, staleness=1), "2 entries take 0"),
    ],
)
def test_a_job_that_is_not_for_the_program_is_refused_with_the_reason(
    configuration: str, spec: JobSpec, reason: str
) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        tofino(configuration).admit(spec)


@pytest.mark.parametrize("configuration", [STALE, SYNCHRONOUS, PAIRS, SYNCHRONOUS_PAIRS])
def test_a_build_without_the_role_is_no_leaf(configuration: str) -> None:
    machine = tofino(configuration)
    with pytest.raises(ConfigurationError, match="no leaf of trees"):
        machine.admit_leaf(make_spec(words=WORDS), UPLINK)
    assert machine.jobs() == []


@pytest.fixture(params=[STALE, SYNCHRONOUS, PAIRS, SYNCHRONOUS_PAIRS, LEAF])
def machine(request: pytest.FixtureRequest) -> P4Machine:
    """A device that runs the program, and our controller."""
    return tofino(request.param)


@pytest.mark.parametrize("link", [LOSSLESS, HOSTILE], ids=["lossless", "hostile"])
def test_job_after_job_in_the_same_slots_adds_up_to_the_bit(
    machine: P4Machine, monkeypatch: pytest.MonkeyPatch, link: Link
) -> None:
    monkeypatch.setitem(SWITCH_MACHINES, "tofino", lambda memory_bytes: machine)
    random = np.random.default_rng(7)
    for generation in range(3):
        spec = job(workers=3, words_per_packet=WORDS, generation=0xA0 + generation)
        cluster = Cluster.joined("twin", spec=spec, switch="tofino", link=link, seed=generation)
        for _ in range(2):
            inputs = [random.normal(size=100).astype(np.float32) for _ in range(3)]
            for result in cluster.all_reduce(inputs, lanes=32):
                assert result.tobytes() == expected(spec, inputs, Element.FLOAT32, 32).tobytes()
        assert machine.control.jobs[spec.job].first_slot == 0
        machine.remove(spec.job)


def test_nobody_is_welcome_before_every_slot_has_come_back_clean(
    machine: P4Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(words=WORDS)
    with monkeypatch.context() as losing:
        losing.setattr(machine.link, "send", lambda packet: None)
        bench = Bench(lambda memory_bytes: machine, spec, registered=False)
        assert bench.say(bench.hello(0), address(0)) == []
    assert machine.members(spec.job)[0] == 0, "and nobody is registered"
    assert bench.say(bench.hello(0), address(0)) == [], "what got lost is sent again"
    assert [packet.kind for packet, _ in bench.say(bench.hello(0), address(0))] == [Kind.WELCOME]


def test_a_job_that_a_successor_finds_running_is_not_cleaned(machine: P4Machine) -> None:
    bench = Bench(lambda memory_bytes: machine, make_spec(words=WORDS))
    assert bench.gives(0, 0) == []
    words = Vocabulary(machine.link.p4info())
    successor = JobControl(machine.link, words, Placement((SWITCH,)))
    assert adopt(successor, machine.link, words, liveness_timeout_s=5.0, now=0.0) == [bench.spec.job]
    found = successor.jobs[bench.spec.job]
    assert (found.spec.slots, found.registered, found.unclean) == (bench.spec.slots, 0b11, set())
    assert [packet.kind for packet, _ in bench.gives(1, 0)] == [Kind.RESULT] * 2
