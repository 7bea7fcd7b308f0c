"""Groups of 1, 2 and 4 ranks for every batch, chosen by the lengths of its sequences, and the batch run in them.

    torchrun --nproc-per-node 8 -m fanin.examples.parallel.sequence_groups --check

Wang et al., FlexSP, 2025. A long sequence needs several ranks, for memory and for time; a short one among several ranks
mostly waits for messages. A mixed-integer program chooses groups and assigns sequences: least makespan, degrees that
add up to at most the number of ranks, at most MEMORY tokens per rank. The model of time is quadratic and linear
computation, divided by the degree, and a gather of keys and values. Inside a group each rank has a part of a sequence's
queries, and gathers keys and values through the switch; every group is a job of its own there.
`--check` compares the run with one process, the choice with brute force on small batches, and the makespan with that of
groups of 4 alone. Makespans are the model's, because two cores cannot run eight ranks at once.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor
from torch.distributed import ProcessGroup

from fanin.examples.parallel import launcher
from fanin.examples.parallel.differentiable import everyones
from fanin.examples.parallel.launcher import Asked, Figures, apart, expect

DEGREES = (1, 2, 4)
SQUARE, LINEAR, MESSAGE = 1 / 1024, 1.0, 0.25
"""Time per token: of attention, times the length; of everything else; of the gather, times the others' share."""
MEMORY = 160.0
"""Most tokens of a rank."""
MEDIAN, SPREAD, SHORTEST, LONGEST = 20.0, 1.2, 4, 320
"""Median, spread and limits of the log-normal lengths."""
SEQUENCES, BATCHES, QUICK_BATCHES = 24, 5, 1
NODES, GAP = 400, 0.02
"""Limits of the solver, at which it returns the best solution found."""
WIDTH = 16
LARGEST_RATIO, TOLERANCE = 0.75, 1e-5


@dataclass(frozen=True, slots=True)
class Choice:
    """Groups chosen for one batch."""

    groups: tuple[tuple[int, tuple[int, ...]], ...]
    """(degree, numbers of the sequences) of each group that has any; the largest groups first."""
    makespan: float


def time_of(length: int, degree: int) -> float:
    """Time of one sequence in a group of that degree."""
    computed = (SQUARE * length**2 + LINEAR * length) / degree
    return computed + MESSAGE * length * (degree - 1) / degree


