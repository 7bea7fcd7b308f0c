"""Rounds with a rule on who adds and who keeps: bare results, elements with owners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.errors import ConfigurationError
from fanin.numerics.reduction import COPIED, EXACT, Element, Reduction
from fanin.protocol.events import PacketRefused
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import Flag, Kind, Reason, parse
from tests.support.builders import moved
from tests.support.cluster import WORKER_MACHINES, Array, Cluster, job, reduction
from tests.support.network import Link
from tests.support.tree import WORKER, Tree

KINDS = [
    pytest.param("twin", "twin"),
    pytest.param("native", "native", marks=pytest.mark.skipif(WORKER_MACHINES["native"] is None, reason="not built")),
    pytest.param("lockstep", "native", marks=pytest.mark.skipif(WORKER_MACHINES["native"] is None, reason="not built")),
]
HOSTILE = Link(loss=0.15, duplicate=0.1, reorder=0.3)


@dataclass(frozen=True)
class Move:
    """Bytes that each worker owns, and bytes that each keeps, as (first, count) by worker."""

    count: int
    own: tuple[tuple[int, int], ...]
    keep: tuple[tuple[int, int], ...]

    def run(self, cluster: Cluster, *, in_place: bool = False, seed: int = 0) -> None:
        """Move random bytes, and see that each arrives as it was where it is kept, and nothing else is written."""
        whole = np.random.default_rng(seed).integers(0, 256, self.count, np.uint8)
        outputs: list[Array] = []
        expected: list[Array] = []
        for worker, ((first, count), (keep_first, kept)) in enumerate(zip(self.own, self.keep, strict=True)):
            source = whole[first : first + count].copy()
            output = np.full(kept, 0xAA, np.uint8)
            if in_place and keep_first <= first and first + count <= keep_first + kept:
                source = output[first - keep_first : first - keep_first + count]
                source[:] = whole[first : first + count]
            outputs.append(output)
            expected.append(whole[keep_first : keep_first + kept])
            cluster.submit(worker, moved(source, first, self.count, output, keep_first))
        cluster.run()
        for output, want in zip(outputs, expected, strict=True):
            assert output.tobytes() == want.tobytes()


def all_gather(sizes: list[int]) -> Move:
    starts = [sum(sizes[:rank]) for rank in range(len(sizes))]
    return Move(sum(sizes), tuple(zip(starts, sizes, strict=True)), ((0, sum(sizes)),) * len(sizes))


def broadcast(workers: int, root: int, count: int) -> Move:
    own = tuple((0, count if worker == root else 0) for worker in range(workers))
    return Move(count, own, tuple((0, 0 if worker == root else count) for worker in range(workers)))


def scatter(workers: int, root: int, part: int) -> Move:
    own = tuple((0, workers * part if worker == root else 0) for worker in range(workers))
    return Move(workers * part, own, tuple((worker * part, part) for worker in range(workers)))


def gather(workers: int, root: int, part: int) -> Move:
    own = tuple((worker * part, part) for worker in range(workers))
    return Move(workers * part, own, tuple((0, workers * part if worker == root else 0) for worker in range(workers)))


MOVES = {
    "all_gather": all_gather([300, 300, 300]),
    "uneven all_gather": all_gather([1, 0, 777]),
    "broadcast": broadcast(3, 1, 701),
    "one byte": broadcast(3, 2, 1),
    "scatter": scatter(3, 0, 130),
    "gather": gather(3, 2, 130),
}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("link", [None, HOSTILE], ids=["lossless", "hostile"])
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize(("kind", "switch"), KINDS)
def test_every_byte_arrives_as_it_was_where_it_is_kept(
    kind: str, switch: str, move: Move, link: Link | None, in_place: bool
) -> None:
    cluster = Cluster.joined(kind, spec=job(workers=3), switch=switch, link=link, seed=3)
    for seed in range(3):
        move.run(cluster, in_place=in_place, seed=seed)


@st.composite
def moves(draw: st.DrawFn) -> Move:
    """Any division of some bytes among three owners, and any that are kept."""
    count = draw(st.integers(1, 400))
    cuts = sorted(draw(st.lists(st.integers(0, count), min_size=2, max_size=2)))
    bounds = [0, *cuts, count]
    own = [(bounds[part], bounds[part + 1] - bounds[part]) for part in draw(st.permutations(range(3)))]
    keep = []
    for _ in range(3):
        first = draw(st.integers(0, count))
        keep.append((first, draw(st.integers(0, count - first))))
    return Move(count, tuple(own), tuple(keep))


@settings(max_examples=40)
@given(moves(), st.booleans(), st.booleans(), st.integers(0, 1 << 16), st.sampled_from(["twin", "native"]))
@pytest.mark.skipif(WORKER_MACHINES["native"] is None, reason="the native extension is not built")
def test_any_owners_and_keepers_in_lockstep(move: Move, in_place: bool, lossy: bool, seed: int, switch: str) -> None:
    spec = job(workers=3, words_per_packet=8, checksum=bool(seed & 1))
    cluster = Cluster.joined("lockstep", spec=spec, switch=switch, link=HOSTILE if lossy else None, seed=seed)
    move.run(cluster, in_place=in_place, seed=seed)


SUMS: dict[str, tuple[JobSpec, dict[str, Any]]] = {
    "32 bits": (job(workers=3), {}),
    "8 bits": (job(workers=3), {"lanes": 8}),
    "4/8": (job(workers=3, accumulators=True), {"lanes": 96 + 11}),
    "exact": (job(workers=3), {"lanes": EXACT}),
    "spread": (job(workers=5, words_per_packet=8), {"lanes": EXACT, "element": Element.FLOAT64}),
    "residual": (job(workers=3), {"lanes": 8, "residual": True}),
    "survivors": (job(workers=3, on_worker_loss="continue"), {"divisor": 0.0}),
    "tags": (job(workers=3, data_key=bytes(range(16))), {}),
}


@pytest.mark.parametrize("link", [None, HOSTILE], ids=["lossless", "hostile"])
@pytest.mark.parametrize(("spec", "fields"), SUMS.values(), ids=SUMS)
@pytest.mark.parametrize(("kind", "switch"), KINDS)
def test_a_part_that_is_kept_has_the_bits_of_the_whole_sum(
    kind: str, switch: str, spec: JobSpec, fields: dict[str, Any], link: Link | None
) -> None:
    count, fields = 210, dict(fields)
    dtype = np.float64 if fields.get("element") is Element.FLOAT64 else np.float32
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal(count).astype(dtype) for _ in range(spec.workers)]
    with_residual = fields.pop("residual", False)

    def run(keeps: list[tuple[int, int]]) -> tuple[list[Array], list[Any]]:
        cluster = Cluster.joined(kind, spec=spec, switch=switch, link=link, seed=7)
        outputs = [np.zeros(kept, dtype) for _, kept in keeps]
        residuals = [np.full(count, 0.01, np.float32) if with_residual else None for _ in keeps]
        for worker, ((first, kept), output) in enumerate(zip(keeps, outputs, strict=True)):
            cluster.submit(
                worker,
                reduction(
                    inputs[worker], output, residual=residuals[worker], keep_first=first, keep_count=kept, **fields
                ),
            )
        cluster.run()
        return outputs, residuals

    whole, whole_residuals = run([(0, count)] * spec.workers)
    parts, residuals = run([(0, 70), (70, 140), *[(0, 0)] * (spec.workers - 2)])
    assert parts[0].tobytes() == whole[0][:70].tobytes()
    assert parts[1].tobytes() == whole[1][70:].tobytes()
    for some, other in zip(residuals, whole_residuals, strict=True):
        assert some is None or some.tobytes() == other.tobytes()


# R-SLOT-16, R-WORKER-8
@pytest.mark.parametrize("switch", ["twin", "native"])
def test_words_go_to_those_that_keep_them_alone(switch: str) -> None:
    cluster = Cluster.joined("twin", spec=job(workers=3, words_per_packet=64, slots=2), switch=switch)
    seen: dict[int, list[tuple[bool, int]]] = {0: [], 1: [], 2: []}
    machines: list[Any] = list(cluster.workers)
    for worker, machine in enumerate(machines):
        receive = machine.receive_datagram

        def noted(data: bytes, source: int, now: float, *, worker: int = worker, receive: Any = receive) -> None:
            packet = parse(data)
            if packet.kind is Kind.RESULT:
                seen[worker].append((Flag.BARE in packet.flags, len(packet.words)))
            receive(data, source, now)

        machine.receive_datagram = noted
    for worker in range(3):
        part = np.zeros(64, np.int32)
        cluster.submit(worker, reduction(np.ones(192, np.int32), part, keep_first=worker * 64, keep_count=64))
    cluster.run()
    for worker in range(3):
        assert sorted(seen[worker]) == [(False, 64), (True, 0), (True, 0)]


@pytest.mark.parametrize("switch", ["twin", "native"])
@pytest.mark.parametrize("late", [0, 1])
def test_a_pass_to_another_collective_is_refused_whoever_comes_first(switch: str, late: int) -> None:
    cluster = Cluster.joined("twin", spec=job(workers=2), switch=switch)
    output = np.zeros(8, np.uint8)
    calls = [
        lambda: cluster.submit(0, reduction(np.ones(2, np.int32), tag=1)),
        lambda: cluster.submit(1, moved(output[:0], 0, 8, output, 0, tag=2)),
    ]
    calls[late]()
    cluster.network.run_for(0.01)
    calls[1 - late]()
    cluster.network.run_for(0.01)
    refused = 1 - late if late == 0 else 0
    news = cluster.news(refused)
    assert [each.reason for each in news if isinstance(each, PacketRefused)] == [Reason.MISMATCH]


# R-RESULT-4
@pytest.mark.parametrize(("kind", "switch"), KINDS)
def test_a_round_without_an_owner_fails_those_that_wait_for_it(kind: str, switch: str) -> None:
    cluster = Cluster.joined(kind, spec=job(workers=2), switch=switch)
    for worker in range(2):
        output = np.zeros(8, np.uint8)
        cluster.submit(worker, moved(output[:0], 0, 8, output, 0))
    cluster.network.run_for(0.01)
    for worker in range(2):
        assert [each.reason for each in cluster.news(worker) if isinstance(each, PacketRefused)] == [Reason.MISMATCH]


@pytest.mark.parametrize("kind", ["twin", "native"])
def test_a_job_that_does_not_wait_for_every_owner_refuses(kind: str) -> None:
    cluster = Cluster.joined(kind, spec=job(workers=2, on_worker_loss="continue"))
    output = np.zeros(8, np.uint8)
    with pytest.raises((ConfigurationError, ValueError), match="an owner may be missing"):
        cluster.submit(0, moved(output[:0], 0, 8, output, 0))


def test_owners_are_for_bytes_and_within_them() -> None:
    with pytest.raises(ConfigurationError, match="COPIED"):
        Reduction(source=0, destination=0, count=4, element=Element.INT32, own_count=2)
    with pytest.raises(ConfigurationError, match="owning"):
        Reduction(source=0, destination=0, count=4, element=Element.UINT8, lanes=COPIED, own_first=3, own_count=2)


@pytest.mark.parametrize("link", [None, HOSTILE], ids=["lossless", "hostile"])
@pytest.mark.parametrize("kind", ["twin", "native"])
def test_a_tree_moves_and_keeps_as_one_switch_does(kind: str, link: Link | None) -> None:
    if WORKER_MACHINES[kind] is None:
        pytest.skip("the native extension is not built")
    tree = Tree(root=kind, leaf=kind, worker=kind, link=link)
    sizes = [90, 0, 31, 200]
    for move in (all_gather(sizes), broadcast(4, 3, 150), scatter(4, 1, 50), gather(4, 0, 50)):
        whole = np.random.default_rng(9).integers(0, 256, move.count, np.uint8)
        outputs = []
        for worker, ((first, count), (keep_first, kept)) in enumerate(zip(move.own, move.keep, strict=True)):
            output = np.zeros(kept, np.uint8)
            outputs.append(output)
            tree.workers[worker].submit(
                moved(whole[first : first + count].copy(), first, move.count, output, keep_first)
            )
            tree.speak(WORKER + worker)
        tree.run_until(lambda: not any(each.outstanding() for each in tree.workers))
        for (keep_first, kept), output in zip(move.keep, outputs, strict=True):
            assert output.tobytes() == whole[keep_first : keep_first + kept].tobytes()
    inputs = [np.random.default_rng(worker).standard_normal(120).astype(np.float32) for worker in range(4)]
    total = tree.all_reduce(inputs)[0]
    parts = [np.array(each) for each in inputs]
    for worker, array in enumerate(parts):
        part = array[30 * worker : 30 * worker + 30]
        tree.workers[worker].submit(
            reduction(array, part, keep_first=30 * worker, keep_count=30, signature=77, owner=(array, part, None))
        )
        tree.speak(WORKER + worker)
    tree.run_until(lambda: not any(each.outstanding() for each in tree.workers))
    for worker, array in enumerate(parts):
        assert array[30 * worker : 30 * worker + 30].tobytes() == total[30 * worker : 30 * worker + 30].tobytes()


# R-CONGESTION-13
@pytest.mark.parametrize(("kind", "switch"), KINDS)
def test_passes_are_not_paced_and_what_they_wait_for_is(kind: str, switch: str) -> None:
    """A broadcast over a path of 4 ms: its owner's packets go out in bursts, the others' passes whenever they may."""
    spec = job(workers=3, slots=32, words_per_packet=64)
    cluster = Cluster.joined(kind, spec=spec, switch=switch, link=Link(delay_s=2e-3, bytes_per_s=12.5e6))
    broadcast(3, 0, 64 * 4 * 300).run(cluster)
    owner, *others = (worker.counters()["paced"] for worker in cluster.workers)
    assert owner > 0
    assert others == [0, 0]
