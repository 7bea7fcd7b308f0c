"""Federated training in virtual time: the policies' rounds with any number of clients, on one processor.

Clients really train, one after another; a virtual clock says when their deltas arrive. Rounds follow the rules of
fanin.host.torch.Federated: a round closes at the K-th delta; a client has one delta in a round, and one more waiting;
deltas under way at the end are dropped for a named reason.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fanin.errors import FaninError
from fanin.host.federated.policies.policy import FederatedPolicy
from fanin.host.federated.steering import Steering
from fanin.host.stale.account import CONTRIBUTED, PASSED_LATE, Account, check_balance

Floats = npt.NDArray[np.float64]
Turn = Callable[[int, int, Floats, float], tuple[Floats, float]]
"""A client's turn: (client, number of its turn, weights, learning-rate factor) -> (weights after it, loss)."""
MAX_EVENTS = 1_000_000
MAX_IDLE_LOOKS = 5
"""Number of times that a round without future events is examined before it counts as stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The clients' samples, and how long their work takes."""

    samples: Sequence[int]
    """Number of samples, by client."""
    turn_s: Callable[[int, int], float]
    """Duration of a client's turn: (client, number of the turn) -> seconds."""
    exchange_s: float = 0.0
    """Time from a delta to its round, and from a round's end to the clients."""
    absences: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """By client, when it leaves and comes back, in seconds; the turn that it has begun is lost."""


@dataclass(slots=True)
class _Client:
    present: bool = True
    turns: int = 0
    began_s: float = 0.0
    life: int = 0
    """Number of the client's process; turns of an earlier one are lost."""
    computing: bool = False
    version: int = 0
    handed_in_at: int = -1
    contributed_to: int = -1
    """Round that holds its last delta."""
    held: list[tuple[Floats, int]] = field(default_factory=list)
    """Deltas that wait for the next round, with the versions that they were computed on."""
    deep: Floats | None = None
    """The client's own deep layers; None: it has the shared ones."""
    deep_movement: Floats | None = None
    """Sum of its deep layers' changes since they were last summed."""


@dataclass(frozen=True, slots=True)
class Run:
    """Outcome of one simulated training: rounds and accounts."""

    times_s: list[float]
    """Time of each round's end."""
    weights: list[Floats]
    """The shared weights after each round."""
    accounts: list[Account]
    """Accounts by client; they balance."""
    sent: list[int]
    """Elements that clients had sent by the end of each round."""
    received: list[int]
    """Elements that clients had received by the end of each round."""


