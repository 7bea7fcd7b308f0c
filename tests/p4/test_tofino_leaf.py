"""The Tofino program as a leaf, with our controller, packet by packet: what goes up, what comes down, who is believed.

The scenarios of tests/switch/test_leaf.py run beside the twin, as do histories of one leaf; the rest is what only this
program has, since a packet of the parent's passes it twice. What may happen between its passes is in
tests/p4_programs/test_leaf_passes.py.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from fanin.protocol.job import ParentRoute
from fanin.protocol.wire import OFFSET_KIND, SWITCH_WORKER, Flag, Kind, Packet, WireError, parse
from tests.support.bench import MachineType, address, make_spec, words_of
from tests.support.leaf import PARENT, UPLINK, Leaf, LeafHistory
from tests.switch import test_leaf

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from fanin.formats.frames import Frame
from fanin.switch.p4runtime.controller.adoption import adopt
from fanin.switch.p4runtime.controller.job_control import JobControl, Placement
from fanin.switch.p4runtime.controller.leaf_uplink import ParentPort
from fanin.switch.p4runtime.controller.vocabulary import Vocabulary
from tests.p4.conformance import DIFFERENT, paired
from tests.p4.emulated import SWITCH, P4Machine, endpoint_of, port_of
from tests.p4.tofino import LEAF, tofino

BY_KIND = (
    "what has the parent's address but not the job's generation, or another worker's number, is a stranger's: its "
    "kind is refused"
)
NO_ROOT = "it is no root"
NO_CHECKSUMS = "jobs with checksums are refused"
NOT_HERE = {
    **DIFFERENT,
    "test_what_a_parent_says_of_its_former_life_is_for_the_part_that_lingers": BY_KIND,
    "test_what_does_not_come_from_the_parent_of_this_job_is_no_result": BY_KIND,
    "test_a_damaged_hello_to_the_parent_is_no_other_version": NO_CHECKSUMS,
    "test_zeros_have_a_checksum_where_the_job_has_them": NO_CHECKSUMS,
    "test_a_root_adds_up_how_many_contributions_each_branch_holds": NO_ROOT,
}
TAKEN = {
    name: each
    for name, each in vars(test_leaf).items()
    if name.startswith("test_") and "machine_type" in inspect.signature(each).parameters and name not in NOT_HERE
}
globals().update(TAKEN)


@pytest.fixture
def machine_type() -> MachineType:
    """The twin and the program as one machine."""
    return paired("tofino")


@pytest.fixture
def leaf() -> Leaf:
    """The program as a leaf with two workers."""
    return Leaf(lambda memory_bytes: tofino(LEAF, PARENT))


def device(leaf: Leaf) -> P4Machine:
    """The machine of a leaf."""
    assert isinstance(leaf.machine, P4Machine)
    return leaf.machine


def complete(leaf: Leaf, base: int = 0) -> Packet:
    """Let both workers contribute: what goes up."""
    leaf.gives(0, base, (1, 2), codes=(3,))
    ((up, destination),) = leaf.gives(1, base, (10, 20), codes=(9,))
    assert destination == PARENT
    return up


def test_there_are_scenarios_to_take() -> None:
    assert len(TAKEN) >= 4


def a_parent_may_say(data: bytes) -> bool:
    """Whether it is nothing that a parent never says and the program takes in its own way: results of another shape or
    signature than the leaf's contributions have, packets of other kinds (a HELLO); and bare answers, see below."""
    try:
        packet = parse(data)
    except WireError:
        return True
    if packet.flags & (Flag.BARE | Flag.CHECKSUM):
        return False
    if packet.kind not in (Kind.RESULT, Kind.ANSWER):
        return packet.kind in (Kind.WELCOME, Kind.RECEIPT)
    return (len(packet.codes), len(packet.words), packet.signature) == (1, 2, 5) and packet.to_bytes() == data


@pytest.mark.parametrize("seed", range(16))
def test_any_history_of_a_leaf_is_the_twins(seed: int) -> None:
    """Contributions and passes of two workers, results and worse from the parent: the same packets, byte for byte."""
    random = Random(seed)
    leaf = Leaf(paired("tofino"))
    history, ascents = LeafHistory(leaf, random), [(0, 0)]
    for _ in range(300):
        data, source = history.datagram()
        if random.random() < 0.2:
            data, source = of_parent(random, *random.choice(ascents[-3:])), PARENT
        if data[OFFSET_KIND] in (Kind.NOTICE, Kind.BYE) or (source == PARENT and not a_parent_may_say(bytes(data))):
            continue
        sent = [packet for packet, _ in leaf.say(data, source)]
        ascents += [(each.slot, each.base) for each in sent if each.kind is Kind.CONTRIBUTION]
        history.sent(each.to_bytes() for each in sent)
    assert history.rounds > 10


