"""Every reachable state of the real slot machine, under a network that may lose, repeat and reorder anything.

The network is a set that only grows: a contribution that was ever sent may be delivered now, later, again or never. A
worker gets a result by asking again, which covers every way in which the multicast can get lost. `fanin.switch`'s Slot
is driven itself, from copies of itself; a state is its registers, the hosts, the network and what has come out.

Every contribution adds 1 to a word of its own, so a sum says exactly who is in it and how often.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from fanin.numerics.lanes import pack, unpack
from fanin.numerics.wide_sums import largest
from fanin.protocol.wire import LaneField
from fanin.switch.machine.slot_machine import EMPTY, Contribution, ContributionHeader, Round, Slot, SlotConfig, Verdict
from tests.support.thorough import thorough


class ViolationError(AssertionError):
    """An invariant does not hold."""


class Sent(NamedTuple):
    worker: int
    base: int
    passes: bool
    late: bool = False
    life: int = 0


class Host(NamedTuple):
    base: int = 0
    waiting: bool = False
    life: int = 0
    """Number of the process that has this place; packets of an earlier one come from another address, and are refused.
    """
    passing: bool = False
    """A newcomer passes for the base at which it stands."""


@dataclass(frozen=True)
class Config:
    workers: int
    staleness: int
    quorum: int
    bases: int
    passing: bool = False
    late: bool = False
    """A worker that passes a base whose round it has seen closed says so: that pass does not count for the quorum."""
    evicting: int | None = None
    """A worker that the controller may take out at any moment."""
    joining: bool = False
    """Once it is taken out, a new process may come into its place."""
    tuning: tuple[tuple[int, int], ...] = ()
    """(K, S) that the controller may set at any moment."""
    wide: bool = False
    """Contributions say that their words are lanes, which are added up one by one and narrowed when a round closes."""
    owning: bool = False
    """Each base has one worker that contributes it, in turn; the others pass."""
    keeping: bool = False
    """Some workers say of some bases that they keep none of the round's words."""
    history: int = 0

    def __str__(self) -> str:
        extras = " passing" * self.passing + " late" * self.late
        extras += f" evicting {self.evicting}" if self.evicting is not None else ""
        extras += " joining" * self.joining
        extras += " wide" * self.wide + " owning" * self.owning + " keeping" * self.keeping
        extras += "".join(f" tuning K={quorum} S={staleness}" for quorum, staleness in self.tuning)
        return f"N={self.workers} S={self.staleness} K={self.quorum} bases={self.bases}{extras}"

    @property
    def max_staleness(self) -> int:
        return max(self.staleness, *(staleness for _, staleness in self.tuning), 0)


@dataclass
class State:
    slot: Slot
    hosts: tuple[Host, ...]
    network: frozenset[Sent]
    accepted: frozenset[Sent]
    results: tuple[Round, ...]

    def key(self) -> object:
        slot = self.slot
        sums = tuple(_number(entry) for entry in slot.sums)
        membership = (slot.config.live, slot.config.quorum, slot.config.staleness)
        registers = (slot.open, slot.count, slot.floor, slot.bare, slot.signature, tuple(slot.arrived), sums)
        return (
            membership,
            registers,
            self.hosts,
            self.network,
            self.accepted,
            tuple(_number(result) for result in self.results),
        )


KNOWN_ROUNDS = 100_000
_known: dict[int, tuple[Round, int, npt.NDArray[np.int64]]] = {}
"""By the identity of a round, which never changes and stands in thousands of states: it, its number and its amounts."""
_numbers: dict[object, int] = {}
"""Numbers of rounds by what is in them."""


def _look(entry: Round) -> tuple[Round, int, npt.NDArray[np.int64]]:
    found = _known.get(id(entry))
    if found is None:
        if len(_known) >= KNOWN_ROUNDS:
            _known.clear()
        amounts = _amounts(entry)
        facts = entry.words.tobytes(), entry.contributors, entry.bitmap, entry.lanes, amounts.tobytes()
        found = _known[id(entry)] = entry, _numbers.setdefault(facts, len(_numbers)), amounts
    return found


def _number(entry: Round) -> int:
    """The same number for rounds that have the same in them."""
    return _look(entry)[1]


def _amounts(entry: Round) -> npt.NDArray[np.int64]:
    """The amounts of each contribution in a round: words, accumulators, or the lanes that these were narrowed to."""
    if entry.sums is not None:
        return entry.sums.astype(np.int64)
    if entry.lanes is None:
        return entry.words.astype(np.int64)
    steps: npt.NDArray[np.int64] = unpack(entry.words, 8, 4 * len(entry.words), largest(8), 1)
    return steps << entry.lanes.shift


