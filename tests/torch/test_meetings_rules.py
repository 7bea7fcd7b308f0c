"""Rules of local steps as pure functions: periods, the outer step against a plain oracle, the meetings' schedule."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.errors import CollectiveMismatchError, ConfigurationError
from fanin.host.torch.training.meetings import roll
from fanin.host.torch.training.meetings.outer import Outer, OuterState, measured_gap, squared_norm, take
from fanin.host.torch.training.meetings.period import LONGEST_STEPS, Every, Quadratic
from fanin.host.torch.training.meetings.plan import ALIKE, Plan
from fanin.host.torch.training.meetings.schedule import Land, Launch, Schedule
from fanin.host.torch.training.same_settings import difference

# --- periods ---


@given(
    alpha=st.floats(0, 1e3),
    rate=st.floats(1e-6, 10),
    base=st.integers(1, 64),
    step=st.integers(0, 5000),
    total=st.integers(1, 5000),
)
def test_the_quadratic_rule_is_the_papers(alpha: float, rate: float, base: int, step: int, total: int) -> None:
    expected = max(min(max(int((alpha / rate) ** 2), base), total - step), 1)
    assert Quadratic(alpha=alpha, base=base, total=total).steps(step, rate) == min(expected, LONGEST_STEPS)


def test_the_warm_up_has_its_own_period_also_where_alpha_is_0() -> None:
    period = Quadratic(alpha=0.0, base=8, init=2, warmup=10)
    assert [period.steps(step, 0.1) for step in (0, 9, 10, 1000)] == [2, 2, 8, 8]
    assert period.shortest == 2


def test_a_learning_rate_of_0_gives_the_longest_period_and_the_end_of_training_cuts_it_off() -> None:
    assert Quadratic(alpha=1.0).steps(0, 0.0) == LONGEST_STEPS
    assert Quadratic(alpha=1.0, total=30).steps(20, 0.0) == 10


@pytest.mark.parametrize("wrong", [0, -1, LONGEST_STEPS + 1, True, 2.5])
def test_no_period_is_0(wrong: int) -> None:
    for make in (Every, lambda count: Quadratic(alpha=1.0, base=count), lambda count: Quadratic(alpha=1.0, init=count)):
        with pytest.raises(ConfigurationError, match="whole number of steps"):
            make(wrong)
    with pytest.raises(ConfigurationError, match="alpha"):
        Quadratic(alpha=math.nan)


# --- the outer step ---


def oracle(start: np.ndarray, means: list[np.ndarray], outer: Outer) -> np.ndarray:
    """The rules of outer.py in float64, one formula after the other."""
    x, m = start.astype(np.float64), np.zeros(len(start))
    for mean in means:
        d = mean.astype(np.float64) / outer.gap  # type: ignore[operator]
        m = outer.momentum * m + d
        if outer.clip is not None and np.linalg.norm(m) > outer.clip:
            m = m * (outer.clip / np.linalg.norm(m))
        x = x - outer.lr * (d + outer.momentum * m if outer.nesterov else m)
    return x


@pytest.mark.parametrize(
    "outer",
    [
        Outer(),
        Outer(lr=0.7, momentum=0.9, nesterov=True),
        Outer(momentum=0.2, clip=1.0),
        Outer(lr=0.5, momentum=0.5, gap=2.0),
        Outer(clip=0.5),
        Outer(lr=0.7, momentum=0.9, nesterov=True, clip=1.0, gap=1.5),
    ],
    ids=str,
)
def test_the_outer_step_is_the_oracles(outer: Outer) -> None:
    random = np.random.default_rng(1)
    start = random.normal(size=500).astype(np.float32)
    means = [random.normal(size=500).astype(np.float32) * np.float32(0.1) for _ in range(5)]
    state = OuterState.of(start.copy(), outer)
    for mean in means:
        take(state, mean.copy(), outer, state.landed)
    np.testing.assert_allclose(state.start, oracle(start, means, outer), rtol=2e-6, atol=2e-6)


def test_the_plain_outer_step_gives_the_mean_of_the_weights() -> None:
    random = np.random.default_rng(2)
    start, workers = random.normal(size=64).astype(np.float32), random.normal(size=(4, 64)).astype(np.float32)
    state = OuterState.of(start.copy(), Outer())
    take(state, (start - workers).mean(0), Outer(), 0)
    np.testing.assert_allclose(state.start, workers.mean(0), atol=1e-6)


def test_the_measured_gap_grows_with_what_the_weights_moved_meanwhile() -> None:
    outer = Outer(gap="measured")
    state = OuterState.of(np.zeros(4, np.float32), outer)
    ones = np.ones(4, np.float32)
    take(state, ones.copy(), outer, 0)  # fresh: nothing moved since its base
    assert np.array_equal(state.start, -ones)
    take(state, ones.copy(), outer, 0)  # its base is one move back, a typical one
    assert np.allclose(state.start, -1.5)
    assert measured_gap(0.0, 1.0) == measured_gap(1.0, 0.0) == 1.0


@given(st.lists(st.floats(-1e3, 1e3, width=32), max_size=100))
def test_the_squared_norm_is_a_sum_of_squares(values: list[float]) -> None:
    x = np.array(values * 400, np.float32)  # several folds
    assert math.isclose(squared_norm(x), 400 * math.fsum(float(v) ** 2 for v in values), rel_tol=1e-12, abs_tol=1e-300)


@pytest.mark.parametrize(
    "wrong",
    [{"lr": 0.0}, {"momentum": 1.0}, {"clip": 0.0}, {"gap": 0.0}, {"gap": "guessed"}, {"nesterov": True}],
    ids=str,
)
def test_an_outer_optimizer_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="must be above 0"):
        Outer(**wrong)  # type: ignore[arg-type]


# --- the schedule ---


class Ledger:
    """A rank in virtual time: carries out what is due and notes when."""

    def __init__(self, fragments: int, overlap: int) -> None:
        self.schedule = Schedule(fragments, overlap)
        self.launches: list[tuple[int, int]] = []  # fragment, step
        self.landings: list[tuple[int, int]] = []  # number, step
        self.in_the_air: Counter[int] = Counter()

    def act(self, actions: Sequence[Launch | Land]) -> None:
        for action in actions:
            if isinstance(action, Launch):
                assert action.number == len(self.launches)
                self.launches.append((action.fragment, self.schedule.step))
                self.in_the_air[action.fragment] += 1
                assert self.in_the_air[action.fragment] <= 2  # the older one lands next
            else:
                assert action.number == len(self.landings)
                self.landings.append((action.number, self.schedule.step))
                self.in_the_air[action.fragment] -= 1

    def period(self, steps: int) -> None:
        self.schedule.begin(steps)
        for _ in range(steps):
            self.act(self.schedule.stepped())
            assert max(self.in_the_air.values(), default=0) <= 1


@given(
    fragments=st.integers(1, 5),
    overlap=st.integers(0, 6),
    periods=st.lists(st.integers(1, 12), min_size=1, max_size=8),
)
def test_every_fragment_meets_once_a_period_and_lands_in_order_and_in_time(
    fragments: int, overlap: int, periods: list[int]
) -> None:
    rank = Ledger(fragments, overlap)
    for steps in periods:
        began, before = rank.schedule.step, len(rank.launches)
        rank.period(steps)
        assert rank.schedule.period is None
        met = rank.launches[before:]
        assert sorted(fragment for fragment, _ in met) == list(range(fragments))
        assert all(began < step <= began + steps for _, step in met)
    rank.act(rank.schedule.recall())
    assert [number for number, _ in rank.landings] == list(range(len(rank.launches)))
    for (_, launched), (_, landed) in zip(rank.launches, rank.landings, strict=True):
        assert landed - launched <= overlap
    assert not rank.schedule.under_way


@given(fragments=st.integers(1, 4), cut=st.integers(1, 7), other=st.integers(1, 7))
def test_ranks_whose_flush_cuts_a_period_off_agree_on_the_next_meetings(fragments: int, cut: int, other: int) -> None:
    """One rank has trained further than another one before both close: meetings have the same fragments in order."""
    ranks = [Ledger(fragments, 2) for _ in range(2)]
    for rank, steps in zip(ranks, sorted((cut, other)), strict=True):
        rank.schedule.begin(8)
        for _ in range(steps):
            rank.act(rank.schedule.stepped())
        rank.act(rank.schedule.recall())
    while len(ranks[0].launches) < len(ranks[1].launches):
        ranks[0].act([closing := ranks[0].schedule.closing(), Land(closing.number, closing.fragment)])
    assert [fragment for fragment, _ in ranks[0].launches] == [fragment for fragment, _ in ranks[1].launches]
    assert ranks[0].schedule.closing() == ranks[1].schedule.closing()


def test_with_an_overlap_of_a_whole_period_a_result_lands_right_after_the_next_launch() -> None:
    schedule = Schedule(1, 4)
    seen = []
    for _ in range(2):
        schedule.begin(4)
        seen += [schedule.stepped() for _ in range(4)]
    assert seen[3] == [Launch(0, 0)]
    assert seen[7] == [Launch(1, 0), Land(0, 0)]


def test_streaming_spreads_the_fragments_over_the_period() -> None:
    schedule = Schedule(4, 2)
    schedule.begin(16)
    at = {step: actions for step in range(1, 17) if (actions := schedule.stepped())}
    assert list(at) == [4, 6, 8, 10, 12, 14, 16]
    assert at[6] == [Land(0, 0)]
    assert at[16] == [Launch(3, 3)]
    upcoming = schedule.next_meeting(16)
    assert upcoming is not None
    assert (upcoming.number, upcoming.fragment, upcoming.in_steps) == (4, 0, 4)


# --- agreement ---


def entry(**given_: int) -> roll.Entry:
    return roll.Entry(**{"contributes": 1, "ended": 0, "step": 8, "period": 4, "number": 1, **given_})


def test_a_roll_of_ranks_that_are_alike_counts_and_says_who_contributes() -> None:
    said = [entry(), entry(contributes=0, finite=0), entry(ended=1, step=3, period=0)]
    roll.check(said)
    assert roll.contributors(said) == 2
    assert not roll.all_ended(said)
    assert not roll.has_deltas([entry(ended=1, contributes=0)] * 2)


@pytest.mark.parametrize(("field", "word"), [("period", "unlike periods"), ("step", "unlike steps")])
def test_a_roll_names_the_ranks_that_differ(field: str, word: str) -> None:
    with pytest.raises(CollectiveMismatchError, match=f"{word} .*rank 1: 5"):
        roll.check([entry(), entry(**{field: 5})])


def test_a_roll_with_a_changed_model_does_not_count() -> None:
    with pytest.raises(ConfigurationError, match="rank 1: the optimizer's parameters"):
        roll.check([entry(), entry(fault=roll.MODEL_CHANGED)])


def test_the_first_setting_that_differs_is_named() -> None:
    assert "period differs (rank 0: 4; rank 1: 8)" in difference(
        [{"a": "1", "period": "4"}, {"a": "1", "period": "8"}], *ALIKE
    )


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"period": 1.5}, "period = 1.5"),
        ({"period": None}, "period = None"),
        ({"period": "16"}, "period = '16'"),
        ({"period": Every}, "period = <class"),
        ({"fragments": 5}, "fragments = 5"),
        ({"overlap": 5}, "overlap = 5"),
        ({"mix": 0.5}, "mix = 0.5"),
        ({"mix": 1.0, "overlap": 1}, "mix = 1"),
        ({"quorum": 2, "overlap": 1}, "quorum goes with"),
        ({"quorum": 0}, "quorum = 0"),
        ({"quorum": 2, "staleness": 0}, "staleness = 0"),
        ({"quorum": 2, "codec": "rotated:8"}, "quorum goes with"),
    ],
    ids=str,
)
def test_settings_that_do_not_go_together_are_refused(wrong: dict[str, object], word: str) -> None:
    usual: dict[str, object] = {
        "period": Every(4),
        "outer": Outer(),
        "fragments": 1,
        "overlap": 0,
        "mix": 0.0,
        "codec": "lanes:32",
        "quorum": None,
        "staleness": 1,
    }
    Plan(**usual)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=word):
        Plan(**{**usual, **wrong})  # type: ignore[arg-type]
