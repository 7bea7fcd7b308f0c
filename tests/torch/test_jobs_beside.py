"""Several jobs that train at one switch at once, in a world of processes of their own."""

from __future__ import annotations

import pytest

from fanin.examples.parallel import gallery
from fanin.examples.parallel.catalogue import CATALOGUE
from tests.support.forks import fork_jobs
from tests.support.packages import require_package

require_package("sklearn", "scikit-learn is not installed: pip install 'fanin[demo]'")
pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.thorough]


def test_two_jobs_train_beside_each_other_as_alone_and_one_without_memory_over_gloo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fork_jobs(monkeypatch)
    found = gallery.outcome_of(CATALOGUE["jobs_beside"], gallery.Plan(examples=(), quick=True))
    assert found.verdict == gallery.OK
    assert found.figures["bytes_beside"]["switch"] > found.figures["bytes_beside"]["gloo"] > 0