def of_parent(random: Random, slot: int, base: int) -> bytes:
    """A result of the parent's, or an answer."""
    kind, worker = random.choice([(Kind.RESULT, SWITCH_WORKER), (Kind.ANSWER, 3)])
    packet = Packet(
        kind=kind,
        job=UPLINK.job,
        worker=worker,
        generation=UPLINK.generation,
        slot=slot,
        base=base,
        signature=5,
        contributors=8,
        codes=(random.getrandbits(16),),
        words=words_of(random.getrandbits(32), random.getrandbits(32)),
    )
    return packet.to_bytes()


def test_while_a_round_is_complete_a_worker_that_asks_again_has_the_leaf_ask_again(leaf: Leaf) -> None:
    leaf.gives(0, 0, (1, 2), codes=(3,))
    assert leaf.gives(0, 0, (1, 2), codes=(3,)) == [], "the round is not complete: nothing to ask for"
    ((up, _),) = leaf.gives(1, 0, (10, 20), codes=(9,))
    assert (up.words.tolist(), up.codes, up.contributors) == ([11, 22], (9,), 2)
    for worker in (0, 1, 0):
        ((again, destination),) = leaf.gives(worker, 0, (7, 7), codes=(1,))
        assert (again.to_bytes(), destination) == (up.to_bytes(), PARENT), "whatever the repetition holds"
    assert len(leaf.result(0, 100, 200, kind=Kind.ANSWER)) == 2, "the parent's answer closes the round for all"
    for worker in (0, 1):
        ((answer, destination),) = leaf.gives(worker, 0, (1, 2), codes=(3,))
        assert (answer.kind, answer.words.tolist(), destination) == (Kind.ANSWER, [100, 200], address(worker))
        assert (answer.contributors, answer.bitmap, answer.codes) == (8, 0b11, ())


def test_a_result_that_comes_more_than_once_closes_its_round_once(leaf: Leaf) -> None:
    for base in range(5):
        complete(leaf, base)
        for late in range(base + 1):  # those of bases whose entries are another base's by now among them
            assert len(leaf.result(late, 5, 6)) == (2 if late == base else 0)
            assert leaf.result(late, 5, 6, kind=Kind.ANSWER) == []
    assert leaf.counter("rounds") == 5


def test_a_repetition_of_another_collective_does_not_speak_for_the_round(leaf: Leaf) -> None:
    complete(leaf)
    other = replace(leaf.packet(Kind.CONTRIBUTION, 0, signature=6, codes=(3,)), words=words_of(1, 2))
    assert leaf.say(other, address(0)) == []


def test_who_passed_is_answered_with_the_parents_signature_and_words(leaf: Leaf) -> None:
    """All workers of the leaf passed, so that it has none of its own."""
    leaf.passes(0, 0)
    ((up, _),) = leaf.passes(1, 0)
    assert (up.flags, up.signature, len(up.words)) == (Flag.PASS, 0, 0)
    ((again, _),) = leaf.passes(0, 0)
    assert again.to_bytes() == up.to_bytes()
    assert {packet.signature for packet, _ in leaf.result(0, 8, 9)} == {5}
    ((answer, _),) = leaf.passes(1, 0)
    assert (answer.kind, answer.signature, answer.contributors, answer.words.tolist()) == (Kind.ANSWER, 5, 8, [8, 9])


def test_a_round_in_which_all_workers_of_the_tree_passed_has_a_result_without_words(leaf: Leaf) -> None:
    for base in range(3):
        leaf.passes(0, base)
        leaf.passes(1, base)
        down = leaf.parent_says(Kind.RESULT, worker=SWITCH_WORKER, base=base)
        ((answer, _),) = leaf.passes(0, base)
        for packet in (*(each for each, _ in down), answer):
            assert (packet.contributors, packet.signature, len(packet.words), packet.bitmap) == (0, 0, 0, 0b11)
        assert len(down) == 2


def test_an_answer_without_a_result_is_asked_for_in_full_and_closes_nothing(leaf: Leaf) -> None:
    """A parent answers what is shorter than the result, such as a pass, without it (docs/protocol.md)."""
    leaf.passes(0, 0)
    leaf.passes(1, 0)
    ((asking, destination),) = leaf.parent_says(Kind.ANSWER, flags=Flag.BARE, slot=0, base=0, bitmap=0b1111)
    assert destination == PARENT
    wanted = Packet(
        kind=Kind.CONTRIBUTION,
        job=UPLINK.job,
        generation=UPLINK.generation,
        worker=UPLINK.worker,
        codes=(0,),
        words=words_of(*[0] * leaf.spec.words_per_packet),
    )
    assert asking.to_bytes() == wanted.to_bytes()
    assert leaf.counter("rounds") == 0
    assert len(leaf.result(0, 8, 9, kind=Kind.ANSWER)) == 2


