"""The words with which a group explains a failure of its session."""

from __future__ import annotations

import pytest

from fanin.errors import FaninError, WorkerLostError
from fanin.host.torch.handles.failures import Failures

REMEDY = "Remedy: see the output of that rank, then start the job again"


@pytest.mark.parametrize(
    ("global_ranks", "lost", "aside"),
    [
        ([], (1,), ""),
        ([0, 1, 5], (0, 1), ""),
        ([4, 5, 7], (1,), " (rank 1 of this group is rank 5 of the world)"),
        ([4, 5, 7], (1, 2), " (ranks 1, 2 of this group are ranks 5, 7 of the world)"),
    ],
)
def test_lost_ranks_are_named_in_numbers_of_the_world_too_and_the_remedy_ends_the_text(
    global_ranks: list[int], lost: tuple[int, ...], aside: str
) -> None:
    failures = Failures("tp", 0, 3, global_ranks)
    told = failures.explain(WorkerLostError(lost, f"rank 1 is lost. {REMEDY}"), "all_reduce", 1.0)
    assert isinstance(told, WorkerLostError)
    assert told.ranks == lost
    assert str(told).endswith(f"Connection closed by peer{aside}: rank 1 is lost. {REMEDY}")


def test_a_failure_that_names_no_ranks_is_told_as_it_is() -> None:
    told = Failures("tp", 0, 2, [4, 5]).explain(FaninError(f"it broke. {REMEDY}"), "barrier", 1.0)
    assert str(told) == f"barrier on rank 0 of group 'tp' (2 ranks): it broke. {REMEDY}"
