"""The transport that a worker's options ask for: the scheme's own, wrapped in what is to be observed or broken."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Protocol, runtime_checkable

from fanin.errors import ConfigurationError
from fanin.formats.capture import SocketAddress
from fanin.host.transports.faulty import FaultyTransport
from fanin.host.transports.pcap import PcapTransport, PcapWriter
from fanin.host.transports.tracer import TracingTransport
from fanin.options import Options
from fanin.protocol.job import JobSpec
from fanin.schemes import WorkerEnd, scheme_of
from fanin.transports.transport import Transport

_NO_ADDRESS = "192.0.2.{}"
"""TEST-NET-1 (RFC 5737): what a capture shows for ends that have no UDP address; the switch is .1."""
_NO_PORT = 49_152
"""The first dynamic port (RFC 6335)."""


def open_transport(
    options: Options, spec: JobSpec, worker: int, scheme: str, host: str, port: int, flow: int
) -> Transport:
    """Open one flow's transport. Raises SwitchUnreachableError, and ConfigurationError for faults, pcap and trace."""
    with ExitStack() as opened:
        transport, here, there = _open(options, worker, scheme, host, port, flow)
        opened.callback(transport.close)
        if options.pcap is not None:
            transport = PcapTransport(transport, PcapWriter(_of_rank(options.pcap, worker)), here, there)
        if options.trace is not None:
            prefix = f"rank={worker} flow={flow}"
            transport = TracingTransport(transport, _of_rank(options.trace, worker), prefix=prefix)
        plan = options.packet_faults
        if plan is not None:
            if plan.corrupt and not (spec.checksum or spec.data_key):
                raise ConfigurationError(
                    "faults: corrupt needs checksums in the job. Remedy: set FANIN_CHECKSUM=1 on every rank"
                )
            transport = FaultyTransport(transport, plan, f"{worker}/{flow}")
        opened.pop_all()
    return transport


@runtime_checkable
class HasAddresses(Protocol):
    """A transport between two socket addresses."""

    local: tuple[str, int]
    peer: tuple[str, int]


def open_bare(options: Options, scheme: str, host: str, port: int) -> Transport:
    """The scheme's own transport. Raises SwitchUnreachableError."""
    end = WorkerEnd(
        host=host,
        port=port,
        curve_server_key=options.curve_server_key,
        connect_timeout_s=options.connect_timeout_s,
    )
    opened: Transport = scheme_of(scheme).open_worker(end)
    return opened


def _open(
    options: Options, worker: int, scheme: str, host: str, port: int, flow: int
) -> tuple[Transport, SocketAddress, SocketAddress]:
    """The transport, and the two addresses that a capture shows."""
    transport = open_bare(options, scheme, host, port)
    if isinstance(transport, HasAddresses):
        return transport, SocketAddress(*transport.local), SocketAddress(*transport.peer)
    here = SocketAddress(_NO_ADDRESS.format(2 + worker), _NO_PORT + flow)
    return transport, here, SocketAddress(_NO_ADDRESS.format(1), port)


def _of_rank(path: str, worker: int) -> str:
    return path.replace("%r", str(worker))
