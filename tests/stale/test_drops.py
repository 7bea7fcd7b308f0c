"""A job that drops most of what it computes: who says so and when, and how K and S then move. Virtual time."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from fanin.host.stale.account import Account
from fanin.host.stale.drops import CALM_LOOKS, MOST, WARNING_INTERVAL_S, WINDOW_GRADIENTS, DropWatch, QuorumFloor
from fanin.host.stale.policies import make_policy
from fanin.host.stale.rounds import StaleRounds, Step
from fanin.host.stale.scale import ScaleEpochs

WORKERS, BOUND = 8, 2


def rounds_that_overtake(rounds_per_gradient: int, gradients: int) -> Account:
    """The account of a worker under `skip`, while whose every gradient so many rounds close."""
    account = Account(rank=0, chunks=1)
    rounds = StaleRounds(make_policy("skip"), BOUND, ScaleEpochs(BOUND, 1 << 20, 0), account)
    heard = 0
    for _ in range(gradients):
        version = rounds.base
        heard = max(heard, version) + rounds_per_gradient
        rounds.hear(heard - 1)
        while rounds.next_action() is Step.PASS:
            rounds.finished()
        rounds.hand_in(version)
        while (step := rounds.next_action()) in (Step.DROP, Step.PASS):
            if step is Step.PASS:
                rounds.finished()
        if step is Step.CONTRIBUTE:
            rounds.finished()
    return account


def watched(account: Account) -> DropWatch:
    """A watch after that many gradients, dropped evenly."""
    watch = DropWatch()
    for number in range(1, account.handed_in + 1):
        watch.handed_in(number, account.dropped["too old"] * number // account.handed_in, 0.0)
    return watch


def test_gradients_that_rounds_overtake_are_dropped_and_the_share_says_so() -> None:
    slow = watched(rounds_that_overtake(BOUND + 2, 40))
    assert slow.share > MOST
    assert watched(rounds_that_overtake(1, 40)).share == 0.0


def test_nothing_is_said_before_there_is_enough_to_judge() -> None:
    watch = DropWatch()
    assert not any(watch.handed_in(number, number, 0.0) for number in range(1, WINDOW_GRADIENTS))
    assert watch.handed_in(WINDOW_GRADIENTS, WINDOW_GRADIENTS, 0.0)


def test_it_is_said_once_in_a_while_and_no_more_when_it_is_mended() -> None:
    watch, said, dropped = DropWatch(), [], 0
    for second in range(200):
        dropped += second < 100
        if watch.handed_in(second + 1, dropped, float(second)):
            said.append(second)
    first = WINDOW_GRADIENTS - 1
    assert said == [first, first + WARNING_INTERVAL_S, first + 2 * WARNING_INTERVAL_S]


def test_the_quorum_moves_to_where_few_are_dropped_and_stays_there() -> None:
    """16 gradients come in the time that one takes: K of them make a round, so 16 / K rounds overtake it."""
    floor, quorum, visited = QuorumFloor(WORKERS), 1, []
    for _ in range(CALM_LOOKS):
        account = rounds_that_overtake(-(-2 * WORKERS // quorum), 40)
        quorum = floor.observe(watched(account).share, quorum)
        visited.append(quorum)
    assert visited[:3] == [5, 7, 8]
    assert quorum == WORKERS
    assert visited == sorted(visited)


def test_the_quorum_may_fall_again_after_a_while_without_drops() -> None:
    floor = QuorumFloor(WORKERS)
    assert floor.observe(0.9, 4) == 6
    assert [floor.observe(0.0, 6) for _ in range(CALM_LOOKS)] == [6] * (CALM_LOOKS - 1) + [5]
    assert floor.observe(0.3, 5) == 5, "neither most nor few"
    for _ in range(10 * CALM_LOOKS):
        floor.observe(0.0, 1)
    assert floor.floor == 1


@dataclass
class FakeSession:
    """The part of a session that pacing asks."""

    rank: int
    job_name: str = "j"
    size: int = 4
    members: tuple[int, ...] = (0, 1, 2, 3)
    spec: object = field(default_factory=lambda: type("Spec", (), {"quorum": 2}))
    tuned: list[dict[str, int]] = field(default_factory=list)

    def tune(self, **changes: int) -> None:
        self.tuned.append(changes)


@pytest.mark.parametrize("kind", ["bound", "from speeds", "adaptive"])
def test_what_is_chosen_while_a_job_runs_moves_towards_synchronous_when_most_is_dropped(kind: str) -> None:
    c10d = pytest.importorskip("torch._C._distributed_c10d")
    from fanin.host.stale.bound import DynamicBound
    from fanin.host.stale.quorum import AdaptiveQuorum, SemiAsynchronousQuorum
    from fanin.host.torch.training.pacing import Pacing

    chooser = {
        "bound": DynamicBound(lowest=1, highest=4),
        "from speeds": SemiAsynchronousQuorum(bound=4),
        "adaptive": AdaptiveQuorum(workers=4, quorum=2),
    }[kind]
    store = c10d.HashStore()
    sessions = [FakeSession(rank) for rank in range(4)]
    pacings = [
        Pacing(store, session, chooser, dropped_share=lambda: 0.9, every=1)  # type: ignore[arg-type]
        for session in sessions
    ]
    for _ in range(3):
        for pacing in reversed(pacings):
            pacing.stepped(1.0)
        pacings[0].close()
    assert sessions[0].tuned[-1] == ({"staleness": 1} if kind == "bound" else {"quorum": 4})


@pytest.mark.parametrize("ahead_s", [0.0, -50.0, 1000.0])
def test_clocks_of_hosts_that_differ_change_no_choice(ahead_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    c10d = pytest.importorskip("torch._C._distributed_c10d")
    from fanin.host.stale.bound import DynamicBound
    from fanin.host.torch.training import pacing

    now_s = {"job": 0.0, "host": 0.0}

    def clock() -> float:
        return sum(now_s.values())

    monkeypatch.setattr(pacing, "time", SimpleNamespace(time=clock, monotonic=clock))
    store, sessions, pacings = c10d.HashStore(), [FakeSession(0), FakeSession(1)], []
    for session in sessions:
        session.members = (0, 1)
        now_s["host"] = session.rank * ahead_s
        pacings.append(pacing.Pacing(store, session, DynamicBound(lowest=0, highest=5), every=1))  # type: ignore[arg-type]
    for at_s, rank in ((1, 0), (2, 0), (3, 1), (3, 0), (4, 0)):
        now_s.update(job=at_s, host=rank * ahead_s)
        pacings[rank].stepped()
        pacings[0].close()
    assert sessions[0].tuned[-1] == {"staleness": 2}, "the fast worker stops when the slow one contributes next, at 6"


def test_the_warning_names_rank_share_and_remedy(caplog: pytest.LogCaptureFixture) -> None:
    from fanin.host.stale import runner as runner_module

    class Runner(runner_module.StaleRunner):
        def __init__(self) -> None:
            self._rounds = StaleRounds(
                make_policy("skip"), BOUND, ScaleEpochs(BOUND, 1 << 20, 0), Account(rank=3, chunks=1)
            )
            self._drops = DropWatch()
            self._clock = lambda: 0.0

    runner = Runner()
    for number in range(1, 2 * WINDOW_GRADIENTS):
        runner._rounds.account.handed_in = number
        runner._rounds.account.dropped["too old"] = number * 9 // 10
        with caplog.at_level(logging.WARNING):
            runner._watch_drops()
    (record,) = caplog.records
    assert "rank 3 drops 90 %" in record.getMessage()
    assert "Remedy: a larger quorum" in record.getMessage()
