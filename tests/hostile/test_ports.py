"""Costs of strangers' connections and bytes for a switch: its memory, its processor, and the turn of others."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import zmq

from fanin.formats.zmtp import GREETING, LONG, MORE, READY, ZmtpConnection, ZmtpError, ZmtpLimits
from fanin.host.session.control import ask
from fanin.options import Options, SwitchAddress
from fanin.protocol import control
from fanin.switch.service.service import ServiceOptions, SwitchService
from fanin.switch.service.work_budget import CONTROL_BURST_S, CONTROL_SHARE, WorkBudget
from fanin.switch.transports import listener as listening
from fanin.switch.transports.listener import Listener
from tests.support.processes import (
    DEADLINE_S,
    SELECT_FILES,
    SwitchProcess,
    a_switch,
    in_thread,
    join_all,
    many_files,
    reduce_together,
)
from tests.support.services import a_service, address_of

LIMITS = ZmtpLimits(frame_bytes=1000, frames=2, message_bytes=1500)
MANY = 1200


def said(limits: ZmtpLimits = LIMITS) -> ZmtpConnection:
    """A connection whose greetings are exchanged."""
    connection = ZmtpConnection(limits)
    connection.feed(GREETING + READY)
    assert connection.ready
    return connection


def frame(size: int, flags: int = 0) -> bytes:
    return bytes((flags | LONG,)) + size.to_bytes(8, "big") + bytes(size)


# --- the protocol, without sockets ---


def test_messages_of_libzmqs_own_come_through_however_the_bytes_are_cut() -> None:
    whole = GREETING + READY + b"\x00\x03abc" + b"\x01\x01x" + frame(300)
    for cut in (1, 7, 64, 1000):
        connection = ZmtpConnection(LIMITS)
        for at in range(0, len(whole), cut):
            connection.feed(whole[at : at + cut])
        assert connection.take() == [b"abc"]
        assert connection.take() == [b"x", bytes(300)]
        assert not connection.held_bytes


@pytest.mark.parametrize(
    "data",
    [
        frame(1001)[:9],
        frame(900, MORE) + frame(601)[:9],
        frame(1, MORE) + frame(1, MORE)[:9],
        b"\x80\x00",
        b"\x04\x06\x05ERROR",
        b"\x06" + (2000).to_bytes(8, "big"),
    ],
)
def test_what_exceeds_a_limit_is_refused_by_its_head_before_it_is_kept(data: bytes) -> None:
    with pytest.raises(ZmtpError):
        said().feed(data)


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"\xff" + bytes(9), GREETING[:10] + b"\x01"])
def test_what_is_no_zmtp_is_refused_at_its_first_bytes(data: bytes) -> None:
    with pytest.raises(ZmtpError):
        ZmtpConnection(LIMITS).feed(data)


def test_a_connection_holds_few_messages_that_nobody_takes() -> None:
    connection = said()
    connection.feed(b"\x00\x00" * 10_000)
    assert len(connection.messages) <= 256
    assert sum(1 for _ in range(10_000) if connection.take() == [b""]) == 10_000


# --- the listener ---


@contextlib.contextmanager
def a_listener(**given: object) -> Iterator[Listener]:
    with contextlib.closing(Listener("127.0.0.1", 0, LIMITS, **given)) as listener:  # type: ignore[arg-type]
        yield listener


def connected(listener: Listener, count: int) -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    for _ in range(count):
        stack.enter_context(socket.create_connection(("127.0.0.1", listener.port)))
        listener.receive(10)
    return stack


def test_strangers_of_one_address_make_room_for_each_other_and_never_drive_out_who_is_kept() -> None:
    with a_listener(max_per_source=4) as listener, connected(listener, 2) as crowd:
        kept = list(listener._routes)
        for route in kept:
            listener.keep(route)
        crowd.enter_context(connected(listener, 10))
        assert len(listener) == 4
        assert set(kept) <= set(listener._routes)
        assert listener.turned_away == 8
        assert len(listener.take_closed()) == 8


def test_a_stranger_that_says_nothing_is_hung_up_on_and_one_that_is_kept_is_not() -> None:
    now = [0.0]
    with a_listener(clock=lambda: now[0], patience_s=10.0) as listener, connected(listener, 3):
        listener.keep(next(iter(listener._routes)))
        assert listener.next_timer() == 10.0
        now[0] = 10.0
        listener.receive(10)
        assert (len(listener), listener.silent) == (1, 2)
        assert listener.next_timer() is None


def test_a_peer_that_does_not_read_is_not_read_from_and_holds_a_bounded_queue() -> None:
    with a_listener(buffer_bytes=4096) as listener, connected(listener, 1):
        (route,) = listener._routes
        sent = sum(listener.send(route, [bytes(1000)]) for _ in range(2000))
        peer = listener._routes[route]
        assert sent < 2000
        assert len(peer.zmtp.to_send) - peer.written <= listening.MAX_UNREAD_BYTES + 1010


def test_a_port_of_many_connections_sends_what_is_left_when_it_closes() -> None:
    with (
        many_files(),
        a_listener(buffer_bytes=4096) as listener,
        socket.create_connection(("127.0.0.1", listener.port)) as peer,
    ):
        listener.receive(10)
        (route,) = listener._routes
        assert listener._routes[route].connection.fileno() >= SELECT_FILES
        sent = sum(listener.send(route, [bytes(1000)]) for _ in range(2000))
        assert listener._routes[route].zmtp.to_send
        reading = in_thread(partial(read_all, peer))
        listener.close(DEADLINE_S)
        assert reading.result(DEADLINE_S) == len(GREETING) + sent * len(frame(1000))


def read_all(peer: socket.socket) -> int:
    """How many bytes come until it is hung up on."""
    return sum(len(data) for data in iter(partial(peer.recv, 1 << 16), b""))


def test_a_turn_reads_from_a_bounded_number_of_connections_and_the_next_from_the_others() -> None:
    """A crowd that all speak at once must not hold up what else the switch has to do."""
    with a_listener() as listener, contextlib.ExitStack() as stack:
        sockets = [
            stack.enter_context(socket.create_connection(("127.0.0.1", listener.port)))
            for _ in range(listening.SERVED_PER_TURN + 10)
        ]
        while len(listener) < len(sockets):
            listener.receive(0)
        for each in sockets:
            each.sendall(GREETING + READY + b"\x00\x01x")
        first = {route for route, _, _ in listener.receive(1000)}
        second = {route for route, _, _ in listener.receive(1000)}
        assert 0 < len(first) <= listening.SERVED_PER_TURN
        assert first | second == set(listener._routes)


# --- its share of the processor ---


def test_work_that_takes_more_than_its_share_waits_until_it_is_paid_for() -> None:
    budget = WorkBudget(0.0, share=0.25, burst_s=1.0)
    budget.spend(1.0, 0.0)
    assert budget.resume_s(0.0) == 0.0
    budget.spend(0.5, 0.0)
    assert budget.resume_s(0.0) == 2.0
    assert budget.resume_s(1.0) == 2.0
    budget.spend(0.25, 2.0)
    assert budget.resume_s(2.0) == 3.0
    assert budget.resume_s(1000.0) == 1000.0
    budget.spend(2.0, 1000.0)
    assert budget.resume_s(1000.0) == 1004.0, "no more than a burst is saved"


def test_a_flood_that_is_answered_all_the_time_takes_its_share_and_no_more() -> None:
    budget, now, worked_s = WorkBudget(0.0), 0.0, 0.0
    while now < 100.0:
        now = max(now, budget.resume_s(now)) + 0.005
        budget.spend(0.005, now)
        worked_s += 0.005
    assert worked_s == pytest.approx(CONTROL_BURST_S + CONTROL_SHARE * now, abs=0.01)


def test_without_credit_the_port_is_not_read_while_timers_go_on() -> None:
    options = ServiceOptions(host="127.0.0.1", port=0, memory_bytes=1 << 20)
    with contextlib.closing(SwitchService(options)) as service:
        timers = [0]
        honest = service.controller.handle_timer

        def counted(now: float) -> None:
            timers[0] += 1
            honest(now)

        service.controller.handle_timer = counted  # type: ignore[method-assign]
        port = service._control
        assert isinstance(port, Listener)
        with socket.create_connection(("127.0.0.1", service.port)):
            service._budget.spend(1e6, time.monotonic())
            turn(service, 3)
            assert (len(port), timers[0]) == (0, 3)
            service._budget = WorkBudget(time.monotonic())
            turn(service, 1)
            assert len(port) == 1


def turn(service: SwitchService, count: int) -> None:
    """So many turns of its loop."""
    for _ in range(count):
        turns = iter((True, False))
        service.wake()
        service.run(lambda turns=turns: next(turns))  # type: ignore[misc]


# --- the whole switch ---


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def switch() -> Iterator[SwitchProcess]:
    with a_switch("native-udp", "--data", "udp,zmq") as process:
        yield process


def zmq_port(switch: SwitchProcess) -> int:
    stats = ask(switch.address, control.Ask(), timeout_s=DEADLINE_S)
    assert isinstance(stats, control.Stats)
    return next(data.ports[0] for data in stats.data if data.scheme == "zmq")


def use(address: SwitchAddress, name: str) -> None:
    """Run an honest job."""
    sessions = join_all(address, name, 2, Options(connect_timeout_s=10.0))
    reduce_together(sessions)
    for session in sessions:
        session.close()


@pytest.mark.processes
@pytest.mark.parametrize("port", ["control", "zmq data"])
@pytest.mark.parametrize("libzmq", [True, False])
def test_an_endless_message_takes_no_memory(switch: SwitchProcess, libzmq: bool, port: str) -> None:
    """400 MB in parts of one message that never ends took 430 MB, for good."""
    use(switch.address, f"before {libzmq} {port}")
    before, part = resident_bytes(switch.process.pid), bytes(16_000)
    number = switch.port if port == "control" else zmq_port(switch)
    if libzmq:
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.SNDTIMEO, 10)
            dealer.connect(f"tcp://127.0.0.1:{number}")
            with contextlib.suppress(zmq.Again):
                for _ in range(400_000_000 // len(part)):
                    dealer.send(part, zmq.SNDMORE)
    else:
        sent = 0
        while sent < 400_000_000:
            with socket.create_connection(("127.0.0.1", number)) as stranger, contextlib.suppress(OSError):
                stranger.sendall(GREETING + READY)
                while sent < 400_000_000:
                    sent += len(part)
                    stranger.sendall(frame(len(part), MORE))
            sent += 40_000_000  # it was hung up on: ten times are enough
    use(switch.address, f"after {libzmq} {port}")
    assert resident_bytes(switch.process.pid) - before < 16 << 20


@pytest.mark.processes
def test_idle_connections_neither_keep_others_out_nor_take_the_processor(switch: SwitchProcess) -> None:
    """About 1,000 took a core, and nobody could join."""
    pid = switch.process.pid
    before = resident_bytes(pid)
    with contextlib.ExitStack() as stack:
        for _ in range(MANY):
            stack.enter_context(socket.create_connection(("127.0.0.1", switch.port)))
        use(switch.address, "in a crowd")
        started_s, used_s = time.monotonic(), processor_s(pid)
        for _ in range(50):
            assert isinstance(ask(switch.address, control.Ask(), timeout_s=DEADLINE_S), control.Stats)
        assert processor_s(pid) - used_s < 0.5 * (time.monotonic() - started_s) + 0.2
        assert resident_bytes(pid) - before < 32 << 20


def test_what_a_handler_raises_is_counted_logged_once_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    with a_service() as service:
        address = address_of(service)

        def raises(*_: object) -> None:
            raise ValueError("tuple.index(x): x not in tuple")

        honest, service.controller.receive = service.controller.receive, raises  # type: ignore[method-assign, assignment]
        for _ in range(3):
            answer = ask(address, control.Ask(), timeout_s=DEADLINE_S)
            assert isinstance(answer, control.Refused)
            assert answer.code == control.Refusal.INTERNAL
        service.controller.receive = honest  # type: ignore[method-assign]
        stats = ask(address, control.Ask(), timeout_s=DEADLINE_S)
        assert isinstance(stats, control.Stats)
        assert stats.refused[control.Refusal.INTERNAL.value] == 3
        assert service.faults.counts == {"a request": 3}
    assert len([record for record in caplog.records if "contained" in record.message]) == 1


def test_a_timer_that_raises_pauses_and_does_not_spin() -> None:
    with a_service() as service:
        turns = count_turns(service)
        for _ in range(5):
            assert isinstance(ask(address_of(service), control.Ask(), timeout_s=DEADLINE_S), control.Stats)
        assert turns[0] < 100, "each question takes a few"


def count_turns(service: SwitchService) -> list[int]:
    """Have its timers raise, and always be due."""
    turns = [0]

    def raises(now: float) -> None:
        turns[0] += 1
        raise RuntimeError("a timer")

    service.controller.handle_timer = raises  # type: ignore[method-assign]
    service.controller.next_timer = lambda: 0.0  # type: ignore[method-assign]
    service.wake()
    return turns
