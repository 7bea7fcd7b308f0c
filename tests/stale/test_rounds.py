"""The state machine of stale rounds: what is sent for which base under each policy, and the account of it."""

from __future__ import annotations

import numpy as np
import pytest

from fanin.errors import ConfigurationError
from fanin.host.stale.account import Account, UnbalancedError, check_balance
from fanin.host.stale.policies import make_policy
from fanin.host.stale.rounds import StaleRounds, Step
from fanin.host.stale.scale import ScaleEpochs
from fanin.host.stale.staleness_rate import staleness_factor


def make(
    policy: str = "skip", *, staleness: int = 2, bound: int = 2, end: int | None = None, epoch: int = 99
) -> StaleRounds:
    return StaleRounds(make_policy(policy), bound, ScaleEpochs(staleness, epoch, power=0), Account(0, 1), end=end)


def contribute(rounds: StaleRounds, version: int) -> None:
    rounds.hand_in(version)
    assert rounds.next_action() is Step.CONTRIBUTE
    rounds.finished()


def test_one_base_is_under_way_at_a_time() -> None:
    rounds = make()
    assert rounds.next_action() is None
    rounds.hand_in(0)
    assert rounds.next_action() is Step.CONTRIBUTE
    assert (rounds.under_way, rounds.ready, rounds.next_action()) == (True, False, None)
    rounds.hand_in(0)
    assert rounds.next_action() is None, "the second gradient waits for the first one's result"
    rounds.finished()
    assert rounds.next_action() is Step.CONTRIBUTE
    assert (rounds.base, rounds.age) == (1, 1)


@pytest.mark.parametrize(("policy", "step"), [("wait", None), ("skip", Step.PASS), ("fold", Step.PASS)])
def test_a_round_that_is_over_is_passed_unless_the_policy_is_wait(policy: str, step: Step | None) -> None:
    rounds = make(policy)
    rounds.hear(0)
    assert rounds.next_action() is step


def test_a_gradient_waits_until_its_worker_has_caught_up_with_the_rounds_that_it_knew_to_be_over() -> None:
    rounds = make(bound=6)
    for base in range(3):
        rounds.hear(base)
    rounds.hand_in(0)
    for base in range(3):
        assert rounds.next_action() is Step.PASS
        rounds.hear(3 + base)  # they close as fast as it passes them
        rounds.finished()
    assert rounds.next_action() is Step.CONTRIBUTE, "later rounds are no reason to hold it longer"
    assert (rounds.base, rounds.age) == (3, 3)


@pytest.mark.parametrize(("policy", "first"), [("skip", Step.DROP), ("fold", Step.FOLD)])
def test_after_a_gradient_that_got_too_old_on_the_way_the_next_one_goes_within_the_bound(
    policy: str, first: Step
) -> None:
    rounds = make(policy, bound=2)
    for base in range(3):
        rounds.hear(base)
    rounds.hand_in(0)
    for _ in range(3):
        assert rounds.next_action() is Step.PASS
        rounds.finished()
    assert rounds.next_action() is first
    for base in range(3, 6):
        rounds.hear(base)
    rounds.hand_in(3)
    for _ in range(2):
        assert rounds.next_action() is Step.PASS
        rounds.finished()
    assert rounds.next_action() is Step.CONTRIBUTE
    assert rounds.age == 2
    rounds.finished()
    rounds.account.check()


def passed(rounds: StaleRounds, count: int) -> None:
    for _ in range(count):
        rounds.hear(rounds.base)
        assert rounds.next_action() is Step.PASS
        rounds.finished()


def test_skip_drops_a_gradient_beyond_the_bound_and_counts_it() -> None:
    rounds = make("skip", bound=2)
    passed(rounds, 2)
    contribute(rounds, 0)
    passed(rounds, 3)
    rounds.hand_in(3)
    assert rounds.next_action() is Step.DROP
    assert rounds.next_action() is None
    assert (dict(rounds.account.dropped), rounds.account.in_hand) == ({"too old": 1}, 0)
    rounds.account.check()


def test_fold_adds_a_gradient_beyond_the_bound_to_the_next_one() -> None:
    rounds = make("fold", bound=2)
    passed(rounds, 3)
    rounds.hand_in(0)
    assert rounds.next_action() is Step.FOLD
    assert rounds.account.in_hand == 1
    rounds.account.check()
    contribute(rounds, 3)
    assert (rounds.account.contributed, rounds.account.contributions, rounds.account.in_hand) == (2, 1, 0)
    rounds.account.check()


def test_wait_contributes_at_any_age() -> None:
    rounds = make("wait", bound=0)
    contribute(rounds, 0)
    contribute(rounds, 0)
    assert dict(rounds.account.ages) == {0: 1, 1: 1}


def test_wait_folds_a_late_gradient_into_the_next_one_and_passes() -> None:
    rounds = make("wait")
    rounds.hear(0)
    rounds.hand_in(0)
    assert [rounds.next_action(), rounds.next_action()] == [Step.FOLD, Step.PASS]
    rounds.finished()
    rounds.hear(1)
    assert rounds.next_action() is None, "one pass per gradient: the bound holds the others"
    rounds.hand_in(1)
    assert rounds.next_action() is Step.CONTRIBUTE, "never two in a row"
    rounds.finished()
    assert ("".join(rounds.account.bases), rounds.account.contributed, rounds.account.in_hand) == ("PC", 2, 0)
    rounds.hear(2)
    rounds.hand_in(2)
    assert rounds.next_action() is Step.FOLD


