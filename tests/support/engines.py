"""A switch and its workers in one process, over any transport and with either machine; no controller.

tests/support/native_engines.py has the native ones with what only they offer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import zmq

from fanin.extension import native_extension
from fanin.faults import FaultPlan
from fanin.host.engines.engine import Engine, SwitchEndpoint, make_engine
from fanin.host.engines.pump_engine import PumpEngine
from fanin.host.machine.worker_machine import WorkerMachine
from fanin.host.transports import FaultyTransport, MemoryTransport
from fanin.numerics.reduction import Reduction
from fanin.options import Options
from fanin.protocol.job import JobSpec
from fanin.switch.machine.switch_machine import SwitchMachine
from fanin.switch.server.any_server import Server
from fanin.switch.server.pump_server import PumpServer
from fanin.switch.server.server import make_server
from fanin.transports.transport import SWITCH, Transport
from tests.support.builders import Array, job_spec, reduction

DEADLINE_S = 30.0
"""Far more than loopback needs; only a test that fails waits for it."""
MEMORY_BYTES = 64 << 20

Scheme = Literal["udp", "zmq", "zmq+curve", "memory"]
SCHEMES: tuple[Scheme, ...] = ("udp", "zmq", "zmq+curve", "memory")


def make_spec(workers: int, **changed: object) -> JobSpec:
    """A small job: a window of 8 packets of 64 words."""
    fields: dict[str, object] = {"job": 5, "slots": 8, "words_per_packet": 64}
    return job_spec(workers=workers, **{**fields, **changed})


@dataclass
class Engines:
    """A server, and the engine of every worker of one job of it."""

    spec: JobSpec
    server: Any
    """A `Server`; the native one also says what its tests ask for."""
    engines: list[Any]

    def run(self, arrays: Sequence[Array], **fields: Any) -> None:
        """Sum one array per worker, in place."""
        self.carry_out([reduction(array, **fields) for array in arrays])

    def all_reduce(self, arrays: Sequence[Array], **fields: Any) -> list[Array]:
        """Sum one array per worker; every worker's result."""
        results = [np.full_like(array, np.nan) for array in arrays]
        pairs = zip(arrays, results, strict=True)
        self.carry_out([reduction(*pair, **fields) for pair in pairs])
        return results

    def carry_out(self, asked: Sequence[Reduction]) -> None:
        """A reduction of each worker, to their ends."""
        tickets = [engine.submit(what) for engine, what in zip(self.engines, asked, strict=True)]
        for worker, (engine, ticket) in enumerate(zip(self.engines, tickets, strict=True)):
            assert engine.wait(ticket, DEADLINE_S), f"worker {worker}: {engine.next_event(0.0)} {engine.counters()}"


@contextmanager
def cluster(
    scheme: Scheme, spec: JobSpec, *, native: bool, flows: int = 1, options: Options | None = None
) -> Iterator[Engines]:
    """Start a switch, admit the job and start every worker; everything is closed afterwards."""
    options = dataclasses.replace(options or Options(), native=native)
    make = _in_memory if scheme == "memory" else _over_sockets
    with ExitStack() as opened:
        server, engines = make(scheme, spec, flows, options, opened)
        yield Engines(spec, server, engines)


def _over_sockets(
    scheme: Scheme, spec: JobSpec, flows: int, options: Options, opened: ExitStack
) -> tuple[Server, list[Engine]]:
    secret = None
    if scheme == "zmq+curve":
        public_key, secret_key = zmq.curve_keypair()
        secret = secret_key.decode()
        options = dataclasses.replace(options, curve_server_key=public_key.decode())
    plain = scheme.partition("+")[0]
    server = make_server(
        plain,
        "127.0.0.1",
        0,
        flows=flows,
        memory_bytes=MEMORY_BYTES,
        native=options.native,
        curve_secret_key=secret,
    )
    opened.callback(server.close)
    server.admit(spec)
    endpoint = SwitchEndpoint(plain, "127.0.0.1", server.ports)
    engines: list[Engine] = []
    for worker in range(spec.workers):
        engine = make_engine(options, spec, worker, spec.tokens[worker], endpoint)
        opened.callback(engine.close)
        engines.append(engine)
    return server, engines


def _in_memory(
    scheme: Scheme, spec: JobSpec, flows: int, options: Options, opened: ExitStack
) -> tuple[Server, list[Engine]]:
    extension = native_extension(options.native)
    switch_type = SwitchMachine if extension is None else extension.SwitchMachine
    worker_type = WorkerMachine if extension is None else extension.WorkerMachine
    plan = FaultPlan.parse(options.faults or "")
    switches = [MemoryTransport() for _ in range(flows)]
    server = PumpServer([(switch_type(MEMORY_BYTES), transport) for transport in switches], description=scheme)
    opened.callback(server.close)
    server.admit(spec)
    engines: list[Engine] = []
    for worker, token in enumerate(spec.tokens):
        pairs: list[tuple[Any, Transport]] = []
        for flow, switch in enumerate(switches):
            transport = MemoryTransport()
            switch.connect(transport)
            machine = worker_type(spec.for_flow(flow), worker, switch=SWITCH, token=token, flow=flow, flow_count=flows)
            pairs.append((machine, FaultyTransport(transport, plan, f"{worker}/{flow}")))
        engine = PumpEngine(pairs, description=scheme)
        opened.callback(engine.close)
        engines.append(engine)
    return server, engines
