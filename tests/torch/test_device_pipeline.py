"""The device's pipeline in virtual time: order, slots, failures, and several groups that share hardware queues."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

from fanin.host.torch.device.courier import Courier, Parcel
from fanin.host.torch.device.pipeline import Channel, Coding, Exchange, Piece, Pipeline, Status
from fanin.host.torch.device.ring import Ring, Slot
from tests.support.fake_device import (
    Bytes,
    Clock,
    FakeCarrier,
    FakeDevice,
    FakeEvent,
    FakeFlag,
    FakeFlags,
    FakeSession,
    FakeStream,
    FakeSwitch,
)

RANKS = 2
NAN = 0xFFFFFFFF
"""Bits that an output is filled with after a failure."""


class LostError(Exception):
    """A rank is gone."""


@dataclass
class Sum:
    """One reduction of a rank: x is replaced by the sum over the ranks."""

    x: Bytes
    done: FakeEvent
    ends: list[BaseException | None] = field(default_factory=list)


class Group:
    """A rank's part of a group: pipeline, rings, couriers."""

    def __init__(
        self, device: FakeDevice, words: FakeSession, codes: FakeSession, slots: int, slot_bytes: int,
        pair: tuple[FakeStream, FakeStream] | None = None,
    ) -> None:  # fmt: skip
        self.device, self.words, self.codes = device, words, codes
        self.leaving, self.arriving = pair or (device.stream("leaving"), device.stream("arriving"))
        flag = FakeFlag()
        self.slot_bytes, self.status = slot_bytes, Status(flag, flag.word, np.zeros(4, np.uint8))
        random_bytes = np.random.default_rng(words.rank)
        self.couriers = [Courier(self.fail, lambda: None) for _ in range(2)]
        self.carriers = [
            FakeCarrier(device.clock, courier, session)
            for courier, session in zip(self.couriers, (words, codes), strict=True)
        ]
        self.memories = [random_bytes.integers(0, 256, slots * slot_bytes, np.uint8) for _ in range(2)]
        channels = []
        for number, (session, back) in enumerate(((words, self.arriving), (codes, self.leaving))):
            ring = Ring(self.memories[number], 0, slots, slot_bytes, FakeFlag(), FakeFlag())
            channels.append(
                Channel(device, FakeFlags(), ring, self.carriers[number], session.land, self.leaving, back, self.status)
            )
        self.pipeline = Pipeline(device, self.leaving, self.arriving, channels[0], channels[1], self.status)
        self.failures: list[BaseException] = []

    def all_reduce(self, stream: FakeStream, x: Bytes, *, coded: bool, name: str) -> Sum:
        """Add x up in place. `coded`: words are twice x, made once the ranks have agreed on a code."""
        words = np.zeros_like(x)
        code = np.zeros(4 * (1 + len(x) // 50), np.uint8)
        known = np.zeros(4, np.uint8)
        asked = Sum(x, FakeEvent())

        def measure() -> None:
            code.view(np.uint32)[:] = 1 + self.words.rank

        def encode() -> None:
            agreed = sum(1 + rank for rank in range(RANKS))
            known.view(np.uint32)[:] = code.view(np.uint32)[0]
            words.view(np.uint32)[:] = x.view(np.uint32) * (2 if np.all(code.view(np.uint32) == agreed) else 3)

        def mark() -> None:
            if np.any(self.status.seen):
                x.view(np.uint32)[:] = NAN

        pieces = self._pieces(words if coded else x, x, self.memories[0], self.words, name, halves=coded)
        coding = None
        if coded:
            codes = self._pieces(code, code, self.memories[1], self.codes, f"{name} codes", halves=False)
            coding = Coding(measure=measure, pieces=codes, encode=encode)
        asked.done = self.pipeline.exchange(
            stream, Exchange(pieces=pieces, timeout_s=1.0, coding=coding, finish=[mark], over=asked.ends.append)
        )
        self.device.wait_event(stream, asked.done)
        return asked

    def _pieces(
        self, out: Bytes, back: Bytes, memory: Bytes, session: FakeSession, name: str, *, halves: bool
    ) -> list[Piece]:
        def place(first: int, count: int) -> Callable[[int], Callable[[], int]]:
            return lambda address: partial(session.submit, memory[address : address + count], (name, first, count))

        def decode(part: Bytes) -> Callable[[], None]:
            return lambda: part.view(np.uint32).__setitem__(slice(None), part.view(np.uint32) // 2)

        pieces = []
        for first in range(0, len(out), self.slot_bytes):
            part = back[first : first + self.slot_bytes]
            pieces.append(
                Piece(
                    out=out[first : first + self.slot_bytes], back=part, place=place(first, len(part)),
                    decode=decode(part) if halves else None,
                )
            )  # fmt: skip
        return pieces

    def host_request(self, name: str, words: Bytes) -> list[BaseException | None]:
        """A sum of host memory, in its place among the pieces."""
        ends: list[BaseException | None] = []
        self.carriers[0].put(
            Parcel(
                start=lambda: self.words.submit(words, name), land=lambda ticket: self.words.land(ticket, 1.0),
                over=ends.append,
            )
        )  # fmt: skip
        return ends

    def fail(self, error: BaseException) -> None:
        """Fail the group, like DeviceReducer._fail."""
        self.failures.append(error)
        self.pipeline.release()
        for courier in self.couriers:
            courier.fail(error)


class World:
    """Devices of all ranks, and groups over them."""

    def __init__(self, seed: int, *, groups: int = 1, queues: int = 32, slots: int = 3, slot_bytes: int = 64) -> None:
        self.clock = Clock(seed)
        self.random = random.Random(seed)
        self.devices = [FakeDevice(self.clock, queues) for _ in range(RANKS)]
        self.users = [[device.stream(f"user {number}") for number in range(groups)] for device in self.devices]
        self.switches = [[FakeSwitch(self.clock, RANKS) for _ in range(2)] for _ in range(groups)]
        self.groups = [
            [
                Group(device, words.sessions[rank], codes.sessions[rank], slots, slot_bytes)
                for words, codes in self.switches
            ]
            for rank, device in enumerate(self.devices)
        ]

    def sessions(self) -> list[FakeSession]:
        """The sessions of all ranks and groups."""
        return [session for pair in self.switches for switch in pair for session in switch.sessions]

    def alike(self) -> bool:
        """Whether every ticket was the same reduction on all ranks."""
        return all(len(said) == 1 for pair in self.switches for switch in pair for said in switch.signatures.values())


def tensor(seed: int, words: int) -> Bytes:
    return np.random.default_rng(seed).integers(0, 1 << 20, words, np.uint32).view(np.uint8)


def program(world: World, rank: int, calls: list[tuple[int, bool]], reductions: list[Any]) -> None:
    """Issue the calls, at moments of the rank's own; each is ahead of the device, or behind it."""
    group, user = world.groups[rank][0], world.users[rank][0]

    def call(number: int) -> None:
        if number == len(calls):
            return
        words, coded = calls[number]
        before = tensor(100 * number + rank, words)
        x = np.zeros_like(before)
        group.device.launch(user, lambda: x.__setitem__(slice(None), before))  # the program's own kernel
        host = np.full(4, rank + 1, np.uint8)
        reductions.append((number, before, group.all_reduce(user, x, coded=coded, name=f"sum {number}")))
        if number % 3 == 0:
            reductions.append((number, host, group.host_request(f"host {number}", host)))
        world.clock.soon(lambda: call(number + 1))

    world.clock.soon(lambda: call(0))


@pytest.mark.parametrize("seed", range(25))
def test_sums_of_any_sizes_come_right_whatever_the_delays(seed: int) -> None:
    draw = random.Random(seed)
    world = World(seed, slots=draw.randint(1, 4), slot_bytes=4 * draw.randint(1, 24), queues=draw.choice((3, 4, 8, 32)))
    calls = [(draw.randint(1, 150), draw.random() < 0.5) for _ in range(draw.randint(1, 6))]
    reductions: list[list[Any]] = [[] for _ in range(RANKS)]
    for rank in range(RANKS):
        program(world, rank, calls, reductions[rank])
    world.clock.run()
    assert all(device.idle for device in world.devices)
    assert world.alike(), "tickets are not in one order on all ranks"
    assert not any(session.rewritten for session in world.sessions()), "a slot was written before its sum had come"
    for mine, theirs in zip(*reductions, strict=True):
        if isinstance(mine[2], Sum):
            expected = mine[1].view(np.uint32) + theirs[1].view(np.uint32)
            for each in (mine[2], theirs[2]):
                assert each.done.come
                assert each.ends == [None]
                assert np.array_equal(each.x.view(np.uint32), expected)
        else:
            assert mine[2] == theirs[2] == [None]


@pytest.mark.parametrize("seed", range(25))
def test_after_a_failure_at_any_moment_every_stream_goes_on_and_outputs_are_marked(seed: int) -> None:
    draw = random.Random(seed)
    world = World(seed, slots=draw.randint(1, 4), slot_bytes=4 * draw.randint(1, 24))
    calls = [(draw.randint(1, 150), draw.random() < 0.5) for _ in range(5)]
    reductions: list[list[Any]] = [[] for _ in range(RANKS)]
    for rank in range(RANKS):
        program(world, rank, calls, reductions[rank])

    def lose() -> None:
        for session in world.sessions():
            session.failure = session.failure or LostError()

    world.clock.after(draw.random() * 0.02, lose)
    world.clock.run()
    assert all(device.idle for device in world.devices)
    for rank in range(RANKS):
        for number, before, asked in reductions[rank]:
            if isinstance(asked, Sum):
                assert asked.done.come
                assert len(asked.ends) == 1
                words = asked.x.view(np.uint32)
                other = next(x for n, x, each in reductions[1 - rank] if n == number and isinstance(each, Sum))
                right = np.array_equal(words, before.view(np.uint32) + other.view(np.uint32))
                assert right or np.all(words == NAN), "values that are neither the sum nor marked"
                if asked.ends[0] is not None:
                    assert np.all(words == NAN)


@pytest.mark.parametrize("queues", [1, 2, 4, 6, 32])
@pytest.mark.parametrize("opposite", [False, True])
def test_groups_in_opposite_orders_need_a_hardware_queue_for_each_stream(queues: int, opposite: bool) -> None:
    """docs/gpu.md promises no more than this, and blocking waits below three queues."""
    world = World(7, groups=2, queues=queues, slots=2, slot_bytes=40)
    done = []
    for rank in range(RANKS):
        for number in (1, 0) if opposite and rank else (0, 1):
            x = tensor(rank + 10 * number, 200)
            group = world.groups[rank][number]
            done.append(group.all_reduce(world.users[rank][number], x, coded=True, name=f"group {number}"))
    world.clock.run()
    finished = all(each.done.come for each in done)
    assert finished == (not opposite or queues >= 6)
    if not finished:  # the group's timeout then lets everything go
        for rank in range(RANKS):
            for group in world.groups[rank]:
                group.fail(LostError())
        world.clock.run()
    assert all(device.idle for device in world.devices)


def test_a_parcel_holds_nothing_of_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """To drop the last reference to an event is a call of the driver, which may wait for what the courier is to do."""
    world = World(3, slots=2, slot_bytes=40)
    group = world.groups[0][0]
    parcels: list[Parcel] = []
    for carrier in group.carriers:
        monkeypatch.setattr(carrier, "put", parcels.append)
    group.all_reduce(world.users[0][0], tensor(1, 100), coded=True, name="sum")
    assert len(parcels) > 4
    seen: set[int] = set()
    todo: list[object] = list(parcels)
    while todo:
        each = todo.pop()
        # Those that live as long as the group; a module's or a class's own are everybody's.
        if id(each) in seen or isinstance(each, FakeDevice | FakeSession | FakeFlags | ModuleType | type):
            continue
        seen.add(id(each))
        assert not isinstance(each, FakeEvent | FakeStream | Slot | Piece | Exchange), each
        if isinstance(each, FunctionType):
            todo += each.__closure__ or ()
        else:
            todo += gc.get_referents(each)


def test_a_ring_deals_slots_in_turn_and_counts_around() -> None:
    memory = np.zeros(12, np.uint8)
    ring = Ring(memory, 1000, 3, 4, FakeFlag(), FakeFlag())
    taken = [ring.take() for _ in range(4)]
    assert [slot.number for slot in taken] == [1, 2, 3, 4]
    assert [slot.address for slot in taken] == [1000, 1004, 1008, 1000]
    ring.emptied(taken[3], "read")
    ring._taken = (1 << 32) - 2
    late = [ring.take() for _ in range(3)]
    assert [slot.number for slot in late] == [(1 << 32) - 1, 0, 1]
    assert ring.beyond == 1 + (1 << 30)
    assert ring.before(1) == 1
