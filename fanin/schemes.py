"""The table of schemes: what carries data between workers and a switch, and what follows from that.

A scheme is a row of SCHEMES; code that decides something by the scheme asks its row. Control is ZeroMQ over TCP
whatever carries data. Shared memory is not a scheme: the native loops use it beside udp, by themselves
(native/io/carriers.cpp).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from fanin import plugins
from fanin.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnd:
    """Arguments for opening a worker's transport."""

    host: str
    """Name or address of the switch."""
    port: int
    curve_server_key: str | None
    """The switch's public key in Z85; None: not encrypted."""
    connect_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchEnd:
    """Arguments for opening a switch's transport."""

    host: str
    port: int
    """0: any free one."""
    curve_secret_key: str | None
    """The switch's own key in Z85; None: not encrypted."""
    curve_clients: Collection[str] | None
    """Public keys of the clients that are let in; None: any."""
    liveness_timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A row of the table."""

    name: str
    """Name of the scheme in addresses: `udp` in udp://host:port."""
    protocol: Literal["UDP", "TCP", ""]
    """Protocol that firewalls must let through; empty: none, since the data stays within a machine."""
    port_after_control: int
    """How far the data port is from that of control."""
    packets_are_datagrams: bool
    """Whether the path's MTU bounds a packet; otherwise the longest is fine."""
    shared_queue: bool
    """Whether all workers' packets may queue in one buffer at the switch. Otherwise each has its own connection."""
    flows: bool
    """Whether a switch may have several ports, each with a thread."""
    trees: bool
    """Whether a leaf's data goes up by it; of the rows that say so, the first is taken."""
    leaves_machine: bool
    """Whether others than this machine's users may see packets: then they want keyed tags."""
    curve_protects: bool
    """Whether CURVE, where it is on, encrypts packets, so that they want no tags."""
    native_loops: bool
    """Whether the native engine and server carry it themselves, where they are built."""
    worker: str
    """`module:name` of what takes a WorkerEnd and returns a Transport (fanin/transports/transport.py). It raises
    SwitchUnreachableError."""
    switch: str
    """`module:name` of what takes a SwitchEnd and returns a Transport with a `port`. It raises ConfigurationError."""

    def open_worker(self, end: WorkerEnd) -> Any:
        """A worker's transport. Its module is imported now: neither end needs the libraries of schemes not in use."""
        with plugins.called(GROUP, self.name):
            return pkgutil.resolve_name(self.worker)(end)

    def open_switch(self, end: SwitchEnd) -> Any:
        """Open a switch's transport."""
        with plugins.called(GROUP, self.name):
            return pkgutil.resolve_name(self.switch)(end)


SCHEMES: dict[str, Scheme] = {
    "udp": Scheme(
        name="udp",
        protocol="UDP",
        port_after_control=0,
        packets_are_datagrams=True,
        shared_queue=True,
        flows=True,
        trees=True,
        leaves_machine=True,
        curve_protects=False,
        native_loops=True,
        worker="fanin.host.transports.udp:open_worker",
        switch="fanin.switch.transports.udp:open_switch",
    ),
    "zmq": Scheme(
        name="zmq",
        protocol="TCP",
        port_after_control=1,
        packets_are_datagrams=False,
        shared_queue=False,
        flows=False,
        trees=False,
        leaves_machine=True,
        curve_protects=True,
        native_loops=False,
        worker="fanin.host.transports.zmq:open_worker",
        switch="fanin.switch.transports.zmq:open_switch",
    ),
}
"""Rows by name. The first one is the default."""

GROUP = "fanin.schemes"
DEFAULT = next(iter(SCHEMES))


def find_scheme(name: str) -> Scheme | None:
    """Return the row of that name; None where there is none. A row of another package is entered into the table.

    ConfigurationError, which names the package, for a row that cannot be used.
    """
    if name not in SCHEMES:
        found = plugins.load(GROUP, name, lambda each: isinstance(each, Scheme) and each.name == name)
        if isinstance(found, Scheme):
            SCHEMES[name] = found
    return SCHEMES.get(name)


def scheme_of(name: str) -> Scheme:
    """The row of that name; ConfigurationError where there is none."""
    row = find_scheme(name)
    if row is None:
        raise ConfigurationError(f"scheme {name!r} is not known here: expected {either()}", "the scheme")
    return row


def tree_scheme() -> str:
    """The scheme by which a leaf's data goes up."""
    return next(row.name for row in SCHEMES.values() if row.trees)


def either(pattern: str = "{}", joint: str = " or ") -> str:
    """All schemes in words: `udp or zmq`."""
    known = [*SCHEMES, *(name for name in plugins.names(GROUP) if name not in SCHEMES)]
    return joint.join(pattern.format(name) for name in known)
