"""Local steps on three ranks, which are threads of this process, over a switch of their own."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fanin.emulation.network.hidden_exchange import exchanges_of
from fanin.emulation.network.timelines import legal, read_lines
from fanin.errors import CollectiveMismatchError, ConfigurationError, DivergedError, FaninError, UnsupportedError
from fanin.host.torch import Every, LocalSteps, Outer, Quadratic, describe_training
from fanin.options import Options
from tests.torch.groups import SIZE, Groups, groups_of, on_every_rank

Weights = list[torch.Tensor]
RATE = 0.05
SEEDED = threading.Lock()


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    with groups_of(Options()) as made:
        yield made


def network() -> nn.Module:
    with SEEDED:  # ranks are threads, which share torch's generator
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 8, generator=generator), torch.randint(0, 4, (8,), generator=generator)


def learn(model: nn.Module, rank: int, step: int) -> None:
    """The gradient of one step."""
    inputs, targets = batch(rank, step)
    model.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()


def weights(model: nn.Module) -> Weights:
    return [each.detach().clone() for each in model.state_dict().values()]


def alike(everyones: list[Weights]) -> bool:
    return all(torch.equal(one, other) for each in everyones[1:] for one, other in zip(everyones[0], each, strict=True))


class Rank:
    """One rank's model and its local steps."""

    def __init__(
        self,
        groups: Groups,
        rank: int,
        model: nn.Module | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
        **given: Any,
    ) -> None:
        self.rank = rank
        self.model = network() if model is None else model
        self.optimizer = optimizer(self.model.parameters(), lr=RATE)
        self.training = LocalSteps(self.model, self.optimizer, group=groups[rank], **given)

    def train(self, steps: int, first: int = 0) -> None:
        for step in range(first, first + steps):
            learn(self.model, self.rank, step)
            self.training.step()


def trained(groups: Groups, steps: int, *, flush: bool = True, **given: Any) -> list[Weights]:
    """Every rank's weights after so many steps."""

    def act(rank: int) -> Weights:
        own = Rank(groups, rank, **given)
        own.train(steps)
        if flush:
            own.training.flush()
        return weights(own.model)

    return on_every_rank(act)  # type: ignore[return-value]


def averaged(steps: int, period: int) -> Weights:
    """Local SGD by definition: every worker trains alone, and the mean of their weights is everyone's."""
    models = [network() for _ in range(SIZE)]
    optimizers = [torch.optim.SGD(each.parameters(), lr=RATE) for each in models]
    for step in range(steps):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            learn(model, rank, step)
            optimizer.step()
        if (step + 1) % period == 0:
            with torch.no_grad():
                for same in zip(*(each.parameters() for each in models), strict=True):
                    mean = torch.stack(list(same)).mean(0)
                    for each in same:
                        each.copy_(mean)
    return weights(models[0])


def test_plain_local_steps_are_averaging(groups: Groups) -> None:
    found = trained(groups, 8, flush=False, period=4)
    assert alike(found)
    for one, other in zip(found[0], averaged(8, 4), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "given",
    [
        {"period": 4, "codec": "8/8", "outer": Outer(lr=0.7, momentum=0.9, nesterov=True)},
        {"period": 4, "codec": "low_rank:32:rank=2"},
        {"period": Quadratic(alpha=3 * RATE, base=2, init=1, warmup=2, total=13)},
    ],
    ids=str,
)
def test_replicas_have_the_same_bits_after_every_meeting(groups: Groups, given: dict[str, Any]) -> None:
    def act(rank: int) -> list[Weights]:
        own, seen = Rank(groups, rank, **given), []
        for step in range(12):
            own.train(1, step)
            if own.training.in_step:
                seen.append(weights(own.model))
        return seen

    everyones: Any = on_every_rank(act)
    assert len(everyones[0]) == len(everyones[1]) == len(everyones[2]) >= 3
    assert all(alike(list(meeting)) for meeting in zip(*everyones, strict=True))


@pytest.mark.parametrize(
    "given",
    [
        {"period": 8, "fragments": 4, "overlap": 2, "mix": 0.5, "codec": "4/8"},
        {"period": 4, "overlap": 4, "codec": "rotated:8/8", "outer": Outer(momentum=0.2, clip=1.0, gap="measured")},
        {"period": 4, "quorum": 2, "codec": "8/8"},
    ],
    ids=str,
)
def test_replicas_have_the_same_bits_after_a_flush(groups: Groups, given: dict[str, Any]) -> None:
    assert alike(trained(groups, 14, **given))


