"""Errors when a transport is opened or used name the fault, the place and the remedy, in bounded time."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest
import zmq

from fanin.emulation.processes import free_port
from fanin.errors import ConfigurationError, SwitchUnreachableError
from fanin.host.transports import UdpTransport, ZmqTransport, open_transport
from fanin.options import Options
from fanin.protocol.ecn import Capable
from fanin.switch.transports.udp import UdpServerTransport
from fanin.switch.transports.zmq import ZmqServerTransport
from fanin.transports.marks import Sender
from fanin.transports.transport import SWITCH
from tests.support.engines import DEADLINE_S, make_spec
from tests.support.processes import many_files
from tests.support.services import refusing_port
from tests.transports.rigs import opened, receive_exactly

BRIEF_S = 1.0
"""A timeout that a test has to sit out."""


def test_udp_to_a_port_without_a_listener_says_so_and_recovers() -> None:
    port = free_port(socket.SOCK_DGRAM)
    worker = UdpTransport("127.0.0.1", port)
    worker.send([(b"anybody?", SWITCH)])
    assert worker.receive(DEADLINE_S) == []
    assert f"udp://127.0.0.1:{port}" in worker.trouble
    assert "nothing listens at this port" in worker.trouble
    switch = UdpServerTransport("127.0.0.1", port)
    worker.send([(b"hello", SWITCH)])
    [(_, source)] = receive_exactly(switch, 1)
    switch.send([(b"welcome", source)])
    receive_exactly(worker, 1)
    assert worker.trouble == ""
    switch.close()
    worker.close()


def test_a_refusal_left_over_from_an_earlier_datagram_does_not_swallow_the_next() -> None:
    port = free_port(socket.SOCK_DGRAM)
    worker = UdpTransport("127.0.0.1", port)
    worker.send([(b"lost", SWITCH)])
    switch = UdpServerTransport("127.0.0.1", port)
    worker.send([(b"arrives", SWITCH)])
    assert receive_exactly(switch, 1)[0][0] == b"arrives"
    switch.close()
    worker.close()


def test_a_datagram_too_long_for_udp_is_a_loss_that_is_explained() -> None:
    with opened("udp") as rig:
        worker = rig.worker()
        worker.send([(b"x" * 70_000, SWITCH), (b"short", SWITCH)])
        assert receive_exactly(rig.switch, 1)[0][0] == b"short"
        assert "FANIN_WORDS_PER_PACKET" in worker.trouble


def test_a_full_send_buffer_is_waited_for_once_and_loses_nothing_then_also_with_many_files_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A token bucket below the socket fills it up, for instance."""
    full: list[bytes] = []
    send = Sender.send

    def refusing_once(sender: Sender, data: bytes, *to: Any, **control: Any) -> None:
        if data not in full:
            full.append(data)
            raise BlockingIOError
        send(sender, data, *to, **control)

    with many_files(), opened("udp") as rig:
        worker = rig.worker()
        monkeypatch.setattr(Sender, "send", refusing_once)
        worker.send([(b"waits", SWITCH), (b"is dropped", SWITCH)])
        [(data, source)] = receive_exactly(rig.switch, 1)
        assert data == b"waits"
        rig.switch.send([(b"waits, too", source), (b"is dropped, too", source)])
        assert receive_exactly(worker, 1) == [(b"waits, too", SWITCH)]
    assert full == [b"waits", b"is dropped", b"waits, too", b"is dropped, too"]