def explore(config: Config) -> tuple[int, int]:
    """Visit every reachable state; return how many there are and the largest staleness that was accepted."""
    membership = SlotConfig(
        live=(1 << config.workers) - 1,
        quorum=config.quorum,
        staleness=config.staleness,
        max_staleness=config.max_staleness,
        history=config.history or config.max_staleness + 2,
    )
    start = State(Slot(membership), (Host(),) * config.workers, frozenset(), frozenset(), ())
    seen, todo, stalest = {start.key()}, deque([start]), 0
    while todo:
        state = todo.popleft()
        stuck = True
        for following, stale in _steps(config, state):
            stuck, stalest = False, max(stalest, stale)
            key = following.key()
            if key not in seen:
                _check_conservation(config, following)
                seen.add(key)
                todo.append(following)
        live = state.slot.config.live
        if stuck and any(live >> w & 1 and host.base < config.bases for w, host in enumerate(state.hosts)):
            raise ViolationError(f"deadlock: {config}, {state.hosts}")
        if stuck:
            _check_end(config, state)
        for following in _controls(config, state):  # the workers may not need the controller to go on
            if (key := following.key()) not in seen:
                _check_conservation(config, following)
                seen.add(key)
                todo.append(following)
    return len(seen), stalest


def _copy(slot: Slot) -> Slot:
    """A slot with registers of its own. The registers' values are immutable, and the membership is shared."""
    other = Slot.__new__(Slot)
    for name in Slot.__slots__:
        setattr(other, name, getattr(slot, name))
    other.arrived, other.sums = list(slot.arrived), list(slot.sums)
    return other


def _steps(config: Config, state: State) -> Iterator[tuple[State, int]]:
    yield from _sends(config, state)
    yield from _receives(config, state)
    yield from _deliveries(config, state)


def _sends(config: Config, state: State) -> Iterator[tuple[State, int]]:
    for w, host in enumerate(state.hosts):
        if not host.waiting and host.base < config.bases and state.slot.config.live >> w & 1:
            hosts = _replaced(state.hosts, w, Host(host.base, True, host.life))
            choices = (False, True) if config.passing else (config.owning and host.base % config.workers != w,)
            for passes in (True,) if host.passing else choices:
                late = config.late and passes and host.base < len(state.results)
                network = state.network | {Sent(w, host.base, passes, late, host.life)}
                yield State(state.slot, hosts, network, state.accepted, state.results), 0


def _receives(config: Config, state: State) -> Iterator[tuple[State, int]]:
    """A worker whose contribution is in and whose round is over asks again, and must be told the result."""
    for sent in state.network:
        host = state.hosts[sent.worker]
        waits = host.waiting and host.base == sent.base and state.slot.config.live >> sent.worker & 1
        if not waits or sent.life != host.life or not _is_in(state, sent) or sent.base >= len(state.results):
            continue
        slot = _copy(state.slot)
        outcome = slot.contribute(*_arguments(config, sent), _header(config, sent))
        if outcome.verdict is not Verdict.DUPLICATE or outcome.answer is None or outcome.closed is not None:
            raise ViolationError(f"history lost: {config}, {sent} got {outcome.verdict}")
        if _number(outcome.answer.result) != _number(state.results[sent.base]):
            raise ViolationError(f"history lost: {config}, {sent} was told another result {sent.base}")
        if not outcome.answer.bitmap >> sent.worker & 1:
            raise ViolationError(f"an answer to {sent} does not acknowledge it: {config}")
        hosts = _replaced(state.hosts, sent.worker, Host(sent.base + 1, False, host.life))
        yield State(state.slot, hosts, state.network, state.accepted, state.results), 0


