"""A dead rank is known by its closed control connection, long before its silence would tell: real sockets."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from fanin.errors import SwitchLostError, WorkerLostError
from fanin.host.session.joining import JoinTerms
from fanin.host.session.session import Session
from fanin.options import Options, SwitchAddress
from fanin.protocol import control
from fanin.protocol.job import SUSPICION_TIMEOUT_S
from fanin.switch.transports.hang_ups import HangUps
from tests.support.processes import (
    DEADLINE_S,
    MODES,
    Mode,
    a_switch,
    a_worker,
    cut,
    in_thread,
    join_all,
    options,
    reduce_together,
    reduce_until_it_fails,
    until,
)
from tests.support.services import a_service, address_of

SILENCE_S = 2 * DEADLINE_S
"""A liveness timeout that no test here lives to see."""
SECRET = "only the ranks of this job share it"
ENGINES: tuple[Mode, ...] = ("native-udp", "native-zmq", "twin-udp")


def drop_dead(session: Session) -> None:
    """Die like a killed process: nothing is sent, and the system closes all sockets."""
    session._engine.close()
    assert session._line is not None
    session._line.close()


@contextlib.contextmanager
def a_job(mode: Mode, size: int = 3, **given: object) -> Iterator[list[Session]]:
    native = mode.startswith("native")
    with a_service(native=native, liveness_timeout_s=SILENCE_S) as service, contextlib.ExitStack() as stack:
        address = address_of(service, "zmq" if mode.endswith("zmq") else "udp")
        sessions = join_all(address, "j", size, options(mode, **given))
        for session in sessions:
            stack.callback(session.close)
        yield sessions


@pytest.mark.parametrize("mode", ENGINES)
def test_survivors_name_a_rank_that_hung_up_without_leaving(mode: Mode) -> None:
    with a_job(mode) as (first, victim, last):
        reduce_together([first, victim, last])
        drop_dead(victim)
        for session in (first, last):
            error = reduce_until_it_fails(session)
            assert isinstance(error, WorkerLostError), error
            assert error.ranks == (1,)
            assert "hung up" in str(error)


def test_a_job_that_goes_on_without_lost_ranks_does_so_as_soon_as_one_hung_up() -> None:
    with a_job("native-udp", on_worker_loss="continue") as (first, victim, last):
        drop_dead(victim)
        until(lambda: first.members == (0, 2) == last.members)


def test_a_rank_that_leaves_is_not_lost() -> None:
    with a_job("native-udp", on_worker_loss="continue") as (first, leaver, last):
        leaver.close()
        until(lambda: first.members == (0, 2) == last.members)
        drop_dead(last)  # the next news is of this one
        until(lambda: first.members == (0,))
        assert [change.gone for change in first.take_changes()] == [(1,), (2,)]


@pytest.mark.parametrize("mode", ENGINES)
def test_a_broken_connection_of_a_live_rank_does_it_no_harm(mode: Mode) -> None:
    with a_job(mode) as sessions:
        cut(sessions[1])
        over_s = time.monotonic() + 2 * SUSPICION_TIMEOUT_S
        while time.monotonic() < over_s:
            reduce_together(sessions)
        assert [session.failure for session in sessions] == [None] * 3


def test_ranks_at_other_leaves_of_a_tree_are_told_of_a_rank_that_hung_up() -> None:
    with contextlib.ExitStack() as stack:
        root = stack.enter_context(a_service(native=True, liveness_timeout_s=SILENCE_S))
        parent = SwitchAddress("udp", "127.0.0.1", root.port)
        leaves = [stack.enter_context(a_service(native=True, schemes=("udp",), parent=parent)) for _ in range(2)]
        given = options("native-udp")

        def join(rank: int) -> Session:
            return Session.join(
                JoinTerms(options=given, switch=address_of(leaves[rank % 2]), job_name="j", rank=rank, size=4)
            )

        joining = [in_thread(partial(join, rank)) for rank in range(4)]
        sessions = [future.result(DEADLINE_S) for future in joining]
        for session in sessions:
            assert isinstance(session, Session)
            stack.callback(session.close)
        drop_dead(sessions[1])  # type: ignore[arg-type]
        for rank in (0, 2, 3):
            error = reduce_until_it_fails(sessions[rank])  # type: ignore[arg-type]
            assert isinstance(error, WorkerLostError), error
            assert 1 in error.ranks


@pytest.mark.processes
@pytest.mark.parametrize("mode", MODES)
def test_a_rank_that_is_killed_is_named_although_a_child_of_it_lives(mode: Mode) -> None:
    with a_switch(mode, "--liveness-timeout", str(SILENCE_S)) as switch:
        with a_worker(switch.address, "forks", 1, 2, options(mode), habit="forks") as victim:
            (survivor,) = join_all(switch.address, "forks", 2, options(mode), range(1))
            failing = in_thread(partial(reduce_until_it_fails, survivor))
            until(lambda: survivor.counters()["results"] >= 20)
            victim.signal(signal.SIGKILL)
            error = failing.result(DEADLINE_S)
            survivor.close()
        assert isinstance(error, WorkerLostError), error
        assert error.ranks == (1,)


@pytest.mark.processes
@pytest.mark.parametrize("mode", ENGINES)
def test_ranks_know_at_once_that_the_process_of_the_switch_has_ended(mode: Mode) -> None:
    with a_switch(mode, "--liveness-timeout", str(SILENCE_S)) as switch:
        (session,) = join_all(switch.address, "doomed", 1, options(mode))
        switch.end(signal.SIGKILL)
        until(lambda: session.failure is not None)
        assert isinstance(session.failure, SwitchLostError)
        assert "nothing listens there any more" in str(session.failure)
        session.close()


@pytest.mark.processes
@pytest.mark.parametrize("mode", ENGINES)
@pytest.mark.parametrize("secret", [SECRET, None], ids=["tags", "open"])
def test_ranks_know_soon_that_the_switch_was_restarted(mode: Mode, secret: str | None) -> None:
    given = options(mode, authenticate=secret is not None, secret=secret)
    with a_switch(mode, "--liveness-timeout", str(SILENCE_S)) as switch:
        (session,) = join_all(switch.address, "doomed", 1, given)
        switch.end(signal.SIGKILL)
        # Nobody looks at the session before another process listens there.
        with a_switch(mode, "--liveness-timeout", str(SILENCE_S), bind=f"127.0.0.1:{switch.port}"):
            until(lambda: session.failure is not None)
            assert isinstance(session.failure, SwitchLostError)
            assert "restarted" in str(session.failure)
            session.close()


@contextlib.contextmanager
def an_impostor(port: int, says: bytes | None) -> Iterator[None]:
    """Another program at a port: it accepts connections and says that, or closes them for None."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", port)))

        def serve() -> None:
            with contextlib.suppress(OSError):  # the listener is closed
                while True:
                    connection, _ = listener.accept()
                    if says is None:
                        connection.close()
                        continue
                    opened.callback(connection.close)
                    connection.sendall(says)

        serving = threading.Thread(target=serve)
        serving.start()
        opened.callback(serving.join)
        opened.callback(listener.shutdown, socket.SHUT_RDWR)
        yield


