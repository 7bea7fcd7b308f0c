"""Search for the quickest layout of ranks in a given number of stages and replicas.

Exact where few layouts differ: all of them, less those that exchange whole replicas or hosts that are alike. Otherwise
descent by exchanges of two ranks (the neighbourhood of Kernighan & Lin 1970), from the quickest layout in which racks
and their hosts fill rectangles of stages and replicas; its distance from the optimum is bounded by `Shape.least_s`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from fanin.layouts.cluster import Cluster
from fanin.layouts.step_times import Grid, Shape, Times

EXACT_RANKS = 16
EXACT_CELLS = 80_000
"""Ranks times layouts of an exact search: about half a second."""
DESCENT_CELLS = 160_000
"""Ranks times layouts that a descent looks at."""
MAX_STARTS = 64
"""Layouts of which the quickest begins a descent."""


@dataclass(frozen=True, slots=True)
class Found:
    """The quickest layout that a search has seen."""

    grid: Grid
    times: Times
    exact: bool
    """Whether no layout is quicker."""


def quickest(shape: Shape, *, exact_cells: int = EXACT_CELLS, descent_cells: int = DESCENT_CELLS) -> Found:
    """The quickest layout, or that of a descent where there are too many for an exact search.

    Of layouts that are as quick, the one that leaves ranks in their order.
    """
    ordered = in_order(shape)
    best = Found(ordered, shape.times(ordered), False)
    most = exact_cells // shape.cluster.size
    if shape.cluster.size <= EXACT_RANKS:
        grids = list(itertools.islice(all_layouts(shape), most + 1))
        if len(grids) <= most:
            for grid in grids:
                best = _better(shape, best, grid)
            return Found(best.grid, best.times, True)
    return _descend(shape, best, descent_cells // shape.cluster.size)


def in_order(shape: Shape, hosts: tuple[int, ...] = (), *, replicas_first: bool = False) -> Grid:
    """Ranks in the order of the hosts (default: as they are numbered), one stage after the other, as
    `init_device_mesh(device, (stages, replicas))` has them; `replicas_first`: one replica after the other.
    """
    cluster = shape.cluster
    cells = [host for host in hosts or range(len(cluster.ranks)) for _ in range(cluster.ranks[host])]
    if replicas_first:
        return tuple(tuple(cells[stage :: shape.stages]) for stage in range(shape.stages))
    return tuple(
        tuple(cells[stage * shape.replicas : (stage + 1) * shape.replicas]) for stage in range(shape.stages)
    )  # fmt: skip


def all_layouts(shape: Shape) -> Iterator[Grid]:
    """Every layout once, up to the order of replicas and exchanges of hosts that are alike.

    The layout of each class whose replicas, one after the other, are least in lexicographic order is kept: its replicas
    ascend, and of hosts that are alike the lower number comes first.
    """
    cluster, stages = shape.cluster, shape.stages
    left = list(cluster.ranks)
    before = _alike_before(cluster)
    cells: list[int] = []

    def fill() -> Iterator[Grid]:
        at = len(cells)
        if at == cluster.size:
            yield tuple(tuple(cells[stage::stages]) for stage in range(stages))
            return
        start = at - at % stages
        ties = start > 0 and cells[start:at] == cells[start - stages : at - stages]
        for host in range(cells[at - stages] if ties else 0, len(left)):
            twin = before[host]
            waits = twin is not None and left[host] == cluster.ranks[host] and left[twin] == cluster.ranks[twin]
            if left[host] and not waits:
                left[host] -= 1
                cells.append(host)
                yield from fill()
                cells.pop()
                left[host] += 1

    return fill()


def _alike_before(cluster: Cluster) -> list[int | None]:
    """For each host, the last host before it with the same ranks, rate, speed and rack; None: there is none."""
    seen: dict[tuple[float, ...], int] = {}
    found: list[int | None] = []
    for host, facts in enumerate(zip(cluster.ranks, cluster.rates, cluster.speeds, cluster.rack_of, strict=True)):
        found.append(seen.get(facts))
        seen[facts] = host
    return found


def _better(shape: Shape, best: Found, grid: Grid) -> Found:
    times = shape.times(grid)
    return Found(grid, times, False) if times.step_s < best.times.step_s * (1 - 1e-9) else best


def _descend(shape: Shape, best: Found, looks: int) -> Found:
    """Exchange two ranks of different hosts as long as that makes the step quicker, at most `looks` times."""
    for grid in itertools.islice(_starts(shape), MAX_STARTS):
        best = _better(shape, best, grid)
    cells = [(stage, replica) for stage in range(shape.stages) for replica in range(shape.replicas)]
    improved = True
    while improved:
        improved = False
        for one, two in itertools.combinations(cells, 2):
            if best.grid[one[0]][one[1]] == best.grid[two[0]][two[1]]:
                continue
            if looks == 0:
                return best
            looks -= 1
            tried = _better(shape, best, _exchanged(best.grid, one, two))
            improved |= tried is not best
            best = tried
    return best


def _starts(shape: Shape) -> Iterator[Grid]:
    """Ranks in their order and rack by rack, and tiles: each rack fills a rectangle of stages and replicas, and each of
    its hosts a rectangle in that. Without racks, or where they are of unlike sizes, the largest decides the rectangle.
    """
    cluster = shape.cluster
    hosts = tuple(sorted(range(len(cluster.ranks)), key=lambda host: (cluster.rack_of[host], host)))
    for order, replicas_first in itertools.product(((), hosts), (False, True)):
        yield in_order(shape, order, replicas_first=replicas_first)
    of_racks = [sum(cluster.ranks[host] for host in rack) for rack in cluster.racks]
    dealt = [host for host in hosts for _ in range(cluster.ranks[host])]
    cells = list(itertools.product(range(shape.stages), range(shape.replicas)))
    for tall, wide in _rectangles(max(of_racks, default=cluster.size), shape.stages, shape.replicas):
        for low, narrow in _rectangles(max(cluster.ranks), tall, wide):
            placed = sorted(
                (stage // tall, replica // wide, stage % tall // low, replica % wide // narrow, stage, replica)
                for stage, replica in cells
            )
            at = {(key[-2], key[-1]): host for key, host in zip(placed, dealt, strict=True)}
            yield tuple(tuple(at[stage, replica] for replica in range(shape.replicas)) for stage in range(shape.stages))


def _rectangles(size: int, stages: int, replicas: int) -> list[tuple[int, int]]:
    """Stages and replicas of each rectangle of so many ranks of which a whole number fit into the larger one."""
    return [
        (tall, size // tall)
        for tall in range(1, stages + 1)
        if stages % tall == 0 and size % tall == 0 and replicas % (size // tall) == 0
    ]


def _exchanged(grid: Grid, one: tuple[int, int], two: tuple[int, int]) -> Grid:
    rows = [list(stage) for stage in grid]
    rows[one[0]][one[1]], rows[two[0]][two[1]] = rows[two[0]][two[1]], rows[one[0]][one[1]]
    return tuple(map(tuple, rows))
