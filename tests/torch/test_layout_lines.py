"""The lines that `fanin plan` prints make the groups of its layout."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'fanin[torch]'")
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from fanin.layouts.cluster import Cluster, Measured
from fanin.layouts.plans import layouts, mesh_lines
from fanin.layouts.workload import Workload

SLOW_BETWEEN_EVEN_AND_ODD = ((0, 2), (1, 3))


@pytest.mark.parametrize("racks", [(), SLOW_BETWEEN_EVEN_AND_ODD], ids=["in order", "in another order"])
def test_printed_lines_make_the_groups_of_the_layout(racks: Any) -> None:
    cluster = Cluster(
        names=tuple("abcd"), ranks=(1,) * 4, rates=(1e9,) * 4, speeds=(1.0,) * 4, round_trip_s=0.0, racks=racks,
        uplinks=(1e8,) * len(racks),
    )  # fmt: skip
    workload = Workload(
        layers=4, micro_batches=4, activation_bytes=1, gradient_bytes=1_000_000, compute_s=1.0, stages=(2,)
    )
    best = layouts(Measured(cluster, None, None), workload)[0]
    assert best.is_in_order == (not racks)
    for rank in range(4):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
        try:
            made: dict[str, Any] = {}
            exec("\n".join(mesh_lines(best)), made)
            groups = {name: dist.get_process_group_ranks(made["mesh"][name].get_group()) for name in ("pp", "dp")}
        finally:
            dist.destroy_process_group()
        assert groups["dp"] == list(next(stage for stage in best.mesh if rank in stage))
        assert groups["pp"] == list(next(each for each in zip(*best.mesh, strict=True) if rank in each))
