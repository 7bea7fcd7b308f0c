"""One leaf of a tree, packet by packet: what goes up, what comes down, and who is believed."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, cast

import pytest

from fanin.protocol.ecn import Marked
from fanin.protocol.job import MAX_TREE_WORKERS
from fanin.protocol.pace import INITIAL_WINDOW_BYTES
from fanin.protocol.timers import MIN_TIMEOUT_S
from fanin.protocol.wire import RECEIPT_MARKED, SWITCH_WORKER, Flag, Kind, Packet, Reason
from tests.support.bench import MACHINES, NO_FLAGS, Bench, Machine, MachineType, address, make_spec, words_of
from tests.support.leaf import PARENT, UPLINK, Leaf, LeafHistory, LeafMachine


# R-LEAF-1, R-LEAF-3
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


# R-LEAF-2
def test_a_worker_that_asks_again_has_the_leaf_ask_again(machine_type: MachineType) -> None:
    leaf = Leaf(machine_type)
    leaf.gives(0, 0, (1,))
    assert leaf.gives(0, 0, (1,)) == [], "the round is not complete: nothing to ask for"
    ((first, _),) = leaf.gives(1, 0, (2,))
    leaf.now += MIN_TIMEOUT_S
    ((again, destination),) = leaf.gives(0, 0, (1,))
    assert (first.bitmap, again.bitmap) == (1, 2), "every transmission has an order of its own"
    assert (again.to_bytes(), destination) == (replace(first, bitmap=2).to_bytes(), PARENT)
    leaf.result(0, 3, kind=Kind.ANSWER)
    ((answer, destination),) = leaf.gives(1, 0, (2,))
    assert (answer.kind, answer.words.tolist(), destination) == (Kind.ANSWER, [3], address(1))


# R-LEAF-8, R-LEAF-9
def test_what_went_up_less_than_a_round_trip_ago_does_not_go_up_again(machine_type: MachineType) -> None:
    """A leaf has several workers, and each of them asks. Receipts tell them how long the path above the leaf is."""
    leaf = Leaf(machine_type)
    trip_s = 0.125
    for worker in range(2):
        leaf.gives(worker, 0, (1,))
    leaf.now += trip_s
    leaf.result(0, 2)
    for worker in range(2):
        leaf.gives(worker, 1, (1,))
    leaf.now += 0.9 * trip_s
    again = leaf.packet(Kind.CONTRIBUTION, 0, base=1, signature=5, bitmap=7, words=(1,))
    ((receipt, destination),) = leaf.say(again.to_bytes(), address(0))
    assert (receipt.kind, receipt.slot, receipt.base, receipt.contributors) == (Kind.RECEIPT, 7, 125_000, 1)
    assert destination == address(0)
    leaf.now += 0.2 * trip_s
    assert [to for _, to in leaf.say(again.to_bytes(), address(0))] == [PARENT]
    assert leaf.say(again.to_bytes(), address(0))[0][0].kind is Kind.RECEIPT, "it has gone up again just now"


# R-RECEIPT-7
def test_who_completes_a_round_with_a_mark_is_told_of_it_too(machine_type: MachineType) -> None:
    """A worker that always comes last would never hear of marks else: the packet that goes up has no receipt."""
    leaf = Leaf(machine_type)
    leaf.gives(0, 0, (1,))
    last = leaf.packet(Kind.CONTRIBUTION, 1, signature=5, bitmap=1, words=(2,))
    (receipt, destination), (up, parent) = sorted(
        leaf.say(Marked(last.to_bytes()), address(1)), key=lambda each: each[1]
    )
    assert (receipt.kind, receipt.contributors, destination) == (Kind.RECEIPT, RECEIPT_MARKED, address(1))
    assert (up.kind, parent) == (Kind.CONTRIBUTION, PARENT)


# R-LEAF-6
def test_what_the_parent_says_is_lost_goes_up_again_at_once(machine_type: MachineType) -> None:
    """Orders 2 to 4 have come, the first has not: nobody at the leaf needs to find out."""
    leaf = Leaf(machine_type, slots=8)
    ups = [up for slot in range(4) for worker in range(2) for up, to in leaf.gives(worker, 0, (1,), slot=slot)]
    assert [(up.slot, up.bitmap) for up in ups] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    ((again, destination),) = leaf.parent_says(Kind.RECEIPT, slot=4, signature=4, bitmap=0b011)
    assert (again.slot, again.base, again.bitmap, destination) == (0, 0, 5, PARENT)


# R-LEAF-6
def test_a_result_that_was_lost_on_its_way_to_the_leaf_is_asked_for_at_once(machine_type: MachineType) -> None:
    leaf = Leaf(machine_type, slots=8)
    for slot in range(2):
        for worker in range(2):
            leaf.gives(worker, 0, (1,), slot=slot)
    ((again, destination),) = leaf.parent_says(Kind.RECEIPT, slot=2, signature=2, bitmap=0b1, words=(0b01,))
    assert (again.slot, again.base, destination) == (0, 0, PARENT)


# R-LEAF-7
def test_rounds_wait_at_the_leaf_for_room_in_its_window_the_lowest_apart(machine_type: MachineType) -> None:
    """Leaves whose windows were full of different rounds would wait for each other."""
    leaf = Leaf(machine_type, slots=512)
    window = INITIAL_WINDOW_BYTES // leaf.spec.packet_bytes
    complete = range(1, window + 4)
    ups = [up for slot in complete for worker in range(2) for up, _ in leaf.gives(worker, 0, (1,), slot=slot)]
    assert [up.slot for up in ups] == list(complete)[:window]
    lowest = [up for worker in range(2) for up, _ in leaf.gives(worker, 0, (1,), slot=0)]
    assert [up.slot for up in lowest] == [0]
    sent = leaf.parent_says(Kind.RESULT, worker=SWITCH_WORKER, slot=1, signature=5, contributors=8, words=(2,))
    assert [up.slot for up, to in sent if to == PARENT] == [window + 1], "it was one too full, and has grown by one"
    sent = leaf.parent_says(Kind.RESULT, worker=SWITCH_WORKER, slot=2, signature=5, contributors=8, words=(2,))
    assert [up.slot for up, to in sent if to == PARENT] == [window + 2, window + 3]


# R-LEAF-4, R-LEAF-5
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
    leaf.now += old.liveness_timeout_s
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


def test_what_a_parent_says_of_its_former_life_is_for_the_part_that_lingers(machine_type: MachineType) -> None:
    leaf = Leaf(machine_type)
    old, machine = leaf.spec, cast("LeafMachine", leaf.machine)
    new = replace(old, job=old.job + 1, generation=0x5EC0)
    machine.admit_leaf(new, replace(UPLINK, generation=0xFEED))
    for worker in range(2):
        leaf.say(replace(leaf.hello(worker), job=new.job, generation=new.generation), address(worker))
    for spec in (old, new):
        for worker in range(2):
            packet = leaf.packet(Kind.CONTRIBUTION, worker, signature=5, words=(1,))
            sent = leaf.say(replace(packet, job=spec.job, generation=spec.generation), address(worker))
    assert [packet.generation for packet, _ in sent] == [0xFEED]
    fields: dict[str, Any] = {"worker": SWITCH_WORKER, "signature": 5, "contributors": 8}
    assert leaf.parent_says(Kind.RESULT, generation=1, words=(9,), **fields) == []
    assert leaf.dropped() == {"generation": 1}
    of_old = leaf.parent_says(Kind.RESULT, generation=0xBEEF, words=(7,), **fields)
    assert [(packet.job, packet.words.tolist()) for packet, _ in of_old] == [(old.job, [7])] * 2
    machine.remove(old.job)
    assert leaf.parent_says(Kind.RESULT, generation=0xBEEF, words=(7,), **fields) == []
    assert leaf.dropped() == {"generation": 2}
    of_new = leaf.parent_says(Kind.RESULT, generation=0xFEED, words=(8,), **fields)
    assert [(packet.job, packet.words.tolist()) for packet, _ in of_new] == [(new.job, [8])] * 2


# R-LEAF-10
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
        kind=Kind.NOTICE,
        job=77,
        worker=3,
        generation=0xBEEF,
        contributors=Reason.VERSION,
        words=words_of(0, 0),
        flags=Flag.CHECKSUM if checksum else Flag(0),
    )
    told = [packet.contributors for packet, _ in bench.say(notice, PARENT)]
    assert told == ([] if checksum else [Reason.BRANCH_LOST] * 2)
    assert bench.dropped() == ({"version": 1} if checksum else {})


def test_a_round_of_passes_goes_up_as_a_pass(machine_type: MachineType) -> None:
    leaf = Leaf(machine_type)
    leaf.passes(0, 0)
    ((up, _),) = leaf.passes(1, 0)
    assert (up.flags, up.contributors, len(up.words)) == (Flag.PASS, 0, 0)


def asks_with_zeros(leaf: Leaf, *words: int) -> None:
    """A pass is shorter than the result; a parent may answer it with no more bytes than it has, however often."""
    sealed = Flag.CHECKSUM if leaf.spec.checksum else NO_FLAGS
    leaf.passes(0, 0)
    ((up, _),) = leaf.passes(1, 0)
    assert up.flags == Flag.PASS | sealed
    ((asking, destination),) = leaf.parent_says(Kind.ANSWER, flags=Flag.BARE, words=words)
    assert (destination, asking.kind, asking.flags) == (PARENT, Kind.CONTRIBUTION, sealed)
    assert (asking.slot, asking.base) == (0, 0)
    assert (asking.codes, asking.words.tolist()) == ((0,), [0] * leaf.spec.words_per_packet)
    assert len(leaf.parent_says(Kind.ANSWER, worker=SWITCH_WORKER, words=(8, 9))) == 2
    assert leaf.parent_says(Kind.ANSWER, flags=Flag.BARE) == [], "the round is closed"


# R-WORKER-7
@pytest.mark.parametrize("words", [(), (7, 7, 7)], ids=["as it should be", "with words"])
def test_a_round_of_passes_that_is_answered_without_its_result_goes_up_as_zeros(
    machine_type: MachineType, words: tuple[int, ...]
) -> None:
    asks_with_zeros(Leaf(machine_type), *words)


@pytest.mark.parametrize("words", [(), (7, 7, 7)], ids=["as it should be", "with words"])
def test_zeros_have_a_checksum_where_the_job_has_them(machine_type: MachineType, words: tuple[int, ...]) -> None:
    asks_with_zeros(Leaf(machine_type, checksum=True), *words)


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
    assert replace(again, bitmap=1).to_bytes() == up[0].to_bytes(), "another poke sends the same again"
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


def test_a_branch_that_says_more_contributors_than_a_tree_has_is_dropped(machine_type: MachineType) -> None:
    root = Bench(machine_type, replace(make_spec(workers=2), branches=True, total_workers=7))
    for branch, contributors in ((0, MAX_TREE_WORKERS), (1, MAX_TREE_WORKERS + 1), (1, 0xFFFF)):
        given = root.packet(Kind.CONTRIBUTION, branch, signature=5, words=(1,))
        assert root.say(replace(given, contributors=contributors), address(branch)) == []
    assert root.dropped() == {"length": 2}


@pytest.mark.parametrize("seed", range(100))
def test_any_history_of_a_leaf_is_told_alike(seed: int) -> None:
    twin_type, native_type = MACHINES["twin"], MACHINES["native"]
    if native_type is None or twin_type is None:
        pytest.skip("the native extension is not built")
    random = Random(seed)
    twin, native = Leaf(twin_type), Leaf(native_type)
    history = LeafHistory(twin, random)
    now = 0.0
    for _ in range(150):
        now += random.choice([0.0, 0.001, 0.3])
        data, source = history.datagram()
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
        history.sent(each for each, _ in sent[0])
