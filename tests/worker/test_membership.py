"""Joining, heartbeats, silence, refusals, leaving: the table of host/machine/presence.py, and strangers' packets."""

from __future__ import annotations

import struct
from functools import partial
from typing import Any

import numpy as np
import pytest

from fanin.protocol.events import Departed, PacketRefused, Ready, SwitchSilent, WorkerEvent, WorkersGone
from fanin.protocol.job import HEARTBEAT_INTERVAL_S, HELLO_RETRY_S, LEAVE_TIMEOUT_S
from fanin.protocol.wire import HEADER_BYTES, HELLO_RUNS, OFFSET_VERSION, Flag, Kind, Reason, parse
from tests.support.builders import to_worker
from tests.support.cluster import Cluster, job, reduction, worker_machine
from tests.support.network import SWITCH, Network, Worker

SPEC = job(workers=3)
NOT_REFUSALS = (Reason.WORKER_LOST, Reason.WORKER_LEFT, Reason.WORKER_JOINED, Reason.BRANCH_LEFT, Reason.VERSION)
packet = partial(to_worker, SPEC)
WELCOME = packet(Kind.WELCOME, words=(0, 0), pad=True)


def joined(kind: str) -> Worker:
    """A worker that was welcomed at time 0, alone with what a test says to it."""
    machine = worker_machine(kind, SPEC, 0)
    machine.datagrams_to_send(0.0)
    machine.receive_datagram(WELCOME, SWITCH, 0.0)
    assert machine.next_event() == Ready()
    return machine


def run(machine: Worker, seconds: float, start: float = 0.0) -> list[tuple[float, bytes]]:
    """Let time pass with nobody answering; what was sent, and when."""
    sent = [(start, data) for data, _ in machine.datagrams_to_send(start)]
    while (at := machine.next_timer()) is not None and at <= start + seconds:
        machine.handle_timer(at)
        sent += [(at, data) for data, _ in machine.datagrams_to_send(at)]
    return sent


def events(machine: Worker) -> list[WorkerEvent]:
    return list(iter(machine.next_event, None))


# --- joining ---


# R-MEMBER-1
def test_the_first_hello_is_as_long_as_the_longest_packet_and_carries_the_token(kind: str) -> None:
    [(data, destination)] = worker_machine(kind, SPEC, 2).datagrams_to_send(3.0)
    hello = parse(data)
    assert (len(data), destination) == (SPEC.packet_bytes, SWITCH)
    assert (hello.kind, hello.job, hello.worker, hello.generation) == (Kind.HELLO, SPEC.job, 2, SPEC.generation)
    assert int(hello.words[0]) << 32 | int(hello.words[1]) == SPEC.tokens[2]
    assert not hello.words[2:].any()
    assert hello.codes == ()


def test_hello_is_repeated_under_new_numbers_until_the_switch_answers(kind: str) -> None:
    sent = run(worker_machine(kind, SPEC, 0), 5 * HELLO_RETRY_S)
    assert [parse(data).slot for _, data in sent[:5]] == [0, 1, 2, 3, 4]
    assert [at for at, _ in sent[:5]] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])


# R-MEMBER-1
def test_nothing_but_hello_is_sent_before_the_welcome(kind: str) -> None:
    machine = worker_machine(kind, SPEC, 0)
    machine.submit(reduction(np.ones(10, np.float32)))
    assert {parse(data).kind for _, data in run(machine, 1.0)} == {Kind.HELLO}
    machine.receive_datagram(WELCOME, SWITCH, 1.0)
    assert Kind.CONTRIBUTION in {parse(data).kind for data, _ in machine.datagrams_to_send(1.0)}


# R-MEMBER-1
def test_a_short_welcome_proves_nothing_about_long_packets(kind: str) -> None:
    machine = worker_machine(kind, SPEC, 0)
    machine.datagrams_to_send(0.0)
    machine.receive_datagram(packet(Kind.WELCOME, words=(0, 0)), SWITCH, 0.0)
    assert not machine.ready
    assert machine.counters()["dropped_length"] == 1


def test_without_an_answer_the_switch_is_silent_after_the_connect_timeout(kind: str) -> None:
    machine = worker_machine(kind, SPEC, 0, connect_timeout_s=3.0)
    run(machine, 60.0, start=10.0)
    assert events(machine) == [SwitchSilent(3.0)]
    assert machine.failed
    assert machine.next_timer() is None


