"""A saddle point by extragradient steps, whose differences are sent as random coordinates that all ranks draw alike.

    torchrun --nproc-per-node 4 -m fanin.examples.parallel.saddle_point --check

Beznosikov et al., MASHA, 2022: min_x max_y of the mean over ranks of x^T A_m y + a_m x + b_m y, plus
lambda/2 (|x|^2 - |y|^2). F_m is a rank's operator, and w a point at which all know the mean of F. Every step a rank
sends Q(F_m(z') - F_m(w)), z' being half a step ahead, and Q keeps K of d coordinates, times d / K. One seed makes them
the same at all ranks, so that the switch can add them: K words instead of d. Their noise is not averaged over ranks, as
it would be if each rank drew its own, so steps are smaller. Two details differ from the paper, and both lower the
noise: d / K steps in turn use each coordinate once, in an order that is drawn anew, and w moves to the present point at
their end, where the mean of F is summed whole, instead of with probability K / d in every step.
`--check` compares the first steps with one process, the rate per step with gamma mu / 4, and the words to reach the
accuracy with those of extragradient without compression at 1 / L, the step with the fewest words (and at 0.7 / L). The
control, extragradient with every rank's own largest coordinates and no error feedback, stalls. The step gamma is
2 K / d / L; a step a tenth larger diverges. It also runs the paper's method with the theorem's constants, which are
quoted from memory: gamma = sqrt(p / q) / (2 L) = K / d / (2 L), where Q lengthens squares by q = d / K and w moves with
probability p = K / d. Then the squared error is at most 2 (1 - gamma mu / 2)^k times the first one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from fanin.examples.parallel import launcher
from fanin.examples.parallel.launcher import Asked, Figures, apart, expect

HALF = 100
"""Number of elements of x, and of y; d is twice that."""
SIZE = 2 * HALF
CONDITION = 100.0
"""L / mu, the condition number."""
KEPT = SIZE // 10
"""K, the number of coordinates that are sent."""
TURNS = SIZE // KEPT
"""Number of steps that use each coordinate once."""
PULL, PULL_OF_THEOREM = 0.05, KEPT / SIZE
"""Weight of w in the point from which a step starts."""
STEP, STEP_OF_THEOREM = 2.0, 0.5
"""Gamma in units of K / d / L."""
PLAIN_STEPS = 1.0, 0.7
"""Steps of extragradient in units of 1 / L: the longest, which takes the fewest words, and a usual one."""
ACCURACY, QUICK_ACCURACY = 1e-6, 0.3
"""Distance from the solution to reach, relative to the distance at the start."""
MOST_STEPS, COMPARED, CONTROL_STEPS = 40_000, 10, 1500
STEPS_OF_THEOREM, SEEDS_OF_THEOREM = 400, 5
LEAST_GAIN, STALLED, TOLERANCE = 1.5, 1e-2, 1e-6

Add = Callable[[Tensor], Tensor]
"""Function that adds a float64 tensor up over all ranks."""


@dataclass(slots=True)
class Run:
    """Outcome of one method."""

    point: Tensor
    error: float
    """Distance from the solution, relative to the distance at the start."""
    steps: int
    words: int
    """Number of words that a rank sent."""


class Problem:
    """The operators F_m(z) = M_m z + q_m with M_m = [[mu I, A_m], [-A_m^T, mu I]], of norm L = 1 in the mean."""

    def __init__(self, ranks: int) -> None:
        drawn = torch.Generator().manual_seed(41)
        mean = torch.randn(HALF, HALF, generator=drawn, dtype=torch.float64)
        noise = 0.02 * torch.randn(ranks, HALF, HALF, generator=drawn, dtype=torch.float64)
        self.coupling = mean / torch.linalg.matrix_norm(mean, 2) + noise - noise.mean(0)
        self.shift = torch.randn(ranks, SIZE, generator=drawn, dtype=torch.float64)
        self.ranks, self.convexity = ranks, 1.0 / CONDITION
        own, coupling = self.convexity * torch.eye(HALF, dtype=torch.float64), self.coupling.mean(0)
        whole = torch.cat([torch.cat([own, coupling], 1), torch.cat([-coupling.T, own], 1)])
        self.solution = torch.linalg.solve(whole, -self.shift.mean(0))

    def operator(self, rank: int, point: Tensor) -> Tensor:
        """F_m at a point; both have shape (d,)."""
        x, y = point.split(HALF)
        coupling = self.coupling[rank]
        return self.shift[rank] + self.convexity * point + torch.cat([coupling @ y, -coupling.T @ x])

    def share(self, own: Sequence[int], point: Tensor) -> Tensor:
        """Contribution of these ranks to the mean of F at a point."""
        return torch.stack([self.operator(rank, point) for rank in own]).sum(0) / self.ranks

    def error(self, point: Tensor) -> float:
        """Distance from the solution, relative to the distance from 0."""
        return float((point - self.solution).norm() / self.solution.norm())


def masha(
    problem: Problem, own: Sequence[int], add: Add, accuracy: float, most: int, theorem: bool = False, seed: int = 43
) -> Run:
    """MASHA with random coordinates, computing the operators of ranks `own`; `theorem`: with the paper's draws."""
    step, pull = (STEP_OF_THEOREM, PULL_OF_THEOREM) if theorem else (STEP, PULL)
    rate = step * KEPT / SIZE
    drawn = torch.Generator().manual_seed(seed)
    here = anchor = torch.zeros(SIZE, dtype=torch.float64)
    own_anchor = problem.share(own, anchor)
    known, words = add(own_anchor.clone()), SIZE
    steps, order = 0, torch.arange(SIZE)
    while steps < most:
        turn = 0 if theorem else steps % TURNS
        if turn == 0:
            order = torch.randperm(SIZE, generator=drawn)
        steps += 1
        base = (1 - pull) * here + pull * anchor - rate * known
        chosen = order[turn * KEPT : (turn + 1) * KEPT]
        kept = (problem.share(own, base) - own_anchor)[chosen] * (SIZE / KEPT)
        before, here = here, base.index_add(0, chosen, add(kept), alpha=-rate)
        words += KEPT
        if bool(torch.rand((), generator=drawn) < KEPT / SIZE) if theorem else turn == TURNS - 1:
            anchor = before if theorem else here
            own_anchor = problem.share(own, anchor)
            known, words = add(own_anchor.clone()), words + SIZE
        if problem.error(here) <= accuracy:
            break
    return Run(here, problem.error(here), steps, words)


