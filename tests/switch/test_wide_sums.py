"""Rounds with an accumulator for each lane: what closes them, what is answered, what is refused, and trees of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fanin.emulation.simulator.oracle import summed
from fanin.host.codecs.words import codec_for
from fanin.numerics.lanes import pack, unpack
from fanin.numerics.reduction import WIDE_SUMS, Element, lanes_number
from fanin.numerics.wide_sums import accumulated, largest, narrowed
from fanin.protocol.wire import Flag, Kind, LaneField, Packet, Reason
from tests.support.bench import Bench, MachineType, address, facts, make_spec, reasons
from tests.support.builders import job_spec
from tests.support.cluster import Cluster, expected
from tests.support.network import Link
from tests.support.tree import Tree

WIDTHS = tuple(WIDE_SUMS.values())
HOSTILE = Link(loss=0.1, duplicate=0.15, reorder=0.3)
EIGHT = LaneField(8, 8)


def words_of(steps: list[int], bits: int = 8) -> list[int]:
    words: list[int] = pack(np.array(steps, np.int32), bits, largest(bits)).tolist()
    return words


def steps_of(packet: Packet) -> list[int]:
    assert packet.lanes is not None
    lanes = 32 // packet.lanes.up * len(packet.words)
    steps = unpack(packet.words, packet.lanes.up, lanes, largest(packet.lanes.up), 1) << packet.lanes.shift
    values: list[int] = steps.tolist()
    return values


def wide_bench(machine_type: MachineType, **given: Any) -> Bench:
    return Bench(machine_type, make_spec(accumulators=True, **given))


def result_of(sent: list[tuple[Packet, int]]) -> Packet:
    assert {packet.kind for packet, _ in sent} == {Kind.RESULT}
    return sent[0][0]


def test_lanes_are_added_one_by_one_and_small_sums_keep_every_bit(machine_type: MachineType) -> None:
    bench = wide_bench(machine_type)
    bench.gives(0, 0, words_of([1, -2, 60, -60]), lanes=EIGHT)
    result = result_of(bench.gives(1, 0, words_of([1, -3, 60, 60]), lanes=EIGHT))
    assert (result.lanes, steps_of(result)) == (EIGHT, [2, -5, 120, 0])


# R-SLOT-17
def test_a_sum_that_does_not_fit_comes_back_with_the_least_shift(machine_type: MachineType) -> None:
    bench = wide_bench(machine_type)
    bench.gives(0, 0, words_of([127, -127, 1, 0]), lanes=EIGHT)
    result = result_of(bench.gives(1, 0, words_of([127, -127, 0, 3]), lanes=EIGHT))
    assert (result.lanes, steps_of(result)) == (LaneField(8, 8, 1), [254, -254, 0, 4])


def test_a_result_has_the_lanes_of_the_way_down(machine_type: MachineType) -> None:
    bench = wide_bench(machine_type)
    bench.gives(0, 0, words_of([7, -7, 1, 2, 3, 4, 5, 6], 4), lanes=LaneField(4, 8))
    result = result_of(bench.gives(1, 0, words_of([7, -7, 1, 2, 3, 4, 5, 6], 4), lanes=LaneField(4, 8)))
    assert (result.lanes, steps_of(result)) == (EIGHT, [14, -14, 2, 4, 6, 8, 10, 12])


def test_a_pass_adds_nothing_and_may_close_a_wide_round(machine_type: MachineType) -> None:
    bench = wide_bench(machine_type)
    bench.gives(0, 0, words_of([5, 6, 7, 8]), lanes=EIGHT)
    result = result_of(bench.passes(1, 0))
    assert (result.contributors, steps_of(result)) == (1, [5, 6, 7, 8])


# R-SLOT-17
def test_an_answer_is_the_result_to_the_bit_while_the_next_round_accumulates(machine_type: MachineType) -> None:
    bench = wide_bench(machine_type)
    bench.gives(0, 0, words_of([127] * 4), lanes=EIGHT)
    result = result_of(bench.gives(1, 0, words_of([126] * 4), lanes=EIGHT))
    bench.gives(0, 1, words_of([9] * 4), lanes=EIGHT)
    ((answer, _),) = bench.gives(1, 0, words_of([126] * 4), lanes=EIGHT)
    assert (answer.words.tolist(), answer.lanes) == (result.words.tolist(), result.lanes)
    assert steps_of(result_of(bench.gives(1, 1, words_of([1] * 4), lanes=EIGHT))) == [10] * 4


def test_a_longer_result_is_told_to_who_asks_at_its_length(machine_type: MachineType) -> None:
    bench = wide_bench(machine_type)
    short = words_of([1] * 8, 4)
    bench.gives(0, 0, short, lanes=LaneField(4, 8))
    bench.gives(1, 0, short, lanes=LaneField(4, 8))
    ((bare, _),) = bench.gives(0, 0, short, lanes=LaneField(4, 8))
    assert (bare.flags, bare.lanes, len(bare.words)) == (Flag.BARE, None, 0)
    ((answer, _),) = bench.gives(0, 0, [0, 0])
    assert steps_of(answer) == [2] * 8


def test_a_late_contribution_joins_the_open_round_and_leaves_the_closed_one_as_it_is(machine_type: MachineType) -> None:
    bench = wide_bench(machine_type, quorum=1, staleness=1)
    first = result_of(bench.gives(0, 0, words_of([100] * 4), lanes=EIGHT))
    sent = bench.gives(1, 0, words_of([100] * 4), lanes=EIGHT)
    closed, answer = next(packet for packet, _ in sent if packet.kind is Kind.RESULT), sent[-1][0]
    assert (closed.base, steps_of(closed)) == (1, [100] * 4)
    assert (answer.kind, answer.words.tolist()) == (Kind.ANSWER, first.words.tolist())


def test_rounds_of_words_and_of_lanes_take_turns_in_a_slot(machine_type: MachineType) -> None:
    bench = wide_bench(machine_type)
    for base, lanes in enumerate([EIGHT, None, LaneField(4, 4), None, EIGHT]):
        words = [0x01020304] if lanes is None else words_of([3] * (32 // lanes.up), lanes.up)
        bench.gives(0, base, words, lanes=lanes)
        result = result_of(bench.gives(1, base, words, lanes=lanes))
        assert result.lanes == (lanes and lanes.result)
        assert result.words.tolist() == ([0x02040608] if lanes is None else words_of([6] * (32 // lanes.up), lanes.up))


@pytest.mark.parametrize("other", [None, LaneField(4, 8), LaneField(4, 4)])
def test_ranks_with_unlike_widths_are_told(machine_type: MachineType, other: LaneField | None) -> None:
    bench = wide_bench(machine_type)
    bench.gives(0, 0, words_of([1] * 4), lanes=EIGHT)
    assert reasons(bench.gives(1, 0, words_of([1] * 4), lanes=other)) == [(Reason.MISMATCH, address(1))]


@pytest.mark.parametrize(
    ("lanes", "words"),
    [(LaneField(8, 8, 1), 4), (LaneField(2, 8), 3), (LaneField(4, 8), 8)],
    ids=["a shift from no branch", "a result longer than a packet", "the same with 4 bits up"],
)
def test_what_cannot_be_summed_is_dropped(machine_type: MachineType, lanes: LaneField, words: int) -> None:
    bench = wide_bench(machine_type)
    assert bench.gives(0, 0, [0] * words, lanes=lanes) == []
    assert bench.dropped() == {"length": 1}


def test_a_job_without_accumulators_takes_no_lanes(machine_type: MachineType) -> None:
    bench = Bench(machine_type)
    assert bench.gives(0, 0, words_of([1] * 4), lanes=EIGHT) == []
    assert bench.dropped() == {"length": 1}


def test_a_branch_says_what_its_lanes_stand_for(machine_type: MachineType) -> None:
    bench = wide_bench(machine_type, branches=True)
    bench.gives(0, 0, words_of([1, 2, 3, 127]), lanes=LaneField(8, 8, 2))
    result = result_of(bench.gives(1, 0, words_of([1, 1, 1, 1]), lanes=EIGHT))
    assert (result.lanes, steps_of(result)) == (LaneField(8, 8, 2), [4, 8, 12, 508])


def test_wide_jobs_hold_memory_for_their_accumulators(machine_type: MachineType) -> None:
    packed, wide = make_spec(slots=64), make_spec(slots=64, accumulators=True)
    assert wide.pool_bytes == packed.pool_bytes + 64 * 8 * 8 * 2
    machine_type(wide.pool_bytes).admit(wide)
    with pytest.raises(Exception, match=rf"needs {wide.pool_bytes} bytes"):
        machine_type(wide.pool_bytes - 1).admit(wide)


def test_accumulators_are_wider_where_so_many_lanes_might_not_fit() -> None:
    assert job_spec(accumulators=True, workers=32).accumulator_bytes == 2
    assert job_spec(accumulators=True, workers=32, staleness=7, quorum=32).accumulator_bytes == 4
    assert job_spec(accumulators=True, workers=4, total_workers=1024).accumulator_bytes == 4


@pytest.mark.parametrize("switch", ["twin", "native"])
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_workers_of_both_engines_get_what_arithmetic_says_through_links_that_lose(
    switch: str, widths: tuple[int, int]
) -> None:
    spec = job_spec(workers=5, words_per_packet=32, codes_per_packet=2, accumulators=True)
    random = np.random.default_rng(5)
    number = lanes_number(f"{widths[0]}/{widths[1]}")
    for link in (None, HOSTILE):
        cluster = Cluster.joined("lockstep", spec=spec, switch=switch, link=link)
        for count in (0, 1, 1000):
            inputs = [random.standard_normal(count).astype(np.float32) for _ in range(5)]
            wanted = expected(spec, inputs, Element.FLOAT32, number, divisor=5.0)
            for result in cluster.all_reduce(inputs, lanes=number, divisor=5.0):
                assert result.tobytes() == wanted.tobytes()


def test_nan_and_infinity_reach_every_worker() -> None:
    spec = job_spec(workers=3, accumulators=True)
    inputs = [np.ones(70, np.float32) for _ in range(3)]
    inputs[1][3], inputs[2][69] = np.nan, np.inf
    for result in Cluster.joined("lockstep", spec=spec).all_reduce(inputs, lanes=lanes_number("4/8")):
        assert np.isnan(result).all()


KINDS = [("twin", "twin"), ("native", "native"), ("twin", "native"), ("native", "twin")]


@pytest.mark.parametrize("kinds", KINDS, ids=["-".join(each) for each in KINDS])
@pytest.mark.parametrize("link", [None, HOSTILE], ids=["lossless", "hostile"])
def test_a_tree_narrows_at_each_leaf_and_again_at_its_root(kinds: tuple[str, str], link: Link | None) -> None:
    root, leaf = kinds
    random = np.random.default_rng(7)
    inputs = [random.standard_normal(64).astype(np.float32) for _ in range(6)]
    spec = job_spec(workers=6, accumulators=True)
    for text in ("8/8", "4/4"):
        tree = Tree(root=root, leaf=leaf, worker=leaf, per_leaf=3, link=link, accumulators=True)
        for result in tree.all_reduce(inputs, lanes=lanes_number(text)):
            assert result.tobytes() == by_leaves(spec, inputs, lanes_number(text), 3).tobytes()


def test_a_tree_whose_leaves_lose_no_bit_is_one_switch_to_the_bit() -> None:
    """4 bits up, 8 down: the sum of a leaf with up to 18 workers fits as it is."""
    random = np.random.default_rng(8)
    inputs = [random.standard_normal(200).astype(np.float32) for _ in range(6)]
    tree = Tree(root="native", leaf="native", worker="native", per_leaf=3, accumulators=True)
    wanted = expected(job_spec(workers=6, accumulators=True), inputs, Element.FLOAT32, lanes_number("4/8"))
    for result in tree.all_reduce(inputs, lanes=lanes_number("4/8")):
        assert result.tobytes() == wanted.tobytes()


def by_leaves(spec: Any, inputs: list[Any], number: int, per_leaf: int) -> Any:
    """A tree's result of one packet's elements, from the codec alone."""
    codec = codec_for(Element.FLOAT32, number, len(inputs[0]), spec)
    assert codec.packets == 1
    assert codec.lanes is not None
    codes = np.max([codec.codes(x, 1.0, None) for x in inputs], axis=0)
    words = [codec.encode(0, x, codes, 1.0, None) for x in inputs]
    leaves = [
        summed(words[first : first + per_leaf], codec.lanes, spec.accumulator_bytes)
        for first in range(0, len(inputs), per_leaf)
    ]
    total: Any = 0
    for leaf_words, shift in leaves:
        total = total + accumulated(leaf_words, codec.lanes.result._replace(shift=shift), spec.accumulator_bytes)
    result, shift = narrowed(total, codec.lanes.down)
    return codec.decode_narrowed(result, len(inputs[0]), codes, len(inputs), 1.0, shift)


def test_what_two_packets_say_differs_with_their_lanes() -> None:
    packets = [Packet(kind=Kind.RESULT, lanes=lanes) for lanes in (None, EIGHT, LaneField(8, 8, 1))]
    assert len({facts(packet) for packet in packets}) == 3
