"""Hosts end to end: whole jobs in virtual time; every datagram on every link is the same whichever switch is there.

Worker machines, twin and native, reduce over links that lose, repeat and reorder. Timers and resends included, each
run through the P4 program must put the very bytes on the links, at the very times, that the one through the twin does.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from fanin.protocol.wire import OFFSET_KIND, Kind
from tests.support.cluster import SWITCH_MACHINES, Cluster, job
from tests.support.network import SWITCH, Link

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from tests.p4.emulated import P4Machine

LOSSLESS, HOSTILE = Link(), Link(loss=0.05, duplicate=0.05, reorder=0.2)


@pytest.fixture(autouse=True)
def p4_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SWITCH_MACHINES, "p4", P4Machine)


def trace_and_results(switch: str, worker: str, link: Link, seed: int, lanes: int) -> tuple[list[Any], list[bytes]]:
    """(time, source, destination, hash of the datagram) of all that was sent, and what the workers got."""
    cluster = Cluster.joined(worker, spec=job(workers=3), switch=switch, link=link, seed=seed)
    sent: list[Any] = []

    def tap(now: float, source: int, destination: int, data: bytes) -> bool:
        if source == SWITCH and data[OFFSET_KIND] == Kind.RECEIPT:
            return False  # pipelines give none
        sent.append((now, source, destination, hashlib.sha256(data).hexdigest()))
        return True

    cluster.network.wiretap = tap
    random = np.random.default_rng(seed)
    results: list[bytes] = []
    for _ in range(2):
        arrays = [random.normal(size=200).astype(np.float32) for _ in range(3)]
        results += [result.tobytes() for result in cluster.all_reduce(arrays, lanes=lanes)]
    return sent, results


@pytest.mark.parametrize("link", [LOSSLESS, HOSTILE], ids=["lossless", "hostile"])
@pytest.mark.parametrize("lanes", [32, 8, 0])
@pytest.mark.parametrize("worker", ["twin", "native"])
def test_a_job_through_the_program_is_the_twins_packet_by_packet(worker: str, lanes: int, link: Link) -> None:
    for seed in range(2):
        assert trace_and_results("p4", worker, link, seed, lanes) == trace_and_results(
            "twin", worker, link, seed, lanes
        )
