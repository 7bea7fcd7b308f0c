"""A newcomer gets a state from a peer over TCP, or an error that lets it ask another one."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from fanin.host.session import handover
from fanin.host.session.handover import CHALLENGE_BYTES, HEAD, LENGTH, Giver, GiverAddress, Source
from fanin.protocol.seal import tag_holds
from tests.support.frames import in_module
from tests.support.processes import files_left, in_thread, noticed

HOST = "127.0.0.1"
PATIENT_S, IMPATIENT_S = 20.0, 0.2
KEY, OTHER_KEY = bytes(32), bytes(range(32))
STATE = bytes(range(256)) * 10_000


class Training:
    """A training as its giver sees it, up to `base`."""

    def __init__(self, base: int) -> None:
        self.base = base
        self.changed = threading.Condition()
        self.looks = 0

    def look(self, base: int, timeout_s: float) -> tuple[bytes, bytes] | None:
        with self.changed:
            self.looks += 1
            self.changed.notify_all()
            reached = self.changed.wait_for(lambda: self.base >= base, timeout_s)
            return (b"at %d" % self.base, STATE) if reached else None

    def go_on_to(self, base: int, after_looks: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.looks >= after_looks, PATIENT_S)
            self.base = base
            self.changed.notify_all()


@contextlib.contextmanager
def a_giver(training: Training) -> Iterator[Giver]:
    with contextlib.closing(Giver(HOST, training.look, KEY)) as giver:
        yield giver


def source(
    address: GiverAddress, base: int, silence_s: float = PATIENT_S, key: bytes = KEY
) -> contextlib.closing[Source]:
    return contextlib.closing(Source(address, base, silence_s, key))


def test_the_state_of_the_base_or_a_later_one_arrives_whole() -> None:
    with a_giver(Training(7)) as giver, source(GiverAddress.parse(str(giver.address).encode()), 5) as newcomer:
        assert newcomer.read(PATIENT_S) == b"at 7"
        assert newcomer.read(PATIENT_S) == STATE


def test_a_giver_that_is_not_as_far_says_that_it_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newcomer bears less silence than the giver takes: only signs of life keep it waiting."""
    monkeypatch.setattr(handover, "ALIVE_INTERVAL_S", 0.01)
    training = Training(3)
    with a_giver(training) as giver, source(giver.address, 4, silence_s=5.0) as newcomer:
        training.go_on_to(4, after_looks=5)
        assert newcomer.read(PATIENT_S) == b"at 4"


def test_a_giver_that_had_no_files_left_for_a_while_still_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several strangers come, since accept(2) reserves a number before it waits, and a connection of a giver before
    this one may end meanwhile: each lets one stranger in although no files are left.
    """
    with a_giver(Training(7)) as giver, contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(socket.socket()) for _ in range(handover.MAX_AT_ONCE // 2)]
        paused = noticed(giver._closing, monkeypatch)
        with files_left(0):
            for stranger in strangers:
                stranger.connect((HOST, giver.address.port))
            assert paused.wait(PATIENT_S), "it has given up"
        with source(giver.address, 5) as newcomer:
            assert newcomer.read(PATIENT_S) == b"at 7"


def test_a_newcomer_for_whom_no_thread_starts_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_giver(Training(7)) as giver:
        with monkeypatch.context() as meanwhile:
            meanwhile.setattr(threading.Thread, "start", no_thread)
            for _ in range(handover.MAX_AT_ONCE + 1):
                with pytest.raises((EOFError, ConnectionError)):
                    Source(giver.address, 5, PATIENT_S, KEY)
        with source(giver.address, 5) as newcomer:
            assert newcomer.read(PATIENT_S) == b"at 7"


@in_module("threading")
def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_giver_that_never_gets_as_far_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "ALIVE_INTERVAL_S", 0.01)
    with (
        a_giver(Training(3)) as giver,
        source(giver.address, 4) as newcomer,
        pytest.raises(TimeoutError, match="not as far"),
    ):
        newcomer.read(IMPATIENT_S)


def test_a_stranger_without_the_key_gets_nothing() -> None:
    with a_giver(Training(7)) as giver, source(giver.address, 5, key=OTHER_KEY) as stranger:
        with pytest.raises((EOFError, ConnectionError)):
            stranger.read(PATIENT_S)
        with source(giver.address, 5) as newcomer:
            assert newcomer.read(PATIENT_S) == b"at 7", "the others are served all the same"


def test_what_a_giver_without_the_key_gives_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "tag_holds", lambda *_, reply: True if not reply else tag_holds(*_, reply=reply))
    with (
        contextlib.closing(Giver(HOST, Training(7).look, OTHER_KEY)) as giver,
        source(giver.address, 5) as newcomer,
        pytest.raises(ConnectionError, match="does not know the job's secret"),
    ):
        newcomer.read(PATIENT_S)


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b'{"host": 1, "port": 2}', b"\xff", b'{"host":"h","port":1,"x":2}']
)
def test_an_address_that_is_none_means_asking_another(text: bytes) -> None:
    with pytest.raises(ConnectionError, match="its address is none"):
        GiverAddress.parse(text)


def test_a_giver_that_dies_in_the_middle_of_the_state_is_noticed() -> None:
    with socket.create_server((HOST, 0)) as listener:
        address = GiverAddress(HOST, listener.getsockname()[1])
        greeting = in_thread(lambda: _challenged(listener))
        with source(address, 5) as newcomer:
            connection = greeting.result(PATIENT_S)
            assert isinstance(connection, socket.socket)
            with connection:
                assert len(connection.recv(HEAD.size)) == HEAD.size
                connection.sendall(LENGTH.pack(len(STATE)) + STATE[:1000])
            with pytest.raises(EOFError, match="1,000 of 2,560,000 bytes"):
                newcomer.read(PATIENT_S)


def test_a_giver_that_says_nothing_is_given_up() -> None:
    with socket.create_server((HOST, 0)) as listener:
        address = GiverAddress(HOST, listener.getsockname()[1])
        with pytest.raises(TimeoutError):
            Source(address, 5, IMPATIENT_S, KEY)


def _challenged(listener: socket.socket) -> socket.socket:
    connection, _ = listener.accept()
    connection.sendall(bytes(CHALLENGE_BYTES))
    return connection


def test_a_closed_giver_refuses() -> None:
    with a_giver(Training(7)) as giver:
        address = giver.address
    with pytest.raises(OSError):
        Source(address, 5, PATIENT_S, KEY)
