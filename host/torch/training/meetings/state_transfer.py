"""The start weights, outer state and buffers of local steps, from one member to another, while both go on.

Rules
-----
* A holder answers listeners for as long as an epoch lasts that began with some. A listener asks the holders one after
  the other, in a thread of its own (host/session/handover.py has the connection).
* A listener that reaches none of them, as where all are behind address translation, says so in the store. The first
  holder then puts the state there in chunks, of which WINDOW are there at a time. If that holder dies, the epoch
  ends, and the next one begins anew.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from torch._C import _distributed_c10d as c10d

from fanin.errors import HandoverError
from fanin.host.session.handover import PURPOSE, Giver, GiverAddress, Source
from fanin.host.session.threads import WORK, started
from fanin.host.torch.meeting.reachable import reachable_host
from fanin.host.torch.training.packed_state import packed, unpacked
from fanin.protocol.seal import derived

ASK_AGAIN_S = 0.5
"""Pause after every holder was asked in vain."""
SILENCE_S = 3.0
"""Longest silence of a holder that was asked."""

CHUNK_BYTES = 1 << 20
WINDOW = 8
"""Chunks of one state that are in the store at a time."""
PAUSE_S = 0.02
"""Pause between two looks at chunks in the store."""
UNREACHABLE = "{}"
"""Stands for the address of a holder that cannot listen; it parses as no address."""
STOP_TIMEOUT_S = 1.0
"""Longest wait for a thread that gives up."""

State = dict[str, Any]

log = logging.getLogger("fanin")


class Offer:
    """Gives a holder's state to listeners that ask for it, until it is closed."""

    def __init__(
        self,
        store: c10d.Store,
        rank: int,
        secret: str,
        snapshot: Callable[[int], tuple[int, State] | None],
        *,
        through_store: tuple[int, ...] = (),
    ) -> None:
        """`store`: for threads. `snapshot`: version and a copy of the state, once that version is reached; None before.
        `through_store`: ranks of the listeners that may ask this holder there. Where it cannot listen, a warning says
        so."""
        self._store, self._snapshot, self._waiting = store, snapshot, list(through_store)
        self._closing = threading.Event()
        self._giver: Giver | None = None
        try:
            self._giver = Giver(reachable_host(), self._give, derived(secret, PURPOSE))
        except OSError as error:
            log.warning("rank %d cannot listen for newcomers, which get the state elsewhere: %s", rank, error)
        store.set(_key(rank), UNREACHABLE if self._giver is None else str(self._giver.address))
        self._thread = started(self._serve_store, name="fanin-offering") if through_store else None

    def close(self) -> None:
        """Answer no listener any more, and end the thread."""
        self._closing.set()
        if self._giver is not None:
            self._giver.close()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)

    def _give(self, base: int, timeout_s: float) -> tuple[bytes, bytes] | None:
        found = self._snapshot(base)
        if found is None:
            self._closing.wait(timeout_s)
            return None
        version, state = found
        return packed({"version": version}), packed(state)

    def _serve_store(self) -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone: threads that need it report that
            while self._waiting and not self._closing.wait(ASK_AGAIN_S):
                with WORK:
                    for rank in [each for each in self._waiting if self._store.check([f"wants/{each}"])]:
                        self._waiting.remove(rank)
                        self._put(rank, int(self._store.get(f"wants/{rank}")))

    def _put(self, rank: int, base: int) -> None:
        found = self._snapshot(base)
        assert found is not None, "a holder is as far as its epoch's beginning"
        data = packed({"version": found[0], "state": found[1]})
        count = -(-len(data) // CHUNK_BYTES)
        self._store.set(f"chunks/{rank}", str(count))
        for number in range(count):
            while number >= WINDOW and self._store.check([_chunk(rank, number - WINDOW)]):
                if self._closing.wait(PAUSE_S):
                    return
            chunk: Any = data[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]  # bytes, which torch's stub leaves out
            self._store.set(_chunk(rank, number), chunk)


class Fetch:
    """Fetches a state for a listener, in the background."""

    def __init__(
        self, store: c10d.Store, rank: int, holders: tuple[int, ...], secret: str, base: int, within_s: float
    ) -> None:
        """`rank`: this listener's. `holders`: ranks. `base`: meetings that the state must have landed. `within_s`:
        longest time for all of it."""
        self._rank = rank
        self._store, self._holders, self._key = store, holders, derived(secret, PURPOSE)
        self._base, self._within_s = base, within_s
        self._over, self._closing = threading.Event(), threading.Event()
        self._came: tuple[int, State] | None = None
        self._told = "no holder has offered it"
        self._thread = started(self._run, name="fanin-fetching")

    @property
    def over(self) -> bool:
        """Whether the state is here, or will not come."""
        return self._over.is_set()

    @property
    def has_come(self) -> bool:
        """Whether the state is here."""
        return self._came is not None

    def wait(self, timeout_s: float) -> None:
        """Wait until the state is here or will not come, for at most `timeout_s`."""
        self._over.wait(timeout_s)

    def result(self) -> tuple[int, State]:
        """Version and state. HandoverError where nobody gave it."""
        if self._came is None:
            raise HandoverError(
                f"no member gave the weights within {self._within_s:g} s: {self._told}. Remedy: see that the members "
                "reach each other's TCP ports (GLOO_SOCKET_IFNAME names the interface); start this process again"
            )
        return self._came

    def close(self) -> None:
        """Give up, and end the thread."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            with WORK:
                self._fetch(time.monotonic() + self._within_s)
        except RuntimeError as error:
            self._told = f"the store: {error}"
        finally:
            self._over.set()

    def _fetch(self, deadline: float) -> None:
        asked = 0
        while not self._closing.is_set() and time.monotonic() < deadline:
            for rank in self._holders:
                try:
                    if not self._store.check([_key(rank)]):
                        continue
                    asked += 1
                    address = GiverAddress.parse(self._store.get(_key(rank)))
                    self._came = self._ask(address)
                    return
                except (OSError, EOFError) as error:
                    self._told = f"rank {rank}: {error}"
            if asked >= len(self._holders):
                self._came = self._through_store(deadline)
                return
            self._closing.wait(ASK_AGAIN_S)

    def _ask(self, address: GiverAddress) -> tuple[int, State]:
        with contextlib.closing(Source(address, self._base, SILENCE_S, self._key)) as source:
            version = int(unpacked(source.read(self._within_s))["version"])
            return version, unpacked(source.read(self._within_s))

    def _through_store(self, deadline: float) -> tuple[int, State] | None:
        """Version and state by chunks in the store; None where they do not come in time, or are given up."""
        self._store.set(f"wants/{self._rank}", str(self._base))
        count, number, data = None, 0, bytearray()
        while count is None or number < count:
            key = f"chunks/{self._rank}" if count is None else _chunk(self._rank, number)
            if not self._store.check([key]):
                if self._closing.wait(PAUSE_S) or time.monotonic() >= deadline:
                    return None
            elif count is None:
                count = int(self._store.get(key))
            else:
                data += self._store.get(key)
                self._store.delete_key(key)
                number += 1
        whole = unpacked(bytes(data))
        return int(whole["version"]), whole["state"]


def _key(rank: int) -> str:
    return f"offer/{rank}"


def _chunk(rank: int, number: int) -> str:
    return f"chunk/{rank}/{number}"
