"""The events of a stale job over shards: those of several sessions as those of one."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.errors import FaninError, SwitchLostError
from fanin.host.session.progress import Progress
from fanin.protocol.events import ReductionDone, RoundHeard

Event = ReductionDone | RoundHeard


class Scripted:
    """A session whose events are in a list; it says an event later only once somebody waits for it."""

    def __init__(self, events: list[Event], failure: FaninError | None = None) -> None:
        self.at_once: deque[Event] = deque()
        self.later = deque(events)
        self.failure = failure
        self.followed = False

    def follow(self) -> None:
        self.followed = True

    def next_progress(self, timeout_s: float) -> Event | None:
        if self.at_once:
            return self.at_once.popleft()
        if timeout_s and self.later:
            return self.later.popleft()
        if self.failure is not None and not self.later:
            raise self.failure
        return None


def script(rounds: int, heard: list[int]) -> list[Event]:
    """Each round done, some heard of before."""
    return [
        event for base in range(rounds) for event in ([RoundHeard(base)] * (base in heard) + [ReductionDone(base + 1)])
    ]


@given(
    rounds=st.integers(1, 6),
    heard=st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=1, max_size=5),
    ahead=st.data(),
)
def test_done_and_heard_are_told_once_all_sessions_have_said_so(
    rounds: int, heard: list[list[int]], ahead: st.DataObject
) -> None:
    """Some shards are ahead; the one that is behind is waited for."""
    sessions = [Scripted(script(rounds, each)) for each in heard]
    for session in sessions:
        for _ in range(ahead.draw(st.integers(0, len(session.later)))):
            session.at_once.append(session.later.popleft())
    progress = Progress(sessions)  # type: ignore[arg-type]
    assert all(session.followed for session in sessions)
    told = []
    while (event := progress.next(60.0)) != ReductionDone(rounds):
        assert event is not None
        told.append(event)
    assert [each.ticket for each in told if isinstance(each, ReductionDone)] == list(range(1, rounds))
    bases = [each.base for each in told if isinstance(each, RoundHeard)]
    assert bases == sorted(set(bases))
    newest = min(max((base for base in each if base < rounds), default=-1) for each in heard)
    assert max(bases, default=-1) <= newest, "not before the last shard has heard of it"


def test_the_failure_of_any_session_is_raised() -> None:
    lost = SwitchLostError("udp://b:1", "gone")
    progress = Progress([Scripted([ReductionDone(1)]), Scripted([], lost)])  # type: ignore[list-item]
    with pytest.raises(SwitchLostError, match="gone"):
        progress.next(60.0)


def test_nothing_by_then_is_none() -> None:
    assert Progress([Scripted([]), Scripted([])]).next(0.0) is None  # type: ignore[list-item]
