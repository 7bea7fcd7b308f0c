"""Sums over shards of which some have lost ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fanin.host.session.doubt import Doubt

ALL = (0, 1, 2, 3)


def over(*members: tuple[int, ...]) -> Doubt:
    """Doubts in a job of four, whose shards have these members."""
    return Doubt(len(ALL), [SimpleNamespace(known_members=each) for each in members])


@pytest.mark.parametrize(
    ("members", "contributors", "in_doubt"),
    [
        ((ALL, ALL), 4, False),
        ((ALL, (0, 1)), 4, False),  # it lacks nobody, whoever is lost since
        ((ALL, (0, 1, 2)), 3, True),
        (((0, 1, 2), (0, 1, 2)), 3, False),
        (((0, 1, 2), (0, 1, 2)), 2, True),  # news of the second loss is on its way
        (((0, 1), (0, 1)), 3, False),
        (((0, 1, 2), (0, 1, 3)), 3, True),
        ((ALL, ALL), 3, True),
        ((ALL, ALL), None, False),
        ((ALL, (0, 1, 2)), None, True),
    ],
)
def test_a_sum_is_in_doubt_until_every_shard_has_lost_whom_it_lacks(
    members: tuple[tuple[int, ...], ...], contributors: int | None, in_doubt: bool
) -> None:
    assert over(*members).about(contributors) is in_doubt


@pytest.mark.parametrize(
    ("members", "dissenters"),
    [
        ((ALL, ALL), ()),
        (((0, 1), ALL, (0, 1, 2)), (0, 2)),
        (((0, 1, 2), (0, 1, 3)), (1,)),
        ((ALL,), ()),
    ],
)
def test_shards_dissent_from_the_one_with_most(
    members: tuple[tuple[int, ...], ...], dissenters: tuple[int, ...]
) -> None:
    assert over(*members).dissenters == dissenters