def test_an_overlapped_result_is_applied_one_period_late_and_nothing_is_lost(groups: Groups) -> None:
    """With CO2's delay every delta is handed in once: gradients that are constants add up to the same weights."""

    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(5))

    def act(rank: int) -> torch.Tensor:
        model = Constant()
        own = Rank(groups, rank, model, period=4, overlap=4)
        seen = []
        for _ in range(12):
            model.weight.grad = torch.full((5,), float(rank + 1))
            own.training.step()
            seen.append(float(model.weight.detach()[0]))
        assert seen[3] == pytest.approx(-4 * RATE * (rank + 1))  # under way, so the weights are this rank's own
        assert seen[7] == pytest.approx(-4 * RATE * 2)  # the mean of the first period
        own.training.flush()
        return model.weight.detach().clone()

    for each in on_every_rank(act):
        torch.testing.assert_close(each, torch.full((5,), -12 * RATE * 2), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("mix", "kept"), [("keep", 11), (0.0, 11 - 2)])
def test_steps_during_an_exchange_are_kept_where_that_is_asked_for(groups: Groups, mix: Any, kept: int) -> None:
    """The first meeting lands two steps after its launch. The flush lands the second, and keeps what came after it."""

    def act(rank: int) -> float:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        own = Rank(groups, rank, model, period=5, overlap=2, mix=mix)
        for _ in range(11):
            model.weight.grad = torch.full((1, 1), float(rank + 1))
            own.training.step()
        own.training.flush()
        return float(model.weight.detach())

    assert on_every_rank(act) == pytest.approx([-kept * RATE * 2] * SIZE, rel=1e-4)


@pytest.mark.parametrize("given", [{}, {"overlap": 2}, {"fragments": 2, "overlap": 2, "codec": "8/8"}], ids=str)
def test_every_meeting_is_in_the_time_line_with_its_sums(given: dict[str, Any], tmp_path: Path) -> None:
    def act(rank: int) -> int:
        own = Rank(watched, rank, period=4, **given)
        own.train(12)
        own.training.flush()
        return own.training.totals.meetings

    with groups_of(Options(timeline=str(tmp_path / "%r.jsonl"))) as watched:
        counts = on_every_rank(act)
    for rank, count in enumerate(counts):
        assert isinstance(count, int)
        lines = legal(read_lines(tmp_path / f"{rank}.jsonl"))
        exchanges = exchanges_of(lines)
        assert [each.number for each in exchanges] == list(range(len(exchanges)))
        assert count // 2 < len(exchanges) <= count, "a meeting of a flush that carries no delta is no exchange"
        for each in exchanges:
            assert each.launched_s < each.submitted_s <= each.awaited_s < each.landed_s
            assert each.launched_s < each.arrived_s <= each.landed_s
            assert 0 < each.exposed_s <= each.exchange_s + 1e-9
        sums = [line["submitted"] for line in lines if line["kind"] == "reduction"]
        begun = [any(each.launched_s <= at <= each.submitted_s for at in sums) for each in exchanges]
        assert all(begun)


def test_a_rank_without_data_flushes_while_others_train(groups: Groups) -> None:
    def act(rank: int) -> tuple[Weights, int]:
        own = Rank(groups, rank, period=4, fragments=3, overlap=2)
        own.train(5 + 6 * rank)
        own.training.flush()
        after = weights(own.model)
        own.train(4)  # and training may go on, on all
        own.training.flush()
        return after, own.training.schedule.number

    everyones: Any = on_every_rank(act)
    assert alike([after for after, _ in everyones])
    assert len({number for _, number in everyones}) == 1


def test_the_mean_is_over_the_ranks_that_made_steps(groups: Groups) -> None:
    """A rank that has ended hands in zeros, which must not shrink the others' mean."""

    def act(rank: int) -> float:
        model = nn.Linear(1, 1, bias=False)
        own = Rank(groups, rank, model, period=2)
        start = float(model.weight.detach())
        if rank > 0:
            for _ in range(2):
                model.weight.grad = torch.ones(1, 1)
                own.training.step()
        own.training.flush()
        return start - float(model.weight.detach())

    assert on_every_rank(act) == pytest.approx([2 * RATE] * SIZE, rel=1e-4)


