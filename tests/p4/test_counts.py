"""The output of `fanin stats` for a P4 device."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support.bench import Bench, make_spec

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from fanin.switch.controller.resources import UNLIMITED_BYTES
from fanin.switch.p4runtime.server.udp_port import UdpPort
from tests.p4.emulated import P4Machine
from tests.support.controllers import World


def test_totals_go_on_over_jobs_in_the_same_row_and_a_jobs_own_counts_begin_anew() -> None:
    machine = P4Machine(1 << 24)
    bench = Bench(lambda memory_bytes: machine, make_spec(workers=2))
    for worker in range(2):
        bench.gives(worker, 0)
    first = machine.counters()
    assert (first["contributions"], first["rounds"]) == (2, 1)
    machine.remove(bench.spec.job)
    assert machine.counters() == first
    again = dataclasses.replace(bench.spec, generation=bench.spec.generation + 1)
    machine.admit(again)
    assert machine.counters() == first
    assert not any(machine.job_counters(again.job).values())


def test_a_controller_whose_device_has_the_memory_reports_none_of_its_own() -> None:
    reported = World(memory_bytes=UNLIMITED_BYTES).controller.stats(0.0)
    assert (reported.memory_bytes, reported.memory_used_bytes) == (0, 0)


def test_datagrams_that_have_come_together_are_handed_over_together() -> None:
    batches: list[int] = []
    port = UdpPort("127.0.0.1", 0)
    try:
        for _ in range(3):
            port._socket.sendto(b"x", ("127.0.0.1", port.port))
        port.start(lambda batch: batches.append(len(batch)))
    finally:
        port.close()
    assert batches[0] >= 3
