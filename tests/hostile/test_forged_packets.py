"""Somebody sees a job's packets, and sends some from its ranks' addresses: real sockets, and a raw one for the forger.

He knows all that is in the open: addresses, index, generation, slot, base, signature. With keyed tags his packets are
counted and dropped; without, they are summed up, which docs/security.md says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from fanin.errors import SwitchLostError
from fanin.host.machine.operation import AGREED
from fanin.numerics.reduction import Element, Reduction
from fanin.options import Options
from fanin.protocol.wire import Kind, Packet
from tests.support.processes import DEADLINE_S, join_all, until
from tests.support.services import a_service, address_of

SECRET = "what the ranks share"
COUNT = 8
FORGED = 1_000_000
UDP_HEADER = struct.Struct("!HHHH")
IP_HEADER = struct.Struct("!BBHHHBBH4s4s")


class Forger:
    """Sends datagrams over IPv4 loopback from any port."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        try:
            self._raw = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW))
        except PermissionError:
            pytest.skip("a raw socket takes CAP_NET_RAW")

    def send(self, data: bytes, source: int, destination: int) -> None:
        here = socket.inet_aton("127.0.0.1")
        udp = UDP_HEADER.pack(source, destination, UDP_HEADER.size + len(data), 0) + data
        ip = IP_HEADER.pack(0x45, 0, IP_HEADER.size + len(udp), 0, 0, 64, socket.IPPROTO_UDP, 0, here, here)
        self._raw.sendto(ip + udp, ("127.0.0.1", 0))


def ports_towards(port: int) -> list[int]:
    """Local ports of UDP sockets that are connected to a port of this machine: what packets show anyway."""
    rows = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()[1:]]
    return [int(row[1].split(":")[1], 16) for row in rows if row[2].endswith(f":{port:04X}")]


def in_place(array: npt.NDArray[np.int32]) -> Reduction:
    at = array.ctypes.data
    return Reduction(source=at, destination=at, count=len(array), element=Element.INT32, owner=array)


@pytest.mark.parametrize("authenticate", [True, False], ids=["with tags", "without"])
@pytest.mark.parametrize("native", [True, False], ids=["native", "twin"])
def test_forged_contributions_change_a_sum_only_without_tags(native: bool, authenticate: bool) -> None:
    with contextlib.ExitStack() as stack:
        forger = Forger(stack)
        service = stack.enter_context(a_service(native=native))
        given = Options(native=native, shared_memory=False, secret=SECRET, authenticate=authenticate)
        sessions = join_all(address_of(service), "j", 2, given)
        for session in sessions:
            stack.callback(session.close)
        arrays = [np.full(COUNT, 1 + rank, np.int32) for rank in range(2)]
        requests = [in_place(array) for array in arrays]
        first = sessions[0].submit(requests[0])
        (port,) = service.servers["udp"].ports
        index = sessions[0].spec.job
        counters = service.servers["udp"].job_counters
        until(lambda: counters(index)["contributions"] == 1)
        spec = sessions[0].spec
        forged = Packet(
            kind=Kind.CONTRIBUTION,
            job=index,
            worker=1,
            generation=spec.generation,
            base=0,
            slot=0,
            signature=zlib.crc32(AGREED.pack(1, COUNT, Element.INT32, 32, 0)),
            words=np.full(COUNT, FORGED, np.uint32),
        ).to_bytes()
        sources = ports_towards(port)
        assert len(sources) >= 2
        for source in sources:
            forger.send(forged, source, port)
        refused = "dropped_tag" if authenticate else "dropped_stranger"
        until(lambda: counters(index)[refused] >= 1)
        second = sessions[1].submit(requests[1])
        for session, ticket in zip(sessions, (first, second), strict=True):
            session.wait(ticket, DEADLINE_S)
        assert {value for array in arrays for value in array} == {3 if authenticate else 1 + FORGED}


def test_a_job_whose_packets_all_fail_ends_with_an_error() -> None:
    """Here one end has another key: no honest pair of ends does, as it is derived from what their control messages
    are sealed with."""
    liveness_s = 0.6
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(a_service(liveness_timeout_s=liveness_s))
        given = Options(shared_memory=False, secret=SECRET, authenticate=True)
        (session,) = join_all(address_of(service), "j", 1, given)
        stack.callback(session.close)
        server = service.servers["udp"]
        server.remove(session.spec.job)
        server.admit(dataclasses.replace(session.spec, data_key=bytes(16)))
        array = np.ones(COUNT, np.int32)
        ticket = session.submit(in_place(array))
        with pytest.raises(SwitchLostError, match="heard nothing"):
            session.wait(ticket, DEADLINE_S)
        assert server.counters()["dropped_tag"] > 0
