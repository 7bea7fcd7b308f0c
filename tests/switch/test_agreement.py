"""Twin and native machine, fed the same random history, put out the same bytes, events, timers and counters.

A history mixes what well-behaved workers send with replays, reordering, passes, wrong shapes, mutated bytes, evictions,
quorum changes and silence. Nothing but the two machines judges it, apart from the bound that lanes are sized for.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.protocol.wire import Kind, LaneField
from tests.support.bench import PLENTY, Bench, make_spec
from tests.switch.histories import NATIVE, STEPS, STEPS_IN_TRAINS, TWIN, WIDTHS, Pair, random_spec

pytestmark = pytest.mark.skipif(NATIVE is None, reason="the native extension is not built")


def tell(random: Random, steps: int, *, in_trains: bool = False) -> Pair:
    pair = Pair(random_spec(random), in_trains=in_trains)
    if pair.spec.accumulators and random.random() < 0.8:
        pair.lanes = LaneField(*random.choice(WIDTHS))
    fetches = random.choice([0.1, 0.7, 1.0])
    likely = STEPS_IN_TRAINS if in_trains else STEPS
    for step in random.choices(list(likely), list(likely.values()), k=steps):
        step(pair, random)
        if random.random() < fetches:
            pair.compare()
    pair.compare()
    return pair


@pytest.mark.parametrize("seed", range(150))
def test_any_long_history_is_told_alike(seed: int) -> None:
    tell(Random(seed), 120)


def test_any_long_history_in_trains_is_told_alike() -> None:
    """A native machine is handed trains, and takes the regular ones (native/machine/regular_run.hpp) by a short way."""
    regular = [tell(Random(seed), 80, in_trains=True).native.regular() for seed in range(120)]
    assert sum(each > 0 for each in regular) > len(regular) // 3


@settings(max_examples=40)
@given(random=st.randoms(use_true_random=False), steps=st.integers(0, 12))
def test_any_short_history_in_trains_is_told_alike(random: Random, steps: int) -> None:
    tell(random, steps, in_trains=True)


@settings(max_examples=40)
@given(random=st.randoms(use_true_random=False), steps=st.integers(0, 12))
def test_any_short_history_is_told_alike(random: Random, steps: int) -> None:
    """The same, in a form that hypothesis can shrink when it fails."""
    tell(random, steps)


@settings(max_examples=400)
@given(data=st.binary(max_size=120), source=st.integers(0, 3))
def test_any_bytes_are_refused_alike(data: bytes, source: int) -> None:
    assert TWIN is not None
    assert NATIVE is not None
    twin, native = TWIN(PLENTY), NATIVE(PLENTY)
    for machine in (twin, native):
        machine.admit(make_spec())
        machine.receive_datagram(b"\xfa\x19" + data, source, 0.0)
    assert native.datagrams_to_send(0.0) == twin.datagrams_to_send(0.0)
    assert native.counters() == twin.counters()


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
def test_the_native_machine_reads_any_buffer(make: Callable[[bytes], bytes]) -> None:
    assert NATIVE is not None
    bench = Bench(NATIVE)
    bench.machine.receive_datagram(make(bench.packet(Kind.PROBE, 0).to_bytes()), 3, 0.0)
    assert [packet.kind for packet, _ in bench.sent()] == [Kind.ECHO]
