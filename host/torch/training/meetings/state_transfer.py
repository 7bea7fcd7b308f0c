"""The start weights, outer state and buffers of local steps, from one member to another, while both go on.

A holder lets itself be asked for as long as an epoch lasts that began with listeners. A listener asks the holders one
after the other, in a thread of its own (host/session/handover.py has the connection).
"""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from fanin.errors import HandoverError
from fanin.host.session.handover import PURPOSE, Giver, GiverAddress, Source
from fanin.host.session.threads import started
from fanin.host.torch.meeting.reachable import reachable_host
from fanin.protocol.seal import derived

ASK_AGAIN_S = 0.5
"""Pause after every holder was asked in vain."""
SILENCE_S = 5.0
"""Longest silence of a holder that was asked."""

State = dict[str, Any]


class Offer:
    """A holder's part."""

    def __init__(
        self, store: c10d.Store, rank: int, secret: str, look: Callable[[int], tuple[int, State] | None]
    ) -> None:
        """`look`: version and a copy of the state, once that version is reached; None before. Raises OSError."""
        self._look = look
        self._closing = threading.Event()
        self._giver = Giver(reachable_host(), self._give, derived(secret, PURPOSE))
        store.set(_key(rank), str(self._giver.address))

    def close(self) -> None:
        """Let nobody ask any more."""
        self._closing.set()
        self._giver.close()

    def _give(self, base: int, timeout_s: float) -> tuple[bytes, bytes] | None:
        found = self._look(base)
        if found is None:
            self._closing.wait(timeout_s)
            return None
        version, state = found
        return _packed({"version": version}), _packed(state)


class Fetch:
    """A listener's part: the state comes in the background."""

    def __init__(self, store: c10d.Store, holders: tuple[int, ...], secret: str, base: int, within_s: float) -> None:
        """`holders`: ranks. `base`: meetings that the state must have landed. `within_s`: all of it."""
        self._store, self._holders, self._key = store, holders, derived(secret, PURPOSE)
        self._base, self._within_s = base, within_s
        self._over, self._closing = threading.Event(), threading.Event()
        self._came: tuple[int, State] | None = None
        self._told = "no holder has offered it"
        started(self._run, name="fanin-fetching")

    @property
    def over(self) -> bool:
        """Whether the state is here, or will not come."""
        return self._over.is_set()

    @property
    def has_come(self) -> bool:
        """Whether the state is here."""
        return self._came is not None

    def wait(self, timeout_s: float) -> None:
        """Until it is over."""
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
        """Give up."""
        self._closing.set()

    def _run(self) -> None:
        deadline = time.monotonic() + self._within_s
        try:
            while not self._closing.is_set() and time.monotonic() < deadline:
                for rank in self._holders:
                    try:
                        self._came = self._ask(rank)
                        return
                    except (OSError, EOFError, RuntimeError) as error:
                        self._told = f"rank {rank}: {error}"
                self._closing.wait(ASK_AGAIN_S)
        finally:
            self._over.set()

    def _ask(self, rank: int) -> tuple[int, State]:
        if not self._store.check([_key(rank)]):
            raise ConnectionError("it offers nothing yet")
        address = GiverAddress.parse(self._store.get(_key(rank)))
        with contextlib.closing(Source(address, self._base, SILENCE_S, self._key)) as source:
            version = int(_unpacked(source.read(self._within_s))["version"])
            return version, _unpacked(source.read(self._within_s))


def _key(rank: int) -> str:
    return f"offer/{rank}"


def _packed(thing: State) -> bytes:
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


def _unpacked(data: bytes) -> State:
    thing: State = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return thing
