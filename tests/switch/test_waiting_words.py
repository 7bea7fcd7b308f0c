"""Contributions in memory that lasts are added several at a time, later than they arrive: no packet shows it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from fanin.protocol.wire import Flag, Kind, LaneField
from fanin.switch.machine.switch_machine import SwitchMachine
from tests.support.bench import NO_FLAGS, Bench, address, make_spec
from tests.support.machines import native

PLACE_BYTES = 256
WORKERS, SLOTS, BASES = 6, 3, 8


@pytest.mark.skipif(native("SwitchMachine") is None, reason="the native extension is not built")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("lanes", "shifts"), [(None, 1), (LaneField(8, 8), 1), (LaneField(4, 8), 1), (LaneField(8, 8), 3)], ids=str
)
def test_what_waits_where_it_lies_comes_to_the_same_packets_as_the_twins(
    lanes: LaneField | None, shifts: int, seed: int
) -> None:
    """A writer overwrites its words at once when they do not wait any more, or were let go. Lanes with a shift do not
    wait.
    """
    dice = np.random.default_rng(seed)
    wide = lanes is not None
    spec = make_spec(workers=WORKERS, slots=SLOTS, words=16, codes=1, accumulators=wide, branches=shifts > 1)
    words_each = 15 if lanes is None else 15 * lanes.up // lanes.down
    twin, bench = Bench(SwitchMachine, spec), Bench(native("SwitchMachine"), spec)
    machine: Any = bench.machine
    memory = np.zeros((WORKERS, SLOTS, PLACE_BYTES), np.uint8)
    machine.use_memory(spec, memory)
    waited = 0
    for base in range(BASES):
        turns = list(itertools.product(range(WORKERS), range(SLOTS)))
        dice.shuffle(turns)
        for worker, slot in (*turns, *turns[:3]):
            passes = (worker + slot + base) % 5 == 0
            words = () if passes else dice.integers(0, 1 << 32, words_each, np.uint32).tolist()
            packet = twin.packet(
                Kind.CONTRIBUTION,
                worker,
                flags=Flag.PASS if passes else NO_FLAGS,
                slot=slot,
                base=base,
                codes=() if passes else (worker,),
                words=words,
                lanes=None if passes or lanes is None else lanes._replace(shift=int(dice.integers(shifts))),
            )
            data, place = packet.to_bytes(), memory[worker, slot]
            lies_there = dice.random() < 0.8 and not machine.waits_in(spec.job, place)
            if lies_there:
                place[: len(data)] = np.frombuffer(data, np.uint8)
            machine.receive_datagram(place[: len(data)] if lies_there else data, address(worker), 0.0)
            twin.machine.receive_datagram(data, address(worker), 0.0)
            if dice.random() < 0.1:
                machine.let_go(spec.job, memory[worker])
                assert not machine.waits_in(spec.job, memory[worker])
            for each in memory.reshape(-1, PLACE_BYTES):
                waits = machine.waits_in(spec.job, each)
                waited += waits
                if not waits:
                    each[:] = 0xA5
            assert machine.datagrams_to_send(0.0) == twin.machine.datagrams_to_send(0.0)
    assert waited
    assert bench.counter("rounds") == twin.counter("rounds") == BASES * SLOTS


@pytest.mark.skipif(native("SwitchMachine") is None, reason="the native extension is not built")
@pytest.mark.parametrize("gone", range(3))
def test_a_round_that_closes_because_a_worker_is_evicted_has_the_words_that_waited(gone: int) -> None:
    """Also those of a worker that is gone: it had contributed, and its memory is there as long as the job is."""
    spec = make_spec(workers=3, words=16, codes=1)
    twin, bench = Bench(SwitchMachine, spec), Bench(native("SwitchMachine"), spec)
    machine: Any = bench.machine
    memory = np.zeros((3, PLACE_BYTES), np.uint8)
    machine.use_memory(spec, memory)
    for worker in range(2):
        data = twin.packet(Kind.CONTRIBUTION, worker, codes=(worker,), words=[worker + 1] * 15).to_bytes()
        place = memory[worker]
        place[: len(data)] = np.frombuffer(data, np.uint8)
        machine.receive_datagram(place[: len(data)], address(worker), 0.0)
        twin.machine.receive_datagram(data, address(worker), 0.0)
        assert machine.waits_in(spec.job, place)
    last = twin.packet(Kind.CONTRIBUTION, 2, codes=(2,), words=[3] * 15).to_bytes()
    for each in (machine, twin.machine):
        each.evict(spec.job, gone, 0.0)
        if gone != 2:
            each.receive_datagram(last, address(2), 0.0)
    assert not machine.waits_in(spec.job, memory)
    memory[:] = 0xA5
    assert machine.datagrams_to_send(0.0) == twin.machine.datagrams_to_send(0.0)
    assert bench.counter("rounds") == twin.counter("rounds") == 1