@pytest.mark.parametrize("generation", [SPEC.generation ^ 1, 0])
def test_a_welcome_of_another_generation_is_ignored(kind: str, generation: int) -> None:
    machine = worker_machine(kind, SPEC, 0)
    machine.datagrams_to_send(0.0)
    machine.receive_datagram(packet(Kind.WELCOME, words=(0, 0), pad=True, generation=generation), SWITCH, 0.0)
    assert not machine.ready
    assert machine.counters()["dropped_generation"] == 1


# --- heartbeats and silence ---


# R-MEMBER-3
def test_a_member_says_a_short_hello_every_heartbeat(kind: str) -> None:
    sent = run(joined(kind), 2.0)
    assert [at for at, _ in sent] == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert all(len(data) == HEADER_BYTES + 8 for _, data in sent)


# R-MEMBER-9
def test_silence_of_the_switch_is_reported_after_the_liveness_timeout(kind: str) -> None:
    machine = joined(kind)
    run(machine, 60.0)
    assert events(machine) == [SwitchSilent(SPEC.liveness_timeout_s)]
    assert machine.datagrams_to_send(61.0) == []


# R-MEMBER-3
def test_any_packet_of_the_job_is_a_sign_of_life(kind: str) -> None:
    machine = joined(kind)
    for second in range(20):
        machine.receive_datagram(packet(Kind.RESULT, slot=1, worker=0xFF), SWITCH, float(second))
        run(machine, 1.0, start=float(second))
    assert events(machine) == []


def test_a_short_liveness_timeout_has_frequent_heartbeats(kind: str) -> None:
    spec = job(workers=2, liveness_timeout_s=0.5)
    cluster = Cluster.joined(kind, spec=spec)
    cluster.network.run_for(0.2)
    assert cluster.workers[0].counters()["packets_out"] == 5
    cluster.network.cut(SWITCH)
    cluster.network.run_for(0.6)
    [silent] = cluster.news(0)
    assert isinstance(silent, SwitchSilent)
    assert silent.silent_s == pytest.approx(0.5)


# R-MEMBER-9
def test_sleeping_past_the_liveness_timeout_is_not_silence_of_the_switch(kind: str) -> None:
    machine = joined(kind)
    machine.handle_timer(100.0)
    assert events(machine) == []
    assert len(machine.datagrams_to_send(100.0)) == 1
    run(machine, HEARTBEAT_INTERVAL_S, start=100.0)
    machine.receive_datagram(packet(Kind.WELCOME, words=(0, 0)), SWITCH, 100.6)
    run(machine, 4.0, start=100.6)
    assert events(machine) == []


# --- peers ---


# R-MEMBER-6
@pytest.mark.parametrize("how", [Kind.WELCOME, Kind.NOTICE])
def test_a_lost_peer_is_reported_at_once_and_ends_the_job(kind: str, how: Kind) -> None:
    machine = joined(kind)
    machine.submit(reduction(np.ones(10, np.float32)))
    machine.receive_datagram(packet(how, words=(4, 2), contributors=Reason.WORKER_LOST), SWITCH, 0.1)
    assert events(machine) == [WorkersGone(lost=4, left=2)]
    assert machine.failed
    assert run(machine, 10.0) == []
    with pytest.raises(RuntimeError, match="failed"):
        machine.submit(reduction(np.ones(10, np.float32)))


def test_a_dead_worker_is_named_by_every_survivor_in_time(kinds: str) -> None:
    cluster = Cluster.joined(kinds, spec=job(workers=3))
    arrays = [np.ones(50_000, np.float32) for _ in range(3)]
    for worker, array in enumerate(arrays):
        cluster.submit(worker, reduction(array))
    cluster.network.run_for(1e-3)
    cluster.network.cut(2)
    died_at = cluster.network.now
    cluster.network.run_until(lambda: cluster.workers[0].failed and cluster.workers[2].failed, limit_s=10)
    assert cluster.network.now - died_at < 5.5
    assert cluster.news(0) == cluster.news(2) == [WorkersGone(lost=2, left=0)]


def test_a_failed_machine_writes_no_more(kind: str) -> None:
    machine = joined(kind)
    array = np.ones(10, np.int32)
    machine.submit(reduction(array, signature=9))
    machine.datagrams_to_send(0.0)
    machine.receive_datagram(packet(Kind.NOTICE, contributors=Reason.EVICTED), SWITCH, 0.1)
    late = packet(Kind.RESULT, words=(5,) * 10, worker=0xFF, signature=9, bitmap=7, contributors=3)
    machine.receive_datagram(late, SWITCH, 0.1)
    assert (array == 1).all()