def choose(lengths: Sequence[int], ranks: int, degrees: Sequence[int] = DEGREES) -> Choice:
    """Choose the groups of least makespan. ValueError if the batch does not fit."""
    places = [degree for degree in degrees for _ in range(ranks // degree)]
    n, g = len(lengths), len(places)
    times = np.array([[time_of(length, degree) for degree in places] for length in lengths])
    size = n * g + g + 1  # variables: a sequence at a place, use of a place, the makespan
    rows, least, most = [], [], []

    def constrain(entries: dict[int, float], low: float, high: float) -> None:
        row = np.zeros(size)
        row[list(entries)] = list(entries.values())
        rows.append(row)
        least.append(low)
        most.append(high)

    for s in range(n):
        constrain({s * g + p: 1.0 for p in range(g)}, 1, 1)
    for p, degree in enumerate(places):
        load = {s * g + p: times[s, p] for s in range(n)}
        constrain(load | {size - 1: -1.0}, -np.inf, 0)
        constrain({s * g + p: lengths[s] / degree for s in range(n)} | {n * g + p: -MEMORY}, -np.inf, 0)
        if p and places[p - 1] == degree:  # places of one degree are interchangeable: the busier one comes first
            before = {s * g + p - 1: -times[s, p] for s in range(n)}
            constrain(load | before, -np.inf, 0)
    constrain({n * g + p: float(degree) for p, degree in enumerate(places)}, 0, ranks)
    cost = np.zeros(size)
    cost[-1] = 1.0
    bounds = Bounds(np.zeros(size), np.append(np.ones(size - 1), np.inf))
    options = {"node_limit": NODES, "mip_rel_gap": GAP if n > 8 else 0.0}
    solved = milp(cost, integrality=np.append(np.ones(size - 1), 0), bounds=bounds, options=options,
                  constraints=LinearConstraint(np.array(rows), least, most))  # fmt: skip
    if solved.x is None:
        raise ValueError(f"{sum(lengths)} tokens do not fit in {ranks} ranks of {MEMORY:.0f} in groups of {degrees}")
    taken = solved.x[: n * g].reshape(n, g).round().astype(bool)
    groups = [(degree, tuple(np.flatnonzero(taken[:, p]).tolist())) for p, degree in enumerate(places)]
    used = tuple(sorted((each for each in groups if each[1]), reverse=True))
    return Choice(used, max(sum(time_of(lengths[s], degree) for s in members) for degree, members in used))


def by_brute_force(lengths: Sequence[int], ranks: int) -> float:
    """Least makespan over all assignments."""
    places = [degree for degree in DEGREES for _ in range(ranks // degree)]
    least = float("inf")
    for assigned in itertools.product(range(len(places)), repeat=len(lengths)):
        if sum(places[p] for p in set(assigned)) > ranks:
            continue
        loads, tokens = [0.0] * len(places), [0.0] * len(places)
        for length, p in zip(lengths, assigned, strict=True):
            loads[p] += time_of(length, places[p])
            tokens[p] += length / places[p]
        if max(tokens) <= MEMORY:
            least = min(least, max(loads))
    return least


def drawn_lengths(seed: int, count: int = SEQUENCES) -> list[int]:
    """Draw the lengths of one batch's sequences."""
    drawn = np.random.default_rng(seed).lognormal(np.log(MEDIAN), SPREAD, count)
    return [int(length) for length in drawn.clip(SHORTEST, LONGEST)]


def attention(weights: Tensor, tokens: Tensor, lengths: list[int], group: ProcessGroup | None) -> Tensor:
    """Causal attention of this rank's part of a sequence, given the lengths of all parts: (own length, WIDTH)."""
    query, key, value = (tokens @ each for each in weights)
    rank = group.rank() if group is not None else 0
    if group is not None:
        key, value = everyones(torch.cat([key, value], dim=1), lengths, group, summands=True).split(WIDTH, dim=1)
    places = torch.arange(len(key))
    own = places[sum(lengths[:rank]) :][: len(query)]
    scores = (query @ key.T).masked_fill(places > own.unsqueeze(1), -torch.inf)
    made: Tensor = scores.softmax(-1) @ value
    return made


def run(choice: Choice, sequences: list[Tensor], weights: Tensor, groups: dict[tuple[int, int], ProcessGroup]) -> float:
    """Go forward and backward in the groups; largest difference of this rank's outputs from one process's."""
    first, rank, largest = 0, dist.get_rank(), 0.0
    for degree, members in choice.groups:
        if first <= rank < first + degree:
            for number in members:
                whole = sequences[number]
                parts = whole.tensor_split(degree)
                made = attention(
                    weights, parts[rank - first], [len(part) for part in parts], groups.get((degree, first))
                )
                made.square().sum().backward()
                alone = attention(weights.detach(), whole, [len(whole)], None)
                largest = max(largest, apart(made, alone.tensor_split(degree)[rank - first]))
        first += degree
    return largest


def play(asked: Asked) -> Figures:
    """Choose groups for several batches, and run the first batch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    groups = {
        (degree, first): dist.new_group(list(range(first, first + degree)))
        for degree in DEGREES[1:] for first in range(0, ranks, degree)
    }  # fmt: skip
    batches = [drawn_lengths(seed, SEQUENCES * ranks // 8) for seed in range(QUICK_BATCHES if asked.quick else BATCHES)]
    told: list[tuple[list[Choice], list[float], list[float]] | None] = [None]
    if rank == 0:  # another version of the solver may find other groups
        small = [drawn_lengths(seed, 5) for seed in range(3)] if asked.check else []
        told = [(
            [choose(each, ranks) for each in batches],
            [choose(each, ranks, (4,)).makespan for each in batches],
            [choose(each, 4).makespan / by_brute_force(each, 4) - 1 for each in small],
        )]  # fmt: skip
    dist.broadcast_object_list(told)
    assert told[0] is not None
    choices, fixed, from_best = told[0]
    drawn = torch.Generator().manual_seed(31)
    weights = torch.randn(3, WIDTH, WIDTH, generator=drawn, dtype=torch.float64).div_(WIDTH).requires_grad_()
    sequences = [torch.randn(length, WIDTH, generator=drawn, dtype=torch.float64) for length in batches[0]]
    difference = run(choices[0], sequences, weights, groups)
    gradient = weights.grad if weights.grad is not None else torch.zeros_like(weights)
    dist.all_reduce(gradient)
    ratios = [choice.makespan / one for choice, one in zip(choices, fixed, strict=True)]
    if asked.check:
        whole = weights.detach().clone().requires_grad_()
        for each in sequences:
            attention(whole, each, [len(each)], None).square().sum().backward()
        assert whole.grad is not None
        difference = max(difference, apart(gradient, whole.grad))
        expect(difference <= TOLERANCE, f"{difference:.2g} from one process; at most {TOLERANCE} is right")
        expect(max(from_best, key=abs, default=0.0) <= 1e-6, f"makespans are {from_best} above brute force")
        expect(statistics.mean(ratios) <= LARGEST_RATIO, f"makespan {statistics.mean(ratios):.2f} of that of degree 4")
    degrees = [degree for degree, _ in choices[0].groups]
    return {
        "difference": difference, "makespan_of_degree_4": statistics.mean(ratios), "worst": max(ratios),
        "from_brute_force": max(from_best, default=0.0), "groups": " ".join(map(str, degrees)), "batches": len(batches),
        "longest": max(batches[0]), "sequences": len(batches[0]),
    }  # fmt: skip


if __name__ == "__main__":
    launcher.run(play, "sequence_groups", __doc__)
