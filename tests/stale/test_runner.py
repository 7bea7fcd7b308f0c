"""Runners over real machines in memory: the same results everywhere, nothing lost, failures told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from fanin.errors import CollectiveTimeoutError
from fanin.host.engines.engine import Engine, SwitchEndpoint, make_engine
from fanin.host.stale import runner as runner_module
from fanin.host.stale.account import CONTRIBUTED, PASSED_FLUSH, Account, UnbalancedError, check_balance
from fanin.host.stale.layout import Layout
from fanin.host.stale.policies import make_policy
from fanin.host.stale.rounds import StaleRounds
from fanin.host.stale.runner import Result, StaleRunner
from fanin.host.stale.scale import UNKNOWN_POWER, ScaleEpochs
from fanin.numerics.reduction import WIDE_SUMS, Reduction, lanes_number
from fanin.options import Options
from fanin.protocol.events import ReductionDone, RoundHeard, Stands
from fanin.protocol.job import OnWorkerLoss
from tests.support.engines import DEADLINE_S, Engines, Scheme, cluster, make_spec

WORKERS, ELEMENTS, STALENESS, FLOWS = 3, 500, 2, 2
EPOCH_ROUNDS, POWER = 64, 3
NEW_TOKEN = 0xABCDEF
Floats = npt.NDArray[np.float32]

native_or_twin = pytest.mark.parametrize("native", [True, False], ids=["native", "twin"])


@pytest.fixture(autouse=True)
def threads_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner's thread looks so often whether it is to end: three of them made each test wait for 1.5 s."""
    monkeypatch.setattr(runner_module, "FOLLOW_SLICE_S", 0.02)


