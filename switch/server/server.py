"""The choice between the native server and the pump server, which both implement any_server.py."""

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
    """Open the data ports and start a server for them; its `description` names the kind of server that was chosen.

    `port`: that of flow 0; further flows have the ports after it, so that a firewall can list them. 0: any free ports,
    see `ports` of the server. `memory_bytes`: aggregation memory of all flows together.
    `curve_secret_key` (Z85) encrypts data of schemes that CURVE protects. `curve_clients`: public keys of the accepted
    clients (None: any). `share_memory`: native udp offers shared memory to workers on this machine.
    `liveness_timeout_s`: that of the jobs to come.
    ConfigurationError for a port that is not available, or if native=True and the extension is not built.
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
        what = "Python twin" if extension is None else "native machine"
        pumped = pump_server.PumpServer(
            [(machine_type(memory_bytes // flows), transport) for transport in transports],
            ports=tuple(transport.port for transport in transports),
            description=f"{what}, Python loop over {scheme}{' with CURVE' if curve_secret_key else ''}",
        )
        opened.pop_all()
        return pumped


def _numbers(port: int, flows: int) -> str:
    return str(port) if port == 0 or flows == 1 else f"{port} to {port + flows - 1}"


def _twin() -> type[SwitchMachine]:
    """The Python machine, imported on demand, since it imports numpy."""
    from fanin.switch.machine.switch_machine import SwitchMachine

    return SwitchMachine
