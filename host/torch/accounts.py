"""How the accounts of a stale job's ranks come together after the flush: through the group's store.

gloo's collectives do not outlive a rank, and newcomers have none. Every rank posts its account; rank 0, which holds the
store, waits for all that are there, and says whose accounts count: so all ranks judge, and go on, alike.
"""

from __future__ import annotations

import base64
import json
import pickle
import time

from torch._C import _distributed_c10d as c10d

from fanin.errors import CollectiveTimeoutError, HandoverError
from fanin.host.session import Session
from fanin.host.stale.account import Account

POLL_S = 0.01
"""How often the store is asked for what another rank is about to post."""


def count_newcomer(store: c10d.Store, job_name: str) -> None:
    """A process comes into the job while it runs: what its predecessor contributed is in nobody's account."""
    store.add(_newcomers(job_name), 1)


def gather_accounts(
    store: c10d.Store, session: Session, account: Account, patience_s: float
) -> tuple[list[Account], int]:
    """The accounts of all ranks but lost ones, by rank, and how many newcomers there were in all.

    Raises CollectiveTimeoutError when a rank does not post, the session's failure, and HandoverError at a newcomer that
    came when the others had finished.
    """
    key, rank = f"fanin/account/{session.job_name}/", session.rank
    store.set(f"{key}{rank}", base64.b64encode(pickle.dumps(account)).decode())
    if rank == 0:
        there = [other for other in range(session.size) if _posted(store, session, other, f"{key}{other}", patience_s)]
        newcomers = store.add(_newcomers(session.job_name), 0)
        store.set(f"{key}all", json.dumps({"ranks": there, "newcomers": newcomers}))
    _posted(store, session, 0, f"{key}all", patience_s)
    told = json.loads(store.get(f"{key}all"))
    ranks, newcomers = told["ranks"], told["newcomers"]
    if rank not in ranks:
        raise HandoverError(
            f"rank {rank} came into job {session.job_name!r} when the others had finished. Remedy: none is needed; the "
            "other ranks have the result"
        )
    accounts: list[Account] = [pickle.loads(base64.b64decode(store.get(f"{key}{each}"))) for each in ranks]
    store.set(f"{key}{rank}/read", "")
    if rank == 0:  # it holds the store, so it may go only when the others have read
        for other in ranks:
            _posted(store, session, other, f"{key}{other}/read", patience_s)
    return accounts, newcomers


def _newcomers(job_name: str) -> str:
    return f"fanin/newcomers/{job_name}"


def _posted(store: c10d.Store, session: Session, rank: int, key: str, patience_s: float) -> bool:
    """Wait for a rank's key in the store; False when the rank is lost and had not set it."""
    deadline = time.monotonic() + patience_s
    while not store.check([key]):
        if rank not in session.members:
            return store.check([key])  # again: who leaves in order has posted before
        if session.failure is not None:
            raise session.failure
        if time.monotonic() >= deadline:
            raise CollectiveTimeoutError(
                f"Timed out: rank {rank} of job {session.job_name!r} has not flushed after {patience_s:g} s; "
                f"it is alive. Remedy: call flush on every rank"
            )
        time.sleep(POLL_S)
    return True