def test_running_statistics_are_averaged_and_counts_are_the_largest(groups: Groups) -> None:
    def act(rank: int) -> list[torch.Tensor]:
        model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
        own = Rank(groups, rank, model, period=2, codec="4/4")
        own.train(2 + rank)
        own.training.flush()
        return weights(model)

    everyones: Any = on_every_rank(act)
    assert alike(everyones)
    counts = [each for each in everyones[0] if each.dtype == torch.int64]
    assert [int(each) for each in counts] == [4]


def test_a_step_that_the_scaler_skips_counts_and_meetings_stay_aligned(groups: Groups) -> None:
    def act(rank: int) -> Weights:
        own = Rank(groups, rank, period=3)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=1000)
        for step in range(6):
            own.optimizer.zero_grad()
            inputs, targets = batch(rank, step)
            scaler.scale(nn.functional.cross_entropy(own.model(inputs), targets)).backward()
            if (rank, step) == (1, 1):
                own.model[0].weight.grad[0, 0] = torch.inf  # type: ignore[index]
            own.training.step(scaler=scaler)
            scaler.update()
        assert own.training.in_step
        with pytest.raises(ConfigurationError, match=r"step\(scaler=scaler\)"):
            scaler.step(own.training)  # type: ignore[arg-type]
        return weights(own.model)

    assert alike(on_every_rank(act))  # type: ignore[arg-type]


def test_a_rank_that_is_not_finite_is_left_out_and_begins_anew(groups: Groups) -> None:
    def act(rank: int) -> tuple[Weights, int]:
        own = Rank(groups, rank, optimizer=torch.optim.Adam, period=2)
        for step in range(4):
            learn(own.model, rank, step)
            if (rank, step) == (2, 0):
                own.model[0].weight.grad[0, 0] = torch.nan  # type: ignore[index]
            own.training.step()
        return weights(own.model), own.training.totals.left_out

    everyones: Any = on_every_rank(act)
    assert alike([each for each, _ in everyones])
    assert all(bool(each.isfinite().all()) for each in everyones[0][0])
    assert [left_out for _, left_out in everyones] == [0, 0, 1]


def test_training_that_has_diverged_everywhere_ends_and_rolls_back(groups: Groups) -> None:
    def act(rank: int) -> Weights:
        own = Rank(groups, rank, period=2)
        own.train(2)
        met = weights(own.model)
        own.train(1, 2)
        own.model[0].weight.data[0, 0] = torch.nan  # type: ignore[index]
        learn(own.model, rank, 3)
        with pytest.raises(DivergedError, match="ranks 0, 1, 2"):
            own.training.step()
        with pytest.raises(DivergedError):
            own.training.step()  # a meeting that failed is not forgotten
        own.training.roll_back()
        assert alike([met, weights(own.model)])
        own.train(2, 4)
        return weights(own.model)

    assert alike(on_every_rank(act))  # type: ignore[arg-type]


def test_gradients_are_accumulated_by_calling_step_once_per_step_of_the_optimizer(groups: Groups) -> None:
    def act(rank: int) -> int:
        own = Rank(groups, rank, period=2)
        for step, micro in itertools.product(range(4), range(3)):
            inputs, targets = batch(rank, 10 * step + micro)
            nn.functional.cross_entropy(own.model(inputs), targets).backward()
            if micro == 2:
                own.training.step()
                own.training.zero_grad()
        return own.training.totals.meetings

    assert on_every_rank(act) == [2] * SIZE


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_start_that_is_rounded_is_no_training(groups: Groups, dtype: torch.dtype) -> None:
    """With parameters of 16 bits the start weights are float32; a rank that does not move them hands in nothing."""

    def act(rank: int) -> tuple[float, Weights]:
        model = network().to(dtype)
        own = Rank(groups, rank, model, period=2, outer=Outer(lr=0.3))
        for step in range(2):
            for each in model.parameters():
                each.grad = torch.full_like(each, 0.1)
            own.training.step()
            del step
        part = own.training.parts[0]
        return float(part.fragment.delta(part.outer.start).abs().max()), weights(model)

    everyones: Any = on_every_rank(act)
    assert [delta for delta, _ in everyones] == [0.0] * SIZE
    assert alike([each for _, each in everyones])


