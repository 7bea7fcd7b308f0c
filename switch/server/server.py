"""What serves a switch's data ports, and the choice between the native server and the pump.

A server owns one switch machine per flow, each with a port and a thread of its own. Its calls may come from any thread;
none of them hangs.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from typing import Literal, Protocol, cast

from fanin.errors import ConfigurationError
from fanin.extension import native_extension
from fanin.protocol.events import SwitchEvent
from fanin.protocol.job import SWITCH_LIVENESS_TIMEOUT_S, JobSpec, ParentRoute
from fanin.switch.machine.switch_machine import SwitchMachine
from fanin.switch.server import pump
from fanin.switch.transports import UdpServerTransport, ZmqServerTransport


class Server(Protocol):
    """Serves the data ports of a switch."""

    @property
    def description(self) -> str:
        """Which server, machine and transport run, in words."""

    @property
    def ports(self) -> tuple[int, ...]:
        """The port of each flow."""

    def admit(self, spec: JobSpec) -> None:
        """Take a job in, on every flow. AdmissionError when memory is out or the index is taken."""

    def remove(self, job: int) -> None:
        """Forget a job; its packets are strangers' from now on."""

    def evict(self, job: int, worker: int) -> None:
        """Take a worker out of the full mask, so that rounds close without it."""

    def suspect(self, job: int, worker: int) -> None:
        """Something speaks for a worker's death: unless it gives a sign of life on every flow soon, it is lost."""

    def set_quorum(self, job: int, quorum: int) -> None:
        """Change K of a job, which may close open rounds."""

    def set_staleness(self, job: int, staleness: int) -> None:
        """Change S of a job, which may close open rounds."""

    def admit_worker(self, job: int, worker: int, token: int) -> None:
        """Open an evicted worker's place to a new process; ValueError when it was not evicted."""

    @property
    def event_fileno(self) -> int:
        """A descriptor that is readable while `next_event` has something to say."""

    def next_event(self, timeout_s: float) -> SwitchEvent | None:
        """The next event, once per worker however many flows there are; waits up to `timeout_s`.

        Whoever has heard of something from the data plane finds it reported here. RuntimeError after a crash.
        """

    def counters(self) -> dict[str, int]:
        """The machines' counters, added up over flows."""

    def job_counters(self, job: int) -> dict[str, int]:
        """The same, of one job."""

    def shared_memory(self, job: int) -> tuple[str, ...]:
        """Where the job's workers on this machine find shared memory, a path per flow; empty if none is offered."""

    def ring_bytes(self, job: int) -> tuple[int, int]:
        """What its rings there hold of the switch's memory, over all flows, and what they want: it has all or none.

        Both are 0 where the job is offered no shared memory.
        """

    def members(self, job: int) -> tuple[int, int, int]:
        """Bit masks of the workers that are registered on every flow, lost on any, and that left any."""

    def close(self) -> None:
        """Stop, and give up sockets and threads. A second call does nothing."""


class LeafServer(Server, Protocol):
    """A server whose jobs may be parts of jobs at a parent."""

    def admit_leaf(self, spec: JobSpec, parent: ParentRoute) -> None:
        """Take such a part in, on every flow; AdmissionError as for `admit`."""


def make_server(
    scheme: Literal["udp", "zmq"],
    host: str,
    port: int,
    *,
    flows: int,
    memory_bytes: int,
    native: bool | None = None,
    curve_secret_key: str | None = None,
    curve_clients: Collection[str] | None = None,
    share_memory: bool = True,
    liveness_timeout_s: float = SWITCH_LIVENESS_TIMEOUT_S,
) -> Server:
    """Open the data ports and start to serve them; `description` of what comes back says how.

    `port` is flow 0's; 0, and further flows, take any free one: see `ports`. `memory_bytes` is the switch's in all.
    `curve_secret_key` (Z85) encrypts zmq data, for the clients with these public keys (None: any). `share_memory`:
    native udp offers it to workers on this machine. `liveness_timeout_s`: of the jobs to come. Raises
    ConfigurationError for a port that cannot be had, or when native=True and the extension is not built.
    """
    extension = native_extension(native)
    if extension is not None and scheme == "udp":
        try:
            server = extension.SwitchServer(host, port, flows, memory_bytes, share_memory=share_memory)
            server.start()
        except OSError as error:
            raise ConfigurationError(f"udp port {port} of {host!r} cannot be had: {error.strerror or error}") from error
        return cast("Server", server)
    machine_type: type[SwitchMachine] = SwitchMachine if extension is None else extension.SwitchMachine
    with ExitStack() as opened:
        transports: list[UdpServerTransport | ZmqServerTransport] = []
        for flow in range(flows):
            flow_port = port if flow == 0 else 0
            transport = (
                UdpServerTransport(host, flow_port)
                if scheme == "udp"
                else ZmqServerTransport(
                    host,
                    flow_port,
                    curve_secret_key=curve_secret_key,
                    curve_clients=curve_clients,
                    liveness_timeout_s=liveness_timeout_s,
                )
            )
            opened.callback(transport.close)
            transports.append(transport)
        opened.pop_all()
    what = "Python twin" if extension is None else "native machine"
    return pump.PumpServer(
        [(machine_type(memory_bytes // flows), transport) for transport in transports],
        ports=tuple(transport.port for transport in transports),
        description=f"{what}, Python loop over {scheme}{' with CURVE' if curve_secret_key else ''}",
    )