def _deliveries(config: Config, state: State) -> Iterator[tuple[State, int]]:
    for sent in state.network:
        if not state.slot.config.live >> sent.worker & 1 or sent.life != state.hosts[sent.worker].life:
            continue  # the machine around the slots refuses what an evicted worker sends
        slot = _copy(state.slot)
        opened, floor = slot.open, slot.floor
        outcome = slot.contribute(*_arguments(config, sent), _header(config, sent))
        if outcome.verdict is not Verdict.ACCEPTED:
            if not _is_in(state, sent):
                raise ViolationError(f"{sent} is new and was refused as {outcome.verdict}: {config}")
            continue
        if _is_in(state, sent):
            raise ViolationError(f"{sent} was added twice: {config}")
        if slot.floor > floor and sent.base != floor:
            raise ViolationError(f"base {sent.base} was filled before base {floor}: {config}")
        stale = opened - sent.base
        if not 0 <= stale <= config.max_staleness:
            raise ViolationError(f"{sent} landed in round {opened}: {config}")
        if (outcome.answer is not None) != (stale > 0):
            raise ViolationError(f"only a late contribution is answered at once: {config}, {sent}")
        results = state.results if outcome.closed is None else (*state.results, outcome.closed[1])
        if outcome.closed is not None:
            _check_keepers(config, outcome.closed, state.accepted | {sent})
        if sent.late and slot.count > state.slot.count:
            raise ViolationError(f"a late pass counted for the quorum: {config}, {sent}")
        if outcome.closed is not None and outcome.closed[0] != len(state.results):
            raise ViolationError(f"round {outcome.closed[0]} closed after {len(state.results)} rounds: {config}")
        yield State(slot, state.hosts, state.network, state.accepted | {sent}, results), stale


def _check_keepers(config: Config, closed: tuple[int, Round], accepted: frozenset[Sent]) -> None:
    """A bare result is for those whose contribution of that base said so, and for nobody else."""
    number, result = closed
    said = sum(1 << sent.worker for sent in accepted if sent.base == number and _header(config, sent).bare)
    if result.bare != said:
        raise ViolationError(f"round {number} is bare for {result.bare:#x}, not {said:#x}: {config}")
    if config.owning and result.contributors != 1:
        raise ViolationError(f"round {number} has {result.contributors} owners: {config}")


def _is_in(state: State, sent: Sent) -> bool:
    """Whether this contribution, or one of an earlier process in the same place, was accepted."""
    return any((each.worker, each.base) == (sent.worker, sent.base) for each in state.accepted)


def _controls(config: Config, state: State) -> Iterator[State]:
    """Possible actions of the controller at any moment: take a worker out, set another K and S."""
    membership = state.slot.config
    changed = [replace(membership, quorum=quorum, staleness=staleness) for quorum, staleness in config.tuning]
    if config.evicting is not None and membership.live >> config.evicting & 1:
        changed.append(replace(membership, live=membership.live & ~(1 << config.evicting)))
    for each in changed:
        slot = _copy(state.slot)
        slot.config = each
        closed = slot.poke()
        results = state.results if closed is None else (*state.results, closed[1])
        yield State(slot, state.hosts, state.network, state.accepted, results)
    worker = config.evicting
    if config.joining and worker is not None and not membership.live >> worker & 1 and state.hosts[worker].life == 0:
        slot = _copy(state.slot)
        slot.enter(worker)
        slot.config = replace(membership, live=membership.live | 1 << worker)
        hosts = _replaced(state.hosts, worker, Host(slot.stands(worker), False, 1, True))
        yield State(slot, hosts, state.network, state.accepted, state.results)


def _check_conservation(config: Config, state: State) -> None:
    """Check that the results and the open round hold exactly the accepted contributions."""
    slot = state.slot
    opened = slot.sums[slot.open % slot.config.history] if slot.count else EMPTY
    total = np.zeros(_places(config), np.int64)
    contributors = 0
    for entry in (*state.results, opened):
        if entry.contributors:
            total += _look(entry)[2]
            contributors += entry.contributors
    expected = np.zeros_like(total)
    for sent in state.accepted:
        if not sent.passes:
            expected[sent.worker * config.bases + sent.base] += 1
    if not np.array_equal(total, expected) or contributors != int(expected.sum()):
        raise ViolationError(f"accepted {sorted(state.accepted)} but summed {total.tolist()}: {config}")


def _check_end(config: Config, state: State) -> None:
    """All is contributed: a quorum of one, at the largest S, closes what is left; the results then hold everything."""
    slot = _copy(state.slot)
    slot.config = replace(slot.config, quorum=1, staleness=config.max_staleness)
    closed = slot.poke()
    results = state.results if closed is None else (*state.results, closed[1])
    if slot.count:
        raise ViolationError(f"round {slot.open} cannot be closed: {config}")
    _check_conservation(config, State(slot, state.hosts, state.network, state.accepted, results))


def _arguments(config: Config, sent: Sent) -> tuple[int, int, Contribution | None]:
    return sent.worker, sent.base, None if sent.passes else _contribution(config, sent.worker, sent.base)


def _header(config: Config, sent: Sent) -> ContributionHeader:
    """Other properties of a contribution: the same whenever it is repeated."""
    bare = config.keeping and (sent.worker + sent.base) % 2 == 0
    return ContributionHeader(sent.late, bare, sent.base + 1 if config.owning else 0)