class Simulation:
    """One training. `deep`: mask of the elements of deep layers, shape (elements,)."""

    def __init__(
        self, policy: FederatedPolicy, rounds: int, world: World, start: Floats, deep: npt.NDArray[np.bool_], turn: Turn
    ) -> None:
        self._policy, self._rounds, self._world, self._turn = policy, rounds, world, turn
        self._deep = deep if policy.deep_every > 1 else np.zeros_like(deep)
        self._shared = start.copy()
        self._clients = [_Client() for _ in world.samples]
        self._accounts = [Account(client, 1) for client in range(len(world.samples))]
        self._steering = Steering(policy, rounds, dict(enumerate(world.samples)))
        self._version, self._meetings, self._now = 0, 0, 0.0
        self._sum, self._weight, self._count = np.zeros_like(start), 0.0, 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._run = Run([], [], self._accounts, [], [])
        self._elements = [0, 0]

    def run(self) -> Run:
        """Simulate to the last round. UnbalancedError for an unbalanced account, FaninError if a round never closes."""
        for client, (goes_s, comes_s) in self._world.absences.items():
            self._at(goes_s, functools.partial(self._leave, client))
            self._at(comes_s, functools.partial(self._come, client))
        self._all_begin()
        idle = 0
        for _ in range(MAX_EVENTS):
            if self._version >= self._rounds or idle == MAX_IDLE_LOOKS:
                break
            if not self._events:
                self._steer()
                idle += 1
                continue
            idle = 0
            self._now, _, event = heapq.heappop(self._events)
            event()
        if self._version < self._rounds:
            raise FaninError(
                f"round {self._version} of {self._rounds} never closed under {self._policy.name!r}. "
                "Remedy: give a policy whose rounds close with fewer clients, or shorter delays"
            )
        for each, account in zip(self._clients, self._accounts, strict=True):
            account.dropped["at the end"] += len(each.held) + each.computing
            account.handed_in += each.computing
            account.in_hand = 0
        if self._count:  # the flush's rounds close with the deltas under way
            self._close()
        check_balance(self._accounts)
        return self._run

    def _at(self, time_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), event))

    # --- clients ---

    def _all_begin(self) -> None:
        for number in range(len(self._clients)):
            self._begin(number)

    def _begin(self, number: int) -> None:
        """Begin a turn, unless the client is absent, busy, not selected, or must wait for a round."""
        client, selected = self._clients[number], self._steering.plan.clients
        blocked = not client.present or client.computing or bool(client.held and not self._policy.waits)
        if blocked or self._version <= client.handed_in_at or (selected is not None and number not in selected):
            return
        client.computing, client.version, client.began_s = True, self._version, self._now
        weights = self._shared.copy()
        if client.deep is not None:
            weights[self._deep] = client.deep
        duration_s = self._world.turn_s(number, client.turns)
        rate = self._steering.plan.rates.get(number, 1.0)
        after_s = self._now + duration_s + self._world.exchange_s
        life, meetings = client.life, self._meetings
        self._at(after_s, lambda: self._arrive(number, life, meetings, weights, rate))

    def _arrive(self, number: int, life: int, meetings: int, weights: Floats, rate: float) -> None:
        client = self._clients[number]
        if life != client.life:
            return
        after, loss = self._turn(number, client.turns, weights, rate)
        client.turns += 1
        client.computing = False
        account = self._accounts[number]
        account.handed_in += 1
        account.in_hand += 1
        self._steering.handed_in(number, client.turns, self._now - client.began_s, loss)
        if self._deep.any():
            turn = (weights - after)[self._deep]
            client.deep_movement = turn if client.deep_movement is None else client.deep_movement + turn
            client.deep = after[self._deep] if meetings == self._meetings else None
        client.handed_in_at = client.version if self._policy.waits else -1
        client.held.append((np.where(self._deep, 0.0, weights - after), client.version))
        self._contribute(number)
        self._close_if_due()
        self._begin(number)

    def _contribute(self, number: int) -> None:
        client = self._clients[number]
        if not client.held or client.contributed_to == self._version:
            return
        delta, version = client.held.pop(0)
        client.contributed_to = self._version
        self._accounts[number].contributed += 1
        self._accounts[number].in_hand -= 1
        self._accounts[number].ages[self._version - version] += 1
        weight = self._policy.weight(self._world.samples[number], version, self._version)
        self._sum += weight * delta
        self._weight += weight
        self._count += 1
        self._elements[0] += int((~self._deep).sum())

    def _leave(self, number: int) -> None:
        client = self._clients[number]
        dropped = len(client.held) + client.computing
        self._accounts[number].handed_in += client.computing
        self._accounts[number].in_hand -= len(client.held)
        self._accounts[number].dropped["gone"] += dropped
        client.present, client.computing, client.life = False, False, client.life + 1
        client.held.clear()
        client.deep = client.deep_movement = None
        self._steer()

    def _come(self, number: int) -> None:
        self._clients[number].present = True
        self._steer()
        self._all_begin()

    # --- rounds ---

    def _steer(self) -> None:
        present = frozenset(number for number, client in enumerate(self._clients) if client.present)
        self._steering.observe(self._version, present, self._now)
        self._close_if_due()

    def _close_if_due(self) -> None:
        while self._count and self._count >= self._steering.quorum and self._version < self._rounds:
            self._close()

    def _close(self) -> None:
        self._shared -= self._sum / self._weight
        for number, account in enumerate(self._accounts):
            contributed = self._clients[number].contributed_to == self._version
            account.bases.append(CONTRIBUTED if contributed else PASSED_LATE)
            account.round_over(np.array([self._count], np.uint32))
        self._sum, self._weight, self._count = np.zeros_like(self._sum), 0.0, 0
        self._version += 1
        present = sum(client.present for client in self._clients)
        self._elements[1] += int((~self._deep).sum()) * present
        if self._deep.any() and self._version % self._policy.deep_every == 0:
            self._meet(present)
        self._run.times_s.append(self._now)
        self._run.weights.append(self._shared.copy())
        self._run.sent.append(self._elements[0])
        self._run.received.append(self._elements[1])
        if self._version < self._rounds:
            self._at(self._now + self._world.exchange_s, self._next_round)

    def _meet(self, present: int) -> None:
        """Sum the deep layers of all clients that have trained them since the last such sum."""
        self._meetings += 1
        total, weights = np.zeros(int(self._deep.sum())), 0.0
        for number, client in enumerate(self._clients):
            if client.deep_movement is not None:
                weight = self._policy.weight(self._world.samples[number], self._version, self._version)
                total, weights = total + weight * client.deep_movement, weights + weight
                self._elements[0] += total.size
            client.deep = client.deep_movement = None
        self._elements[1] += total.size * present
        if weights:
            self._shared[self._deep] -= total / weights

    def _next_round(self) -> None:
        for number in range(len(self._clients)):
            self._contribute(number)
        self._steer()
        deadline_s = self._steering.plan.deadline_s
        if deadline_s is not None:
            for factor in (1.0, 1.5, 2.0):
                self._at(self._now + factor * deadline_s + 1e-9, self._steer)
        self._all_begin()
