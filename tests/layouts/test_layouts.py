"""`fanin plan`: the quickest layout of pipeline stages and data-parallel groups over unlike links, and its times."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.cli import run
from fanin.emulation.simulator.scale import Fabric, Transfer, ring
from fanin.errors import ConfigurationError
from fanin.layouts.cluster import Cluster, Measured, read_measured
from fanin.layouts.plans import layouts, mesh_lines
from fanin.layouts.search import in_order, quickest
from fanin.layouts.step_times import Grid, Shape, deal_layers
from fanin.layouts.workload import Workload

MODEL: dict[str, Any] = {
    "layers": 12,
    "micro_batches": 8,
    "activation_bytes": 1 << 16,
    "gradient_bytes": 100_000_000,
    "compute_s": 4.0,
}
WORDS = ["--layers", "12", "--micro-batches", "8", "--activation-bytes", "65536"]


def cluster(hosts: int = 4, racks: tuple[tuple[int, ...], ...] = ((0, 2), (1, 3)), **given: Any) -> Cluster:
    """Hosts with one rank and links of 1 Gbit/s, in racks with uplinks of 50 Mbit/s."""
    facts: dict[str, Any] = {
        "names": tuple("abcdefghijklmnopqrstuvwxyz0123456789"[:hosts]), "ranks": (1,) * hosts, "rates": (1e9,) * hosts,
        "speeds": (1.0,) * hosts, "round_trip_s": 1e-4, "racks": racks, "uplinks": (5e7,) * len(racks),
    }  # fmt: skip
    return Cluster(**{**facts, **given})


def shape(of: Cluster, stages: int, **given: Any) -> Shape:
    facts: dict[str, Any] = {
        "cluster": of, "stages": stages, "replicas": of.size // stages, "layers": 12, "micro_batches": 4,
        "layer_s": 1e-3, "layer_bytes": 1e5, "activation_bytes": 1e5,
    }  # fmt: skip
    return Shape(**{**facts, **given})


@st.composite
def small_shapes(draw: st.DrawFn) -> Shape:
    ranks = draw(st.lists(st.integers(1, 2), min_size=2, max_size=6).filter(lambda found: sum(found) <= 6))
    hosts = len(ranks)
    rack_of = draw(st.lists(st.integers(0, 2), min_size=hosts, max_size=hosts))
    racks = tuple(tuple(host for host in range(hosts) if rack_of[host] == rack) for rack in sorted({*rack_of} - {2}))

    def one_of(*values: float) -> Any:
        return st.lists(st.sampled_from(values), min_size=hosts, max_size=hosts).map(tuple)

    of = cluster(
        hosts, racks, ranks=tuple(ranks), rates=draw(one_of(1e9, 3e8)), speeds=draw(one_of(1.0, 1.0, 0.5)),
        uplinks=(5e7, 2e8)[: len(racks)],
    )  # fmt: skip
    stages = draw(st.sampled_from([each for each in range(1, of.size + 1) if of.size % each == 0]))
    sizes = st.sampled_from([0.0, 1e4, 1e6])
    return shape(of, stages, layer_bytes=draw(sizes), activation_bytes=draw(sizes))


def every_layout(of: Shape) -> list[Grid]:
    """Layouts from all orders of ranks, with nothing left out."""
    return [
        tuple(order[at : at + of.replicas] for at in range(0, len(order), of.replicas))
        for order in set(itertools.permutations(of.cluster.host_of))
    ]


@settings(max_examples=30)
@given(small_shapes())
def test_the_exact_search_finds_what_trying_all_orders_does_and_exchanges_nothing_quicker(of: Shape) -> None:
    least_s = min(of.times(grid).step_s for grid in every_layout(of))
    exact, exchanged = quickest(of), quickest(of, exact_cells=0)
    assert exact.exact
    assert not exchanged.exact
    assert exact.times.step_s == pytest.approx(least_s, rel=1e-6)
    assert exchanged.times.step_s >= least_s * (1 - 1e-9)
    assert exchanged.times.step_s <= of.times(in_order(of)).step_s
    assert exchanged.times.step_s <= of.times(in_order(of, replicas_first=True)).step_s
    assert of.least_s() <= least_s * (1 + 1e-9)


def test_many_ranks_are_exchanged_within_a_bound_and_racks_that_alternate_are_found() -> None:
    of = cluster(32, (tuple(range(0, 32, 2)), tuple(range(1, 32, 2))))
    wanted = shape(of, 2, layer_bytes=1e6, activation_bytes=1e3)
    found = quickest(wanted)
    assert not found.exact
    assert [{host % 2 for host in stage} for stage in found.grid] in ([{0}, {1}], [{1}, {0}])
    assert found.grid == quickest(wanted, descent_cells=0).grid


def test_hosts_of_several_ranks_fill_rectangles_of_stages_and_replicas() -> None:
    of = cluster(8, ((0, 2, 4, 6), (1, 3, 5, 7)), ranks=(4,) * 8)
    found = quickest(shape(of, 4, layer_bytes=1e4, activation_bytes=1e6), descent_cells=0)
    assert all(len(set(pipeline)) == 1 for pipeline in zip(*found.grid, strict=True))  # nothing leaves a host
    found = quickest(shape(of, 8, layers=16, layer_bytes=1e6, activation_bytes=1e3), descent_cells=0)
    assert all(len(set(stage)) == 1 for stage in found.grid)


def flow_shop_s(parts_s: list[float], jobs: int) -> float:
    """End of the last job that passes all parts, each of which takes one job at a time."""
    free_s = [0.0] * len(parts_s)
    for _ in range(jobs):
        now_s = 0.0
        for part, took_s in enumerate(parts_s):
            now_s = free_s[part] = max(now_s, free_s[part]) + took_s
    return now_s


@pytest.mark.parametrize("activation_bytes", [1e3, 1e5, 3e6])
def test_a_pipelines_time_is_that_of_its_micro_batches_one_by_one(activation_bytes: float) -> None:
    of = shape(cluster(6, ((0, 1, 2), (3, 4, 5))), 3, activation_bytes=activation_bytes)
    grid: Grid = ((0, 1), (2, 3), (4, 5))  # both replicas cross, at different boundaries, and share the uplink
    uplink_s, link_s = 2 * 8 * activation_bytes / 5e7, 8 * activation_bytes / 1e9
    compute_s = 4 * 1e-3
    took_s = 0.0
    for share in (1 / 3, 2 / 3):
        part_s = compute_s * share
        took_s += flow_shop_s([part_s, link_s, part_s, uplink_s, part_s], 4) + 2 * 1e-4 / 2
    assert of.times(grid).pipeline_s == pytest.approx(took_s)


def test_sums_take_as_long_as_the_busiest_link_of_their_rings() -> None:
    of = shape(cluster(6, ((0, 1, 2), (3, 4, 5))), 2)
    bits: dict[str, float] = {}
    grid: Grid = ((0, 1, 3), (2, 4, 5))
    for stage in grid:
        for one, two in zip(stage, (*stage[1:], stage[0]), strict=True):  # already rack by rack
            sent = 8 * 2 * (3 - 1) / 3 * 6 * 1e5
            for link in (
                f"out {one}",
                f"in {two}",
                *((f"up {one // 3}", f"down {two // 3}") if one // 3 != two // 3 else ()),
            ):
                bits[link] = bits.get(link, 0.0) + sent
    busiest_s = max(load / (5e7 if link.startswith(("up", "down")) else 1e9) for link, load in bits.items())
    assert of.times(grid).sums_s == pytest.approx(busiest_s + 2 * 2 * 1e-4)


def test_sums_take_within_a_tenth_what_the_simulators_ring_takes() -> None:
    link = Fabric(workers=8)  # headers and switches are in the simulator's figure, and not in rates of payload
    of = cluster(8, (), rates=(8.0 * link.bytes_per_s,) * 8, round_trip_s=4 * link.delay_s)
    predicted = shape(of, 1, layer_bytes=(25 << 20) / 12).times((tuple(range(8)),)).sums_s
    assert predicted == pytest.approx(ring(link, Transfer.over(tensor_bytes=25 << 20)), rel=0.1)


def test_on_one_host_no_order_is_quicker_than_that_of_ranks() -> None:
    of = shape(cluster(1, (), ranks=(4,), rates=(0.0,)), 2)
    assert quickest(of).grid == in_order(of)
    assert of.times(in_order(of)).sums_s == 0


@pytest.mark.parametrize("speeds", [(1.0, 1.0, 1.0), (1.0, 2.0, 0.5), (3.0, 1.0, 1.0)])
def test_no_dealing_of_layers_has_a_less_slow_stage(speeds: tuple[float, ...]) -> None:
    dealt = deal_layers(10, speeds)
    others = [each for each in itertools.product(range(1, 11), repeat=3) if sum(each) == 10]

    def slowest(counts: Sequence[int]) -> float:
        return max(count / speed for count, speed in zip(counts, speeds, strict=True))

    assert sum(dealt) == 10
    assert slowest(dealt) == min(map(slowest, others))


# --- whole plans ---


def plan(of: Cluster, **given: Any) -> Any:
    return layouts(Measured(of, None, None), Workload(**{**MODEL, **given}))[0]


def test_large_gradients_are_summed_within_racks_and_pipelines_cross_their_uplinks() -> None:
    best = plan(cluster(), stages=(2,), activation_bytes=1 << 10)
    assert best.mesh == ((0, 2), (1, 3))
    assert best.times.step_s < 0.5 * best.in_order_s
    assert best.host_order == ("a", "c", "b", "d")


def test_large_activations_stay_within_racks_and_sums_cross_their_uplinks() -> None:
    best = plan(cluster(), stages=(2,), activation_bytes=10_000_000, gradient_bytes=1000)
    assert {frozenset(pipeline) for pipeline in zip(*best.mesh, strict=True)} == {frozenset((0, 2)), frozenset((1, 3))}
    assert best.times.step_s < 0.5 * best.replicas_in_order_s


def test_of_all_numbers_of_stages_the_quickest_is_first() -> None:
    found = layouts(Measured(cluster(), None, None), Workload(**MODEL))
    assert {(each.stages, each.replicas) for each in found} == {(1, 4), (2, 2), (4, 1)}
    assert [each.times.step_s for each in found] == sorted(each.times.step_s for each in found)


def test_without_slow_links_the_order_of_ranks_stays() -> None:
    best = plan(cluster(racks=(), round_trip_s=0.0), stages=(2,))
    assert best.is_in_order
    assert mesh_lines(best)[1] == 'mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))'


def test_hosts_in_the_order_that_is_printed_have_the_layout_without_a_mesh_of_ranks() -> None:
    of = cluster(ranks=(2, 1, 1, 2))
    best = plan(of, stages=(2,), micro_batches=6, activation_bytes=1 << 10)
    order = [of.names.index(name) for name in best.host_order]
    assert sorted(rank for stage in best.mesh for rank in stage) == list(range(6))
    there = dataclasses.replace(
        of, names=best.host_order, ranks=tuple(of.ranks[host] for host in order),
        racks=tuple(tuple(order.index(host) for host in rack) for rack in of.racks),
    )  # fmt: skip
    assert plan(there, stages=(2,), micro_batches=6, activation_bytes=1 << 10).in_order_s == best.times.step_s


def test_a_slower_host_gets_fewer_layers() -> None:
    best = plan(cluster(racks=()), stages=(4,), speeds=(1.0, 1.0, 1.0, 0.5))
    of_slow = next(stage for stage, ranks in enumerate(best.mesh) if 3 in ranks)
    assert best.layers[of_slow] == min(best.layers) < 3


# --- the command ---


def advice(**network: Any) -> dict[str, Any]:
    """The fields of `fanin advise --json` that a plan reads."""
    facts = {
        "ranks": [1] * 4, "rates": [1e9] * 4, "round_trip_s": 1e-4, "racks": [[0, 2], [1, 3]], "uplinks": [5e7, 5e7],
    }  # fmt: skip
    profile = {"buckets": [[0.1, 60_000_000], [0.2, 40_000_000]], "compute_s": 1.0}
    return {"network": facts | network, "hosts": ["a", "b", "c", "d"], "profile": profile}


def test_the_profile_gives_bytes_and_computing() -> None:
    measured = read_measured(json.dumps(advice()), "advice.json")
    assert measured == Measured(cluster(), 100_000_000, 4.0)


def test_the_command_prints_the_groups_of_the_best_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "advice.json"
    file.write_text(json.dumps(advice()))
    assert run(["plan", str(file), *WORDS, "--stages", "2"]) == 0
    shown = capsys.readouterr().out
    assert 'mesh = DeviceMesh("cpu", [[0, 2], [1, 3]], mesh_dim_names=("pp", "dp"))' in shown
    assert "(--node-rank, --hosts): a,c,b,d; then" in shown
    assert run(["plan", str(file), *WORDS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["layouts"]
    assert [each["step_s"] for each in found] == sorted(each["step_s"] for each in found)
    assert found[0]["lines"][1].startswith("mesh = ")


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("{", [], "it is no JSON"),
        ("[" * 100_000, [], "it is no JSON"),
        ('{"best": null}', [], "`network` is missing"),
        (advice(rates=[1e9, 1e9, 1e9]), [], "no rate between d and other hosts"),
        (advice(rates=[1e9, 0.0, 1e9, 1e9]), [], "no rate between b and other hosts"),
        (advice(uplinks=[5e7]), [], "no rate between b, d and hosts of other racks"),
        (advice(rates=[1e9] * 5), [], "more links than hosts"),
        (advice(racks=[[0, 1], [1, 3]]), [], "names a host twice"),
        (advice(ranks=[1, 1, 1]), [], "not of the same hosts"),
        (advice(ranks=[1, 1, 1, 0.5]), [], "no list of whole numbers"),
        (advice(ranks=[1, 1, 1, 10**400]), [], "at most 1024"),
        (advice(rates=[float("nan")] * 4), [], "no number from 0 on"),
        (
            advice() | {"profile": {"buckets": [], "compute_s": 0.0}},
            [],
            "--parameters or --gradient-bytes must be given",
        ),
        (advice(), ["--stages", "3"], "--stages 3 does not divide 4 ranks"),
        (advice(), ["--stages", "4", "--layers", "3"], "3 layers are fewer than stages"),
        (advice(), ["--stages", "1", "--micro-batches", "6"], "cannot be shared by the 4 replicas"),
        (advice(), ["--layers", "1", "--micro-batches", "6"], "no number of stages fits 4 ranks"),
        (advice(), ["--speeds", "1,2"], "--speeds has 2 numbers for 4 hosts"),
        (advice(), ["--speeds", "1,2,3,x"], "expected numbers above 0"),
        (advice(), ["--parameters", "1", "--gradient-bytes", "1"], "not both"),
    ],
)
def test_what_does_not_fit_is_one_line_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: Any, more: list[str], said: str
) -> None:
    file = tmp_path / "advice.json"
    file.write_text(text if isinstance(text, str) else json.dumps(text))
    assert run(["plan", str(file), *WORDS, *more]) == 2
    ended = capsys.readouterr()
    assert not ended.out
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert "Remedy" in ended.err or "expected" in ended.err


def test_a_workload_outside_its_bounds_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="layers = 0"):
        Workload(**{**MODEL, "layers": 0})