@functools.cache
def _contribution(config: Config, worker: int, base: int) -> Contribution:
    own = np.zeros(_places(config), np.int32)
    own[worker * config.bases + base] = 1
    if config.owning:
        return Contribution(own.view(np.uint32), signature=base + 1)
    if config.wide:
        return Contribution(pack(own, 8, largest(8)), lanes=LaneField(8, 8))
    return Contribution(own.view(np.uint32))


def _places(config: Config) -> int:
    """Words, or lanes in whole words, that have one for each contribution."""
    return -(-config.workers * config.bases // 4) * 4


def _replaced(hosts: tuple[Host, ...], w: int, host: Host) -> tuple[Host, ...]:
    return (*hosts[:w], host, *hosts[w + 1 :])


# R-SLOT-7, R-SLOT-8, R-SLOT-11
@pytest.mark.parametrize(
    "config",
    [
        Config(workers=2, staleness=0, quorum=2, bases=4),
        Config(workers=2, staleness=0, quorum=2, bases=3, passing=True),
        Config(workers=2, staleness=0, quorum=1, bases=4),
        Config(workers=2, staleness=1, quorum=1, bases=4),
        Config(workers=2, staleness=1, quorum=1, bases=3, passing=True),
        Config(workers=2, staleness=1, quorum=1, bases=3, passing=True, late=True),
        thorough(Config(workers=3, staleness=1, quorum=2, bases=2, passing=True, late=True)),
        Config(workers=2, staleness=1, quorum=2, bases=4),
        Config(workers=2, staleness=2, quorum=1, bases=5),
        Config(workers=3, staleness=0, quorum=3, bases=3),
        Config(workers=3, staleness=0, quorum=3, bases=3, evicting=1),
        Config(workers=3, staleness=0, quorum=3, bases=2, passing=True, evicting=2),
        Config(workers=3, staleness=1, quorum=2, bases=3),
        Config(workers=3, staleness=1, quorum=1, bases=2, evicting=0),
        Config(workers=3, staleness=2, quorum=1, bases=3),
        Config(workers=4, staleness=0, quorum=4, bases=2),
        Config(workers=2, staleness=1, quorum=1, bases=3, passing=True, evicting=1),
        Config(workers=2, staleness=2, quorum=2, bases=4, evicting=1),
        Config(workers=2, staleness=0, quorum=2, bases=3, evicting=1, joining=True),
        Config(workers=2, staleness=1, quorum=1, bases=3, evicting=1, joining=True),
        Config(workers=2, staleness=2, quorum=1, bases=4, evicting=0, joining=True),
        Config(workers=3, staleness=0, quorum=3, bases=2, evicting=1, joining=True),
        Config(workers=2, staleness=0, quorum=2, bases=3, passing=True, wide=True),
        thorough(Config(workers=2, staleness=1, quorum=1, bases=3, passing=True, evicting=1, wide=True)),
        Config(workers=3, staleness=1, quorum=2, bases=2, wide=True),
        Config(workers=2, staleness=0, quorum=2, bases=4, owning=True, keeping=True),
        Config(workers=3, staleness=0, quorum=3, bases=3, owning=True, keeping=True),
        Config(workers=3, staleness=0, quorum=3, bases=2, keeping=True, evicting=1),
        Config(workers=2, staleness=1, quorum=1, bases=3, passing=True, keeping=True),
        Config(workers=2, staleness=0, quorum=2, bases=3, evicting=1, joining=True, keeping=True),
        Config(workers=2, staleness=0, quorum=2, bases=4, tuning=((2, 0), (1, 1))),
        thorough(Config(workers=2, staleness=2, quorum=1, bases=4, tuning=((2, 0), (1, 2)))),
        Config(workers=3, staleness=0, quorum=3, bases=2, tuning=((1, 1), (3, 0))),
        thorough(Config(workers=2, staleness=1, quorum=1, bases=3, passing=True, evicting=1, tuning=((1, 0), (2, 1)))),
    ],
    ids=str,
)
def test_every_reachable_state_keeps_the_invariants(config: Config) -> None:
    states, stalest = explore(config)
    assert states > config.workers * config.bases
    if config.evicting is None and not config.tuning:
        assert stalest == (config.staleness if config.quorum < config.workers else 0)


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_history_of_s_plus_1_is_too_short(staleness: int) -> None:
    """The canary: if the exploration could not find this, it could find nothing."""
    config = Config(workers=2, staleness=staleness, quorum=2 - staleness, bases=4, history=staleness + 1)
    with pytest.raises(ViolationError, match=r"history lost|deadlock"):
        explore(config)
