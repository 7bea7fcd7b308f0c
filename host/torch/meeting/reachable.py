"""Under which name or address the other ranks reach this process."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket

from fanin.errors import ConfigurationError
from fanin.host.torch.meeting.network_interfaces import address_of, address_outside

GLOO_INTERFACES = "GLOO_SOCKET_IFNAME"
"""gloo's variable: names of interfaces, separated by commas."""


def reachable_host() -> str:
    """The name or address under which the other ranks reach this process.

    Loopback where MASTER_ADDR is loopback or not set, or all ranks are here. Otherwise the address of the interface
    that GLOO_SOCKET_IFNAME names first, as of a network that is faster than the one to MASTER_ADDR. Otherwise
    MASTER_ADDR itself where it names this machine, since the others resolved it too, or the address that this machine
    uses on the way there. Where the name of this machine is a loopback address, as Debian has it: its address on the
    way out. Raises ConfigurationError for an interface without an address.
    """
    master = os.environ.get("MASTER_ADDR", "")
    if not master:
        return "127.0.0.1"
    try:
        family, _, _, _, target = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # a datagram socket sends nothing here; the system only picks the way
            own = str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
    if is_loopback(own):
        alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
        if alone or master in ("localhost", "::1") or master.startswith("127."):
            return "127.0.0.1"
    if interface := os.environ.get(GLOO_INTERFACES, "").split(",")[0]:
        if (address := address_of(interface)) is None:
            raise ConfigurationError(
                f"{GLOO_INTERFACES}={interface}: this machine has no interface of that name with an address. Remedy: "
                "`ip address` lists them"
            )
        return address
    if is_loopback(own):
        return address_outside() or "127.0.0.1"
    return master if own == target[0] else own


def one_machine() -> bool:
    """Whether the ranks can only reach each other on this machine."""
    host = reachable_host()
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def is_loopback(address: str) -> bool:
    """Whether an IPv4 or IPv6 address, a link's with its scope included, is this machine's own only."""
    return ipaddress.ip_address(address).is_loopback
