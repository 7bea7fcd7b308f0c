"""Two levels of switches: the sum of sums is the sum, to the bit; what is lost is sent again; who dies is told."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Protocol, cast

import numpy as np
import pytest

from fanin.errors import ConfigurationError
from fanin.events import Refused, SwitchSilent, WorkersGone
from fanin.job import JobSpec, Uplink
from fanin.reduction import Element
from fanin.wire import SWITCH_WORKER, Flag, Kind, Packet, Reason
from tests.support.cluster import expected
from tests.support.network import Link
from tests.support.tree import LEAF, Tree
from tests.switch.harness import MACHINES, Bench, Machine, MachineType, address, make_spec, words_of

PARENT = 5000
UPLINK = Uplink(parent=PARENT, job=77, generation=0xBEEF, worker=3, token=0x1111_2222_3333_4444)
HOSTILE = Link(loss=0.1, duplicate=0.15, reorder=0.3)
KINDS = [("twin", "twin"), ("native", "native"), ("twin", "native"), ("native", "twin")]


@pytest.fixture(params=KINDS, ids=["-".join(kinds) for kinds in KINDS])
def kinds(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Machines of the root and of the leaves; the workers are of the leaves' kind."""
    if "native" in request.param and MACHINES["native"] is None:
        pytest.skip("the native extension is not built")
    root, leaf = request.param
    return {"root": root, "leaf": leaf, "worker": leaf}


# --- whole trees, in virtual time ---


@pytest.mark.parametrize("link", [None, HOSTILE], ids=["lossless", "hostile"])
@pytest.mark.parametrize("lanes", [32, 8])
def test_a_tree_computes_what_one_switch_computes_to_the_bit(
    kinds: dict[str, Any], lanes: int, link: Link | None
) -> None:
    tree = Tree(**kinds, link=link)
    random = np.random.default_rng(3)
    for _ in range(3):
        inputs = [random.normal(size=137).astype(np.float32) for _ in range(4)]
        results = tree.all_reduce(inputs, lanes=lanes)
        flat = JobSpec(
            job=1, generation=1, workers=4, quorum=4, slots=4, words_per_packet=16, tokens=(0, 1, 2, 3)
        )  # one switch with all of them
        one_switch = expected(flat, inputs, Element.FLOAT32, lanes)
        for result in results:
            assert result.tobytes() == one_switch.tobytes()


def test_a_mean_divides_by_all_contributors(kinds: dict[str, Any]) -> None:
    tree = Tree(**kinds, leaves=3)
    inputs = [np.full(50, float(worker), np.float32) for worker in range(6)]
    assert [result.tolist() for result in tree.all_reduce(inputs, divisor=0.0)] == [[2.5] * 50] * 6


def test_a_leaf_of_one_worker_and_a_tree_of_one_leaf_are_trees(kinds: dict[str, Any]) -> None:
    for leaves, per_leaf in ((3, 1), (1, 3)):
        tree = Tree(**kinds, leaves=leaves, per_leaf=per_leaf)
        results = tree.all_reduce([np.arange(100, dtype=np.int32) * (1 + w) for w in range(3)])
        assert all(result.tolist() == (6 * np.arange(100)).tolist() for result in results)


@pytest.mark.parametrize("busy", [True, False], ids=["in mid collective", "idle"])
def test_when_a_leaf_dies_every_worker_knows_within_ten_seconds(kinds: dict[str, Any], busy: bool) -> None:
    tree = Tree(**kinds)
    tree.cut(LEAF + 1)
    for worker in range(4 if busy else 0):
        tree.submit(worker, np.ones(100, np.float32))
    tree.run_for(8.0)
    assert [tree.news(worker) for worker in (0, 1)] == [[Refused(Reason.BRANCH_LOST)]] * 2
    assert all(isinstance(news, SwitchSilent) for worker in (2, 3) for news in tree.news(worker))
    assert all(worker.failed for worker in tree.workers)


