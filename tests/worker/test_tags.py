"""A worker of a job with keyed tags believes what its switch says now: nothing forged, and nothing said again."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from fanin.protocol.events import PacketRefused, Ready, SwitchSilent
from fanin.protocol.packet_tag import PacketKeys
from fanin.protocol.wire import SWITCH_WORKER, Kind, Reason
from tests.support.builders import to_worker
from tests.support.cluster import Cluster, job, reduction, worker_machine
from tests.support.network import SWITCH, Link, Worker

KEY = bytes(range(16))
SPEC = job(workers=3, data_key=KEY)
KEYS = PacketKeys(KEY, SPEC.tokens)
CONNECT_TIMEOUT_S = 5.0
packet = partial(to_worker, SPEC, words=(0, 0))
WELCOME = packet(Kind.WELCOME, pad=True)


def joined(kind: str) -> Worker:
    machine = worker_machine(kind, SPEC, 0)
    machine.datagrams_to_send(0.0)
    machine.receive_datagram(KEYS.finish(WELCOME), SWITCH, 0.0)
    assert machine.next_event() == Ready()
    return machine


def until_it_ends(machine: Worker, say: bytes) -> float:
    """When it gives up, if it hears nothing but that, before every turn; it may send what it likes."""
    machine.datagrams_to_send(0.0)
    ended_s = 0.0
    while not machine.failed:
        at = machine.next_timer()
        assert at is not None
        ended_s = at
        machine.receive_datagram(say, SWITCH, at)
        machine.handle_timer(at)
        machine.datagrams_to_send(at)
    event = machine.next_event()
    assert isinstance(event, SwitchSilent), event
    return ended_s


def test_a_forged_welcome_opens_no_data_path_and_joining_ends_in_time(kind: str) -> None:
    machine = worker_machine(kind, SPEC, 0, connect_timeout_s=CONNECT_TIMEOUT_S)
    ended_s = until_it_ends(machine, WELCOME)
    assert CONNECT_TIMEOUT_S <= ended_s < CONNECT_TIMEOUT_S + 1
    assert machine.counters()["dropped_tag"] > 10


@pytest.mark.parametrize("said", [WELCOME, KEYS.finish(WELCOME)], ids=["forged", "said before"])
def test_a_switch_that_is_gone_is_missed_whatever_others_say_for_it(kind: str, said: bytes) -> None:
    machine = joined(kind)
    ended_s = until_it_ends(machine, said)
    assert SPEC.liveness_timeout_s <= ended_s < SPEC.liveness_timeout_s + 1


def test_results_that_are_said_again_are_no_sign_of_life(kind: str) -> None:
    machine = joined(kind)
    stale = KEYS.finish(packet(Kind.RESULT, worker=SWITCH_WORKER, words=()))
    assert until_it_ends(machine, stale) < SPEC.liveness_timeout_s + 1


@pytest.mark.parametrize(
    "reason", [Reason.EVICTED, Reason.UNKNOWN_JOB, Reason.GENERATION, Reason.STRANGER, Reason.WORKER_LOST]
)
def test_no_forged_notice_ends_a_worker(kind: str, reason: Reason) -> None:
    machine = joined(kind)
    for worker in (0, SWITCH_WORKER):
        machine.receive_datagram(packet(Kind.NOTICE, words=(6, 0), worker=worker, contributors=reason), SWITCH, 0.1)
    assert not machine.failed
    assert machine.counters()["dropped_tag"] == 2
    if reason is Reason.EVICTED:
        machine.receive_datagram(KEYS.finish(packet(Kind.NOTICE, contributors=reason)), SWITCH, 0.2)
        assert machine.next_event() == PacketRefused(reason)


def test_a_packet_of_another_version_is_not_believed(kind: str) -> None:
    machine = worker_machine(kind, SPEC, 0)
    machine.datagrams_to_send(0.0)
    machine.receive_datagram(WELCOME[:2] + b"\x09" + WELCOME[3:], SWITCH, 0.0)
    machine.receive_datagram(packet(Kind.NOTICE, contributors=Reason.VERSION), SWITCH, 0.0)
    assert not machine.failed


def test_what_is_said_to_one_worker_is_not_believed_by_another(kind: str) -> None:
    machine = worker_machine(kind, SPEC, 1)
    machine.datagrams_to_send(0.0)
    machine.receive_datagram(KEYS.finish(WELCOME), SWITCH, 0.0)
    renamed = bytearray(KEYS.finish(WELCOME))
    renamed[6] = 1
    machine.receive_datagram(bytes(renamed), SWITCH, 0.0)
    counters = machine.counters()
    assert (counters["dropped_worker_range"], counters["dropped_tag"]) == (1, 1)
    assert not machine.ready


def test_a_batch_is_believed_as_its_datagrams_one_by_one_are() -> None:
    machines: list[Any] = [joined("native") for _ in range(2)]
    said = [
        KEYS.finish(packet(Kind.NOTICE, words=(2, 0), contributors=Reason.WORKER_LOST)),
        packet(Kind.NOTICE, words=(4, 0), contributors=Reason.WORKER_LOST),
        KEYS.finish(packet(Kind.RESULT, worker=SWITCH_WORKER)),
        KEYS.finish(packet(Kind.RESULT, worker=1)),
        KEYS.finish(packet(Kind.RESULT, worker=SWITCH_WORKER, generation=7)),
        b"",
        packet(Kind.RESULT, worker=SWITCH_WORKER),
    ]
    machines[0].receive_datagrams([*[(data, SWITCH) for data in said], (said[0], SWITCH + 1)], 0.1)
    for data, source in [*[(data, SWITCH) for data in said], (said[0], SWITCH + 1)]:
        machines[1].receive_datagram(data, source, 0.1)
    counters = machines[0].counters()
    assert counters == machines[1].counters()
    assert counters["dropped_tag"] == 2
    assert machines[0].next_event() == machines[1].next_event() is not None


@pytest.mark.parametrize("switch", ["twin", "native"])
def test_damage_is_found_without_checksums(kinds: str, switch: str) -> None:
    cluster = Cluster.joined(kinds, spec=SPEC, switch=switch, seed=5)
    cluster.network.link = Link(corrupt=0.2, loss=0.05)
    arrays = [np.full(200, 1.0 + rank, np.float32) for rank in range(3)]
    for rank, array in enumerate(arrays):
        cluster.submit(rank, reduction(array))
    cluster.run()
    assert all((array == 6).all() for array in arrays)
    assert cluster.total("dropped_tag") > 0
