"""Layouts that fit a cluster and a workload, the quickest first, beside the same numbers of stages in rank order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from fanin.errors import ConfigurationError
from fanin.layouts.cluster import Cluster, Measured
from fanin.layouts.search import in_order, quickest
from fanin.layouts.step_times import Grid, Shape, Times
from fanin.layouts.workload import Workload

MAX_NAMED = 8
"""Numbers that an error lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The quickest layout in one number of stages."""

    stages: int
    replicas: int
    micro_batches: int
    """Micro-batches of each replica in a step."""
    layers: tuple[int, ...]
    """Number of layers of each stage."""
    mesh: tuple[tuple[int, ...], ...]
    """Ranks by stage and replica. A row is a data-parallel group, a column a pipeline."""
    is_in_order: bool
    """Whether `init_device_mesh` makes the same mesh."""
    host_order: tuple[str, ...]
    """Hosts in an order of ranks in which `init_device_mesh` makes this layout; empty: there is none."""
    times: Times
    exact: bool
    """Whether no layout in so many stages is quicker, by the same model."""
    least_s: float
    """Lower bound on the step time of any layout in so many stages."""
    in_order_s: float
    """Step time with ranks in their order, one stage after the other."""
    replicas_in_order_s: float
    """Step time with ranks in their order, one replica after the other."""


def layouts(measured: Measured, workload: Workload) -> list[Layout]:
    """The quickest layout for every number of stages that fits, the quickest first.

    Raises ConfigurationError where a number of stages, ranks, layers and micro-batches do not fit each other.
    """
    cluster = measured.cluster.with_speeds(workload.speeds) if workload.speeds else measured.cluster
    gradient_bytes, compute_s = workload.sizes(measured)
    found = []
    for stages in _numbers_of_stages(cluster, workload):
        replicas = cluster.size // stages
        shape = Shape(
            cluster=cluster, stages=stages, replicas=replicas, layers=workload.layers,
            micro_batches=workload.micro_batches // replicas,
            layer_s=compute_s / workload.micro_batches / workload.layers, layer_bytes=gradient_bytes / workload.layers,
            activation_bytes=workload.activation_bytes,
        )  # fmt: skip
        found.append(_layout(shape))
    return sorted(found, key=lambda each: (each.times.step_s, each.stages))


def _layout(shape: Shape) -> Layout:
    cluster, best = shape.cluster, quickest(shape)
    return Layout(
        stages=shape.stages, replicas=shape.replicas, micro_batches=shape.micro_batches,
        layers=tuple(shape.layers_of(best.grid)), mesh=mesh_of(cluster, best.grid),
        is_in_order=best.grid == in_order(shape), host_order=host_order(cluster, best.grid), times=best.times,
        exact=best.exact, least_s=shape.least_s(), in_order_s=shape.times(in_order(shape)).step_s,
        replicas_in_order_s=shape.times(in_order(shape, replicas_first=True)).step_s,
    )  # fmt: skip


def _numbers_of_stages(cluster: Cluster, workload: Workload) -> Sequence[int]:
    """Numbers of stages that fit: those that were asked for, or all."""
    size = cluster.size
    divisors = [stages for stages in range(1, size + 1) if size % stages == 0]
    for stages in workload.stages:
        if stages not in divisors:
            raise ConfigurationError(
                f"--stages {stages} does not divide {size} ranks. Remedy: some of {_listed(divisors)}"
            )
        if stages > workload.layers:
            raise ConfigurationError(
                f"--stages {stages}: {workload.layers} layers are fewer than stages. Remedy: at most {workload.layers}"
            )
        if workload.micro_batches % (size // stages):
            raise ConfigurationError(
                f"--micro-batches {workload.micro_batches} cannot be shared by the {size // stages} replicas of "
                f"{stages} stages on {size} ranks. Remedy: a multiple of {size // stages}"
            )
    if workload.stages:
        return tuple(dict.fromkeys(workload.stages))
    fitting = [
        stages
        for stages in divisors
        if stages <= workload.layers and workload.micro_batches % (size // stages) == 0
    ]  # fmt: skip
    if not fitting:
        raise ConfigurationError(
            f"no number of stages fits {size} ranks, {workload.layers} layers and {workload.micro_batches} "
            f"micro-batches. Remedy: --micro-batches {size}, which one stage takes, or a multiple"
        )
    return fitting


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:MAX_NAMED]))
    return f"{shown}, ... {numbers[-1]}" if len(numbers) > MAX_NAMED else shown


def mesh_of(cluster: Cluster, grid: Grid) -> tuple[tuple[int, ...], ...]:
    """The ranks of a layout of hosts: each host's in order, stage by stage."""
    ranks: dict[int, list[int]] = {}
    for rank, host in enumerate(cluster.host_of):
        ranks.setdefault(host, []).append(rank)
    waiting = {host: iter(each) for host, each in ranks.items()}
    return tuple(tuple(next(waiting[host]) for host in stage) for stage in grid)


def host_order(cluster: Cluster, grid: Grid) -> tuple[str, ...]:
    """The hosts' names in the order of the layout, stage by stage; empty where a host's ranks are not adjacent."""
    runs = [host for host, _ in itertools.groupby(host for stage in grid for host in stage)]
    return tuple(cluster.names[host] for host in runs) if len(runs) == len(cluster.ranks) else ()


def mesh_lines(layout: Layout) -> list[str]:
    """Lines of Python that make the layout's groups, where ranks are numbered as `fanin advise` saw them."""
    shape = f"({layout.stages}, {layout.replicas})"
    names = 'mesh_dim_names=("pp", "dp")'
    if layout.is_in_order:
        return [
            "from torch.distributed.device_mesh import init_device_mesh",
            f'mesh = init_device_mesh("cpu", {shape}, {names})',
        ]
    ranks = ", ".join(str(list(stage)) for stage in layout.mesh)
    return [
        "from torch.distributed.device_mesh import DeviceMesh",
        f'mesh = DeviceMesh("cpu", [{ranks}], {names})',
    ]