def test_when_the_root_dies_every_worker_knows_within_ten_seconds(kinds: dict[str, Any]) -> None:
    tree = Tree(**kinds)
    tree.cut(0)
    tree.run_for(8.0)
    assert [tree.news(worker) for worker in range(4)] == [[Refused(Reason.BRANCH_LOST)]] * 4


def test_when_a_worker_dies_those_at_other_leaves_that_need_it_know_within_ten_seconds(kinds: dict[str, Any]) -> None:
    tree = Tree(**kinds)
    tree.cut(100)
    for worker in range(4):
        tree.submit(worker, np.ones(100, np.float32))
    tree.run_for(9.0)
    assert tree.news(1) == [WorkersGone(0b1, 0)], "its own leaf's workers know which one"
    assert [tree.news(worker) for worker in (2, 3)] == [[Refused(Reason.BRANCH_LEFT)]] * 2


@pytest.mark.parametrize("link", [None, HOSTILE], ids=["lossless", "hostile"])
def test_a_job_that_ends_as_it_should_leaves_nobody_with_an_error(kinds: dict[str, Any], link: Link | None) -> None:
    tree = Tree(**kinds, link=link)
    tree.all_reduce([np.ones(60, np.float32)] * 4)
    for worker in (0, 1):
        tree.leave(worker)
    tree.run_for(3.0)
    assert not any(tree.workers[worker].failed for worker in (2, 3)), "they may be done as well"
    for worker in (2, 3):
        tree.leave(worker)
    tree.run_for(3.0)
    assert not any(worker.failed for worker in tree.workers)


