"""Jobs with staleness: floats under a scale given beforehand, passes, rounds that are heard of, contributor counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from fanin.errors import ConfigurationError
from fanin.numerics.reduction import Element, Reduction
from fanin.protocol.events import RoundHeard
from fanin.protocol.window import DEFAULT_RECEIVE_BUFFER_BYTES
from fanin.protocol.wire import HEADER_BYTES, Flag, Kind, parse
from tests.support.cluster import WORKER_MACHINES, Cluster, job, reduction
from tests.support.lockstep import Lockstep
from tests.support.network import SWITCH, Link

SLOTS, WORDS = 2, 8
COUNT = SLOTS * WORDS
ONE = 0x7FE0
"""The scale code of 1.0."""
Floats = npt.NDArray[np.float32]


def contribution(source: Floats, result: Floats, **given: object) -> Reduction:
    """Contribute `source` to a round whose result comes to `result`."""
    return reduction(source, result, signature=5, scale_code=ONE, **given)


def passing(result: Floats) -> Reduction:
    return contribution(result, result, passes=True)


@pytest.mark.parametrize("link", [Link(), Link(loss=0.2, duplicate=0.2, reorder=0.3)], ids=["lossless", "hostile"])
@pytest.mark.parametrize("lanes", [32, 16, 8])
def test_flushed_rounds_hold_every_contribution_once(kinds: str, lanes: int, link: Link) -> None:
    """K = 1, S = 2, and workers of unlike speed: passes for S rounds bring out whatever landed late."""
    workers, staleness, iterations = 3, 2, 6
    spec = job(workers=workers, quorum=1, staleness=staleness, slots=SLOTS, words_per_packet=WORDS)
    cluster = Cluster.joined(kinds, spec=spec, link=link, seed=lanes)
    count = SLOTS * WORDS * 32 // lanes
    results = np.zeros((workers, iterations + staleness, count), np.float32)
    bound = (2**lanes - 1) // (2 * spec.contributions) if lanes < 32 else 1 << 20
    sources = [np.full(count, np.float32((worker + 1) / bound), np.float32) for worker in range(workers)]
    for round_index in range(iterations + staleness):
        for worker in range(workers):
            given = contribution(sources[worker], results[worker, round_index], lanes=lanes)
            if round_index >= iterations:
                given = replace(passing(results[worker, round_index]), lanes=lanes)
            cluster.submit(worker, given)
            cluster.network.run_for(20e-6 * worker)
    cluster.run()
    assert all((results[worker] == results[0]).all() for worker in range(workers))
    total = results[0].astype(np.float64).sum(axis=0) * bound
    np.testing.assert_allclose(total, iterations * sum(range(1, workers + 1)), rtol=1e-5)


@pytest.mark.skipif(WORKER_MACHINES["native"] is None, reason="the native extension is not built")
@pytest.mark.parametrize("seed", range(4))
def test_twin_and_native_do_the_same_in_stale_rounds(seed: int) -> None:
    """Call by call, with passes, late ones among them, error feedback, loss, and workers that come when they like."""
    random = np.random.default_rng(seed)
    spec = job(workers=3, quorum=int(random.integers(1, 4)), staleness=2, slots=SLOTS, words_per_packet=WORDS)
    cluster = Cluster.joined("lockstep", spec=spec, link=Link(loss=0.1, duplicate=0.1, reorder=0.2), seed=seed)
    for _ in range(8):
        for worker in random.permutation(3).tolist():
            source = random.standard_normal(COUNT).astype(np.float32)
            result, residual = np.zeros(COUNT, np.float32), np.zeros(COUNT, np.float32)
            passes = random.random() < 0.3
            cluster.submit(worker, passing(result) if passes else contribution(source, result, residual=residual))
            cluster.network.run_for(float(random.choice([10e-6, 300e-6])))
    cluster.run()
    for machine in cluster.workers:
        assert isinstance(machine, Lockstep)
        machine.compare_memory()


# R-WORKER-5, R-SLOT-10, R-RESULT-2
def test_a_worker_hears_of_a_round_and_passes_it_late(kind: str) -> None:
    spec = job(workers=2, quorum=1, staleness=1, slots=SLOTS, words_per_packet=WORDS)
    cluster = Cluster.joined(kind, spec=spec)
    source = np.full(COUNT, 0.5, np.float32)
    results = np.zeros((2, 3, COUNT), np.float32)
    counts = np.full((3, SLOTS), 77, np.uint32)
    for round_index in range(2):
        cluster.submit(0, contribution(source, results[0, round_index], counts=counts[round_index].ctypes.data))
    cluster.network.run_for(1e-3)
    assert cluster.news(1) == [RoundHeard(0)], "round 1 waits for base 0 of worker 1"
    cluster.submit(1, passing(results[1, 0]))
    cluster.run()
    assert (results[1, 0] == results[0, 0]).all()
    assert (results[0] == [[0.5], [0.5], [0]]).all()
    assert cluster.news(1) == [RoundHeard(0), RoundHeard(1)]
    assert (counts == [[1], [1], [77]]).all()
    assert cluster.switch.job_counters(spec.job)["rounds"] == 2 * SLOTS, "late passes close no round"


# R-WORKER-6
def test_a_pass_of_a_stale_round_says_nothing_of_its_collective(kind: str) -> None:
    cluster = Cluster.joined(kind, spec=job(workers=2, quorum=1, staleness=1, slots=1, words_per_packet=WORDS))
    said: list[tuple[Flag, int]] = []

    def listen(_now: float, source: int, _destination: int, data: bytes) -> bool:
        packet = parse(data)
        if source == 2 and packet.kind is Kind.CONTRIBUTION:
            said.append((packet.flags, packet.signature))
        return True

    cluster.network.wiretap = listen
    cluster.submit(1, passing(np.zeros(WORDS, np.float32)))
    cluster.network.run_for(1e-3)
    assert said == [(Flag.PASS, 0)]


# R-WORKER-5
def test_a_round_is_heard_of_only_when_it_is_over_in_every_slot(kind: str) -> None:
    """A pass for a round that is open in some slot would close it there without a contributor."""
    spec = job(workers=2, quorum=1, staleness=2, slots=SLOTS, words_per_packet=WORDS)
    cluster = Cluster.joined(kind, spec=spec)
    for slot in range(SLOTS):
        assert cluster.news(1) == [], f"round 0 is open in slot {slot}"
        source, result = np.full(WORDS, 0.5, np.float32), np.zeros(WORDS, np.float32)
        cluster.submit(0, contribution(source, result))
        cluster.network.run_for(1e-3)
    assert cluster.news(1) == [RoundHeard(0)]


def test_an_old_result_that_comes_late_does_not_make_a_worker_forget_later_ones(kind: str) -> None:
    """Such results come by two ways, through shared memory and by UDP. The pass after it is still a late one."""
    spec = job(workers=3, quorum=2, staleness=2, slots=1, words_per_packet=WORDS)
    cluster = Cluster.joined(kind, spec=spec)
    kept: list[bytes] = []

    def keep(_now: float, _source: int, destination: int, data: bytes) -> bool:
        if destination == 2 and parse(data).kind is Kind.RESULT:
            kept.append(data)
        return True

    cluster.network.wiretap = keep
    source, results = np.full(WORDS, 0.5, np.float32), np.zeros((6, WORDS), np.float32)
    for round_index in range(2):
        for worker in (0, 2):
            cluster.submit(worker, contribution(source, results[2 * round_index + worker // 2]))
        cluster.network.run_for(1e-3)
    assert cluster.news(1) == [RoundHeard(0), RoundHeard(1)]
    cluster.submit(1, contribution(source, results[4]))
    cluster.network.inject(kept[0], SWITCH, 2)
    cluster.run()
    assert cluster.workers[1].counters()["unacknowledged"] == 1, "it came after the contribution and before the answer"
    cluster.submit(1, passing(results[5]))
    cluster.run()
    assert (results == 1).all()
    assert cluster.switch.job_counters(spec.job)["rounds"] == 2, "what is open holds one contribution"


def test_a_round_of_many_packets_keeps_within_an_ordinary_buffer(kind: str) -> None:
    """With staleness each chunk has a slot of its own, so it is not the slots that bound what is under way."""
    spec = job(workers=2, quorum=1, staleness=1, slots=300, words_per_packet=2048)
    assert spec.packet_bytes * spec.window_items < DEFAULT_RECEIVE_BUFFER_BYTES < spec.packet_bytes * spec.slots
    cluster = Cluster.joined(kind, spec=spec)
    source, result = np.full(300 * 2048, 0.5, np.float32), np.zeros(300 * 2048, np.float32)
    cluster.network.cut(0)
    cluster.submit(0, contribution(source, result))
    cluster.network.run_for(1e-3)
    sent = cluster.workers[0].counters()["packets_out"] - cluster.workers[1].counters()["packets_out"]
    assert 0 < sent <= spec.window_items
    cluster.network.heal(0)
    cluster.run()
    assert (result == 0.5).all()


def test_a_round_of_passes_brings_zeros_and_counts_nobody(kinds: str) -> None:
    cluster = Cluster.joined(kinds, spec=job(workers=2, staleness=1, slots=SLOTS, words_per_packet=WORDS))
    results = np.ones((2, COUNT), np.float32)
    counts = np.full(SLOTS, 77, np.uint32)
    cluster.submit(0, replace(passing(results[0]), counts=counts.ctypes.data))
    cluster.submit(1, passing(results[1]))
    cluster.run()
    assert (results == 0).all()
    assert (counts == 0).all()


def test_what_is_clipped_stays_in_the_residual(kinds: str) -> None:
    cluster = Cluster.joined(kinds, spec=job(workers=2, staleness=1, slots=SLOTS, words_per_packet=WORDS))
    sources = [np.linspace(-3, 3, COUNT, dtype=np.float32), np.zeros(COUNT, np.float32)]
    results = np.zeros((2, COUNT), np.float32)
    residuals = [np.zeros(COUNT, np.float32) for _ in sources]
    for worker, source in enumerate(sources):
        cluster.submit(worker, contribution(source, results[worker], residual=residuals[worker]))
    cluster.run()
    np.testing.assert_allclose(results[0], np.clip(sources[0], -1, 1), atol=1e-6)
    np.testing.assert_allclose(residuals[0], sources[0] - results[0], atol=1e-6)
    assert (residuals[1] == 0).all()


def test_a_late_contribution_keeps_its_residual_when_its_own_round_is_empty(kind: str) -> None:
    """Round 0 closes with a pass alone; what quantizing lost must still be noted when the late words are in."""
    cluster = Cluster.joined(kind, spec=job(workers=2, quorum=1, staleness=1, slots=SLOTS, words_per_packet=WORDS))
    results = np.ones((2, COUNT), np.float32)
    source, residual = np.full(COUNT, 1.5, np.float32), np.zeros(COUNT, np.float32)
    cluster.submit(0, passing(results[0]))
    cluster.run()
    cluster.submit(1, contribution(source, results[1], residual=residual))
    cluster.run()
    assert (results == 0).all()
    np.testing.assert_allclose(residual, 0.5, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"scale_code": 0}, "mix scales"),
        ({"scale_code": 0xFFFF}, "no finite scale"),
        ({"passes": True, "scale_code": 0}, "needs a scale_code"),
        ({"passes": True, "residual": 64}, "has no residual"),
        ({"element": Element.INT32}, "no finite scale"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(kind: str, given: dict[str, object], says: str) -> None:
    cluster = Cluster.joined(kind, spec=job(workers=2, staleness=1, slots=SLOTS, words_per_packet=WORDS))
    source, result = np.zeros(COUNT, np.float32), np.zeros(COUNT, np.float32)
    with pytest.raises(ConfigurationError, match=says):
        cluster.submit(0, replace(contribution(source, result), **given))  # type: ignore[arg-type]


# R-WORKER-7, R-RESULT-7
def test_a_worker_that_passed_and_missed_the_result_asks_for_it_at_its_length(kind: str) -> None:
    """A switch sends no more than comes in: its answer to the pass, sent again, only acknowledges."""
    spec = job(workers=2, quorum=2, staleness=0, max_staleness=1, slots=1, words_per_packet=WORDS)
    cluster = Cluster.joined(kind, spec=spec)
    source, results = np.full(WORDS, 0.5, np.float32), np.zeros((2, WORDS), np.float32)
    said: list[tuple[Kind, Flag, int]] = []

    def lose_the_first_result_of_worker_1(_now: float, from_: int, to: int, data: bytes) -> bool:
        packet = parse(data)
        if packet.kind not in (Kind.HELLO, Kind.WELCOME) and 2 in (from_, to):
            said.append((packet.kind, packet.flags, len(data)))
        return not (packet.kind is Kind.RESULT and to == 2)

    cluster.network.wiretap = lose_the_first_result_of_worker_1
    cluster.submit(1, passing(results[1]))
    cluster.submit(0, contribution(source, results[0]))
    cluster.run()
    assert (results == 0.5).all()
    passed, full = (Kind.CONTRIBUTION, Flag.PASS, HEADER_BYTES), HEADER_BYTES + 4 * WORDS
    after = said[said.index((Kind.RESULT, Flag(0), full)) + 1 :]
    assert after == [
        passed,
        (Kind.ANSWER, Flag.BARE, HEADER_BYTES),
        (Kind.CONTRIBUTION, Flag(0), full),
        (Kind.ANSWER, Flag(0), full),
    ]
    counted = cluster.switch.job_counters(spec.job)
    assert (counted["contributions"], counted["passes"], counted["duplicates"]) == (1, 1, 2)
