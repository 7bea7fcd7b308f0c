"""The twin and the native machine do the same, packet by packet, whatever happens (tests/support/lockstep.py)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.numerics.fixed_point import DTYPES
from fanin.numerics.reduction import EXACT, Element, Operator, Reduction
from fanin.protocol.ecn import Marked
from fanin.protocol.job import JobSpec
from fanin.protocol.timers import REORDER_THRESHOLD, TRACKED
from fanin.protocol.wire import HEADER_BYTES, OFFSET_CHECKSUM, RECEIPT_REPEATED, Kind, Packet, Reason
from tests.support.cluster import WORKER_MACHINES, Cluster, job, reduction, worker_machine
from tests.support.lockstep import Lockstep
from tests.support.machines import GUARDS
from tests.support.network import SWITCH, Link

pytestmark = pytest.mark.skipif(WORKER_MACHINES["native"] is None, reason="the native extension is not built")


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    workers = draw(st.integers(1, 3))
    codes = draw(st.sampled_from([1, 2, 3]))
    guard: dict[str, Any] = draw(st.sampled_from(GUARDS))
    return job(
        on_worker_loss=draw(st.sampled_from(["raise", "continue"])),
        workers=workers,
        slots=draw(st.integers(1, 6)),
        codes_per_packet=codes,
        words_per_packet=8 * codes * draw(st.integers(1, 2)),
        **guard,
        liveness_timeout_s=draw(st.sampled_from([1.0, 5.0])),
    )


@st.composite
def reductions(draw: st.DrawFn) -> Any:
    """A function from (worker) to a Reduction, the same at every worker but for the numbers."""
    exact = draw(st.booleans())
    element = draw(st.sampled_from(list(Element) if exact else sorted(set(Element) - {Element.INT64})))
    count = draw(st.integers(0, 300))
    keep_first = draw(st.integers(0, count))
    floating = element.floating
    given_fields = {
        "element": element,
        "lanes": EXACT if exact else draw(st.sampled_from([32, 16, 8])),
        "factor": draw(st.sampled_from([1.0, 0.5, -3.3])) if floating else 1.0,
        "divisor": draw(st.sampled_from([1.0, 3.0, 0.0])) if floating else 1.0,
        "keep_first": keep_first,
        "keep_count": draw(st.integers(0, count - keep_first)),
        "tag": draw(st.sampled_from([0, 1, 255])),
    }
    if exact and given_fields["divisor"] == 1.0:
        given_fields["operator"] = draw(st.sampled_from([o for o in Operator if not (floating and o.bitwise)]))
    in_place = draw(st.booleans())
    has_residual = draw(st.booleans()) and floating and element is not Element.FLOAT64
    seed = draw(st.integers(0, 1 << 16))

    def make(worker: int) -> Reduction:
        rng = np.random.default_rng([seed, worker])
        size = np.dtype(DTYPES[element]).itemsize
        source = rng.standard_normal(count).astype(np.float32)
        array = source.astype(DTYPES[element]) if element is not Element.BFLOAT16 else source.view(np.uint16)[:count]
        destination = array if in_place and keep_first == 0 else np.zeros(count, array.dtype)
        assert array.dtype.itemsize == size
        residual = np.full(count, 0.125, np.float32) if has_residual else None
        return reduction(array, destination, residual=residual, **given_fields)

    return make


@settings(max_examples=40)
@given(specs(), st.lists(reductions(), min_size=1, max_size=4), st.data())
def test_through_a_hostile_network(spec: JobSpec, wanted: list[Any], data: st.DataObject) -> None:
    chance = st.sampled_from([0.0, 0.05, 0.3])
    link = Link(
        loss=data.draw(chance),
        duplicate=data.draw(chance),
        reorder=data.draw(chance),
        corrupt=data.draw(chance) if spec.checksum or spec.data_key else 0.0,
        bytes_per_s=1.25e7,
        mark_bytes=data.draw(st.sampled_from([0, 100])),
    )
    cluster = Cluster.joined("lockstep", spec=spec, seed=data.draw(st.integers(0, 1 << 16)))
    cluster.network.link = link
    for make in wanted:
        for worker in range(spec.workers):
            cluster.submit(worker, make(worker))
            cluster.network.run_for(data.draw(st.sampled_from([0.0, 1e-4, 0.05])))
    cluster.network.try_until(lambda: not any(w.outstanding() for w in cluster.workers), limit_s=5.0)
    for worker in range(spec.workers):
        cluster.workers[worker].leave(cluster.network.now)
        cluster.network.submitted(worker)
    cluster.network.run_for(2.0)
    for machine in cluster.workers:
        assert isinstance(machine, Lockstep)
        machine.compare_memory()


SPEC = job(workers=3, slots=4, words_per_packet=8)


@st.composite
def datagrams(draw: st.DrawFn) -> bytes:
    """Plausible packets to worker 0 of SPEC, a few of them damaged; or anything."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=80))
    words = draw(st.lists(st.integers(0, 0xFFFFFFFF), max_size=9))
    packet = Packet(
        kind=draw(st.sampled_from(Kind)),
        job=draw(st.sampled_from([SPEC.job] * 9 + [0])),
        worker=draw(st.sampled_from([0, 0, 0xFF, 1])),
        flags=draw(st.integers(0, 7)),  # type: ignore[arg-type]
        generation=draw(st.sampled_from([SPEC.generation] * 9 + [0])),
        slot=draw(st.integers(0, 4)),
        base=draw(st.integers(0, 3)),
        signature=draw(st.sampled_from([5, 5, 5, 6])),
        bitmap=draw(st.integers(0, 7)),
        contributors=draw(st.sampled_from([3, 3, 0, *Reason])),
        codes=tuple(draw(st.lists(st.integers(0, 0xFFFF), max_size=2))),
        words=np.array(words, np.uint32),
    )
    data = bytearray(packet.to_bytes())
    if draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(0, len(data) - 1))
        data[at] ^= draw(st.integers(1, 255))
    return bytes(data[: draw(st.sampled_from([len(data)] * 5 + [HEADER_BYTES, OFFSET_CHECKSUM]))])


