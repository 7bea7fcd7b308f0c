"""Plans paths of microbatches that skip stages, and the order in which every stage works on them.

Blagoev et al., SkipPipe, 2025. A path is a cycle that begins and ends at stage 0, which has the embedding and the head,
and visits some of the other stages, each at most once. It may differ from the stages' order by at most two swaps of
neighbours, with no stage more than one place off. A stage is on at most its even share of paths. Times are in units of
one stage's forward pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FORWARD, BACKWARD, HEAD = 1.0, 2.0, 0.5
MAX_SWAPS = 2
Path = tuple[int, ...]
"""Stages visited between the start and the end at stage 0."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One piece of work: a stage's forward or backward pass on a microbatch."""

    stage: int
    microbatch: int
    index: int
    """Position on the path, from 0, the embedding; len(path) + 1 is the head, forward and backward at once."""
    backward: bool

    def time(self, path: Path) -> float:
        """Duration of the visit, in units of a forward pass."""
        if self.stage == 0:
            return 3 * HEAD if self.index else 0.0
        return BACKWARD if self.backward else FORWARD


def visits(microbatch: int, path: Path) -> list[Visit]:
    """All visits of a microbatch, in order."""
    forth = [Visit(stage, microbatch, index, False) for index, stage in enumerate((0, *path, 0))]
    back = [Visit(stage, microbatch, index, True) for index, stage in enumerate((0, *path))]
    return forth + back[::-1]


def scheduled(paths: Sequence[Path], stages: int) -> tuple[float, list[list[Visit]]]:
    """Time of an iteration, and each stage's order, by list scheduling: earliest start first, backward before forward.

    The order is that of an actual schedule, so stages that follow it cannot deadlock.
    """
    ahead = [visits(microbatch, path) for microbatch, path in enumerate(paths)]
    ready = [0.0] * len(paths)
    free = [0.0] * stages
    orders: list[list[Visit]] = [[] for _ in range(stages)]
    while any(ahead):
        heads = [left[0] for left in ahead if left]
        start = {each: max(ready[each.microbatch], free[each.stage]) for each in heads}
        each = min(heads, key=lambda visit: (start[visit], not visit.backward, visit.microbatch))
        free[each.stage] = ready[each.microbatch] = start[each] + each.time(paths[each.microbatch])
        orders[each.stage].append(ahead[each.microbatch].pop(0))
    return max(ready), orders


def candidates(stages: int, skipped: int) -> Iterator[Path]:
    """Yield every legal path that leaves out `skipped` of the stages after stage 0."""
    found = set()
    for kept in itertools.combinations(range(1, stages), stages - 1 - skipped):
        reached = {kept}
        for _ in range(MAX_SWAPS):
            reached |= {swapped(path, at) for path in reached for at in range(len(path) - 1)}
        found |= {path for path in reached if all(abs(path.index(s) - kept.index(s)) <= 1 for s in kept)}
    yield from sorted(found)


def swapped(path: Path, at: int) -> Path:
    """The path with the stages at `at` and `at + 1` exchanged."""
    return (*path[:at], path[at + 1], path[at], *path[at + 2 :])


def fits(paths: Sequence[Path], microbatches: int, stages: int, skipped: int) -> bool:
    """Whether every stage is on at most its even share of all paths."""
    share = -(-microbatches * (stages - 1 - skipped) // (stages - 1))
    return all(sum(stage in path for path in paths) <= share for stage in range(1, stages))


def planned(microbatches: int, stages: int, skipped: int) -> list[Path]:
    """Paths of all microbatches, chosen one by one: the path with which those so far end first, within even shares."""
    if not skipped:
        return [tuple(range(1, stages))] * microbatches
    paths: list[Path] = []
    every = list(candidates(stages, skipped))
    for _ in range(microbatches):
        legal = [path for path in every if fits([*paths, path], microbatches, stages, skipped)]
        load = [sum(stage in path for path in paths) for stage in range(stages)]
        paths.append(
            min(legal or every, key=lambda path: (scheduled([*paths, path], stages)[0], sum(load[s] for s in path)))
        )
    return paths


def best(microbatches: int, stages: int, skipped: int) -> float:
    """Shortest time of an iteration over all choices of paths; feasible only for small cases."""
    choices = itertools.combinations_with_replacement(candidates(stages, skipped), microbatches)
    legal = (
        order
        for chosen in choices
        if fits(chosen, microbatches, stages, skipped)
        for order in set(itertools.permutations(chosen))
    )
    return min(scheduled(paths, stages)[0] for paths in legal)
