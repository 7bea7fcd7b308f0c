"""A network that is worse than the real one: loses, repeats, reorders and corrupts what passes, in both directions.

Which faults strike depends on the seed and the order of the datagrams alone, so a run over a deterministic network can
be repeated exactly. Made for tests and for `FANIN_FAULTS`; the job must use checksums when anything is corrupted.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from fanin.faults import FaultPlan
from fanin.transports.transport import Datagram, Transport

HELD_BACK = 3
"""A reordered datagram lets this many pass: as many as make gap detection believe in a loss (RFC 5681, section 3.2)."""


class FaultyTransport:
    """Wraps a transport. `stream` (a rank, a flow) gives each of several wrappers with one seed its own faults."""

    def __init__(self, inner: Transport, plan: FaultPlan, stream: str = "") -> None:
        self._inner = inner
        self._outgoing = _Fate(plan, f"{plan.seed}/{stream}/out")
        self._incoming = _Fate(plan, f"{plan.seed}/{stream}/in")

    @property
    def trouble(self) -> str:
        """The complaint of the inner transport."""
        return self._inner.trouble

    def send(self, datagrams: Iterable[Datagram]) -> None:
        """Send the datagrams that survive the faults."""
        self._inner.send(self._outgoing.suffer(datagrams))

    def receive(self, timeout_s: float) -> list[Datagram]:
        """Return the datagrams that came and survive; if none came, those that were held back."""
        arrived = self._inner.receive(timeout_s)
        return self._incoming.suffer(arrived) if arrived else self._incoming.release()

    def wake(self) -> None:
        """End a waiting `receive`."""
        self._inner.wake()

    def close(self) -> None:
        """Close the inner transport."""
        self._inner.close()


class _Fate:
    """The faults of one direction. Held back datagrams are bounded: each leaves after HELD_BACK others."""

    def __init__(self, plan: FaultPlan, seed: str) -> None:
        self._plan = plan
        self._dice = random.Random(seed)
        self._held: list[tuple[int, Datagram]] = []
        """Datagrams that are held back, each with the number of others that still have to pass it."""

    def suffer(self, datagrams: Iterable[Datagram]) -> list[Datagram]:
        plan, dice = self._plan, self._dice
        survivors: list[Datagram] = []
        for data, address in datagrams:
            if dice.random() < plan.drop:
                continue
            if dice.random() < plan.corrupt:
                data = self._corrupted(data)
            copies = 2 if dice.random() < plan.duplicate else 1
            for _ in range(copies):
                if dice.random() < plan.reorder:
                    self._held.append((HELD_BACK, (data, address)))
                else:
                    survivors.append((data, address))
                    self._let_pass(survivors)
        return survivors

    def release(self) -> list[Datagram]:
        """Return everything that is held back, and hold it no longer."""
        held, self._held = self._held, []
        return [datagram for _, datagram in held]

    def _let_pass(self, survivors: list[Datagram]) -> None:
        """One datagram went by: release those that have waited long enough."""
        if self._held:
            self._held = [(left - 1, datagram) for left, datagram in self._held]
            survivors += [datagram for left, datagram in self._held if left == 0]
            self._held = [(left, datagram) for left, datagram in self._held if left > 0]

    def _corrupted(self, data: bytes) -> bytes:
        """One bit flipped or, one time in eight, the tail cut off."""
        if not data or self._dice.random() < 1 / 8:
            return data[: self._dice.randrange(len(data) + 1)]
        bit = self._dice.randrange(8 * len(data))
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        return bytes(changed)
