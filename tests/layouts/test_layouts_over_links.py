"""Layouts of `fanin plan` over emulated links: the planned one is the quickest, and none is quicker than predicted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.placed_job import placed_job
from fanin.emulation.network.scenario import Scenario, uplink
from fanin.layouts.cluster import Cluster
from fanin.layouts.search import all_layouts, quickest
from fanin.layouts.step_times import Grid, Shape
from tests.support.repository import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("namespaces")]

LINK_BIT_S, UPLINK_BIT_S = 200e6, 20e6
CLUSTER = Cluster(
    names=tuple("abcd"), ranks=(1,) * 4, rates=(LINK_BIT_S,) * 4, speeds=(1.0,) * 4, round_trip_s=0.0,
    racks=((0, 1), (2, 3)), uplinks=(UPLINK_BIT_S,) * 2,
)  # fmt: skip


def work(activation_bytes: int, stage_bytes: int) -> Shape:
    return Shape(
        cluster=CLUSTER, stages=2, replicas=2, layers=2, micro_batches=4, layer_s=0.0, layer_bytes=stage_bytes,
        activation_bytes=activation_bytes,
    )  # fmt: skip


LARGE_GRADIENTS, LARGE_ACTIVATIONS = work(20_000, 500_000), work(100_000, 20_000)
BURSTS, BURST_S = 0.1, 0.08
"""Share of a step, and seconds, that links may save: each passes some 50 kB at once after it was idle."""


def test_of_all_layouts_in_two_stages_the_planned_one_is_the_quickest() -> None:
    grids: list[Grid] = [grid for grid in all_layouts(LARGE_GRADIENTS) if 0 in grid[0]]  # others are their mirrors
    steps: list[list[Any]] = [
        [grid, of.micro_batches, of.activation_bytes, of.layer_bytes]
        for of in (LARGE_GRADIENTS, LARGE_ACTIVATIONS)
        for grid in grids
    ]
    scenario = Scenario(workers=4, racks=2, uplink=uplink("20mbit"), rate="200mbit", switch_at="hosts")
    with Fabric(scenario.topology) as fabric:
        asked = {"addresses": [scenario.topology.host_address(host) for host in range(4)], "steps": steps}
        with placed_job(fabric, "tests.layouts.layout_program", [json.dumps(asked)], {"PYTHONPATH": str(ROOT)}) as job:
            of_ranks = [report.record["took_s"] for report in job.reports()]
    took_s = [max(each) for each in zip(*of_ranks, strict=True)]
    for of, measured in ((LARGE_GRADIENTS, took_s[: len(grids)]), (LARGE_ACTIVATIONS, took_s[len(grids) :])):
        predicted = [of.times(grid).step_s for grid in grids]
        fastest = grids[measured.index(min(measured))]
        assert of.times(fastest).step_s == pytest.approx(quickest(of).times.step_s)
        told = [
            (f"predicted {two:.3f} s", f"measured {one:.3f} s") for one, two in zip(measured, predicted, strict=True)
        ]
        assert all(one > (1 - BURSTS) * two - BURST_S for one, two in zip(measured, predicted, strict=True)), told