# R-MEMBER-5
def test_a_peer_that_left_matters_only_while_reductions_wait_for_it(kind: str) -> None:
    cluster = Cluster.joined(kind, spec=job(workers=2))
    arrays = cluster.all_reduce([np.ones(100, np.float32)] * 2)
    assert (arrays[0] == 2).all()
    cluster.workers[1].leave(cluster.network.now)
    cluster.network.submitted(1)
    cluster.network.run_for(3.0)
    assert cluster.news(0) == []
    cluster.submit(0, reduction(np.ones(10, np.float32)))
    cluster.network.run_for(5.0)
    assert cluster.news(0) == [WorkersGone(lost=0, left=2)]


def test_what_a_peer_contributed_before_it_left_still_arrives(kind: str) -> None:
    """The last result to worker 0 is lost; worker 1 has it, and leaves. Worker 0 asks again, and is answered."""
    cluster = Cluster.joined(kind, spec=job(workers=2))
    lost = [0]

    def lose_results_to_worker_0(_now: float, source: int, destination: int, data: bytes) -> bool:
        lost[0] += (dropped := destination == 1 and parse(data).kind is Kind.RESULT)
        return not dropped

    arrays = [np.ones(4, np.int32) for _ in range(2)]
    cluster.network.wiretap = lose_results_to_worker_0
    for worker, array in enumerate(arrays):
        cluster.submit(worker, reduction(array))
    cluster.network.run_until(lambda: cluster.workers[1].outstanding() == 0, limit_s=1)
    cluster.workers[1].leave(cluster.network.now)
    cluster.network.submitted(1)
    cluster.run(limit_s=1.0)
    assert lost == [1]
    assert (arrays[0] == 2).all()
    assert cluster.news(0) == []


# --- refusals ---


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason not in NOT_REFUSALS])
def test_a_notice_ends_the_job(kind: str, reason: Reason) -> None:
    machine = joined(kind)
    machine.receive_datagram(packet(Kind.NOTICE, contributors=reason), SWITCH, 0.1)
    assert events(machine) == [PacketRefused(reason)]
    assert machine.failed


@pytest.mark.parametrize("number", [0, max(Reason) + 1, 0xFFFF])
def test_a_notice_with_an_unknown_reason_is_counted_and_ignored(kind: str, number: int) -> None:
    machine = joined(kind)
    machine.receive_datagram(packet(Kind.NOTICE, contributors=number), SWITCH, 0.1)
    assert events(machine) == []
    assert machine.counters()["dropped_kind"] == 1


@pytest.mark.parametrize("version", [1, 2])
def test_a_switch_of_another_version_is_named_as_such(kind: str, version: int) -> None:
    machine = worker_machine(kind, SPEC, 0)
    machine.datagrams_to_send(0.0)
    foreign = bytearray(packet(Kind.NOTICE, contributors=Reason.VERSION))
    foreign[OFFSET_VERSION] = version
    machine.receive_datagram(bytes(foreign), SWITCH, 0.1)
    assert events(machine) == [PacketRefused(Reason.VERSION)]
    assert machine.counters()["dropped_version"] == 1


def test_a_damaged_packet_is_not_taken_for_another_version(kind: str) -> None:
    """A flipped bit in the version byte of a contribution makes the switch complain; that is no reason to give up."""
    machine = joined(kind)
    machine.receive_datagram(packet(Kind.NOTICE, contributors=Reason.VERSION), SWITCH, 0.1)
    assert events(machine) == []
    assert machine.counters()["dropped_version"] == 1


def test_different_collectives_end_in_a_mismatch_and_in_no_sum(kinds: str) -> None:
    cluster = Cluster.joined(kinds, spec=job(workers=2))
    arrays = [np.ones(100, np.float32), np.ones(101, np.float32)]
    for worker, array in enumerate(arrays):
        cluster.submit(worker, reduction(array))
    cluster.network.run_for(1.0)
    assert PacketRefused(Reason.MISMATCH) in cluster.news(0) + cluster.news(1)
    assert (arrays[0] == 1).all()
    assert (arrays[1] == 1).all()


# --- leaving ---


