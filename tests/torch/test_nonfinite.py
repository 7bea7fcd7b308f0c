"""Sums that are not finite, and ranks that are unlike the others: three ranks, in one launch; and the parts alone."""

from __future__ import annotations

import pickle
import weakref

import pytest
import torch

from fanin.errors import ConfigurationError, UnsupportedError
from fanin.host.torch.handles.bucket_names import bucket_of, name_at
from fanin.host.torch.handles.nonfinite import STEPS, NonFinite
from fanin.options import Options
from tests.torch.rank_checks import Outcomes, checks_of, run_checks

CHECKS = "tests.torch.nonfinite_checks"


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """One launch for all checks."""
    return run_checks(CHECKS, 3)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("check", checks_of(CHECKS))
def test_nonfinite(outcomes: Outcomes, check: str) -> None:
    outcomes.expect_ok(check)


@pytest.mark.parametrize(
    ("sizes", "at", "buckets", "bucket"),
    [
        ([8, 4, 4, 2], 2, [8, 4, 4, 2], 2),
        ([1, 8, 4, 4, 2], 2, [8, 4, 4, 2], 1),
        ([4, 4, 4, 4, 4, 4], 4, [4, 4, 4], 1),
        ([8, 4, 4, 2], 3, [8, 4], None),
        ([4, 4], 1, [2, 2], None),
    ],
    ids=["alike ones", "a sum before", "all alike", "another", "other sizes"],
)
def test_a_bucket_is_told_by_the_sums_before_it(
    sizes: list[int], at: int, buckets: list[int], bucket: int | None
) -> None:
    assert bucket_of(sizes, at, buckets) == bucket


def test_elements_of_a_bucket_have_names() -> None:
    bucket = [("a", 10), ("b", 5), ("c", 1)]
    assert [name_at(bucket, first, 1) for first in (0, 9, 10, 14, 15)] == ["a", "a", "b", "b", "c"]
    assert name_at(bucket, 8, 7) == "a or b"


@pytest.mark.parametrize("other", [{"fallback": "gloo"}, {"on_worker_loss": "continue"}, {"inside": "gloo"}], ids=str)
def test_reactions_that_ranks_would_not_share_are_refused(other: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="on_nonfinite = 'skip' with"):
        Options(on_nonfinite="skip", **other)  # type: ignore[arg-type]


def test_an_optimizer_that_is_made_after_a_sum_was_spoiled_leaves_no_step_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STEPS, "_groups", weakref.WeakSet())  # other tests' groups
    group = NonFinite("skip", 0)

    def made() -> tuple[torch.optim.Optimizer, torch.Tensor]:
        weight = torch.zeros(1, requires_grad=True)
        return torch.optim.SGD([weight], 1.0), weight

    def moves(optimizer: torch.optim.Optimizer, weight: torch.Tensor) -> bool:
        before, weight.grad = weight.item(), torch.ones(1)
        optimizer.step()
        return weight.item() != before

    old = made()
    STEPS.spoil()
    new = made()
    assert [moves(*new), moves(*old), moves(*old)] == [True, False, True]
    STEPS.spoil()
    assert [moves(*new), moves(*old)] == [False, False]
    STEPS.spoil()
    group.close()
    assert [moves(*new), moves(*new)] == [False, True]


def test_a_group_that_was_left_refuses_no_optimizer_with_a_closure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STEPS, "_groups", weakref.WeakSet())
    group = NonFinite("skip", 0)
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 1.0)
    with pytest.raises(UnsupportedError, match="closure"):
        optimizer.step(lambda: 0.0)
    group.close()
    optimizer.step(lambda: 0.0)


def test_an_optimizer_that_is_made_later_counts_on_and_one_beside_another_does_not() -> None:
    NonFinite("warn", 0).close()  # a group's making, which hooks the optimizers

    def made() -> torch.optim.Optimizer:
        weight = torch.zeros(1, requires_grad=True)
        weight.grad = torch.ones(1)
        return torch.optim.SGD([weight], 1.0)

    def counted(*optimizers: torch.optim.Optimizer) -> int:
        before = STEPS.begun
        for each in optimizers:
            each.step()
        return STEPS.begun - before

    first = made()
    assert counted(*[first] * 5) == 5
    one, other = made(), made()
    assert [counted(one, other), counted(one, other, other), counted(one, other)] == [1, 2, 1]
    copy = pickle.loads(pickle.dumps(other))
    assert counted(copy, copy, copy) == 2, "one that nobody saw being made may belong to the step before"
