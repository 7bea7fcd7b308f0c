"""A second connection to the store through which a group's ranks met: for what they ask each other after that.

Rules
-----
* One connection for each store in a process. Every further one may cost 5 s: the process that serves the store looks
  up the name of each peer that connects, and where name service loses questions it waits for it.
* It is opened when a group of new_group is made, as gloo's are: the process that serves the store need not be a member
  of the group, and may have left before the group's first sum.
* Threads ask here while the program's own may wait in the first connection, which is locked meanwhile.
* Every question has a limit. Where the store does not answer, its process is gone or stopped: StoreSilentError says so,
  and callers that can do without an answer catch it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from typing import TypeVar

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.addresses import host_and_port
from fanin.errors import FaninError, StoreSilentError
from fanin.host.session.threads import WORK, started
from fanin.interruptions import interrupts

ANSWER_TIMEOUT_S = 2.0
"""How long a question may take; the store answers within a millisecond or two."""

Answer = TypeVar("Answer")


def apart(store: c10d.Store) -> c10d.Store:
    """The same store over a connection of its own, or itself where torch cannot open one (before 2.9).

    A connection that a thread waits in is locked for all others: this one is for questions that may wait long.
    """
    clone: Callable[[], c10d.Store] | None = getattr(store, "clone", None)
    return store if clone is None else clone()


class SideStore:
    """A second connection to a store, for any thread. Keys have no prefix of the group, so they must name the job."""

    def __init__(self, store: c10d.Store) -> None:
        """`store`: without prefixes. Connects."""
        self._of, self._store = store, apart(store)
        self._asking = threading.Lock()
        """Held by the thread of a question, which may be stuck in it."""
        self._ended: str | None = None
        """Reason why the store never answers here again, once it is known."""
        self._stuck = False
        """Whether the question under way was given up: until it is answered after all, further ones fail at once."""

    def ask(self, rank: int, question: Callable[[c10d.Store], Answer]) -> Answer:
        """Ask the store by a thread of its own: returns what `question` returns, or raises what it raises.

        `rank`: of the asker in its group, which errors name; the groups of a process share a SideStore. Raises
        StoreSilentError where the store does not answer within ANSWER_TIMEOUT_S, or its connection is broken.
        """
        if self._ended is not None:  # torch logs a stack for every try
            raise StoreSilentError(_silent(self._where, rank, self._ended), ended=True)
        answered: Future[Answer] = Future()
        if not self._asking.acquire(timeout=0 if self._stuck else ANSWER_TIMEOUT_S):
            raise StoreSilentError(_silent(self._where, rank, "an earlier question was not answered"))

        def ask() -> None:
            try:
                with WORK:
                    answered.set_result(question(self._store))
            except BaseException as error:
                answered.set_exception(error)
            finally:
                self._stuck = False
                self._asking.release()

        if started(ask, name="fanin-store") is None:
            self._asking.release()
            raise StoreSilentError(
                f"rank {rank}: no further thread can be started to ask {self._where}. Remedy: raise `ulimit -u`"
            )
        try:
            return answered.result(ANSWER_TIMEOUT_S)
        except LateError as error:
            if interrupts(error):
                raise
            self._stuck = not answered.done()
            raise StoreSilentError(_silent(self._where, rank, f"no answer for {ANSWER_TIMEOUT_S:g} s")) from None
        except FaninError:
            raise
        except RuntimeError as error:  # torch's errors of stores
            if interrupts(error):
                raise
            if isinstance(error, dist.DistNetworkError):
                self._ended = str(error).partition("\n")[0]
            why = str(error).partition("\n")[0]
            raise StoreSilentError(_silent(self._where, rank, why), ended=self._ended is not None) from error

    @property
    def _where(self) -> str:
        """The store in words, with its address where it has one."""
        of = self._of
        at = f" at {host_and_port(of.host, of.port)}" if isinstance(of, c10d.TCPStore) else ""
        return f"the store{at} through which this group's ranks met"


def side_of(store: c10d.Store) -> SideStore | None:
    """This process's second connection to that store, opened if there is none; None where torch cannot open one.

    It lasts as long as somebody holds it.
    """
    store = bare(store)
    if not hasattr(store, "clone"):
        return None
    with _LOCK:
        side = _SIDES.get(id(store))
        if side is None:
            side = _SIDES[id(store)] = SideStore(store)
        return side


def asked_at(store: c10d.Store) -> SideStore:
    """This process's second connection to that store; a SideStore over the first where torch cannot open one."""
    side = side_of(store)
    return SideStore(bare(store)) if side is None else side


def bare(store: c10d.Store) -> c10d.Store:
    """The store without prefixes."""
    while isinstance(store, c10d.PrefixStore):
        store = store.underlying_store
    return store


def _silent(where: str, rank: int, why: str) -> str:
    return (
        f"rank {rank}: {where} does not answer ({why}): the process that serves it, rank 0 of the world or torchrun's "
        "agent, has ended or is stopped. Remedy: see its output"
    )


_SIDES: weakref.WeakValueDictionary[int, SideStore] = weakref.WeakValueDictionary()
"""SideStores by `id` of their store, which each of them keeps alive."""
_LOCK = threading.Lock()


def _forget_in_child() -> None:
    """Forget the connections in a child of fork(): they are its parent's, and the lock may be locked."""
    global _LOCK
    _LOCK = threading.Lock()
    _SIDES.clear()


os.register_at_fork(after_in_child=_forget_in_child)
