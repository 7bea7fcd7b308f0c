"""A bucket of new parameters begins anew, also where Python gives a new tensor the address of a dead one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fanin.host.codecs.codec import Place
from fanin.host.torch import CodecState, LanesState, codec_hook
from fanin.host.torch.training.same_parameters import same_parameters
from tests.support.buckets import Bucket
from tests.torch.groups import SIZE, Groups, groups_of, on_every_rank

COUNT = 3_000
STEPS = 12


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    with groups_of(None) as made:
        yield made


def test_parameters_are_the_same_as_objects_and_in_order() -> None:
    one, other = torch.zeros(3), torch.zeros(3)
    assert same_parameters((one, other), [one, other])
    assert not same_parameters((one, other), (other, one))
    assert not same_parameters((one,), (one, other))
    assert not same_parameters((one,), (one.clone(),))


def test_every_rank_agrees_on_a_codec_at_each_step_whose_parameters_are_new(
    groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed: list[int] = []
    agree = CodecState._agree

    def noted(state: CodecState, place: Place) -> None:
        agreed.append(place.rank)
        agree(state, place)

    monkeypatch.setattr(CodecState, "_agree", noted)

    def act(rank: int) -> None:
        state = CodecState("lanes:8", group=groups[rank])
        for _ in range(STEPS):  # each step's parameter dies with it, and its address is free for the next
            codec_hook(state, Bucket(torch.zeros(COUNT), torch.ones(COUNT))).wait()  # type: ignore[arg-type]

    on_every_rank(act)
    assert sorted(agreed) == sorted(list(range(SIZE)) * STEPS)


def test_a_residual_is_kept_for_the_same_parameters_and_for_no_others(groups: Groups) -> None:
    state = LanesState(lanes=8, error_feedback=True, group=groups[0])
    kept = torch.zeros(COUNT)
    for _ in range(STEPS):
        fresh = state.residual(Bucket(torch.zeros(COUNT), torch.ones(COUNT)))  # type: ignore[arg-type]
        assert fresh is not None
        assert not fresh.any()
        fresh.fill_(1.0)
    first = state.residual(Bucket(kept, torch.ones(COUNT)))  # type: ignore[arg-type]
    assert first is state.residual(Bucket(kept, torch.ones(COUNT)))  # type: ignore[arg-type]