# R-MEMBER-4
def test_leaving_is_confirmed_by_the_switch(kinds: str) -> None:
    cluster = Cluster.joined(kinds, spec=job(workers=3))
    for worker in range(3):
        cluster.workers[worker].leave(cluster.network.now)
        cluster.network.submitted(worker)
    cluster.network.run_for(0.5)
    assert [cluster.news(worker) for worker in range(3)] == [[Departed()]] * 3
    assert cluster.switch.members(cluster.spec.job) == (7, 0, 7)
    assert all(worker.next_timer() is None for worker in cluster.workers)


# R-MEMBER-4
def test_leaving_a_dead_switch_ends_after_its_timeout(kind: str) -> None:
    machine = joined(kind)
    machine.submit(reduction(np.ones(10, np.float32)))
    machine.leave(1.0)
    sent = run(machine, 30.0, start=1.0)
    assert {parse(data).kind for _, data in sent} == {Kind.BYE}
    assert sent[-1][0] <= 1.0 + LEAVE_TIMEOUT_S
    assert events(machine) == [Departed(confirmed=False)]


def test_a_switch_that_has_forgotten_the_job_confirms_leaving(kind: str) -> None:
    machine = joined(kind)
    machine.leave(1.0)
    machine.receive_datagram(packet(Kind.NOTICE, contributors=Reason.UNKNOWN_JOB), SWITCH, 1.1)
    assert events(machine) == [Departed()]


# --- packets that are none of ours ---


REJECTED = {
    "stranger": (packet(Kind.NOTICE, contributors=Reason.EVICTED), 99),
    "too_short": (WELCOME[: HEADER_BYTES - 1], SWITCH),
    "bad_magic": (b"\0" + WELCOME[1:], SWITCH),
    "version": (WELCOME[:2] + b"\x09" + WELCOME[3:], SWITCH),
    "length": (WELCOME + b"\0", SWITCH),
    "checksum": (packet(Kind.RESULT, flags=Flag.CHECKSUM)[:-4] + b"\1\2\3\4", SWITCH),
    "unknown_job": (packet(Kind.NOTICE, contributors=Reason.EVICTED, job=8), SWITCH),
    "generation": (packet(Kind.NOTICE, contributors=Reason.EVICTED, generation=1), SWITCH),
    "worker_range": (packet(Kind.NOTICE, contributors=Reason.EVICTED, worker=1), SWITCH),
    "kind": (packet(Kind.CONTRIBUTION), SWITCH),
    "slot_range": (packet(Kind.RESULT, slot=SPEC.slots, worker=0xFF), SWITCH),
    "future": (packet(Kind.RESULT, base=1, worker=0xFF), SWITCH),
}


# R-WORKER-4, R-RESULT-2
@pytest.mark.parametrize("reason", REJECTED)
def test_a_packet_that_is_none_of_ours_is_counted_and_not_acted_upon(kind: str, reason: str) -> None:
    machine = joined(kind)
    data, source = REJECTED[reason]
    machine.receive_datagram(data, source, 0.1)
    counters = machine.counters()
    assert {name for name, count in counters.items() if name.startswith("dropped") and count} == {f"dropped_{reason}"}
    assert events(machine) == []
    assert not machine.failed


# R-WORKER-4
@pytest.mark.parametrize("flags", [Flag(0), Flag.CHECKSUM])
def test_where_the_job_has_checksums_a_packet_without_a_right_one_is_dropped(kind: str, flags: Flag) -> None:
    spec = job(workers=3, checksum=True)
    machine = worker_machine(kind, spec, 0)
    [(hello, _)] = machine.datagrams_to_send(0.0)
    assert parse(hello).flags & Flag.CHECKSUM
    welcome = bytearray(packet(Kind.WELCOME, words=(0, 0), pad=True, flags=flags))
    welcome[-1] ^= 1 if flags else 0
    machine.receive_datagram(bytes(welcome), SWITCH, 0.1)
    assert not machine.ready
    assert machine.counters()["dropped_checksum"] == 1


