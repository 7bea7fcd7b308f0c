"""The trend of the loss, and the factor that it gives."""

from __future__ import annotations

import math

import pytest

from fanin.host.stale.prediction import MIN_OBSERVATIONS, MIN_RATIO, LossPredictor


def observed(losses: list[float]) -> LossPredictor:
    predictor = LossPredictor()
    for version, loss in enumerate(losses):
        predictor.observe(version, loss)
    return predictor


def test_an_exponential_decay_is_predicted_exactly() -> None:
    predictor = observed([5 * 0.9**version for version in range(40)])
    assert predictor.slope == pytest.approx(math.log(0.9))
    assert predictor.ratio(3) == pytest.approx(0.9**3)


def test_a_gradient_is_never_turned_up_and_never_switched_off() -> None:
    assert observed([1.1**version for version in range(40)]).ratio(5) == 1.0
    assert observed([0.5**version for version in range(40)]).ratio(50) == MIN_RATIO


def test_little_knowledge_changes_nothing() -> None:
    assert observed([0.5**version for version in range(MIN_OBSERVATIONS - 1)]).ratio(3) == 1.0


def test_what_has_no_logarithm_teaches_nothing() -> None:
    predictor = observed([1.0, math.nan, math.inf, 0.0, -1.0] * 4)
    assert predictor.slope == 0.0