def test_a_checkpoint_goes_on_with_the_same_bits(groups: Groups) -> None:
    given: dict[str, Any] = {
        "period": 4,
        "fragments": 2,
        "overlap": 1,
        "codec": "4/8",
        "outer": Outer(lr=0.7, momentum=0.9, nesterov=True),
    }

    def act(rank: int) -> bool:
        own = Rank(groups, rank, **given)
        own.train(6)
        with pytest.raises(ConfigurationError, match="flush"):
            own.training.state_dict()
        own.training.flush()
        saved = copy.deepcopy((own.model.state_dict(), own.training.state_dict()))
        own.train(8, 6)
        own.training.flush()
        again = Rank(groups, rank, **given)
        again.model.load_state_dict(saved[0])
        again.training.load_state_dict(saved[1])
        again.train(8, 6)
        again.training.flush()
        return alike([weights(own.model), weights(again.model)])

    assert on_every_rank(act) == [True] * SIZE


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(groups: Groups) -> None:
    def act(rank: int) -> None:
        outer = Outer(momentum=0.5)
        state = Rank(groups, rank, nn.Linear(3, 3), period=2, outer=outer).training.state_dict()
        own = Rank(groups, rank, period=2, outer=outer)
        before = weights(own.model)
        with pytest.raises(ConfigurationError, match=r"of fragments of \[12\] elements"):
            own.training.load_state_dict(state)
        whole = own.training.state_dict()
        (fragment,) = whole["fragments"]
        for wrong, words in (
            ({}, "has no 'plan'"),
            (None, "is a NoneType, not a dict"),
            ({**whole, "step": "3"}, "'step' of the state of local steps is a str, not a int"),
            ({**whole, "number": -1}, "'number' .* is -1"),
            ({**whole, "place": 0}, "'place' .* is not a list of 2"),
            ({**whole, "fragments": [{}]}, "fragment 0 .* has no 'start'"),
            ({**whole, "fragments": [{**fragment, "start": fragment["start"].double()}]}, "'start' .* of float32"),
            ({**whole, "fragments": [{**fragment, "momentum": torch.zeros(1)}]}, "'momentum' of fragment 0"),
            ({**whole, "fragments": [{**fragment, "moves": (0, None, 0.0)}]}, "'moves' .* not a number"),
            ({**whole, "fragments": [{**fragment, "codec": {"owed": torch.zeros(3)}}]}, "of codec 'lanes"),
        ):
            with pytest.raises(ConfigurationError, match=f"{words}.*Remedy: "):
                own.training.load_state_dict(wrong)  # type: ignore[arg-type]
        other = Rank(groups, rank, period=4, outer=outer)
        with pytest.raises(ConfigurationError, match="period = Every"):
            other.training.load_state_dict(own.training.state_dict())
        assert alike([before, weights(own.model)])

    on_every_rank(act)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        (lambda rank: {"period": 2 + (rank == 1)}, "period differs"),
        (lambda rank: {"period": 4, "fragments": 1 + (rank == 1)}, "fragments differs"),
        (lambda rank: {"period": 4, "codec": "8/8" if rank else "4/8"}, "codec differs"),
        (lambda rank: {"period": 4, "model": nn.Linear(3 + rank, 2)}, "parameters differs"),
    ],
    ids=["period", "fragments", "codec", "model"],
)
def test_ranks_with_unlike_settings_are_told_when_they_begin(
    groups: Groups, given: Callable[[int], dict[str, Any]], word: str
) -> None:
    def act(rank: int) -> None:
        with pytest.raises(CollectiveMismatchError, match=word):
            Rank(groups, rank, **given(rank))

    on_every_rank(act)


def test_unlike_learning_rates_are_noticed_at_the_meeting_that_they_move(groups: Groups) -> None:
    def act(rank: int) -> None:
        own = Rank(groups, rank, period=Quadratic(alpha=2 * RATE, base=1))
        own.train(4)
        before = weights(own.model)
        if rank == 2:
            own.optimizer.param_groups[0]["lr"] = RATE / 2
        with pytest.raises(CollectiveMismatchError, match=r"unlike periods .*rank 2: 16"):
            own.train(16, 4)
        own.training.roll_back()
        assert alike([before, weights(own.model)])

    on_every_rank(act)


def test_a_model_that_changed_between_meetings_is_named_on_every_rank(groups: Groups) -> None:
    def act(rank: int) -> None:
        own = Rank(groups, rank, period=2)
        own.train(3)
        if rank == 1:
            own.model[0].weight.requires_grad_(False)  # type: ignore[index]
        with pytest.raises(ConfigurationError, match="rank 1: the optimizer's parameters"):
            own.train(1, 3)

    on_every_rank(act)


