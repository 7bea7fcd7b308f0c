"""Promises of every transport (fanin/transports/transport.py), over real sockets on loopback and over queues."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from fanin.transports.transport import MAX_BATCH, SWITCH
from tests.transports.rigs import DEADLINE_S, RIGS, Rig, opened, receive_exactly

LONGEST = 60_000
"""Bytes: near UDP's limit, and more than one TCP segment."""


@pytest.fixture(params=RIGS)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with opened(request.param) as made:
        yield made


def test_a_datagram_arrives_whole_and_its_answer_comes_back(rig: Rig) -> None:
    worker = rig.worker()
    worker.send([(b"question", SWITCH)])
    [(data, source)] = receive_exactly(rig.switch, 1)
    assert data == b"question"
    rig.switch.send([(b"answer", source)])
    assert receive_exactly(worker, 1) == [(b"answer", SWITCH)]


def test_each_worker_has_an_address_of_its_own_that_stays(rig: Rig) -> None:
    workers = [rig.worker() for _ in range(3)]
    seen: dict[bytes, set[int]] = {}
    for _ in range(2):
        for index, worker in enumerate(workers):
            worker.send([(b"%d" % index, SWITCH)])
            [(data, source)] = receive_exactly(rig.switch, 1)
            seen.setdefault(data, set()).add(source)
    assert all(len(addresses) == 1 for addresses in seen.values())
    assert len(set.union(*seen.values())) == 3


def test_a_multicast_reaches_every_worker(rig: Rig) -> None:
    workers = [rig.worker() for _ in range(4)]
    for worker in workers:
        worker.send([(b"hello", SWITCH)])
    sources = [source for _, source in receive_exactly(rig.switch, 4)]
    rig.switch.send([(b"result", source) for source in sources])
    for worker in workers:
        assert receive_exactly(worker, 1) == [(b"result", SWITCH)]


def test_a_window_of_datagrams_arrives_in_order(rig: Rig) -> None:
    worker = rig.worker()
    window = [bytes([index % 256]) * (1 + index) for index in range(100)]
    worker.send([(data, SWITCH) for data in window])
    assert [data for data, _ in receive_exactly(rig.switch, len(window))] == window


@pytest.mark.parametrize("size", [1, 1448, LONGEST])
def test_bytes_are_carried_unchanged_whatever_the_length(rig: Rig, size: int) -> None:
    data = bytes(index * 31 % 251 for index in range(size))
    worker = rig.worker()
    worker.send([(data, SWITCH)])
    assert receive_exactly(rig.switch, 1)[0][0] == data


def test_one_receive_returns_a_bounded_batch(rig: Rig) -> None:
    worker = rig.worker()
    for _ in range(4):
        worker.send([(b"x", SWITCH)] * 80)
    arrived = 0
    while arrived < 4 * 80:
        batch = rig.switch.receive(DEADLINE_S)
        assert 0 < len(batch) <= MAX_BATCH + 32
        arrived += len(batch)


def test_an_empty_receive_ends_with_its_timeout(rig: Rig) -> None:
    assert rig.switch.receive(0.001) == []
    assert rig.worker().receive(0.0) == []


def test_a_wake_up_ends_a_receive_that_waits(rig: Rig) -> None:
    for end in (rig.switch, rig.worker()):
        returned = threading.Event()

        def wait(end: object = end, returned: threading.Event = returned) -> None:
            end.receive(DEADLINE_S)  # type: ignore[attr-defined]
            returned.set()

        thread = threading.Thread(target=wait)
        thread.start()
        end.wake()
        assert returned.wait(DEADLINE_S / 2)
        thread.join()


def test_a_wake_up_before_the_receive_is_not_lost(rig: Rig) -> None:
    for end in (rig.switch, rig.worker()):
        end.wake()
        assert end.receive(3600.0) == []
        assert end.receive(0.0) == [], "one wake-up ends one receive"


def test_sending_to_an_address_that_is_gone_is_a_loss_and_no_error(rig: Rig) -> None:
    worker = rig.worker()
    worker.send([(b"hello", SWITCH)])
    [(_, source)] = receive_exactly(rig.switch, 1)
    worker.close()
    for _ in range(3):
        rig.switch.send([(b"anybody there?", source)])
        assert rig.switch.receive(0.0) == []


def test_closing_twice_and_waking_afterwards_are_harmless(rig: Rig) -> None:
    worker = rig.worker()
    for end in (worker, rig.switch):
        end.close()
        end.close()
        end.wake()