def test_leaves_whose_workers_call_different_collectives_are_told_so(kinds: dict[str, Any]) -> None:
    tree = Tree(**kinds)
    for worker in range(4):
        tree.submit(worker, np.ones(100, np.float32), signature=1 + worker // 2)
    tree.run_for(2.0)
    told = [tree.news(worker) for worker in range(4)]
    assert [[Refused(Reason.MISMATCH)]] * 2 in (told[:2], told[2:])


# --- one leaf, packet by packet ---


class LeafMachine(Machine, Protocol):
    """A machine that can be a leaf."""

    def admit_leaf(self, spec: JobSpec, uplink: Uplink) -> None: ...


class Leaf(Bench):
    """A leaf with two workers, and its parent's voice."""

    def __init__(self, make: MachineType) -> None:
        self.machine = make(1 << 24)
        self.spec = replace(make_spec(), total_workers=8)
        cast("LeafMachine", self.machine).admit_leaf(self.spec, UPLINK)
        self.now = 0.0
        said = [packet for worker in range(2) for packet in self.say(self.hello(worker), address(worker))]
        hello, destination = said[-1]
        assert (hello.kind, hello.job, hello.worker, hello.generation, destination) == (
            Kind.HELLO,
            77,
            3,
            0xBEEF,
            PARENT,
        )
        assert hello.words[:2].tolist() == [0x1111_2222, 0x3333_4444]
        assert len(hello.to_bytes()) == self.spec.packet_bytes, "the path must carry whole packets"
        self.parent_says(Kind.WELCOME, words=[0] * len(hello.words))

    def parent_says(self, kind: Kind, *, worker: int = 3, generation: int = 0xBEEF, **fields: Any) -> list[Any]:
        words = words_of(*fields.pop("words", ()))
        packet = Packet(kind=kind, job=77, worker=worker, generation=generation, words=words, **fields)
        return self.say(packet, PARENT)

    def result(self, base: int, *words: int, kind: Kind = Kind.RESULT, contributors: int = 8) -> list[Any]:
        return self.parent_says(
            kind, worker=SWITCH_WORKER, base=base, signature=5, contributors=contributors, words=words
        )


def test_a_full_round_goes_up_as_one_contribution_and_comes_down_to_all(machine_type: MachineType) -> None:
    leaf = Leaf(machine_type)
    assert leaf.gives(0, 0, (1, 2), codes=(7,)) == []
    ((up, destination),) = leaf.gives(1, 0, (10, 0xFFFFFFFF), codes=(9,))
    assert destination == PARENT
    assert (up.kind, up.job, up.worker, up.generation, up.slot, up.base) == (Kind.CONTRIBUTION, 77, 3, 0xBEEF, 0, 0)
    assert (up.signature, up.contributors, up.codes, up.words.tolist()) == (5, 2, (9,), [11, 1])
    sent = leaf.result(0, 100, 200)
    assert [destination for _, destination in sent] == [address(0), address(1)]
    down = sent[0][0]
    assert (down.kind, down.job, down.generation) == (Kind.RESULT, leaf.spec.job, leaf.spec.generation)
    assert (down.base, down.bitmap, down.contributors, down.words.tolist()) == (0, 0b11, 8, [100, 200])


def test_a_worker_that_asks_again_has_the_leaf_ask_again(machine_type: MachineType) -> None:
    leaf = Leaf(machine_type)
    leaf.gives(0, 0, (1,))
    assert leaf.gives(0, 0, (1,)) == [], "the round is not complete: nothing to ask for"
    ((first, _),) = leaf.gives(1, 0, (2,))
    ((again, destination),) = leaf.gives(0, 0, (1,))
    assert (again.to_bytes(), destination) == (first.to_bytes(), PARENT)
    leaf.result(0, 3, kind=Kind.ANSWER)
    ((answer, destination),) = leaf.gives(1, 0, (2,))
    assert (answer.kind, answer.words.tolist(), destination) == (Kind.ANSWER, [3], address(1))


def test_results_that_nobody_waits_for_change_nothing(machine_type: MachineType) -> None:
    leaf = Leaf(machine_type)
    assert leaf.result(0, 9) == []
    assert leaf.dropped() == {"future": 1}
    leaf.gives(0, 0, (1,))
    assert leaf.result(0, 9) == [], "the leaf has not contributed yet"
    leaf.gives(1, 0, (2,))
    assert leaf.result(1, 9) == []
    assert len(leaf.result(0, 3)) == 2
    duplicates = leaf.counter("duplicates")
    assert leaf.result(0, 4) == []
    assert leaf.counter("duplicates") == duplicates + 1
    ((answer, _),) = leaf.gives(0, 0, (1,))
    assert answer.words.tolist() == [3]


def test_a_parent_that_was_restarted_may_use_an_index_again_while_the_old_job_lingers(
    machine_type: MachineType,
) -> None:
    """Found by the simulator: the new part took the old one's place, and both were forgotten with the old one."""
    leaf = Leaf(machine_type)
    old, machine = leaf.spec, cast("LeafMachine", leaf.machine)
    again = replace(old, job=old.job + 1, generation=0x5EC0)
    machine.admit_leaf(again, replace(UPLINK, generation=0xFEED))
    leaf.now += 10.0
    leaf.machine.handle_timer(leaf.now)
    ups = {packet.generation: packet.kind for packet, destination in leaf.sent() if destination == PARENT}
    assert ups == {0xBEEF: Kind.BYE}, "the old part says what it has to say, though its index has another user"
    for worker in range(2):
        hello = replace(leaf.hello(worker), job=again.job, generation=again.generation)
        said = leaf.say(hello, address(worker))
    assert said[-1][0].generation == 0xFEED
    leaf.machine.remove(old.job)
    leaf.parent_says(Kind.WELCOME, generation=0xFEED, words=[0] * len(said[-1][0].words))
    for worker in range(2):
        packet = leaf.packet(Kind.CONTRIBUTION, worker, signature=5, words=(1,))
        sent = leaf.say(replace(packet, job=again.job, generation=again.generation), address(worker))
    assert [packet.generation for packet, _ in sent] == [0xFEED]
    down = leaf.parent_says(
        Kind.RESULT, worker=SWITCH_WORKER, generation=0xFEED, signature=5, contributors=8, words=(2,)
    )
    assert [(packet.job, packet.words.tolist()) for packet, _ in down] == [(again.job, [2])] * 2


@pytest.mark.parametrize("checksum", [True, False])
def test_a_damaged_hello_to_the_parent_is_no_other_version(machine_type: MachineType, checksum: bool) -> None:
    """Found by the simulator: a flipped bit in the version lost the whole branch."""
    machine = cast("LeafMachine", machine_type(1 << 24))
    spec = replace(make_spec(), total_workers=8, checksum=checksum)
    bench = Bench.__new__(Bench)
    bench.machine, bench.spec, bench.now = cast("Machine", machine), spec, 0.0
    machine.admit_leaf(spec, UPLINK)
    for worker in range(2):
        bench.say(bench.hello(worker), address(worker))
    notice = Packet(
        kind=Kind.NOTICE, job=77, worker=3, generation=0xBEEF, contributors=Reason.VERSION, words=words_of(0, 0),
        flags=Flag.CHECKSUM if checksum else Flag(0),
    )  # fmt: skip
    told = [packet.contributors for packet, _ in bench.say(notice, PARENT)]
    assert told == ([] if checksum else [Reason.BRANCH_LOST] * 2)
    assert bench.dropped() == ({"version": 1} if checksum else {})


def test_a_round_of_passes_goes_up_as_a_pass(machine_type: MachineType) -> None:
    leaf = Leaf(machine_type)
    leaf.passes(0, 0)
    ((up, _),) = leaf.passes(1, 0)
    assert (up.flags, up.contributors, len(up.words)) == (Flag.PASS, 0, 0)


def test_what_does_not_come_from_the_parent_of_this_job_is_no_result(machine_type: MachineType) -> None:
    leaf = Leaf(machine_type)
    leaf.gives(0, 0, (1,))
    leaf.gives(1, 0, (2,))
    fields: dict[str, Any] = {"base": 0, "signature": 5, "contributors": 8, "words": (3,)}
    assert leaf.parent_says(Kind.RESULT, generation=1, **fields) == []
    assert leaf.parent_says(Kind.RESULT, worker=4, **fields) == []
    assert leaf.parent_says(Kind.RESULT, slot=99, **fields) == []
    assert leaf.parent_says(Kind.RESULT, **{**fields, "words": range(9)}) == []
    assert leaf.parent_says(Kind.CONTRIBUTION, **fields) == []
    packet = Packet(kind=Kind.RESULT, job=77, worker=3, generation=0xBEEF, words=words_of(3))
    assert leaf.say(packet, address(0)) == []
    assert leaf.dropped() == {"generation": 1, "worker_range": 1, "slot_range": 1, "length": 1, "kind": 2}


def test_an_evicted_workers_round_goes_up_without_it_and_only_once(machine_type: MachineType) -> None:
    leaf = Leaf(machine_type)
    leaf.gives(0, 0, (1,))
    leaf.machine.evict(1, 1, 0.0)
    up = [packet for packet, destination in leaf.sent() if destination == PARENT]
    assert [(packet.contributors, packet.words.tolist()) for packet in up] == [(1, [1])]
    leaf.machine.set_quorum(1, 1, 0.0)
    (again,) = [packet for packet, _ in leaf.sent()]
    assert again.to_bytes() == up[0].to_bytes(), "another poke sends the same again"
    assert [destination for _, destination in leaf.result(0, 5)] == [address(0)]


def test_a_root_adds_up_how_many_contributions_each_branch_holds(machine_type: MachineType) -> None:
    root = Bench(machine_type, replace(make_spec(workers=2), branches=True, total_workers=7))
    for branch, contributors in ((0, 3), (1, 4)):
        packet = replace(
            root.packet(Kind.CONTRIBUTION, branch, signature=5, words=(branch + 1,)), contributors=contributors
        )
        sent = root.say(packet, address(branch))
    assert [(packet.contributors, packet.words.tolist()) for packet, _ in sent] == [(7, [3])] * 2
    flat = Bench(machine_type)
    for worker in range(2):
        packet = replace(flat.packet(Kind.CONTRIBUTION, worker, signature=5, words=(1,)), contributors=9)
        sent = flat.say(packet, address(worker))
    assert sent[0][0].contributors == 2, "a worker is one contributor, whatever it says"


def test_lanes_are_sized_for_all_workers_of_the_tree_and_trees_are_synchronous() -> None:
    assert replace(make_spec(workers=2), total_workers=100).contributions == 100
    with pytest.raises(ConfigurationError, match="synchronous"):
        replace(make_spec(workers=2, quorum=1), total_workers=4)
    with pytest.raises(ConfigurationError, match="total_workers"):
        replace(make_spec(workers=3), total_workers=2)


# --- twin and native alike ---


def parent_packet(random: Random, base: int) -> bytes:
    """What a parent, or somebody with its address, may send."""
    kind = random.choice([Kind.RESULT] * 6 + [Kind.ANSWER] * 2 + [Kind.WELCOME, Kind.NOTICE, Kind.BYE, Kind.HELLO])
    news = kind is Kind.NOTICE
    count = random.choice([2, 2, 2, 0, 8, 9])
    packet = Packet(
        kind=kind,
        job=77,
        worker=random.choice([3, SWITCH_WORKER, SWITCH_WORKER, 4]),
        generation=random.choice([0xBEEF] * 9 + [1]),
        flags=random.choice([Flag(0)] * 8 + [Flag.BARE, Flag.CHECKSUM]),
        slot=random.choice([0, 0, 1, 7]),
        base=max(0, base - random.choice([0, 0, 0, 1, -1])),
        signature=5,
        contributors=random.choice([*Reason, 0, 999]) if news else 8,
        codes=(9,) * random.choice([0, 1, 1, 2]),
        words=words_of(*(random.choice([0, 0, 1]) if news else random.getrandbits(32) for _ in range(count))),
    )
    data = bytearray(packet.to_bytes())
    if random.random() < 0.1:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


@pytest.mark.parametrize("seed", range(100))
def test_any_history_of_a_leaf_is_told_alike(seed: int) -> None:
    twin_type, native_type = MACHINES["twin"], MACHINES["native"]
    if native_type is None or twin_type is None:
        pytest.skip("the native extension is not built")
    random = Random(seed)
    twin, native = Leaf(twin_type), Leaf(native_type)
    closed = [0, 0]
    now = 0.0
    for _ in range(150):
        now += random.choice([0.0, 0.001, 0.3])
        slot = random.randrange(2)
        what = random.random()
        if what < 0.55:
            base = max(0, closed[slot] - random.choice([0, 0, 0, 0, 1]))
            flags = random.choice([Flag(0)] * 5 + [Flag.PASS])
            words = () if flags else (random.getrandbits(32), 1)
            worker = random.randrange(2)
            fields: dict[str, Any] = {"flags": flags, "slot": slot, "base": base, "signature": 5, "words": words}
            packet = twin.packet(Kind.CONTRIBUTION, worker, codes=(3,) * len(words[:1]), **fields)
            data, source = packet.to_bytes(), address(worker)
        elif what < 0.95:
            data, source = parent_packet(random, closed[slot]), PARENT
        else:
            data = random.choice([twin.hello, twin.bye])(random.randrange(2)).to_bytes()
            source = random.choice([address(0), address(1)])
        sent = []
        for leaf in (twin, native):
            leaf.machine.receive_datagram(data, source, now)
            timer = leaf.machine.next_timer()
            if timer is not None and timer <= now:
                leaf.machine.handle_timer(now)
            sent.append(leaf.machine.datagrams_to_send(now))
        assert sent[0] == sent[1], f"seed {seed}"
        assert twin.machine.next_timer() == native.machine.next_timer()
        assert twin.machine.counters() == native.machine.counters()
        assert twin.machine.next_event() == native.machine.next_event()
        for each, _ in sent[0]:
            if each[3] == Kind.RESULT:
                closed[int.from_bytes(each[12:16], "big")] = int.from_bytes(each[16:20], "big") + 1