@settings(max_examples=100)
@given(st.lists(st.tuples(datagrams(), st.booleans(), st.sampled_from([0.0, 0.01, 0.3])), max_size=30))
def test_fed_with_anything(given_datagrams: list[tuple[bytes, bool, float]]) -> None:
    """Datagrams, whether a router has marked them, and how long it takes until the next one."""
    machine = worker_machine("lockstep", SPEC, 0)
    assert isinstance(machine, Lockstep)
    machine.datagrams_to_send(0.0)
    welcome = Packet(
        kind=Kind.WELCOME, job=SPEC.job, generation=SPEC.generation, words=np.zeros(9, np.uint32)
    ).to_bytes()
    machine.receive_datagram(welcome, SWITCH, 0.0)
    now = 0.0
    for array in (np.ones(20, np.int32), np.ones(20, np.float32)):
        machine.submit(reduction(array, signature=5))
    for data, marked, passes_s in given_datagrams:
        machine.datagrams_to_send(now)
        machine.receive_datagram(Marked(data) if marked else data, SWITCH, now)
        now += passes_s
        machine.handle_timer(now)
        while machine.next_event() is not None:
            pass
    machine.compare_memory()


def test_a_receipt_that_tells_of_a_burst_and_of_a_needless_repetition_at_once() -> None:
    """The doubts that the burst leaves are as long as they were before the repetition was known to be needless."""
    spec = job(workers=1, slots=TRACKED + 8, words_per_packet=8)
    machine = worker_machine("lockstep", spec, 0)
    machine.datagrams_to_send(0.0)
    welcome = Packet(kind=Kind.WELCOME, job=spec.job, generation=spec.generation, words=np.zeros(9, np.uint32))
    machine.receive_datagram(welcome.to_bytes(), SWITCH, 0.0005)
    machine.submit(reduction(np.ones(8 * spec.slots, np.int32)))
    assert len(machine.datagrams_to_send(0.0005)) == spec.slots
    receipt = Packet(
        kind=Kind.RECEIPT,
        job=spec.job,
        generation=spec.generation,
        slot=spec.slots,
        signature=spec.slots,
        contributors=RECEIPT_REPEATED,
    )
    machine.receive_datagram(receipt.to_bytes(), SWITCH, 0.001)
    machine.datagrams_to_send(0.001)
    assert machine.counters()["losses"] == TRACKED - REORDER_THRESHOLD + 1