class EngineSession:
    """The part of a session that a runner needs."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.hears = threading.Event()
        """Unset: its thread hears of nothing, as that of a process that the scheduler leaves waiting."""
        self.hears.set()
        self.path_trouble = ""

    def submit(self, reduction: Reduction) -> int:
        return self.engine.submit(reduction)

    def follow(self) -> None:
        self.engine.subscribe()

    def next_progress(self, timeout_s: float) -> ReductionDone | RoundHeard | None:
        if not self.hears.wait(timeout_s):
            return None
        event = self.engine.next_event(timeout_s)
        return event if isinstance(event, ReductionDone | RoundHeard) else None

    def close(self, timeout_s: float = 10) -> None:
        self.engine.close()


@dataclass
class Member:
    """A worker and what it has seen."""

    runner: StaleRunner = field(init=False)
    total: Floats = field(default_factory=lambda: np.zeros(ELEMENTS, np.float32))
    contributors: list[int] = field(default_factory=list)
    present: list[list[bool]] = field(default_factory=list)

    @property
    def account(self) -> Account:
        return self.runner.rounds.account

    def take(self, result: Result) -> None:
        self.total += result.gradient
        self.contributors.append(int(result.contributors[0]))
        self.present.append(result.present.tolist())

    def deliver(self, result: Result) -> None:
        """For the runner; a test may put another `take` in its place."""
        self.take(result)

    def hand_in(self, value: float, flags: tuple[bool, ...] = ()) -> None:
        def write(out: Floats) -> None:
            out[:] = value

        self.runner.hand_in(write, self.runner.rounds.base, np.array(flags, np.bool_))


class Job(list[Member]):
    """The members, and the cluster that carries them."""

    def __init__(self, running: Engines, layout: Layout, native: bool) -> None:
        super().__init__()
        self.running = running
        self.layout = layout
        self.native = native

    def lose(self, worker: int) -> None:
        """It is gone, and its switch has noticed."""
        self.running.engines[worker].close()
        self.running.server.evict(self.running.spec.job, worker)

    def take_in(self, worker: int, opened: ExitStack) -> tuple[Engine, int]:
        """A new process in the place of one that is gone: its engine, and the base that it begins with."""
        spec, server = self.running.spec, self.running.server
        server.admit_worker(spec.job, worker, NEW_TOKEN)
        endpoint = SwitchEndpoint("udp", "127.0.0.1", server.ports)
        engine = make_engine(Options(native=self.native), spec, worker, NEW_TOKEN, endpoint, newcomer=True)
        opened.callback(engine.close)
        while not isinstance(event := engine.next_event(DEADLINE_S), Stands):
            assert event is not None
        engine.begin(event.base + 1)
        return engine, event.base + 1


@contextmanager
def members(
    policy: str, *, native: bool, quorum: int, end: int | None = None, patience_s: float = DEADLINE_S,
    on_worker_loss: OnWorkerLoss = "raise", scheme: Scheme = "memory", lanes: int = 32, power: int = POWER,
    flags: int = 0,
) -> Iterator[Job]:  # fmt: skip
    """Runners of one job; packets of 64 words, so that a gradient is several."""
    shape = make_spec(WORKERS, quorum=quorum, staleness=STALENESS)
    layout = Layout(
        elements=ELEMENTS, words_per_packet=shape.words_per_packet, flows=(FLOWS,), workers=WORKERS,
        staleness=STALENESS, lanes=lanes, flags=flags,
    )  # fmt: skip
    spec = make_spec(
        WORKERS, quorum=quorum, staleness=STALENESS, slots=layout.slots[0], on_worker_loss=on_worker_loss,
        accumulators=lanes in WIDE_SUMS,
    )  # fmt: skip
    with ExitStack() as opened, cluster(scheme, spec, native=native, flows=FLOWS) as running:
        made = Job(running, layout, native)
        for rank, engine in enumerate(running.engines):
            scale = ScaleEpochs(STALENESS, EPOCH_ROUNDS, power=power)
            rounds = StaleRounds(make_policy(policy), STALENESS, scale, Account(rank, layout.chunks), end=end)
            member = Member()
            member.runner = StaleRunner(EngineSession(engine), layout, rounds, member.deliver, patience_s=patience_s)
            opened.callback(member.runner.close)
            made.append(member)
        yield made


def flush(all_members: list[Member], lost: int = 0) -> None:
    """On all at once, as ranks do."""
    with ThreadPoolExecutor(len(all_members)) as pool:
        list(pool.map(lambda member: member.runner.flush(), all_members))
    check_balance([member.account for member in all_members], lost)


@native_or_twin
def test_who_has_no_gradient_passes_and_all_see_the_same_results(native: bool) -> None:
    with members("skip", native=native, quorum=2, end=4) as job:
        for value in (0.5, 1.0, 2.0, 4.0):
            for member in job[:2]:
                member.hand_in(value)
            for member in job[:2]:
                member.runner.wait_for_results()
        flush(job)
        assert [member.total.tolist() for member in job] == [[15.0] * ELEMENTS] * WORKERS
        assert [member.contributors for member in job] == [[2, 2, 2, 2, 0, 0]] * WORKERS
        assert [member.account.contributions for member in job] == [4, 4, 0]
        assert job[2].account.bases.count(CONTRIBUTED) == 0
        assert job[2].account.bases.count(PASSED_FLUSH) == STALENESS


@native_or_twin
@pytest.mark.parametrize("lanes", ["8/8", "4/8", "2/8"])
def test_wide_sums_carry_stale_rounds_and_the_tally_that_their_scale_follows(native: bool, lanes: str) -> None:
    with members("skip", native=native, quorum=2, end=4, lanes=lanes_number(lanes)) as job:
        for value in (0.5, 1.0, 2.0, 4.0):
            for member in job[:2]:
                member.hand_in(value)
            for member in job[:2]:
                member.runner.wait_for_results()
        flush(job)
        assert all(member.total.tolist() == job[0].total.tolist() for member in job)
        assert [member.contributors for member in job] == [[2, 2, 2, 2, 0, 0]] * WORKERS
        tallies = {member.runner.rounds.scale.largest for member in job}
        assert tallies in ({2}, {3}), "4.0 is within 2^2, and with what few levels cut off before within 2^3"


@native_or_twin
@pytest.mark.parametrize("lanes", [32, 8, "8/8"])
@pytest.mark.parametrize("power", [-60, -30, UNKNOWN_POWER])
def test_gradients_far_above_the_first_bound_land_whole_a_few_rounds_later(
    native: bool, lanes: int | str, power: int
) -> None:
    """The first bound may be of gradients that were next to nothing: what it clips is fed back under the next one."""
    rounds, value = 24, 50.0
    with members("skip", native=native, quorum=WORKERS, end=rounds, lanes=lanes_number(lanes), power=power) as job:
        while any(not member.runner.rounds.ended for member in job):
            for member in job:
                member.hand_in(value)
            for member in job:
                member.runner.wait_for_results()
        flush(job)
        contributed = job[0].account.contributed
        assert contributed >= rounds - 16, "few bases are drained"
        assert all(member.total.tolist() == job[0].total.tolist() for member in job)
        np.testing.assert_allclose(job[0].total, WORKERS * value * contributed, rtol=1e-6 if lanes == 32 else 0.05)
        assert job[0].account.clipped_elements > 0


def test_what_the_last_gradients_exceed_the_bound_by_is_told_since_nothing_carries_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with members("skip", native=False, quorum=WORKERS, end=2) as job:
        for value in (2.0, 1000.0):
            for member in job:
                member.hand_in(value)
            for member in job:
                member.runner.wait_for_results()
        flush(job)
    said = [record.getMessage() for record in caplog.records if "has not landed" in record.getMessage()]
    assert len(said) == WORKERS
    assert f"{ELEMENTS} elements of its last gradients were above the scale's bound of 8, and the rest" in said[0]
    assert "up to 992 each" in said[0]


@native_or_twin
@pytest.mark.parametrize("lanes", [32, 8, "4/8"])
def test_a_round_says_of_which_flags_a_contribution_has_any(native: bool, lanes: int | str) -> None:
    nobody, one, everybody = (False, False, True), (True, False, True), (False, False, True)
    with members("skip", native=native, quorum=WORKERS, end=3, lanes=lanes_number(lanes), flags=3) as job:
        for given in ((nobody, one, everybody), ((False,) * 3,) * 3, (one, one, one)):
            for member, flags in zip(job, given, strict=True):
                member.hand_in(1.0, flags)
            for member in job:
                member.runner.wait_for_results()
        flush(job)
        assert [member.present for member in job] == [[list(one), [False] * 3, list(one), *[[False] * 3] * 2]] * WORKERS


@native_or_twin
def test_flags_of_folded_gradients_land_with_them(native: bool) -> None:
    with members("wait", native=native, quorum=WORKERS - 1, flags=2) as job:
        for member in job[:2]:
            member.hand_in(1.0, (False, False))
        for member in job[:2]:
            member.runner.wait_for_results()
        while job[2].runner.rounds._heard == 0:  # until it has heard that the round is over, so that its gradient folds
            threading.Event().wait(0.001)
        job[2].hand_in(1.0, (True, False))
        flush(job)
        assert job[2].account.folded == 1
        landed = [any(row[index] for row in job[0].present) for index in range(2)]
        assert landed == [True, False]
        assert [member.present for member in job] == [job[0].present] * WORKERS


@native_or_twin
def test_wait_loses_no_gradient_however_the_workers_come(native: bool) -> None:
    iterations = 12
    with members("wait", native=native, quorum=WORKERS - 1) as job:

        def train(rank: int) -> None:
            for iteration in range(iterations):
                job[rank].hand_in(float(1 + rank))
                job[rank].runner.wait_for_results()
                if iteration % WORKERS == rank:
                    np.linalg.svd(np.ones((60, 60)))  # unlike paces

        with ThreadPoolExecutor(WORKERS) as pool:
            list(pool.map(train, range(WORKERS)))
        flush(job)
        assert [member.account.contributed for member in job] == [iterations] * WORKERS
        assert [member.total.tolist() for member in job] == [[iterations * 6.0] * ELEMENTS] * WORKERS
        assert [member.contributors for member in job] == [job[0].contributors] * WORKERS


@native_or_twin
def test_a_gradient_that_is_not_finite_is_counted_and_not_sent(native: bool) -> None:
    with members("skip", native=native, quorum=2, end=1) as job:
        job[2].hand_in(float("nan"))
        for member in job[:2]:
            member.hand_in(1.0)
        flush(job)
        assert dict(+job[2].account.dropped) == {"not finite": 1}
        assert [member.total.tolist() for member in job] == [[2.0] * ELEMENTS] * WORKERS


def test_waiting_for_others_that_never_contribute_ends_with_an_error() -> None:
    with members("wait", native=False, quorum=2, patience_s=0.2) as job:
        job[0].hand_in(1.0)
        with pytest.raises(CollectiveTimeoutError, match="rank 0, at base 0"):
            job[0].runner.wait_for_results()


def test_a_failure_in_the_background_reaches_training() -> None:
    """Any error with a result is raised where training waits, and nothing hangs."""
    broken = threading.Event()
    with members("skip", native=False, quorum=1, end=5) as job:

        def fail(result: Result) -> None:
            broken.set()
            raise ZeroDivisionError("a bug")

        job[0].take = fail  # type: ignore[method-assign]
        job[0].hand_in(1.0)
        with pytest.raises(ZeroDivisionError, match="a bug"):
            job[0].runner.wait_for_results()
        assert broken.is_set()


@native_or_twin
def test_rounds_go_on_without_a_worker_that_is_gone_and_the_accounts_balance(native: bool) -> None:
    """Rounds of all three, then of two: the quorum counts as the workers that are left."""
    with members("skip", native=native, quorum=WORKERS, end=6, on_worker_loss="continue") as job:
        for member, value in zip(job, (1.0, 2.0, 4.0), strict=True):
            member.hand_in(value)
        for member in job:
            member.runner.wait_for_results()
        job.lose(2)
        survivors = job[:2]
        for _ in range(5):
            for member, value in zip(survivors, (1.0, 2.0), strict=True):
                member.hand_in(value)
            for member in survivors:
                member.runner.wait_for_results()
        flush(survivors, lost=1)
        assert [member.contributors for member in survivors] == [[3, 2, 2, 2, 2, 2, 0, 0]] * 2
        assert [member.total.tolist() for member in survivors] == [[7.0 + 5 * 3.0] * ELEMENTS] * 2
        with pytest.raises(UnbalancedError, match="contributions"):
            check_balance([member.account for member in survivors])


def train(some: list[Member], values: tuple[float, ...]) -> None:
    """One round of all of them."""
    for member, value in zip(some, values, strict=True):
        member.hand_in(value)
    for member in some:
        member.runner.wait_for_results()


def without_weights(job: Job, session: EngineSession, account: Account, known_from: int) -> Member:
    """A newcomer at the base after those of its account, in whose rounds the others wait for it."""
    newcomer = Member()
    rounds = StaleRounds(
        make_policy("skip"),
        STALENESS,
        ScaleEpochs(STALENESS, EPOCH_ROUNDS, power=POWER),
        account,
        base=len(account.bases),
        end=12,
        absent=True,
        known_from=known_from,
        waited_for=True,
    )
    newcomer.runner = StaleRunner(session, job.layout, rounds, newcomer.deliver, patience_s=DEADLINE_S)
    return newcomer


@native_or_twin
def test_a_newcomer_without_weights_holds_nobody_up_and_has_what_the_others_have(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds of three, of two, of two while a newcomer listens, of three. It has room for one result."""
    monkeypatch.setattr(runner_module, "KEPT_BYTES", 0)
    with (
        members("skip", native=native, quorum=WORKERS, end=12, on_worker_loss="continue", scheme="udp") as job,
        ExitStack() as opened,
    ):
        train(job, (1.0, 2.0, 4.0))
        job.lose(2)
        survivors = job[:2]
        train(survivors, (1.0, 2.0))
        train(survivors, (1.0, 2.0))

        engine, first = job.take_in(2, opened)
        while survivors[0].runner.rounds.base < first:
            train(survivors, (1.0, 2.0))
        giver = survivors[0]
        version, contributors, chunks, given = giver.runner.between_rounds(
            first,
            lambda rounds: (
                rounds.base,
                list(rounds.account.contributors),
                rounds.account.accepted_chunks.copy(),
                giver.total.copy(),
            ),
            DEADLINE_S,
        ) or pytest.fail("the giver did not get there")
        account = Account(2, job.layout.chunks, bases=["A"] * first, contributors=contributors)
        account.accepted_chunks += chunks
        newcomer = without_weights(job, EngineSession(engine), account, known_from=version)
        opened.callback(newcomer.runner.close)

        train(survivors, (1.0, 2.0))
        assert newcomer.contributors == [], "it has nothing to apply results to"
        newcomer.total += given
        newcomer.runner.arrive(version)
        while survivors[0].runner.rounds.base < 12:
            newcomer.hand_in(8.0)  # for the base that it has not passed yet: the next, or the one after it
            train(survivors, (1.0, 2.0))
        everybody = [*survivors, newcomer]
        flush(everybody, lost=1)
        assert [member.total.tolist() for member in everybody] == [survivors[0].total.tolist()] * 3
        assert newcomer.account.contributions > 0
        assert newcomer.account.contributors == survivors[0].account.contributors
        with pytest.raises(UnbalancedError, match="contributions"):
            check_balance([member.account for member in everybody])


