"""Strangers at the control port and at the data ports while a job runs: its bits are right, and nobody is lost.

What of its rate it keeps is measured by `fanin bench fairness` (docs/emulation.md): a test judges no times.
"""

from __future__ import annotations

import contextlib
import random
import socket
from typing import Literal

import numpy as np
import pytest
import zmq

from fanin.host.session.session import Session
from fanin.options import Options
from fanin.protocol.wire import Flag, Kind, Packet
from fanin.switch.service.service import SwitchService
from tests.support.processes import DEADLINE_S, join_all, reduction
from tests.support.services import a_service, address_of

ROUNDS = 30
DATAGRAMS_PER_ROUND = 400
CONNECTIONS_PER_ROUND = 5
COUNT = 20_000
NO_MEMORY_SHARED = Options(connect_timeout_s=10.0, shared_memory=False)


def datagram(dice: random.Random, session: Session) -> bytes:
    """Noise, or what a stranger sends who knows all about the job but its tokens: every kind of packet."""
    if dice.random() < 0.3:
        return dice.randbytes(dice.randint(0, 1500))
    spec = session.spec
    return Packet(
        kind=dice.choice(list(Kind)),
        job=spec.job,
        worker=dice.randrange(spec.workers),
        generation=spec.generation,
        flags=dice.choice([Flag(0), Flag.PASS, Flag.CHECKSUM]),
        slot=dice.randrange(spec.slots),
        base=dice.choice([0, 1, 2**32 - 1]),
        words=np.frombuffer(dice.randbytes(4 * dice.randint(0, 300)), np.uint32),
    ).to_bytes()


class Strangers:
    """Some of them, at every port of a switch."""

    def __init__(self, service: SwitchService, session: Session, stack: contextlib.ExitStack) -> None:
        self._dice = random.Random(1)
        self._session = session
        self._control = ("127.0.0.1", service.port)
        self._sockets = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(8)]
        for each in self._sockets:
            each.connect(("127.0.0.1", service.servers["udp"].ports[0]))
        context = stack.enter_context(zmq.Context())
        ports = [service.port, *service.servers["zmq"].ports]
        self._dealers = [stack.enter_context(context.socket(zmq.DEALER)) for _ in ports]
        for dealer, port in zip(self._dealers, ports, strict=True):
            dealer.linger = 0
            dealer.connect(f"tcp://127.0.0.1:{port}")

    def knock(self) -> None:
        """Once at each door, many times."""
        dice = self._dice
        for _ in range(DATAGRAMS_PER_ROUND):
            with contextlib.suppress(OSError):  # a full buffer, or the switch's ICMP
                dice.choice(self._sockets).send(datagram(dice, self._session), socket.MSG_DONTWAIT)
        for dealer in self._dealers:
            with contextlib.suppress(zmq.Again):
                dealer.send_multipart([datagram(dice, self._session) for _ in range(dice.randint(1, 4))], zmq.NOBLOCK)
        for _ in range(CONNECTIONS_PER_ROUND):
            with contextlib.suppress(OSError), socket.create_connection(self._control, timeout=1.0) as connection:
                connection.send(dice.randbytes(200))


@pytest.mark.parametrize("scheme", ["udp", "zmq"])
@pytest.mark.parametrize("native", [True, False], ids=["native", "twin"])
def test_a_job_among_strangers_has_its_sums_to_the_bit_and_loses_nobody(
    native: bool, scheme: Literal["udp", "zmq"]
) -> None:
    with a_service(native=native) as service, contextlib.ExitStack() as stack:
        sessions = join_all(address_of(service, scheme), "besieged", 2, NO_MEMORY_SHARED)
        for session in sessions:
            stack.callback(session.close)
        strangers = Strangers(service, sessions[0], stack)
        values = [np.arange(COUNT, dtype=np.float32) * (1 + session.rank) for session in sessions]
        undisturbed: bytes | None = None
        for _ in range(ROUNDS):
            requests = [reduction(each) for each in values]
            tickets = [session.submit(request) for session, (request, _) in zip(sessions, requests, strict=True)]
            if undisturbed is not None:
                strangers.knock()
            for session, ticket, (_, result) in zip(sessions, tickets, requests, strict=True):
                session.wait(ticket, DEADLINE_S)
                assert undisturbed in (None, result.tobytes())
            undisturbed = requests[0][1].tobytes()
        (report,) = service.controller.stats(0.0).jobs
        assert report.state == "running"
        assert {member.state for member in report.members} == {"registered"}
        refused = service.servers["udp"].counters()
        assert sum(count for name, count in refused.items() if name.startswith("dropped_")) > DATAGRAMS_PER_ROUND
