"""The count of TCP traffic: complete, and it leaves no file descriptor behind."""

from __future__ import annotations

import os
import socket

import pytest

pytest.importorskip("torch")

from fanin.examples.traffic import traffic


def test_bytes_of_every_tcp_socket_are_counted() -> None:
    before = traffic()
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sender,
        server.accept()[0] as receiver,
    ):
        sender.sendall(bytes(1000))
        receiver.recv(1000, socket.MSG_WAITALL)
        after = traffic()
    assert after.received - before.received == 1000


def test_counting_leaves_no_descriptor_open() -> None:
    traffic()
    before = len(os.listdir("/proc/self/fd"))
    traffic()
    assert len(os.listdir("/proc/self/fd")) == before