def test_the_flush_contributes_what_wait_has_folded() -> None:
    rounds = make("wait", staleness=1)
    rounds.hear(0)
    rounds.hand_in(0)
    assert [rounds.next_action(), rounds.next_action()] == [Step.FOLD, Step.PASS]
    rounds.finished()
    rounds.flush()
    for step in (Step.CONTRIBUTE, Step.PASS):
        assert rounds.next_action() is step
        rounds.finished()
    assert rounds.done
    assert ("".join(rounds.account.bases), rounds.account.contributed) == ("PCF", 1)
    rounds.account.check()


def test_the_flush_passes_s_bases_and_takes_no_gradient() -> None:
    rounds = make("wait", staleness=2)
    contribute(rounds, 0)
    rounds.flush()
    for _ in range(1 + 2):
        assert not rounds.done
        assert rounds.next_action() is Step.PASS
        rounds.finished()
    assert rounds.done
    assert rounds.next_action() is None
    rounds.hand_in(1)
    assert "".join(rounds.account.bases) == "CFFF"
    assert dict(rounds.account.dropped) == {"at the end": 1}
    rounds.account.check()


def test_the_end_gives_up_what_is_in_hand() -> None:
    rounds = make("fold", staleness=1, bound=0, end=2)
    passed(rounds, 1)
    rounds.hand_in(0)
    assert rounds.next_action() is Step.FOLD
    passed(rounds, 1)
    rounds.ended or pytest.fail("base 2 is the end")
    assert rounds.next_action() is Step.PASS
    assert rounds.account.dropped["at the end"] == 1
    rounds.account.check()


def test_drains_are_passed_at_once_and_hold_a_ready_gradient_back() -> None:
    rounds = make("wait", staleness=1, epoch=3)
    for version in range(3):
        contribute(rounds, version)
    rounds.hand_in(3)
    assert rounds.next_action() is Step.PASS
    rounds.finished()
    assert rounds.next_action() is Step.CONTRIBUTE
    assert "".join(rounds.account.bases) == "CCCDC"


def newcomer(*, waited_for: bool = False, end: int | None = None) -> StaleRounds:
    """It begins with base 4, and is given what stands after result 5."""
    rounds = make(end=end)
    rounds.base, rounds.known_from, rounds.absent, rounds.waited_for = 4, 6, True, waited_for
    rounds.account.bases = ["A"] * 4
    return rounds


def test_a_newcomer_without_weights_passes_what_is_over_and_no_more() -> None:
    rounds = newcomer()
    for _ in range(2):
        assert rounds.next_action() is Step.PASS
        rounds.finished()
    assert rounds.next_action() is None, "its pass would close a round in the place of a gradient"
    rounds.hear(6)
    assert rounds.next_action() is Step.PASS
    rounds.finished()
    rounds.absent = False
    contribute(rounds, 7)
    assert "".join(rounds.account.bases) == "AAAAAAAC"
    rounds.account.check()


def test_a_newcomer_that_rounds_wait_for_passes_at_once() -> None:
    rounds = newcomer(waited_for=True)
    for _ in range(5):
        assert rounds.next_action() is Step.PASS
        rounds.finished()


def test_a_newcomer_without_weights_takes_part_in_the_flush() -> None:
    rounds = newcomer(end=6)
    for _ in range(4):
        assert rounds.next_action() is Step.PASS
        rounds.finished()
    assert rounds.done
    assert "".join(rounds.account.bases) == "AAAAAAFF"


def accounts() -> list[Account]:
    """Two workers after two rounds: both in the first, one in the second."""
    both = [Account(rank, 1) for rank in range(2)]
    for account, bases in zip(both, ("CC", "CP"), strict=True):
        account.bases = list(bases)
        account.handed_in = account.contributed = bases.count("C")
        account.round_over(np.array([2], np.uint32))
        account.round_over(np.array([1], np.uint32))
    return both


def test_accounts_balance() -> None:
    check_balance(accounts())


def test_a_contribution_that_no_round_holds_is_noticed() -> None:
    both = accounts()
    both[1].bases.append("C")
    both[1].handed_in = both[1].contributed = 2
    with pytest.raises(UnbalancedError, match="made 4 contributions"):
        check_balance(both)


def test_replicas_that_saw_other_rounds_are_noticed() -> None:
    both = accounts()
    both[1].contributors[0] = 1
    with pytest.raises(UnbalancedError, match="different rounds"):
        check_balance(both)


def test_a_gradient_that_vanished_is_noticed() -> None:
    both = accounts()
    both[0].handed_in += 1
    with pytest.raises(UnbalancedError, match="handed in 3"):
        check_balance(both)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="one of wait, skip, fold"):
        make_policy("hurry")


def test_the_rate_is_divided_by_the_staleness() -> None:
    assert [staleness_factor(age) for age in (0, 1, 2, 4)] == [1, 1, 0.5, 0.25]
