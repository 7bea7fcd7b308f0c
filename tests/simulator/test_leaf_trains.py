"""Leaves in trains: two native machines do the same whatever breaks a train, and one that breaks trains is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, cycle, zip_longest

import pytest

from fanin.emulation.simulator.chaos import Chaos, draw
from fanin.emulation.simulator.leaf_trains import TrainLeaf
from fanin.emulation.simulator.machine_kinds import switch_type
from fanin.emulation.simulator.machines import Switch
from fanin.emulation.simulator.simulation import simulate
from fanin.emulation.simulator.trains import Train
from fanin.emulation.simulator.violations import TrainError
from fanin.protocol.wire import SWITCH_WORKER, Kind, Packet
from tests.support.bench import MachineType, address, words_of
from tests.support.broken_trains import Change, ChangesTrains, double_one, leave, lose_one, turn
from tests.support.leaf import PARENT, Leaf

_native = pytest.importorskip("fanin._native", reason="the native extension is not built")

IN_TREES = Chaos(trains=True, trees=1.0)
SEEDS = 12
"""Schedules with trees, all of which violate nothing, and a few of which find a defect."""
SLOTS = 12
"""Packets of a train: more than a native machine opens before it takes the first in."""
TICK_S = 1e-4


def run_trees(change: Change) -> list[int]:
    """Run schedules whose leaves change trains before they take them in; return the lengths of all trains."""
    lengths: list[int] = []

    def leaf(memory_bytes: int) -> Switch:
        changed = ChangesTrains(_native.SwitchMachine(memory_bytes), change, lengths)
        return TrainLeaf(_native.SwitchMachine(memory_bytes), changed)  # type: ignore[arg-type]

    for seed in range(SEEDS):
        simulate(draw(seed, IN_TREES), seed, kind="trains", switch=switch_type("trains"), leaf=leaf)
    return lengths


def test_leaves_violate_nothing_and_most_of_their_datagrams_come_in_trains() -> None:
    lengths = run_trees(leave)
    in_trains = sum(length for length in lengths if length > 1)
    assert in_trains > sum(lengths) / 2, "else trains are too short to show anything"


@pytest.mark.parametrize("change", [lose_one, turn, double_one])
def test_a_leaf_that_breaks_trains_is_found(change: Change) -> None:
    with pytest.raises(TrainError):
        run_trees(change)


# --- one leaf, and every place at which a train may be broken ---

Trains = list[Train]


def missing(train: Train) -> Iterator[Trains]:
    for place in range(len(train)):
        yield [train[:place] + train[place + 1 :]]


def doubled(train: Train) -> Iterator[Trains]:
    for place in range(len(train)):
        for later in range(place + 1, len(train) + 1):
            yield [[*train[:later], train[place], *train[later:]]]


def interleaved(train: Train) -> Iterator[Trains]:
    """The trains of two senders, or halves of one of them, which take turns from each place on."""
    half = len(train) // 2
    one, other = train[:half], train[half:]
    for place in range(half):
        turns = chain.from_iterable(zip_longest(one[place:], other[place:]))
        yield [[*one[:place], *other[:place], *(each for each in turns if each is not None)]]


def cut(train: Train) -> Iterator[Trains]:
    for place in range(1, len(train)):
        yield [train[:place], train[place:]]


class LeafInTrains(Leaf):
    """A leaf that gets trains. With a plain machine, it is asked what it sends at the end of each all the same."""

    def __init__(self, make: MachineType) -> None:
        super().__init__(make, slots=SLOTS)

    def sent(self) -> list[tuple[Packet, int]]:
        if isinstance(self.machine, TrainLeaf):
            self.machine.handle_timer(self.now)
        return super().sent()

    def takes(self, trains: Trains) -> list[tuple[Packet, int]]:
        """Give the leaf trains, one each tick, and return what it sends."""
        said = []
        for train in trains:
            self.now += TICK_S
            for data, source in train:
                self.machine.receive_datagram(data, source, self.now)
            said += self.sent()
        return said

    def contributions(self) -> Train:
        """A round of both workers, as a train of each. Slots become complete from the highest to the lowest."""
        return [
            (
                self.bytes_of(
                    self.packet(
                        Kind.CONTRIBUTION,
                        worker,
                        slot=slot,
                        signature=5,
                        bitmap=number + 1,
                        codes=(3,),
                        words=(10 * slot + worker,),
                    )
                ),
                address(worker),
            )
            for worker in range(2)
            for number, slot in enumerate(reversed(range(SLOTS)))
        ]

    def results(self) -> Train:
        """The parent's results of that round."""
        result = Packet(
            kind=Kind.RESULT, job=77, worker=SWITCH_WORKER, generation=0xBEEF, signature=5, contributors=8, codes=(3,)
        )
        return [(replace(result, slot=slot, words=words_of(100 + slot)).to_bytes(), PARENT) for slot in range(SLOTS)]


def in_trains(memory_bytes: int) -> TrainLeaf:
    return TrainLeaf(_native.SwitchMachine(memory_bytes), _native.SwitchMachine(memory_bytes))


@pytest.mark.parametrize("broken", [missing, doubled, interleaved, cut])
def test_a_leafs_machines_do_the_same_wherever_a_train_is_broken(broken: Callable[[Train], Iterator[Trains]]) -> None:
    whole = LeafInTrains(in_trains)
    up, down = whole.contributions(), whole.results()
    for first, then in zip(broken(up), cycle(broken(down)), strict=False):
        leaf = LeafInTrains(in_trains)
        said = leaf.takes([*first, up, *then, down])
        rose = {each.slot: each.words.tolist() for each, to in said if each.kind is Kind.CONTRIBUTION}
        fell = {(each.slot, to): each.words.tolist() for each, to in said if each.kind is Kind.RESULT}
        assert rose == {slot: [20 * slot + 1] for slot in range(SLOTS)}
        assert fell == {(slot, address(worker)): [100 + slot] for slot in range(SLOTS) for worker in range(2)}


def test_rounds_of_one_train_go_up_lowest_first_and_as_they_became_complete_if_asked_after_each() -> None:
    """Why a leaf that is asked after each datagram is no yardstick: its rounds have other order numbers."""

    def rounds(said: list[tuple[Packet, int]]) -> list[tuple[int, int, list[int]]]:
        return [(each.slot, each.bitmap, each.words.tolist()) for each, _ in said if each.kind is Kind.CONTRIBUTION]

    asked_each, asked_once = LeafInTrains(_native.SwitchMachine), LeafInTrains(_native.SwitchMachine)
    each = rounds([packet for datagram in asked_each.contributions() for packet in asked_each.say(*datagram)])
    once = rounds(asked_once.takes([asked_once.contributions()]))
    assert [slot for slot, _, _ in each] == list(reversed(range(SLOTS)))
    assert [slot for slot, _, _ in once] == list(range(SLOTS))
    assert [order for _, order, _ in each] == [order for _, order, _ in once] == list(range(1, SLOTS + 1))
    assert sorted((slot, words) for slot, _, words in each) == [(slot, words) for slot, _, words in once]
