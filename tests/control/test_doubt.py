"""Sums over shards of which some have lost ranks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fanin.host.session.doubt import Doubt

ALL = (0, 1, 2, 3)


def over(*members: tuple[int, ...]) -> Doubt:
    """Doubts in a job of four, whose shards have these members."""
    return Doubt(ALL, [SimpleNamespace(known_members=each) for each in members])


@pytest.mark.parametrize(
    ("members", "arrived", "in_doubt"),
    [
        ((ALL, ALL), 0b1111, False),
        ((ALL, (0, 1)), 0b1111, False),  # it lacks nobody, whoever is lost since
        ((ALL, (0, 1, 2)), 0b0111, True),
        (((0, 1, 2), (0, 1, 2)), 0b0111, False),
        (((0, 1, 2), (0, 1, 2)), 0b0011, True),  # news of the second loss is on its way
        (((0, 1, 2), (0, 1, 2)), 0b1011, True),  # the same: rank 3 had contributed before it was lost, and 2 had not
        (((0, 1), (0, 1)), 0b0111, False),
        (((0, 1, 2), (0, 1, 3)), 0b0111, True),
        (((0, 1, 2), (0, 1, 3)), 0b1011, True),
        ((ALL, ALL), 0b0111, True),
        ((ALL, ALL), None, False),
        ((ALL, (0, 1, 2)), None, True),
    ],
)
def test_a_sum_is_in_doubt_until_every_shard_has_lost_whom_it_lacks(
    members: tuple[tuple[int, ...], ...], arrived: int | None, in_doubt: bool
) -> None:
    assert over(*members).about(arrived) is in_doubt


def test_workers_of_a_job_that_others_have_left_have_other_numbers_than_their_ranks() -> None:
    shards = [SimpleNamespace(known_members=(3, 5))] * 2
    doubt = Doubt((1, 3, 5), shards)
    assert not doubt.about(0b110)
    assert doubt.about(0b011)


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
