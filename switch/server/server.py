"""The choice between the native server and the pump, which both are what any_server.py says."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol, cast

from fanin import files
from fanin.errors import ConfigurationError
from fanin.extension import native_extension
from fanin.protocol.job import SWITCH_LIVENESS_TIMEOUT_S
from fanin.schemes import SwitchEnd, scheme_of
from fanin.switch.server import pump_server
from fanin.switch.server.any_server import Server
from fanin.transports.transport import Transport

if TYPE_CHECKING:
    from fanin.switch.machine.switch_machine import SwitchMachine


MAX_PORT = 65_535


class PortTransport(Transport, Protocol):
    """The transport of a switch's data port."""

    port: int
    """Port that workers send to."""


def make_server(
    scheme: str,
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

    `port` is flow 0's, and those after it the other flows', so that a firewall can list them; 0: any that are free, see
    `ports`. `memory_bytes` is the switch's in all.
    `curve_secret_key` (Z85) encrypts data of schemes that CURVE protects, for the clients with these public keys (None:
    any). `share_memory`: native udp offers it to workers on this machine. `liveness_timeout_s`: of the jobs to come.
    Raises ConfigurationError for a port that cannot be had, or when native=True and the extension is not built.
    """
    row, extension = scheme_of(scheme), native_extension(native)
    if port + flows - 1 > MAX_PORT:
        raise ConfigurationError(f"{flows} flows from port {port} on: ports end at {MAX_PORT}. Remedy: a lower port")
    if extension is not None and row.native_loops:
        try:
            server = extension.SwitchServer(host, port, flows, memory_bytes, share_memory=share_memory)
            server.start()
        except OSError as error:
            raise ConfigurationError(
                f"{scheme} port {_numbers(port, flows)} of {host!r} cannot be had: {files.of_port(error)}"
            ) from error
        return cast("Server", server)
    machine_type = _twin() if extension is None else extension.SwitchMachine
    with ExitStack() as opened:
        transports: list[PortTransport] = []
        for flow in range(flows):
            end = SwitchEnd(
                host=host,
                port=0 if port == 0 else port + flow,
                curve_secret_key=curve_secret_key,
                curve_clients=curve_clients,
                liveness_timeout_s=liveness_timeout_s,
            )
            transport: PortTransport = row.open_switch(end)
            opened.callback(transport.close)
            transports.append(transport)
        opened.pop_all()
    what = "Python twin" if extension is None else "native machine"
    return pump_server.PumpServer(
        [(machine_type(memory_bytes // flows), transport) for transport in transports],
        ports=tuple(transport.port for transport in transports),
        description=f"{what}, Python loop over {scheme}{' with CURVE' if curve_secret_key else ''}",
    )


def _numbers(port: int, flows: int) -> str:
    return str(port) if port == 0 or flows == 1 else f"{port} to {port + flows - 1}"


def _twin() -> type[SwitchMachine]:
    """The Python machine, which is imported, and numpy with it, only where it serves."""
    from fanin.switch.machine.switch_machine import SwitchMachine

    return SwitchMachine
