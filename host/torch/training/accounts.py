"""How the accounts of a stale job's ranks come together after the flush: through the group's store.

gloo's collectives do not outlive a rank, and newcomers have none. Every rank posts its account; rank 0, which holds the
store, waits for all that are there, and says whose accounts count: so all ranks judge, and go on, alike.
"""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from torch._C import _distributed_c10d as c10d

from fanin.errors import CollectiveTimeoutError, HandoverError
from fanin.host.session.shards import JoinedSession
from fanin.host.stale.account import Account
from fanin.protocol import strict
from fanin.protocol.strict import MAX_TEXT_CHARACTERS

Kind = TypeVar("Kind")

POLL_S = 0.01
"""How often the store is asked for what another rank is about to post."""


def count_newcomer(store: c10d.Store, job_name: str) -> None:
    """Count a process that comes into the running job, since no account has what its predecessor contributed."""
    store.add(_newcomers(job_name), 1)


def gather_accounts(
    store: c10d.Store, session: JoinedSession, account: Account, patience_s: float
) -> tuple[list[Account], int]:
    """The accounts of all ranks but lost ones, by rank, and how many newcomers there were in all.

    `patience_s`: of all waits together. Raises CollectiveTimeoutError when a rank does not post, the session's failure,
    and HandoverError at a newcomer that came when the others had finished.
    """
    key, rank = f"fanin/account/{session.job_name}/", session.rank
    ends_at = time.monotonic() + patience_s
    store.set(f"{key}{rank}", to_text(account))
    if rank == 0:
        there = [other for other in range(session.size) if _posted(store, session, other, f"{key}{other}", ends_at)]
        newcomers = store.add(_newcomers(session.job_name), 0)
        store.set(f"{key}all", json.dumps({"ranks": there, "newcomers": newcomers}))
    _posted(store, session, 0, f"{key}all", ends_at)
    decision = _read(store.get(f"{key}all"), _Decision, "accounts of whom")
    ranks, newcomers = decision.ranks, decision.newcomers
    if rank not in ranks:
        raise HandoverError(
            f"rank {rank} came into job {session.job_name!r} when the others had finished. Remedy: none is needed; the "
            "other ranks have the result"
        )
    accounts = [from_text(store.get(f"{key}{each}"), each) for each in ranks]
    store.set(f"{key}{rank}/read", "")
    if rank == 0:  # it holds the store, so it may go only when the others have read
        for other in ranks:
            _posted(store, session, other, f"{key}{other}/read", ends_at)
    return accounts, newcomers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """Rank 0's decision about the accounts."""

    ranks: tuple[int, ...]
    newcomers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """An account in the store's form. Fields that may be long are text in pieces, since a reader bounds each."""

    rank: int
    chunks: int
    handed_in: int
    contributed: int
    dropped: dict[str, int]
    in_hand: int
    folded: int
    clipped_elements: int
    ages: dict[str, int]
    bases: tuple[str, ...]
    """A letter per base."""
    contributors: tuple[str, ...]
    """64-bit integers, least byte first, in base 64."""
    accepted_chunks: tuple[str, ...]


def to_text(account: Account) -> str:
    """The account as JSON."""
    record = _Record(
        rank=account.rank,
        chunks=account.chunks,
        handed_in=account.handed_in,
        contributed=account.contributed,
        dropped=dict(account.dropped),
        in_hand=account.in_hand,
        folded=account.folded,
        clipped_elements=account.clipped_elements,
        ages={str(age): count for age, count in account.ages.items()},
        bases=_pieces("".join(account.bases)),
        contributors=_numbers(account.contributors),
        accepted_chunks=_numbers(account.accepted_chunks.tolist()),
    )
    return json.dumps(asdict(record))


def from_text(data: bytes, rank: int) -> Account:
    """The account of `rank`; HandoverError for anything else, since anybody who reaches the store can write there."""
    record = _read(data, _Record, f"account of rank {rank}")
    try:
        account = Account(
            record.rank,
            record.chunks,
            handed_in=record.handed_in,
            contributed=record.contributed,
            dropped=Counter(record.dropped),
            in_hand=record.in_hand,
            folded=record.folded,
            clipped_elements=record.clipped_elements,
            ages=Counter({int(age): count for age, count in record.ages.items()}),
            bases=list("".join(record.bases)),
            contributors=_array(record.contributors).tolist(),
        )
        account.accepted_chunks[:] = _array(record.accepted_chunks)
    except (ValueError, MemoryError) as error:
        raise _unreadable(f"account of rank {rank}", error) from None
    if account.rank != rank:
        raise _unreadable(f"account of rank {rank}", f"it is rank {account.rank}'s")
    return account


def _pieces(text: str) -> tuple[str, ...]:
    return tuple(text[at : at + MAX_TEXT_CHARACTERS] for at in range(0, len(text), MAX_TEXT_CHARACTERS))


def _numbers(numbers: Iterable[int]) -> tuple[str, ...]:
    return _pieces(base64.b64encode(np.fromiter(numbers, "<i8").tobytes()).decode())


def _array(pieces: tuple[str, ...]) -> npt.NDArray[np.int64]:
    return np.frombuffer(base64.b64decode("".join(pieces), validate=True), "<i8").astype(np.int64)


def _read(data: bytes, kind: type[Kind], what: str) -> Kind:
    try:
        body = strict.load_json(data)
        if not isinstance(body, dict):
            raise strict.RecordError("no object")
        return strict.read_message(body, kind, what)
    except strict.RecordError as error:
        raise _unreadable(what, error) from None


def _unreadable(what: str, why: object) -> HandoverError:
    return HandoverError(
        f"the {what} in the group's store is not what a rank of this version writes there: {why}. Remedy: install the "
        "same fanin everywhere, and let nobody else reach MASTER_PORT"
    )


def _newcomers(job_name: str) -> str:
    return f"fanin/newcomers/{job_name}"


def _posted(store: c10d.Store, session: JoinedSession, rank: int, key: str, ends_at: float) -> bool:
    """Wait for a rank's key in the store, until a time.monotonic(); False when the rank is lost and had not set it."""
    began_s = time.monotonic()
    while not store.check([key]):
        if rank not in session.members:
            return store.check([key])  # again: a rank that leaves in order posts before
        if session.failure is not None:
            raise session.failure
        if time.monotonic() >= ends_at:
            raise CollectiveTimeoutError(
                f"Timed out: rank {rank} of job {session.job_name!r} has not flushed, for which rank "
                f"{session.rank} waited {time.monotonic() - began_s:.3g} s; it is alive. Remedy: flush on every rank"
            )
        time.sleep(POLL_S)
    return True
