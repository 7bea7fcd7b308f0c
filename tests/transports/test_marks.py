"""Explicit congestion notification over real sockets: what is capable is sent so, and marks reach the machines."""

from __future__ import annotations

import socket
from typing import Any

import numpy as np
import pytest

from fanin.extension import native_extension
from fanin.host.engines.engine import SwitchEndpoint, make_engine
from fanin.host.transports import UdpTransport
from fanin.options import Options
from fanin.protocol.ecn import ECN_CAPABLE, ECN_CONGESTION, ECN_MASK, Capable, Marked
from fanin.protocol.wire import OFFSET_KIND, Kind
from fanin.switch.server.server import make_server
from fanin.switch.transports.udp import UdpServerTransport
from fanin.transports import marks
from fanin.transports.transport import SWITCH
from tests.support.builders import reduction
from tests.support.engines import MEMORY_BYTES, Engines, make_spec
from tests.transports.rigs import receive_exactly


@pytest.fixture
def congested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mark as congested every packet that Python sends as capable, as if every router on the way were full."""
    field = ECN_CONGESTION.to_bytes(4, "little")
    for family, control in marks.AS_CAPABLE.items():
        monkeypatch.setitem(marks.AS_CAPABLE, family, [(level, kind, field) for level, kind, _ in control])


@pytest.mark.parametrize(("bound", "host"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")])
def test_marks_are_told_both_ways(bound: str, host: str, congested: None) -> None:
    switch = UdpServerTransport(bound, 0)
    worker = UdpTransport(host, switch.port)
    try:
        worker.send([(Capable(b"may be marked"), SWITCH), (b"may not", SWITCH)])
        (first, source), (second, _) = receive_exactly(switch, 2)
        assert (type(first), first, type(second), second) == (Marked, b"may be marked", bytes, b"may not")
        switch.send([(b"may not", source), (Capable(b"may be marked"), source)])
        assert [type(data) for data, _ in receive_exactly(worker, 2)] == [bytes, Marked]
    finally:
        worker.close()
        switch.close()


def test_where_the_kernel_refuses_the_field_datagrams_go_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for family in marks.AS_CAPABLE:
        monkeypatch.setitem(marks.AS_CAPABLE, family, [(socket.IPPROTO_IP, 0xFF, b"unknown")])
    switch = UdpServerTransport("127.0.0.1", 0)
    worker = UdpTransport("127.0.0.1", switch.port)
    try:
        worker.send([(Capable(b"asks"), SWITCH)])
        ((data, source),) = receive_exactly(switch, 1)
        switch.send([(Capable(b"answers"), source)])
        assert (data, receive_exactly(worker, 1)) == (b"asks", [(b"answers", SWITCH)])
        assert (switch.trouble, worker.trouble) == ("", "")
    finally:
        worker.close()
        switch.close()


@pytest.mark.parametrize("native", [True, False], ids=["native", "twin"])
def test_contributions_are_capable_once_the_switch_has_given_a_receipt(native: bool) -> None:
    """Seen by a relay between a worker and its switch."""
    if native and native_extension(None) is None:
        pytest.skip("the native extension is not built")
    spec = make_spec(1, slots=8)
    fields: list[int] = []
    server = make_server("udp", "127.0.0.1", 0, flows=1, memory_bytes=MEMORY_BYTES, native=native)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as relay:
        relay.bind(("127.0.0.1", 0))
        relay.settimeout(0.01)
        marks.report_marks(relay)
        server.admit(spec)
        endpoint = SwitchEndpoint("udp", "127.0.0.1", (relay.getsockname()[1],))
        engine = make_engine(Options(native=native), spec, 0, spec.tokens[0], endpoint)
        try:
            worker: Any = None
            ticket = engine.submit(reduction(np.ones(64 * 40, np.int32)))
            while not engine.done(ticket):
                try:
                    data, control, _, source = relay.recvmsg(65_536, marks.CONTROL_BYTES)
                except TimeoutError:
                    continue
                if source[1] == server.ports[0]:
                    relay.sendto(data, worker)
                    continue
                worker = source
                if data[OFFSET_KIND] == Kind.CONTRIBUTION:
                    fields.append(next(field[0] & ECN_MASK for _, kind, field in control if kind == socket.IP_TOS))
                relay.sendto(data, ("127.0.0.1", server.ports[0]))
        finally:
            engine.close()
            server.close()
    assert fields[:8] == [0] * 8
    assert fields[-8:] == [ECN_CAPABLE] * 8


@pytest.mark.parametrize(("switch", "workers"), [(False, False), (False, True), (True, False)])
def test_both_engines_react_to_marks_of_the_other(switch: bool, workers: bool, congested: None) -> None:
    """`switch`, `workers`: whether they are native. Marks are on what the Python side sends."""
    if (switch or workers) and native_extension(None) is None:
        pytest.skip("the native extension is not built")
    spec = make_spec(2, slots=64)
    server = make_server("udp", "127.0.0.1", 0, flows=1, memory_bytes=MEMORY_BYTES, native=switch)
    engines = []
    try:
        server.admit(spec)
        endpoint = SwitchEndpoint("udp", "127.0.0.1", server.ports)
        for worker, token in enumerate(spec.tokens):
            engine = make_engine(Options(native=workers), spec, worker, token, endpoint)
            engines.append(engine)
        running = Engines(spec, server, engines)
        for _ in range(2):
            arrays = [np.full(64 * 200, 1 + worker, np.int32) for worker in range(2)]
            running.run(arrays)
            assert all((array == 3).all() for array in arrays)
        counters = [engine.counters() for engine in engines]
        assert all(each["marks"] > 0 and each["cuts"] > 0 for each in counters), counters
    finally:
        for engine in engines:
            engine.close()
        server.close()
