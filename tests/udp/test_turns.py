"""The order in which workers are sent a result: nobody is always first, and nobody never."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections import Counter

import numpy as np

from fanin.protocol.wire import Kind, Packet, datagram_bytes, parse
from tests.support.engines import DEADLINE_S
from tests.support.native_engines import serving, spec_of

WORKERS, ROUNDS = 3, 30
SO_TIMESTAMPNS = 35
"""asm-generic/socket.h; the option's number is that of the message as well."""
SPEC = spec_of(WORKERS, words=16)


def spoken(kind: Kind, worker: int, base: int, *words: int) -> bytes:
    packet = Packet(
        kind=kind,
        job=SPEC.job,
        worker=worker,
        generation=SPEC.generation,
        base=base,
        signature=5,
        words=np.array(words, np.uint32),
    )
    return packet.to_bytes()


def hello(worker: int) -> bytes:
    token = SPEC.tokens[worker]
    padding = (SPEC.packet_bytes - datagram_bytes(0, 2)) // 4
    return spoken(Kind.HELLO, worker, 0, token >> 32, token & 0xFFFFFFFF, *[0] * padding)


def comes(member: socket.socket, kind: Kind) -> tuple[int, int]:
    """When the next packet of that kind was handed to the network, in seconds and nanoseconds."""
    while True:
        data, messages, _, _ = member.recvmsg(2048, socket.CMSG_SPACE(16))
        if parse(data).kind is kind:
            return next(struct.unpack("qq", told) for _, what, told in messages if what == SO_TIMESTAMPNS)


def stamp_at_arrival() -> None:
    """Return once the kernel stamps packets when they come. It is switched on by a worker of the kernel's, some time
    after the first socket has asked for it; until then packets are stamped when they are read, in the reader's order.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        own.bind(("127.0.0.1", 0))
        while True:
            own.sendto(b"", own.getsockname())
            select.select([own], [], [], DEADLINE_S)
            before_reading = time.clock_gettime_ns(time.CLOCK_REALTIME)
            _, messages, _, _ = own.recvmsg(1, socket.CMSG_SPACE(16))
            seconds, nanoseconds = next(struct.unpack("qq", told) for _, _, told in messages)
            if seconds * 10**9 + nanoseconds <= before_reading:
                return


def test_every_worker_is_the_first_that_a_result_goes_to_about_as_often() -> None:
    with serving() as server, contextlib.ExitStack() as sockets:
        server.admit(SPEC)
        members = [sockets.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(WORKERS)]
        for worker, member in enumerate(members):
            member.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            member.settimeout(DEADLINE_S)
            member.connect(("127.0.0.1", server.ports[0]))
            member.send(hello(worker))
            comes(member, Kind.WELCOME)
        stamp_at_arrival()
        first: Counter[int] = Counter()
        for base in range(ROUNDS):
            for worker, member in enumerate(members):
                member.send(spoken(Kind.CONTRIBUTION, worker, base, *range(16)))
            times = [comes(member, Kind.RESULT) for member in members]
            first[times.index(min(times))] += 1
    assert min(first[worker] for worker in range(WORKERS)) >= ROUNDS // WORKERS - 2, first