def extragradient(
    problem: Problem, own: Sequence[int], add: Add, accuracy: float, most: int, rate: float, largest: int = SIZE
) -> Run:
    """Extragradient; `largest`: number of its own largest coordinates that each rank sends."""
    words = 0
    here = torch.zeros(SIZE, dtype=torch.float64)

    def mean(point: Tensor) -> Tensor:
        share = problem.share(own, point)
        share[share.abs().argsort()[: SIZE - largest]] = 0.0
        return add(share)

    steps = 0
    while steps < most:
        steps += 1
        here = here - rate * mean(here - rate * mean(here))
        words += 2 * largest
        if problem.error(here) <= accuracy:
            break
    return Run(here, problem.error(here), steps, words)


def add_over_ranks(tensor: Tensor) -> Tensor:
    """All-reduce a tensor through the switch."""
    dist.all_reduce(tensor)
    return tensor


def play(asked: Asked) -> Figures:
    """Solve the problem by each method."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    problem, accuracy = Problem(ranks), QUICK_ACCURACY if asked.quick else ACCURACY
    few, alone = (
        masha(problem, own, add, 0.0, COMPARED)
        for own, add in (([rank], add_over_ranks), (range(ranks), lambda tensor: tensor))
    )
    ours = masha(problem, [rank], add_over_ranks, accuracy, MOST_STEPS)
    by_theorem = [
        masha(problem, [rank], add_over_ranks, 0.0, STEPS_OF_THEOREM, True, seed)
        for seed in range(1 if asked.quick else SEEDS_OF_THEOREM)
    ]
    plain, usual = (extragradient(problem, [rank], add_over_ranks, accuracy, MOST_STEPS, step) for step in PLAIN_STEPS)
    most = 50 if asked.quick else CONTROL_STEPS
    control = extragradient(problem, [rank], add_over_ranks, accuracy, most, PLAIN_STEPS[1], KEPT)
    difference, gain = apart(few.point, alone.point), plain.words / ours.words
    rate = -math.log(ours.error) / ours.steps
    bound, bound_of_theorem = (step * KEPT / SIZE * problem.convexity / 4 for step in (STEP, STEP_OF_THEOREM))
    rates = [-math.log(each.error) / each.steps for each in by_theorem]
    if asked.check:
        expect(difference <= TOLERANCE, f"{difference:.2g} from one process after {COMPARED} steps")
        expect(ours.error <= accuracy, f"the error is {ours.error:.2g} after {ours.steps} steps")
        expect(asked.quick or rate >= bound, f"the error falls by {rate:.2g} per step; {bound:.2g} is right")
        expect(min(rates) >= bound_of_theorem, f"{min(rates):.2g} per step; the theorem has {bound_of_theorem:.2g}")
        expect(asked.quick or gain >= LEAST_GAIN, f"{gain:.1f} times fewer words; at least {LEAST_GAIN} is right")
        expect(asked.quick or control.error > STALLED, f"largest coordinates reached {control.error:.2g}, too")
    return {
        "difference": difference, "accuracy": accuracy, "words": ours.words, "words_uncompressed": plain.words,
        "words_uncompressed_at_usual_step": usual.words,
        "steps": ours.steps, "steps_uncompressed": plain.steps, "rate_per_step": rate, "bound": bound,
        "least_rate_at_theorems_step": min(rates), "mean_rate_at_theorems_step": sum(rates) / len(rates),
        "theorems_rate": bound_of_theorem,
        "error_of_control": control.error,
    }  # fmt: skip


if __name__ == "__main__":
    launcher.run(play, "saddle_point", __doc__)
