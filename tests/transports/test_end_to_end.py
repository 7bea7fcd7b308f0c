"""Workers and a switch over every transport, with native and twin machines: always the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fanin.formats.capture import pcap_header
from fanin.numerics.reduction import EXACT
from fanin.options import Options
from fanin.protocol.events import Ready
from tests.support.builders import reduction
from tests.support.engines import DEADLINE_S, SCHEMES, Scheme, cluster, make_spec
from tests.support.machines import GUARDS

WORKERS = 3
COUNT = 64 * 20 + 5
"""Elements: two and a half windows of 8 packets, and a short chunk."""
FAULTS = "drop=20%,dup=10%,reorder=10%,corrupt=5%@seed=11"

native_or_twin = pytest.mark.parametrize("native", [True, False], ids=["native", "twin"])


def _tensors(workers: int = WORKERS, count: int = COUNT) -> list[npt.NDArray[np.float32]]:
    draw = np.random.default_rng(99)
    return [draw.normal(size=count).astype(np.float32) * 10**worker for worker in range(workers)]


@pytest.fixture(scope="module")
def reference() -> npt.NDArray[np.float32]:
    """The result in memory, with the twins and without faults: what all others must agree with to the bit."""
    with cluster("memory", make_spec(WORKERS), native=False) as running:
        results = running.all_reduce(_tensors())
    exact = np.sum([tensor.astype(np.float64) for tensor in _tensors()], axis=0)
    assert np.abs(results[0] - exact).max() < 1e-6 * np.abs(exact).max()
    return results[0]


@native_or_twin
@pytest.mark.parametrize("guard", [guard for guard in GUARDS if "checksum" not in guard], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_transport_and_machine_gives_the_same_bits(
    scheme: Scheme, native: bool, guard: dict[str, object], reference: npt.NDArray[np.float32]
) -> None:
    with cluster(scheme, make_spec(WORKERS, **guard), native=native) as running:
        for _ in range(2):
            for result in running.all_reduce(_tensors()):
                assert result.tobytes() == reference.tobytes()


@native_or_twin
@pytest.mark.parametrize("guard", [{"checksum": True}, {"data_key": bytes(range(16))}], ids=["checksum", "tag"])
@pytest.mark.parametrize("scheme", ["udp", "zmq", "memory"])
def test_loss_duplicates_reordering_and_corruption_change_no_bit(
    scheme: Scheme, native: bool, guard: dict[str, object], reference: npt.NDArray[np.float32]
) -> None:
    spec = make_spec(WORKERS, slots=64, **guard)
    with cluster(scheme, spec, native=native, options=Options(faults=FAULTS)) as running:
        for result in running.all_reduce(_tensors()):
            assert result.tobytes() == reference.tobytes()
        assert sum(engine.counters()["retransmissions"] for engine in running.engines) > 0
        assert running.server.counters()["dropped_checksum" if spec.checksum else "dropped_tag"] > 0


@native_or_twin
@pytest.mark.parametrize("scheme", SCHEMES)
def test_flows_share_the_work_and_give_the_same_bits(
    scheme: Scheme, native: bool, reference: npt.NDArray[np.float32]
) -> None:
    spec = make_spec(WORKERS, data_key=bytes(16))  # each flow tags under a key of its own
    with cluster(scheme, spec, native=native, flows=3) as running:
        for result in running.all_reduce(_tensors()):
            assert result.tobytes() == reference.tobytes()
        assert running.server.members(running.spec.job) == (0b111, 0, 0)


@native_or_twin
def test_tickets_count_up_and_many_reductions_are_under_way_at_once(native: bool) -> None:
    with cluster("memory", make_spec(2), native=native, flows=2) as running:
        sources = [np.full(index * 31, index, np.float32) for index in range(20)]
        results = [[np.empty_like(source) for source in sources] for _ in range(2)]
        for engine, mine in zip(running.engines, results, strict=True):
            engine.subscribe()
            assert engine.next_event(DEADLINE_S) == Ready()
            tickets = [engine.submit(reduction(*pair)) for pair in zip(sources, mine, strict=True)]
            assert tickets == list(range(1, 21))
        for engine, mine in zip(running.engines, results, strict=True):
            assert engine.wait(20, DEADLINE_S)
            for source, result in zip(sources, mine, strict=True):
                np.testing.assert_array_equal(result, 2 * source)


@native_or_twin
@pytest.mark.parametrize("scheme", ["udp", "zmq"])
def test_captures_traces_and_faults_work_together(scheme: Scheme, native: bool, tmp_path: Path) -> None:
    options = Options(pcap=str(tmp_path / "rank%r.pcap"), trace=str(tmp_path / "rank%r.txt"), faults="drop=20%@seed=1")
    with cluster(scheme, make_spec(2, slots=64), native=native, flows=2, options=options) as running:
        assert running.engines[0].description.endswith(f"Python loop over {scheme} with faults, pcap, trace")
        running.all_reduce(_tensors(2))
        sent = [engine.counters()["packets_out"] for engine in running.engines]
    for worker in range(2):
        lines = (tmp_path / f"rank{worker}.txt").read_text().splitlines()
        assert {line.split()[0] for line in lines} == {f"rank={worker}"}
        assert {line.split()[1] for line in lines} == {"flow=0", "flow=1"}
        outgoing = sum(" > " in line for line in lines)
        assert 0 < outgoing < sent[worker], "what a fault has eaten was never on the wire"
        assert _records(tmp_path / f"rank{worker}.pcap") == len(lines)


def _records(path: Path) -> int:
    """How many frames a capture holds."""
    data, at, count = path.read_bytes(), len(pcap_header()), 0
    while at < len(data):
        at += 16 + int.from_bytes(data[at + 8 : at + 12], "big")
        count += 1
    assert at == len(data)
    return count


@native_or_twin
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_small_sum_is_exact_whatever_its_neighbours_are(scheme: Scheme, native: bool) -> None:
    tensors = [np.array([1e9, 0.5, np.inf if worker else 0.0, 1.0, -0.0] * 50, np.float32) for worker in range(WORKERS)]
    with cluster(scheme, make_spec(WORKERS), native=native, flows=2) as running:
        for result in running.all_reduce(tensors, lanes=EXACT):
            assert result.tobytes() == np.array([3e9, 1.5, np.inf, 3.0, -0.0] * 50, np.float32).tobytes()
    with cluster(scheme, make_spec(9, words_per_packet=8), native=native, flows=2) as running:
        for result in running.all_reduce([np.full(7, 10.0**worker, np.float32) for worker in range(9)], lanes=EXACT):
            assert result.tolist() == [float(np.float32(111_111_111))] * 7