@pytest.mark.parametrize("missing", ["fanin.host.transports.zmq.Waker", "zmq.Poller"])
def test_zmq_for_which_there_are_not_enough_files_leaves_none_open(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(missing, none_left)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Too many open files") as info:
        ZmqTransport("127.0.0.1", 1, curve_server_key=None, connect_timeout_s=BRIEF_S)
    assert set(os.listdir("/proc/self/fd")) <= before, "although the error is kept"
    assert info.value.errno == errno.EMFILE


@pytest.mark.parametrize("bound", ["0.0.0.0", "::"])
def test_a_port_of_all_addresses_answers_from_the_one_that_was_asked(bound: str) -> None:
    """A connected socket takes nothing from another one: such a switch was deaf at all addresses but one."""
    switch = UdpServerTransport(bound, 0)
    workers = [UdpTransport(host, switch.port) for host in ("127.0.0.2", "127.0.0.3")]
    for worker in workers:
        worker.send([(Capable(b"asks"), SWITCH)])
        ((_, source),) = receive_exactly(switch, 1)
        switch.send([(Capable(b"may be marked"), source), (b"may not", source)])
        assert [data for data, _ in receive_exactly(worker, 2)] == [b"may be marked", b"may not"]
        worker.close()
    switch.close()


def test_a_name_that_does_not_resolve_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(SwitchUnreachableError, match=r"udp://swich:4711.*'swich' does not resolve") as caught:
        UdpTransport("swich", 4711)
    assert caught.value.address == "udp://swich:4711"


def test_zmq_where_nobody_listens_gives_up_in_time() -> None:
    with refusing_port() as port:
        unheard = rf"zmq://127.0.0.1:{port}: nothing listens there.*{BRIEF_S:g} s"
        with pytest.raises(SwitchUnreachableError, match=unheard):
            ZmqTransport("127.0.0.1", port, curve_server_key=None, connect_timeout_s=BRIEF_S)


def test_zmq_to_something_that_never_answers_gives_up_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        with pytest.raises(SwitchUnreachableError, match="no answer"):
            ZmqTransport("127.0.0.1", port, curve_server_key=None, connect_timeout_s=BRIEF_S)


def _key(secret: bool = False) -> str:
    return zmq.curve_keypair()[secret].decode()


@pytest.mark.parametrize(
    ("client_has_key", "says"),
    [(True, "curve_server_key is not its public key"), (False, "it wants curve_server_key to be set")],
    ids=["wrong key", "no key"],
)
def test_a_wrong_or_missing_key_is_an_error_that_names_it(client_has_key: bool, says: str) -> None:
    switch = ZmqServerTransport("127.0.0.1", 0, curve_secret_key=_key(secret=True))
    key = _key() if client_has_key else None
    with pytest.raises(SwitchUnreachableError, match=says):
        ZmqTransport("127.0.0.1", switch.port, curve_server_key=key, connect_timeout_s=DEADLINE_S)
    switch.close()


def test_a_key_for_a_switch_that_has_none_fails_in_time() -> None:
    switch = ZmqServerTransport("127.0.0.1", 0, curve_secret_key=None)
    with pytest.raises(SwitchUnreachableError, match=f"zmq://127.0.0.1:{switch.port}"):
        ZmqTransport("127.0.0.1", switch.port, curve_server_key=_key(), connect_timeout_s=BRIEF_S)
    switch.close()


def test_a_key_that_is_no_key_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="curve_server_key"):
        ZmqTransport("127.0.0.1", 1, curve_server_key="~" * 40, connect_timeout_s=BRIEF_S)
    with pytest.raises(ConfigurationError, match="cannot be had"):
        ZmqServerTransport("127.0.0.1", 0, curve_secret_key="~" * 40)


def test_a_port_that_is_taken_is_a_configuration_error_that_names_it() -> None:
    first = UdpServerTransport("127.0.0.1", 0)
    with pytest.raises(ConfigurationError, match=f"udp port {first.port}"):
        UdpServerTransport("127.0.0.1", first.port)
    first.close()
    second = ZmqServerTransport("127.0.0.1", 0, curve_secret_key=None)
    with pytest.raises(ConfigurationError, match=f"zmq port {second.port}"):
        ZmqServerTransport("127.0.0.1", second.port, curve_secret_key=None)
    second.close()


def test_a_zmq_worker_whose_switch_is_gone_loses_datagrams_and_does_not_block() -> None:
    with opened("zmq") as rig:
        worker = rig.worker()
        rig.switch.close()
        for _ in range(20):
            worker.send([(b"x" * 1000, SWITCH)] * 1000)
        assert "send queue is full" in worker.trouble


def test_corruption_without_checksums_is_refused() -> None:
    spec = make_spec(2)
    options = Options(faults="corrupt=1%")
    with pytest.raises(ConfigurationError, match="FANIN_CHECKSUM=1"):
        open_transport(options, spec, 0, "udp", "127.0.0.1", 9, 0)


@pytest.mark.parametrize("options", [Options(pcap="/nowhere/file"), Options(trace="/nowhere/file")])
def test_a_file_that_cannot_be_written_leaves_nothing_open(options: Options) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written"):
        open_transport(options, make_spec(2), 0, "udp", "127.0.0.1", 9, 0)
