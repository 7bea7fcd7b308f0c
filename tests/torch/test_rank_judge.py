"""The test by which ranks are judged: what it finds, within how many steps, and that it leaves healthy ranks alone."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.host.torch.training.rank_judge import WARM_UP, Finding, RankJudge, Values

RANKS, LAYERS = 8, 3
HEALTHY_STEPS = 80
RATE = 1e-5


def numbers(random: np.random.Generator, step: int) -> tuple[Values, Values]:
    """Norms and cosines of ranks that are alike: noise around what all do together."""
    common = np.exp(-step / 50.0) * np.array([1.0, 3.0, 0.2])
    of_batch = 0.3 * random.standard_normal((RANKS, 1))
    norms = common * np.exp(of_batch + 0.1 * random.standard_normal((RANKS, LAYERS)))
    return norms, np.clip(0.4 + 0.2 * random.standard_normal((RANKS, LAYERS)), -1.0, 1.0)


def judged(seed: int, steps: int, ratio: float = 1.0, cosine: float = 0.0) -> list[tuple[int, Finding]]:
    """Steps and findings, where rank `seed` mod RANKS is unlike the others from HEALTHY_STEPS on."""
    judge, random = RankJudge(RANKS, RATE), np.random.default_rng(seed)
    found: list[tuple[int, Finding]] = []
    for step in range(steps):
        norms, cosines = numbers(random, step)
        if step >= HEALTHY_STEPS:
            norms[seed % RANKS] *= ratio
            cosines[seed % RANKS] -= cosine
        found += [(step, each) for each in judge.judge(norms, cosines)]
    return found


def test_healthy_ranks_are_left_alone() -> None:
    assert judged(seed=1, steps=400) == []


@pytest.mark.parametrize(
    ("ratio", "cosine", "seeds"), [(12.0, 0.5, 20), (12.0, 0.0, 3), (1 / 12, 0.0, 3), (1.0, 1.8, 3)], ids=str
)
def test_an_odd_rank_is_named_within_5_steps_by_all_seeds(ratio: float, cosine: float, seeds: int) -> None:
    for seed in range(seeds):
        (step, finding), *rest = judged(seed, HEALTHY_STEPS + 5, ratio, cosine)
        assert step < HEALTHY_STEPS + 5
        assert all(each.rank == seed % RANKS for _, each in [(step, finding), *rest])
        assert (finding.kind == "agreement") <= (cosine > 0.0)


def test_one_strange_step_is_no_finding() -> None:
    judge, random = RankJudge(RANKS, RATE), np.random.default_rng(3)
    for step in range(HEALTHY_STEPS):
        norms, cosines = numbers(random, step)
        if step % 20 == 19:
            norms[step % RANKS] *= 20.0
        assert judge.judge(norms, cosines) == []


def test_layers_without_gradients_or_with_nan_are_left_out() -> None:
    judge, random = RankJudge(RANKS, RATE), np.random.default_rng(4)
    for step in range(WARM_UP + 5):
        norms, cosines = numbers(random, step)
        norms[:, 0] = 0.0
        norms[step % RANKS, 1] = np.nan
        assert judge.judge(norms, cosines) == []
    norms[:] = np.nan
    assert judge.judge(norms, cosines) == []
