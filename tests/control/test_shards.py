"""A job over several switches: how sums are dealt out, the same bits as at one switch, and what a loss says."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.errors import (
    CollectiveTimeoutError,
    ConfigurationError,
    FaninError,
    SwitchLostError,
    SwitchUnreachableError,
    WorkerLostError,
)
from fanin.host.session.joining import JoinTerms
from fanin.host.session.joining_shards import join_shards
from fanin.host.session.session import Session
from fanin.host.session.shards import ShardedSession, deal
from fanin.numerics.reduction import COPIED, Element, Reduction, lanes_number, sum_in_place
from fanin.options import Options, SwitchAddress
from fanin.protocol.spread import MIN_PACKETS_PER_SHARD, Spread
from tests.support.processes import DEADLINE_S, until
from tests.support.services import a_service, address_of
from tests.support.sharded_sessions import join_all, tensors, together

OPTIONS = Options(words_per_packet=64, slots=8, connect_timeout_s=DEADLINE_S, join_timeout_s=DEADLINE_S)
Result = TypeVar("Result")
BASE, RESIDUALS, COUNTS, ARRIVALS = 1 << 20, 1 << 40, 1 << 50, 1 << 51


@given(count=st.integers(1, 5_000), shards=st.integers(1, 9), turn=st.integers(1, 50), data=st.data())
def test_every_shard_is_given_the_owned_bytes_that_it_moves(
    count: int, shards: int, turn: int, data: st.DataObject
) -> None:
    own_first = data.draw(st.integers(0, count))
    own_count = data.draw(st.integers(0, count - own_first))
    whole = Reduction(
        source=BASE, destination=0, count=count, element=Element.UINT8, lanes=COPIED,
        own_first=own_first, own_count=own_count, keep_count=0,
    )  # fmt: skip
    first, owned = 0, 0
    for _, part in deal(whole, 64, Spread.evenly(shards), turn):
        own = range(first + part.own_first, first + part.own_first + part.own_count)
        assert own == range(max(own_first, first), min(own_first + own_count, first + part.count)) or not own
        if own:
            assert part.source == BASE + own.start - own_first
        owned += len(own)
        first += part.count
    assert (first, owned) == (count, own_count)


@given(
    count=st.integers(1, 5_000),
    packet=st.sampled_from([8, 64, 360]),
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=9),
    turn=st.integers(1, 50),
    element=st.sampled_from([Element.FLOAT32, Element.FLOAT16, Element.FLOAT32]),
    data=st.data(),
)
def test_the_parts_are_the_whole_at_packet_boundaries(
    count: int, packet: int, weights: list[int], turn: int, element: Element, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, count))
    kept = data.draw(st.integers(0, count - first))
    whole = Reduction(
        source=BASE,
        destination=2 * BASE,
        count=count,
        element=element,
        residual=RESIDUALS,
        keep_first=first,
        keep_count=kept,
        tag=9,
        counts=COUNTS,
        arrivals=ARRIVALS,
    )
    spread = Spread(tuple(weights))
    parts = list(deal(whole, packet, spread, turn))
    numbers = [shard for shard, _ in parts]
    worth = min(len(weights), -(-count // packet) // MIN_PACKETS_PER_SHARD)
    start = 0 if worth == len(weights) else spread.in_turn(turn)
    shards = [(start + following) % len(weights) for following in range(max(worth, 1))]
    assert numbers == [shard for shard in shards if shard in numbers], "each once, from the one whose turn it is on"
    for shard, part in parts:
        of_these = weights[shard] / sum(weights[each] for each in shards)
        assert abs(part.count / count - of_these) <= 2 * packet / count
    at, written = 0, []
    for _, part in parts:
        assert (part.source - BASE, part.residual - RESIDUALS, part.tag) == (at * element.bytes, at * 4, 9)
        assert part.counts - COUNTS == at // packet * 4, "contributors by packet"
        assert part.arrivals - ARRIVALS == at // packet * 4
        assert at % packet == 0, "packets hold the elements that they hold at a single switch"
        begin = (part.destination - 2 * BASE) // element.bytes if part.kept else 0
        written += [(begin + i, at + part.keep_first + i) for i in range(part.kept)]
        at += part.count
    assert at == count
    assert written == [(i, first + i) for i in range(kept)]


@given(
    count=st.integers(1, 5_000),
    packet=st.sampled_from([8, 64]),
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    turn=st.integers(1, 9),
)
def test_shares_are_what_is_dealt(count: int, packet: int, weights: list[int], turn: int) -> None:
    whole, spread = (
        Reduction(source=BASE, destination=BASE, count=count, element=Element.FLOAT32),
        Spread(tuple(weights)),
    )
    dealt = [(shard, part.count) for shard, part in deal(whole, packet, spread, turn)]
    assert dealt == [(shard, end - first) for shard, first, end in spread.shares(count, packet, turn)]


@contextlib.contextmanager
def switches(count: int, *, native: bool) -> Iterator[list[SwitchAddress]]:
    with contextlib.ExitStack() as stack:
        yield [address_of(stack.enter_context(a_service(native=native or None))) for _ in range(count)]


def in_place(array: npt.NDArray[np.float32], lanes: int = 32) -> Reduction:
    return Reduction.of(sum_in_place(array.ctypes.data, array.size, Element.FLOAT32, lanes, 1), array)


def sums(sessions: list[ShardedSession], count: int, lanes: int) -> list[npt.NDArray[np.float32]]:
    arrays = tensors(count)
    works = []
    for session, array in zip(sessions, arrays, strict=True):
        works.append((session, session.submit(in_place(array, lanes))))
    for session, ticket in works:
        session.wait(ticket, DEADLINE_S)
        assert session.done(ticket)
    return arrays


@pytest.mark.parametrize("native", [True, False], ids=["native", "twin"])
def test_several_switches_give_the_bits_of_one(native: bool) -> None:
    with switches(1, native=native) as alone, switches(3, native=native) as several:
        one, spread = join_all(alone, native=native), join_all(several, native=native)
        try:
            for count in (1, 64, 300, 64 * 6, 64 * 40 + 17):
                for lanes in (32, 8, lanes_number("8/8"), lanes_number("4/8")):
                    expected = sums(one, count, lanes)
                    for session, result, reference in zip(spread, sums(spread, count, lanes), expected, strict=True):
                        assert result.tobytes() == reference.tobytes()
                        assert session.failure is None
            each = [shard.counters()["bytes_out"] for shard in spread[0].sessions]
            assert min(each) > 0.5 * max(each), "all shards carry their part"
        finally:
            together([partial(session.close) for session in (*one, *spread)])


def test_small_sums_go_to_the_shards_in_turn_and_are_done_when_the_call_returns() -> None:
    with switches(2, native=True) as addresses:
        spread = join_all(addresses, native=True)
        try:
            for turn in range(4):
                arrays = tensors(16)
                expected = np.sum([array.astype(np.float64) for array in arrays], axis=0)

                def add(session: ShardedSession, array: npt.NDArray[np.float32]) -> None:
                    ticket = session.submit_and_wait(sum_in_place(array.ctypes.data, 16, Element.FLOAT32, 32, 1), array)
                    session.wait(ticket, DEADLINE_S)

                together([partial(add, session, array) for session, array in zip(spread, arrays, strict=True)])
                for array in arrays:
                    np.testing.assert_allclose(
                        array, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max(), err_msg=f"{turn}"
                    )
            assert all(shard.counters()["bytes_out"] > 0 for shard in spread[0].sessions)
        finally:
            together([partial(session.close) for session in spread])


def test_a_shard_that_is_not_there_is_named_and_the_others_are_left() -> None:
    with switches(1, native=True) as addresses:
        nowhere = SwitchAddress("udp", "127.0.0.1", 1)
        options = Options(connect_timeout_s=0.2, join_timeout_s=DEADLINE_S)
        terms = JoinTerms(options=options, switch=nowhere, job_name="j", rank=0, size=2)
        with pytest.raises(SwitchUnreachableError, match=r"127\.0\.0\.1:1"):
            join_shards(terms, [nowhere], frozenset())
        assert addresses


def test_a_join_ends_at_all_shards_when_it_fails_at_one_or_is_interrupted() -> None:
    """The others need not come for that: rank 1 never does."""
    said = SwitchUnreachableError("udp://10.0.0.1:1", "rank 1 cannot reach it")

    def interrupted() -> None:
        raise said

    with switches(1, native=True) as addresses:
        options = Options(connect_timeout_s=0.3, join_timeout_s=DEADLINE_S)
        terms = JoinTerms(options=options, switch=addresses[0], job_name="j", rank=0, size=2)
        with pytest.raises(SwitchUnreachableError, match=r"127\.0\.0\.1:1\b"):
            join_shards(terms, [*addresses, SwitchAddress("udp", "127.0.0.1", 1)], frozenset())
        with pytest.raises(SwitchUnreachableError, match="rank 1 cannot"):
            join_shards(replace(terms, interrupted=interrupted), addresses, frozenset())


def test_a_join_that_ctrl_c_interrupts_leaves_no_session_open(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[Session] = []

    def interrupted(joins: list[Future[Session]], **_: object) -> NoReturn:
        monkeypatch.undo()
        wait(joins)
        joined.extend(each.result() for each in joins)
        raise KeyboardInterrupt

    monkeypatch.setattr("fanin.host.session.joining_shards.wait", interrupted)
    with switches(2, native=True) as addresses:
        terms = JoinTerms(options=OPTIONS, switch=addresses[0], job_name="j", rank=0, size=1)
        with pytest.raises(KeyboardInterrupt):
            join_shards(terms, addresses, frozenset(addresses))
        assert len(joined) == 2
        for session in joined:
            with pytest.raises(FaninError, match="closed"):
                session.submit(in_place(np.zeros(1, np.float32)))


def test_shards_of_unlike_packets_are_refused_with_the_remedy() -> None:
    class Shaped:
        def __init__(self, words: int) -> None:
            self.spec = type("Spec", (), {"words_per_packet": words, "codes_per_packet": 1})()
            self.address = SwitchAddress("udp", "10.0.0.1", words)

    with pytest.raises(ConfigurationError, match=r"360 words at udp://10.0.0.1:360.*FANIN_WORDS_PER_PACKET=64"):
        ShardedSession([Shaped(360), Shaped(64)], "j")  # type: ignore[list-item]


def test_a_rank_that_leaves_fails_the_waits_of_the_others_at_every_shard() -> None:
    with switches(2, native=True) as addresses:
        spread = join_all(addresses, native=True)
        array = tensors(64 * 40)[0]
        tickets = [session.submit(in_place(array)) for session in spread[:2]]
        spread[2].close()
        for session, ticket in zip(spread, tickets, strict=False):
            with pytest.raises(WorkerLostError) as caught:
                session.wait(ticket, DEADLINE_S)
            assert caught.value.ranks == (2,)
            assert isinstance(session.failure, WorkerLostError)
        together([partial(session.close) for session in spread])


def test_when_a_shard_is_lost_all_sessions_stop_and_what_was_done_stays_done() -> None:
    """Continuation by other means relies on it: no result comes late, and nothing is written any more."""
    with switches(1, native=True) as kept, contextlib.ExitStack() as dying:
        (lost,) = dying.enter_context(switches(1, native=True))
        spread = join_all([*kept, lost], native=True, workers=2)
        first, second = tensors(64 * 40, 2), tensors(64 * 40, 2)
        before = [array.copy() for array in second]

        def submit(rank: int, array: npt.NDArray[np.float32]) -> int:
            return spread[rank].submit(in_place(array))

        early = [submit(rank, first[rank]) for rank in range(2)]
        for rank in range(2):
            spread[rank].wait(early[rank], DEADLINE_S)
        late = submit(0, second[0])
        dying.close()
        with pytest.raises(SwitchLostError, match=str(lost)):
            spread[0].wait(late, DEADLINE_S)
        until(lambda: spread[1].failure is not None)  # what one session knows by its wait, another hears by its line
        with pytest.raises(SwitchLostError, match=str(lost)):
            submit(1, second[1])
        for rank in range(2):
            assert isinstance(spread[rank].failure, SwitchLostError)
            assert spread[rank].done(early[rank])
            assert all(isinstance(each.failure, SwitchLostError) for each in spread[rank].sessions)
        assert not spread[0].done(late)
        assert second[1].tobytes() == before[1].tobytes()
        together([partial(session.close) for session in spread])


def test_a_wait_that_takes_too_long_names_the_reduction_of_the_whole_job() -> None:
    with switches(2, native=True) as addresses:
        spread = join_all(addresses, native=True)
        array = tensors(64 * 40)[0]
        for _ in range(2):
            ticket = spread[0].submit(in_place(array))
        with pytest.raises(CollectiveTimeoutError, match=r"Timed out: reduction 2 .*after 0.01 s"):
            spread[0].wait(ticket, 0.01)
        together([partial(session.close) for session in spread])


def test_threads_may_submit_and_wait_at_once() -> None:
    with switches(2, native=True) as addresses:
        spread = join_all(addresses, native=True, workers=1)
        session, failures = spread[0], list[FaninError]()

        def work() -> None:
            array = np.ones(64 * 10, np.float32)
            try:
                for _ in range(50):
                    ticket = session.submit(in_place(array))
                    session.wait(ticket, DEADLINE_S)
            except FaninError as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        assert not failures
        session.close()


LEAVES_AT_EXIT = """
import atexit, sys
from fanin.host.session.joining import JoinTerms
from fanin.host.session.joining_shards import join_shards
from fanin.options import Options, SwitchAddress
from fanin.protocol.spread import MIN_PACKETS_PER_SHARD, Spread

addresses = [SwitchAddress("udp", "127.0.0.1", int(port)) for port in sys.argv[1:]]
terms = JoinTerms(options=Options(), switch=addresses[0], job_name="ends", rank=0, size=1)
session = join_shards(terms, addresses, frozenset(addresses))
atexit.register(session.close)
"""


@pytest.mark.processes
def test_a_program_that_ends_leaves_every_shard_in_order() -> None:
    """Its peers need not miss it; pools of threads take no more work by then."""
    with switches(2, native=True) as addresses:
        ports = [str(each.port) for each in addresses]
        ended = subprocess.run(
            [sys.executable, "-c", LEAVES_AT_EXIT, *ports],
            capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip
        assert (ended.returncode, ended.stderr) == (0, "")