def test_a_result_of_a_round_that_is_not_complete_leaves_no_trace(leaf: Leaf) -> None:
    """The parent cannot have it: only somebody with its address says so."""
    forged: dict[str, Any] = {
        "worker": SWITCH_WORKER,
        "signature": 6,
        "contributors": 8,
        "codes": (9,),
        "words": [9] * 8,
    }
    for base in (0, 1, 2, 3):
        assert leaf.parent_says(Kind.RESULT, base=base, **forged) == []
    leaf.gives(0, 0, (1, 2), codes=(3,))
    assert leaf.parent_says(Kind.RESULT, base=0, **forged) == []
    assert leaf.dropped() == {"future": 5}
    ((up, _),) = leaf.gives(1, 0, (10, 20), codes=(2,))
    assert (up.words.tolist(), up.codes, up.contributors, up.signature) == ([11, 22], (3,), 2, 5)
    ((again, _),) = leaf.gives(1, 0, (10, 20), codes=(2,))
    assert again.to_bytes() == up.to_bytes()
    assert len(leaf.result(0, 3, 4)) == 2


@pytest.mark.parametrize(
    "fields",
    [{"generation": 1}, {"worker": 4}, {"job": UPLINK.job + 1}, {"kind": Kind.ECHO}, {"kind": Kind.CONTRIBUTION}],
    ids=str,
)
def test_only_what_the_parent_says_of_this_job_to_this_leaf_is_a_result(leaf: Leaf, fields: dict[str, Any]) -> None:
    complete(leaf)
    right = Packet(
        kind=Kind.RESULT, job=UPLINK.job, worker=3, generation=UPLINK.generation, signature=5, words=words_of(9, 9)
    )
    leaf.say(replace(right, **fields), PARENT)
    leaf.say(right, PARENT + 1)
    leaf.say(right, address(0))
    assert leaf.counter("rounds") == 0
    assert leaf.dropped()["kind"] >= 2
    assert len(leaf.say(right, PARENT)) == 2


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"slot": 2}, "slot_range"),
        ({"slot": 99}, "slot_range"),
        ({"slot": 1 << 31}, "slot_range"),
        ({"words": [1] * 9}, "length"),
        ({"codes": (1, 2)}, "length"),
    ],
)
def test_a_result_that_does_not_fit_the_job_is_refused_with_the_reason(
    leaf: Leaf, fields: dict[str, Any], reason: str
) -> None:
    complete(leaf)
    result: dict[str, Any] = {"worker": SWITCH_WORKER, "signature": 5, "contributors": 8, "words": (3, 4)}
    assert leaf.parent_says(Kind.RESULT, **{**result, **fields}) == []
    assert leaf.dropped() == {reason: 1}
    assert len(leaf.parent_says(Kind.RESULT, **result)) == 2


def test_a_result_is_one_packet_though_it_passes_twice(leaf: Leaf) -> None:
    complete(leaf)
    before = leaf.counter("packets_in")
    leaf.result(0, 3, 4)
    assert leaf.counter("packets_in") == before + 1


def test_after_an_eviction_the_others_ask_again_and_the_round_goes_up_without_it(leaf: Leaf) -> None:
    leaf.gives(0, 0, (1, 2), codes=(3,))
    leaf.machine.evict(1, 1, 0.0)
    leaf.sent()
    ((up, destination),) = leaf.gives(0, 0, (1, 2), codes=(3,))
    assert (up.contributors, up.words.tolist(), destination) == (1, [1, 2], PARENT)
    assert [destination for _, destination in leaf.result(0, 5, 6)] == [address(0)]


def test_slots_of_a_job_that_has_gone_are_as_new_for_the_next_one(leaf: Leaf) -> None:
    """The leaf also forgets which bases the parent has closed: else a complete round would be answered with itself."""
    for base in range(4):
        complete(leaf, base)
        leaf.result(base, 3, 4)
    machine, old = device(leaf), leaf.spec
    machine.remove(old.job)
    leaf.spec = replace(old, generation=old.generation + 1)
    machine.admit_leaf(leaf.spec, UPLINK)
    for worker in range(2):
        leaf.say(leaf.hello(worker), address(worker))
    for base in range(4):
        up = complete(leaf, base)
        ((again, destination),) = leaf.gives(0, base, (1, 2), codes=(3,))
        assert (again.to_bytes(), destination) == (up.to_bytes(), PARENT)
        assert len(leaf.result(base, 5, 6)) == 2