# R-RESULT-1, R-RESULT-3, R-RESULT-9, R-RESULT-11
def test_a_result_that_does_not_fit_its_item_is_dropped(kind: str) -> None:
    machine = joined(kind)
    array = np.ones(10, np.int32)
    machine.submit(reduction(array, signature=9))
    machine.datagrams_to_send(0.0)
    given: dict[str, Any] = {"worker": 0xFF, "bitmap": 7, "contributors": 3}
    for words, signature in (((5,) * 9, 9), ((5,) * 11, 9), ((5,) * 10, 8), ((), 9)):
        machine.receive_datagram(packet(Kind.RESULT, words=words, signature=signature, **given), SWITCH, 0.1)
    assert (array == 1).all()
    assert machine.counters()["dropped_length"] == 3
    assert machine.counters()["dropped_mismatch"] == 1
    machine.receive_datagram(packet(Kind.RESULT, words=(5,) * 10, signature=9, **given), SWITCH, 0.1)
    assert (array == 5).all()
    machine.receive_datagram(packet(Kind.RESULT, words=(6,) * 10, signature=9, **given), SWITCH, 0.1)
    assert (array == 5).all()
    assert machine.counters()["duplicates"] == 1


def test_golden_packets(kind: str) -> None:
    """The packets of a worker of a small job, byte by byte: HELLO, an integer chunk, codes by forecast, words, BYE."""
    spec = job(workers=2, words_per_packet=8, slots=2)
    machine = worker_machine(kind, spec, 1)
    header = "fa1901{kind}" + "0007" + "01" + "00" + "abcd0123"
    token = "123456789abcde01"
    [(hello, _)] = machine.datagrams_to_send(0.0)
    takes_runs = "00" * 12 + f"{HELLO_RUNS:08x}" + "00" * 8
    assert hello.hex() == header.format(kind="04") + takes_runs + token + "00" * 28
    machine.receive_datagram(packet(Kind.WELCOME, worker=1, words=(0, 0) + (0,) * 7), SWITCH, 0.0)
    machine.submit(reduction(np.array([1, -2, 3], np.int32), signature=0x51))
    machine.submit(reduction(np.array([1.0, -0.5], np.float32), signature=0x52))
    sent = [data.hex() for data, _ in machine.datagrams_to_send(0.0)]
    rest = "{slot:08x}{base:08x}{signature:08x}{order:08x}" + "0000" + "{codes:02x}" + "00" + "00000000"
    contribution = header.format(kind="01") + rest
    assert sent[0] == contribution.format(slot=0, base=0, signature=0x51, order=1, codes=0) + "00000001fffffffe00000003"
    own_codes_no_forecast = struct.pack("!HHiiII", 1023 << 5, 0, 0, 0, 0, 0).hex()
    assert sent[1] == contribution.format(slot=1, base=0, signature=0x52, order=2, codes=1) + own_codes_no_forecast
    assert len(sent) == 2
    result: dict[str, Any] = {"worker": 0xFF, "signature": 0x51, "bitmap": 3, "contributors": 2}
    machine.receive_datagram(packet(Kind.RESULT, words=(2, 0, 6), **result), SWITCH, 0.0)
    assert machine.datagrams_to_send(0.0) == []
    codes = {**result, "slot": 1, "signature": 0x52, "codes": (1024 << 5,), "words": (0, 0, 0, 0)}
    machine.receive_datagram(packet(Kind.RESULT, **codes), SWITCH, 0.0)
    [words] = [data.hex() for data, _ in machine.datagrams_to_send(0.0)]
    scaled = struct.pack("!HHii", 0, 0, 1 << 28, -(1 << 27)).hex()
    assert words == contribution.format(slot=1, base=1, signature=0x52, order=3, codes=1) + scaled
    machine.leave(0.0)
    assert [data.hex() for data, _ in machine.datagrams_to_send(0.0)] == [header.format(kind="07") + "00" * 24 + token]


def test_network_of_strangers_does_not_disturb(kinds: str) -> None:
    """Results, notices and noise from addresses that are not the switch's, all through a reduction."""
    cluster = Cluster.joined(kinds, spec=SPEC)
    network: Network = cluster.network
    rng = np.random.default_rng(3)
    arrays = [np.ones(2000, np.float32) for _ in range(3)]
    for worker, array in enumerate(arrays):
        cluster.submit(worker, reduction(array))
    for _ in range(50):
        forged = packet(Kind.NOTICE, contributors=Reason.EVICTED, worker=0xFF)
        network.inject(forged, source=77, destination=1)
        network.inject(rng.bytes(60), source=78, destination=2)
        network.inject(packet(Kind.CONTRIBUTION, words=(1,) * 16), source=79, destination=SWITCH)
        network.run_for(20e-6)
    cluster.run()
    assert all((array == 3).all() for array in arrays)
    assert cluster.workers[0].counters()["dropped_stranger"] == 50
