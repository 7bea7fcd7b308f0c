"""The path becomes narrower while a job runs: found out by HELLOs of other lengths (fanin/protocol/path_watch.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fanin.protocol.events import PathNarrowed, SwitchSilent
from fanin.protocol.job import HEARTBEAT_INTERVAL_S
from fanin.protocol.path_watch import HEARTBEAT_BYTES
from fanin.protocol.seal import DATA_KEY_BYTES
from fanin.protocol.wire import Kind, parse
from tests.support.cluster import Cluster, job, reduction
from tests.support.network import SWITCH, Link

WORDS = 256
SPEC = job(workers=2, words_per_packet=WORDS)
LONG = np.ones(4 * WORDS, np.int32)
PASSES_BYTES = 600
"""Length in bytes of what the narrow path takes."""
FOUND_BY_S = SPEC.liveness_timeout_s + 3 * HEARTBEAT_INTERVAL_S
"""After the path has become narrow: two heartbeats without progress, then the timeout, seen at a heartbeat."""


def cluster(kind: str, link: Link | None = None, **fields: Any) -> Cluster:
    """Two workers that are ready."""
    return Cluster.joined(kind, spec=job(workers=2, words_per_packet=WORDS, **fields), link=link)


def narrow(cluster: Cluster, *, up: bool = True, down: bool = True) -> None:
    """From now on what is longer than PASSES_BYTES is lost between worker 0 and the switch."""

    def passes(_: float, source: int, destination: int, data: bytes) -> bool:
        return len(data) <= PASSES_BYTES or not ((up and source == 1) or (down and destination == 1))

    cluster.network.wiretap = passes


def submit(cluster: Cluster, *workers: int, what: np.ndarray[Any, Any] = LONG) -> None:
    for worker in workers:
        cluster.submit(worker, reduction(what.copy()))


# R-MEMBER-10, R-MEMBER-11
@pytest.mark.parametrize("protected", [{}, {"checksum": True}, {"data_key": bytes(range(DATA_KEY_BYTES))}])
@pytest.mark.parametrize("ways", [{"up": True, "down": False}, {"up": False, "down": True}, {}])
def test_a_worker_whose_long_packets_are_lost_says_so_and_what_still_passes(
    kind: str, ways: dict[str, bool], protected: dict[str, Any]
) -> None:
    made = cluster(kind, **protected)
    narrow(made, **ways)
    submit(made, 0, 1)
    made.network.run_for(FOUND_BY_S)
    [told] = made.news(0)
    assert isinstance(told, PathNarrowed)
    assert PASSES_BYTES < told.needed_bytes <= SPEC.packet_bytes
    assert PASSES_BYTES - 8 <= told.passes_bytes <= PASSES_BYTES
    assert made.workers[0].failed
    assert made.news(1) == []


def test_a_worker_that_waits_for_a_late_peer_asks_and_goes_on(kind: str) -> None:
    made = cluster(kind)
    submit(made, 0)
    made.network.run_for(10 * SPEC.liveness_timeout_s)
    assert made.workers[0].counters()["path_questions"] > 10
    assert made.workers[0].counters()["path_suspected"] == 0
    submit(made, 1)
    made.run()
    assert made.news(0) == made.news(1) == []


def test_a_path_that_is_narrow_for_less_than_the_timeout_costs_that_time_alone(kind: str) -> None:
    made = cluster(kind)
    narrow(made)
    submit(made, 0, 1)
    made.network.run_for(0.8 * SPEC.liveness_timeout_s)
    assert made.workers[0].counters()["path_suspected"] == 1
    made.network.wiretap = None
    made.run(limit_s=2.0)
    assert made.news(0) == made.news(1) == []


def test_packets_that_are_short_enough_may_wait_on_a_narrow_path(kind: str) -> None:
    made = cluster(kind)
    narrow(made)
    submit(made, 0, what=np.ones(100, np.int32))
    made.network.run_for(3 * SPEC.liveness_timeout_s)
    submit(made, 1, what=np.ones(100, np.int32))
    made.run()
    assert made.news(0) == made.news(1) == []


# R-MEMBER-11
def test_a_switch_that_answers_nothing_is_silent_and_not_far_away(kind: str) -> None:
    made = cluster(kind)
    narrow(made)
    submit(made, 0, 1)
    made.network.run_for(0.5 * SPEC.liveness_timeout_s)
    made.network.cut(SWITCH)
    made.network.run_for(2 * SPEC.liveness_timeout_s)
    [told] = made.news(0)
    assert isinstance(told, SwitchSilent)


def test_a_worker_that_was_stopped_does_not_take_its_own_sleep_for_a_narrow_path(kind: str) -> None:
    made = cluster(kind)
    submit(made, 0)
    made.network.run_for(1.2)
    made.network.stop(1)
    made.network.run_for(0.9 * SPEC.liveness_timeout_s)
    made.network.resume(1)
    submit(made, 1)
    made.run()
    assert made.news(0) == made.news(1) == []


@pytest.mark.parametrize("seed", range(3))
def test_chance_alone_makes_no_path_narrow(kind: str, seed: int) -> None:
    made = Cluster.joined(kind, spec=SPEC, link=Link(loss=0.3), seed=seed)
    submit(made, 0)
    made.network.run_for(4 * SPEC.liveness_timeout_s)
    submit(made, 1)
    made.run()
    assert made.news(0) == made.news(1) == []


# R-MEMBER-10
def test_who_waits_for_nothing_asks_nothing(kind: str) -> None:
    made = cluster(kind)
    lengths: set[int] = set()

    def listen(_: float, source: int, destination: int, data: bytes) -> bool:
        lengths.update({len(data)} if source == 1 and parse(data).kind is Kind.HELLO else ())
        return True

    made.network.wiretap = listen
    for _ in range(3):
        submit(made, 0, 1)
        made.run()
        made.network.run_for(2.0)
    assert lengths == {HEARTBEAT_BYTES}
