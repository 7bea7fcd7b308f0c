"""Becoming a member of a job over several shards: a session at each, joined at the same time."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait

from fanin.errors import EvictedError, FaninError
from fanin.host.session.card_survivor import Ways
from fanin.host.session.joining import JoinTerms
from fanin.host.session.session import Session
from fanin.host.session.shards import ShardedSession
from fanin.host.session.surviving import SurvivingSession
from fanin.host.session.survivor import LostOnTheWay, Successor
from fanin.options import SYNCHRONOUS, SwitchAddress
from fanin.protocol.spread import Spread

JoinOne = Callable[[int, Callable[[], None] | None], Session]
"""Joins at the switch of that number; the other argument is `JoinTerms.interrupted`."""
REJOIN_TIMEOUT_S = 10.0
"""How long ranks that go on at other shards may take to meet there, beyond the time in which a shard loses one that
dies on the way: all of them have just agreed to."""


def join_shards(
    terms: JoinTerms,
    switches: Sequence[SwitchAddress],
    local: frozenset[SwitchAddress],
    *,
    spread: Spread | None = None,
    slots: Sequence[int] = (),
    ways: Ways | None = None,
) -> ShardedSession:
    """Become rank `terms.rank` of the job's workers at every one of `switches`, at the same time.

    `local` are those whose shared memory may be used; `spread` says how large each shard's part of a sum is, the same
    on every rank (None: all alike); `slots` is by shard, for a stale job. `ways`: those of this rank to the shards,
    where it is to go on when one of several networks is lost (fallback="cards"). Raises what Session.join raises, of
    the first shard that refuses or cannot be reached; the sessions at the others are closed then.
    """
    spread = spread or Spread.evenly(len(switches))
    options = terms.options

    def rejoin(
        addresses: Sequence[SwitchAddress], job: Successor, interrupted: Callable[[], None]
    ) -> list[Session | LostOnTheWay]:
        patience_s = min(options.join_timeout_s, REJOIN_TIMEOUT_S + job.loses_s)
        briefly = dataclasses.replace(options, join_timeout_s=patience_s)
        again = dataclasses.replace(
            terms, options=briefly, job_name=job.name, rank=job.worker, size=job.workers, rounds=SYNCHRONOUS,
            succeeds=job.succeeds,
        )  # fmt: skip
        join_one = _joining(again, addresses, job.spread, local)
        return _join_living(join_one, len(addresses), interrupted)

    join_one = _joining(terms, switches, spread, local, slots)
    joined = _join_all(join_one, len(switches), terms.interrupted, f"rank {terms.rank} of job {terms.job_name!r}")
    try:
        if joined[0].spec.survives_loss and options.fallback != "gloo":  # else ranks go on over gloo
            return SurvivingSession(joined, terms.job_name, rejoin, options, spread)
        if ways is not None and ways.several:
            return SurvivingSession(joined, terms.job_name, rejoin, options, spread, ways)
        return ShardedSession(joined, terms.job_name, spread)
    except BaseException:
        for session in joined:
            session.close()
        raise


def _join_all(join_one: JoinOne, count: int, interrupted: Callable[[], None] | None, who: str) -> list[Session]:
    """Join at each switch. If one join fails, the others are cancelled and no session is left open."""
    useless = threading.Event()

    def useless_or_interrupted() -> None:
        if useless.is_set():
            raise FaninError(f"{who} has failed to join another of its shards. Remedy: see that error")
        if interrupted is not None:
            interrupted()

    # At the same time, since each join waits for the other ranks at that shard.
    with ThreadPoolExecutor(count, "fanin join") as pool:
        joins: list[Future[Session]] = []
        try:
            joins += (pool.submit(join_one, number, useless_or_interrupted) for number in range(count))
            first, _ = wait(joins, return_when=FIRST_EXCEPTION)
            return [each.result() for each in joins if each in first]
        except BaseException:  # Ctrl-C, too: sessions that are joined by then would have no owner
            useless.set()
            wait(joins)
            _close_all(joins)
            raise


def _join_living(join_one: JoinOne, count: int, interrupted: Callable[[], None]) -> list[Session | LostOnTheWay]:
    """Join at each switch; where a switch is lost, or has lost this rank, the error stands in place of a session.

    Raises if that is so at all (EvictedError where any has lost this rank), or any join fails otherwise, and leaves no
    session open then.
    """
    with ThreadPoolExecutor(count, "fanin join") as pool:
        joins = [pool.submit(join_one, number, interrupted) for number in range(count)]
        wait(joins)
    found: list[Session | LostOnTheWay] = []
    for each in joins:
        error = each.exception()
        if error is None:
            found.append(each.result())
        elif isinstance(error, LostOnTheWay):
            found.append(error)
        else:
            _close_all(joins)
            raise error
    if not any(isinstance(each, Session) for each in found):
        lost = [each for each in found if not isinstance(each, Session)]
        raise next((each for each in lost if isinstance(each, EvictedError)), lost[0])
    return found


def _joining(
    terms: JoinTerms, switches: Sequence[SwitchAddress], spread: Spread, local: frozenset[SwitchAddress],
    slots: Sequence[int] = (),
) -> JoinOne:  # fmt: skip
    """Return a function that joins at one of the switches, on these terms but for what differs between shards."""

    def join_one(number: int, interrupted: Callable[[], None] | None) -> Session:
        address, options = switches[number], terms.options
        shared = options.shared_memory if address in local else False
        here = dataclasses.replace(options, shared_memory=shared, slots=slots[number] if slots else options.slots)
        return Session.join(
            dataclasses.replace(
                terms, options=here, switch=address, interrupted=interrupted, shards=len(switches),
                share=spread.part(number),
            )
        )  # fmt: skip

    return join_one


def _close_all(joins: Sequence[Future[Session]]) -> None:
    for each in joins:
        if each.exception() is None:
            each.result().close()