def test_a_job_that_is_no_leafs_runs_beside_one(leaf: Leaf) -> None:
    machine = device(leaf)
    flat = make_spec(job=2)
    machine.admit(flat)
    other = Leaf.__new__(Leaf)
    other.machine, other.spec, other.now = machine, flat, 0.0
    for worker in range(2):
        other.say(other.hello(worker), address(worker, 2))
    complete(leaf)
    for base in range(3):
        packet = other.packet(Kind.CONTRIBUTION, 0, base=base, signature=5, words=(1,))
        assert other.say(packet, address(0, 2)) == []
        packet = other.packet(Kind.CONTRIBUTION, 1, base=base, signature=5, words=(2,))
        assert [each.words.tolist() for each, _ in other.say(packet, address(1, 2))] == [[3], [3]]
        ((answer, _),) = other.say(packet, address(1, 2))
        assert (answer.kind, answer.words.tolist()) == (Kind.ANSWER, [3])
    assert len(leaf.result(0, 3, 4)) == 2


def test_what_the_parent_says_to_hello_and_bye_reaches_the_controller(leaf: Leaf) -> None:
    machine = device(leaf)
    for worker in range(2):
        said = leaf.say(leaf.bye(worker), address(worker))
    assert [(packet.kind, destination) for packet, destination in said if destination == PARENT] == [(Kind.BYE, PARENT)]
    assert machine.next_timer() is not None, "BYE is said until it is confirmed"
    leaf.parent_says(Kind.BYE, words=(1, 2))
    uplink = machine.control.jobs[leaf.spec.job].uplink
    assert uplink is not None
    assert uplink.presence.next_timer() is None


def test_a_notice_of_the_parents_ends_the_branch(leaf: Leaf) -> None:
    told = leaf.parent_says(Kind.NOTICE, worker=SWITCH_WORKER, contributors=17, words=(0b1, 0))
    assert [packet.kind for packet, _ in told] == [Kind.NOTICE] * 2


def entries(machine: P4Machine, words: Vocabulary, table: str) -> list[tuple[dict[str, int], str, dict[str, int]]]:
    """The entries of a table, default action apart: match, action and values."""
    read = machine.link.read([words.all_entries(table)])
    return [words.read_entry(table, each.table_entry) for each in read if not each.table_entry.is_default_action]


def test_a_successor_of_the_controller_ends_the_jobs_of_leaves_and_leaves_no_entry(leaf: Leaf) -> None:
    machine = device(leaf)
    words = Vocabulary(machine.link.p4info())
    successor = JobControl(machine.link, words, Placement((SWITCH,)))
    assert adopt(successor, machine.link, words, liveness_timeout_s=5.0, now=0.0) == []
    for table in ("parents", "uplinks", "descents", "jobs"):
        assert entries(machine, words, table) == []


def test_a_job_that_goes_takes_its_entries_along(leaf: Leaf) -> None:
    machine = device(leaf)
    machine.remove(leaf.spec.job)
    words = Vocabulary(machine.link.p4info())
    for table in ("parents", "uplinks", "descents", "members", "workers"):
        assert entries(machine, words, table) == []


@pytest.mark.parametrize(("port", "again"), [(5, 68), (128 + 5, 128 + 68), (3 * 128, 3 * 128 + 68)])
def test_the_parents_packets_pass_again_in_the_pipe_that_they_come_by(port: int, again: int) -> None:
    """The model does not look at the port: v1model passes packets again without one."""
    machine = tofino(LEAF)
    words = Vocabulary(machine.link.p4info())
    control = JobControl(machine.link, words, Placement((SWITCH,), ParentPort(port)))
    route = ParentRoute(host="10.0.0.9", ports=(4919,), job=77, generation=0xBEEF, worker=3, token=1)
    control.admit(make_spec(), route)
    (job,) = (facts for _, _, facts in entries(machine, words, "jobs"))
    assert (job["leaf"], job["parent_port"]) == (1, port)
    assert [facts["port"] for _, action, facts in entries(machine, words, "descents") if action == "descend"] == [again]


def test_a_result_from_the_parents_address_behind_another_port_is_taken(leaf: Leaf) -> None:
    """The network may lead there by several ways; the address counts, as for workers."""
    complete(leaf)
    result = Packet(
        kind=Kind.RESULT,
        job=UPLINK.job,
        worker=SWITCH_WORKER,
        generation=UPLINK.generation,
        signature=5,
        words=words_of(3, 4),
    )
    frame = Frame(endpoint_of(PARENT), SWITCH, result.to_bytes())
    device(leaf).link.receive(port_of(PARENT) % 7 + 1, frame.to_bytes())
    assert len(leaf.sent()) == 2