@pytest.mark.processes
@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", None], ids=["silent", "rubbish", "closes"])
@pytest.mark.parametrize("mode", ENGINES)
def test_ranks_know_soon_that_another_program_has_the_port_of_the_switch(
    mode: Mode, says: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fanin.host.session.line.ANSWER_TIMEOUT_S", 2 * SUSPICION_TIMEOUT_S)
    with a_switch(mode, "--liveness-timeout", str(SILENCE_S)) as switch:
        (session,) = join_all(switch.address, "doomed", 1, options(mode))
        switch.end(signal.SIGKILL)
        # Nobody looks at the session before another program listens there.
        with an_impostor(switch.port, says):
            until(lambda: session.failure is not None)
        assert isinstance(session.failure, SwitchLostError)
        assert "another program" in str(session.failure)
        session.close()


class Later:
    """A monitor whose events were read when the connection had come anew: they are all there at the first look."""

    def __init__(self, monitor: zmq.Socket[bytes]) -> None:
        self._monitor, self._frames = monitor, [monitor.recv_multipart()]
        while parse_monitor_message(self._frames[-1])["event"] != zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._frames.append(monitor.recv_multipart())

    def poll(self, timeout: int) -> int:
        return len(self._frames) or self._monitor.poll(timeout)

    def recv_multipart(self, flags: int = 0) -> list[bytes]:
        return self._frames.pop(0) if self._frames else self._monitor.recv_multipart(flags)

    def close(self, linger: int) -> None:
        self._monitor.close(linger)


@pytest.mark.processes
def test_the_answer_of_a_switch_before_its_restart_is_not_taken_for_one_after_it() -> None:
    given = options("native-udp", authenticate=True, secret=SECRET)
    with a_switch("native-udp", "--liveness-timeout", str(SILENCE_S)) as switch:
        (session,) = join_all(switch.address, "doomed", 1, given)
        line = session._line
        assert line is not None
        cut(session)
        until(lambda: session.failure is None and line._asked_s is not None)
        waiting = line._client._socket.poll
        until(lambda: bool(waiting(0)))  # the challenge, after which the question is put again
        line._next_look_s = 0.0
        assert session.failure is None
        until(lambda: bool(waiting(0)) or line._asked_s is None)  # the answer; nobody looks before the restart
        switch.end(signal.SIGKILL)
        with a_switch("native-udp", "--liveness-timeout", str(SILENCE_S), bind=f"127.0.0.1:{switch.port}"):
            line._client.monitor = Later(line._client.monitor)  # type: ignore[assignment]
            until(lambda: session.failure is not None)
            assert "restarted" in str(session.failure)
            session.close()


@pytest.mark.parametrize(("code", "text"), [("key", "sealed"), ("version", "version"), ("malformed", "message")])
def test_who_does_not_understand_the_question_is_not_the_switch_of_the_job(code: str, text: str) -> None:
    with a_job("native-udp", 1) as (session,):
        line = session._line
        assert line is not None
        line._take(control.Refused(code=code, reason=text, remedy="none"))
        assert not line._forgotten, "it was not asked"
        line._asked_s = time.monotonic()
        line._take(control.Refused(code="internal", reason=text, remedy="none"))
        assert not line._forgotten
        line._take(control.Refused(code=code, reason=text, remedy="none"))
        assert line._forgotten


def test_who_has_hung_up_is_known_by_the_connection_that_it_asked_over() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with context, context.socket(zmq.ROUTER) as router:
        hang_ups = HangUps(router)
        port = router.bind_to_random_port("tcp://127.0.0.1")
        peers = []
        dealers = [context.socket(zmq.DEALER) for _ in range(3)]
        for dealer in dealers:
            dealer.connect(f"tcp://127.0.0.1:{port}")
            dealer.send(b"hello")
            assert router.poll(int(DEADLINE_S * 1000))
            peers.append(hang_ups.receive()[0])
        assert hang_ups.take_closed() == []
        for dealer, peer in ((dealers[1], peers[1]), (dealers[0], peers[0])):
            dealer.close(linger=0)
            assert hang_ups.socket.poll(int(DEADLINE_S * 1000))
            assert hang_ups.take_closed() == [peer]
        dealers[2].close(linger=0)
        hang_ups.close()


def test_the_same_switch_may_be_asked_for_another_liveness_timeout_and_says_which_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with a_service(liveness_timeout_s=SILENCE_S) as service:
        for session in join_all(address_of(service), "asks", 1, Options(liveness_timeout_s=7)):
            assert session.spec.liveness_timeout_s == SILENCE_S
            session.close()
    assert f"FANIN_LIVENESS_TIMEOUT_S is 7; the switch at {address_of(service)} decides: 60" in caplog.text