@native_or_twin
def test_a_newcomer_that_follows_later_than_its_giver_applies_no_result_twice(native: bool) -> None:
    with (
        members("skip", native=native, quorum=WORKERS, end=12, on_worker_loss="continue", scheme="udp") as job,
        ExitStack() as opened,
    ):
        train(job, (1.0, 2.0, 4.0))
        job.lose(2)
        survivors, giver = job[:2], job[0]
        train(survivors, (1.0, 2.0))
        engine, first = job.take_in(2, opened)
        while giver.runner.rounds.base < first:
            train(survivors, (1.0, 2.0))
        session = EngineSession(engine)
        session.hears.clear()
        account = Account(2, job.layout.chunks, bases=["A"] * first, contributors=list(giver.account.contributors))
        account.accepted_chunks += giver.account.accepted_chunks
        newcomer = without_weights(job, session, account, known_from=first)
        opened.callback(newcomer.runner.close)
        train(survivors, (1.0, 2.0))  # it passes at once, and hears nothing of the result
        newcomer.total += giver.total
        threading.Timer(0.05, session.hears.set).start()
        newcomer.runner.arrive(first + 1)
        while giver.runner.rounds.base < 12:
            newcomer.hand_in(8.0)
            train(survivors, (1.0, 2.0))
        everybody = [*survivors, newcomer]
        flush(everybody, lost=1)
        assert [member.total.tolist() for member in everybody] == [giver.total.tolist()] * 3
        assert newcomer.account.contributors == giver.account.contributors