def test_what_cannot_meet_is_refused(groups: Groups) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for wrong, kind, word in (
        ({"period": 0}, ConfigurationError, "whole number"),
        ({"period": 8, "fragments": 5}, ConfigurationError, "fewer rows"),
        ({"period": 8, "codec": "no_such"}, ConfigurationError, "no_such"),
    ):
        with pytest.raises(kind, match=word):
            LocalSteps(model, optimizer, group=groups[0], **wrong)
    double = nn.Linear(2, 2).double()
    with pytest.raises(UnsupportedError, match="float64"):
        LocalSteps(double, torch.optim.SGD(double.parameters(), lr=RATE), period=2, group=groups[0])
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ConfigurationError, match="trains no parameter"):
        LocalSteps(frozen, torch.optim.SGD(frozen.parameters(), lr=RATE), period=2, group=groups[0])


def test_the_description_says_when_the_next_meeting_is_and_what_it_carries(groups: Groups) -> None:
    def act(rank: int) -> LocalSteps:
        own = Rank(groups, rank, period=8, fragments=4, overlap=2)
        own.train(3)
        return own.training

    made = on_every_rank(act)
    text = describe_training()
    assert "next: meeting 1 in 1 steps, of fragment 2 of 4, 5" in text
    assert "under way: meeting 0 of fragment 1, lands after step 4" in text
    del made


def test_fragments_divide_rows_and_are_alike_in_size() -> None:
    from fanin.host.torch.training.meetings.fragments import divide

    parameters = [torch.arange(400.0).view(100, 4), torch.tensor(1.0), torch.zeros(3, 2, 2), torch.ones(8, 2).t()]
    found = divide(parameters, 4)
    assert sum(each.count for each in found) == 400 + 1 + 12 + 16
    assert max(each.count for each in found) - min(each.count for each in found) <= 2 * 8
    for each in found:
        each.write(each.weights() * 2)
    assert torch.equal(parameters[0], torch.arange(400.0).view(100, 4) * 2)
    assert torch.equal(parameters[3], 2 * torch.ones(2, 8))  # not contiguous


def test_a_late_delta_joins_the_next_meeting_and_accounts_balance(groups: Groups) -> None:
    """With a quorum of two the third rank's deltas come when they are ready, and each counts once."""

    def act(rank: int) -> tuple[float, int]:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        own = Rank(groups, rank, model, period=2, quorum=2, staleness=2)
        for _ in range(12):
            model.weight.grad = torch.full((1, 1), float(rank + 1))
            own.training.step()
        accounts = own.training.flush()
        return float(model.weight.detach()), sum(each.contributed for each in accounts)

    everyones: Any = on_every_rank(act)
    assert len(set(everyones)) == 1
    weight, contributed = everyones[0]
    assert weight == pytest.approx(-12 * RATE * 2, rel=1e-3)
    assert contributed == 6 * SIZE


def test_a_quorum_of_more_ranks_than_there_are_is_refused_before_training(groups: Groups) -> None:
    def act(rank: int) -> None:
        with pytest.raises(ConfigurationError, match=f"quorum = {SIZE + 1}; the group has {SIZE} ranks"):
            Rank(groups, rank, period=4, quorum=SIZE + 1)

    on_every_rank(act)


def test_a_rank_that_is_lost_in_an_overlapped_meeting_is_named_and_the_last_meeting_stands() -> None:
    with groups_of(Options()) as own_groups:

        def act(rank: int) -> None:
            own = Rank(own_groups, rank, period=Every(2), overlap=1)
            own.train(3)
            met = [each.outer.start.copy() for each in own.training.parts]
            if rank == 2:
                own_groups[rank].shutdown()
                return
            with pytest.raises(FaninError, match=r"rank 2|Connection closed"):
                own.train(3, 3)
            with pytest.raises(FaninError):
                own.training.flush()
            own.training.roll_back()
            for part, start in zip(own.training.parts, met, strict=True):
                assert torch.equal(torch.from_numpy(part.fragment.weights()), torch.from_numpy(start))

        on_every_rank(act)


def test_a_rank_whose_data_end_first_takes_the_measured_gap_of_the_others(groups: Groups) -> None:
    """A meeting that travels for a whole period begins on those that train before the one before it has landed."""

    def act(rank: int) -> Weights:
        own = Rank(groups, rank, period=4, overlap=4, outer=Outer(gap="measured"))
        own.train(9 if rank == SIZE - 1 else 17)
        own.training.flush()
        return weights(own.model)

    assert alike(on_every_rank(act))  # type: ignore[arg-type]
