"""Under which name or address the other ranks reach this process."""

from __future__ import annotations

import contextlib
import ipaddress
import os

from fanin.errors import ConfigurationError
from fanin.host.torch.meeting.network_interfaces import address_of, address_outside, way_to

GLOO_INTERFACES = "GLOO_SOCKET_IFNAME"
"""gloo's variable: names of interfaces, separated by commas."""


def reachable_host() -> str:
    """The name or address under which the other ranks reach this process.

    Loopback where MASTER_ADDR is loopback or not set, or all ranks are here. Otherwise the address of the interface
    that GLOO_SOCKET_IFNAME names first, as of a network that is faster than the one to MASTER_ADDR. Otherwise
    MASTER_ADDR itself where it names this machine, since the others resolved it too, or the address that this machine
    uses on the way there. Where the name of this machine is a loopback address, as Debian has it: its address on the
    way out. Where MASTER_ADDR is a link-local IPv6 address: another address of the interface towards it, since hosts
    may call their interfaces differently. Raises ConfigurationError for an interface without an address.
    """
    master = os.environ.get("MASTER_ADDR", "")
    way = way_to(master) if master else None
    if way is None:
        return "127.0.0.1"
    own = way.own
    if is_loopback(own):
        alone = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")
        if alone or master in ("localhost", "::1") or master.startswith("127."):
            return "127.0.0.1"
    if interface := os.environ.get(GLOO_INTERFACES, "").split(",")[0]:
        if (address := address_of(interface, own_address_at_meeting())) is None:
            raise ConfigurationError(
                f"{GLOO_INTERFACES}={interface}: this machine has no interface of that name with an address",
                f"{GLOO_INTERFACES}: `ip address` lists them",
            )
        return address
    if is_loopback(own):
        return address_outside() or "127.0.0.1"
    if way.is_link_local:
        if (address := address_of(way.interface, own)) is None:
            raise ConfigurationError(
                f"rank {os.environ.get('RANK', '?')}: interface {way.interface}, which leads to MASTER_ADDR={master}, "
                "has a link-local address alone, which other hosts cannot use. Remedy: give interfaces of all hosts "
                "addresses of one network, such as fd00::1/64, and set MASTER_ADDR to one of them"
            )
        return address
    return master if own == way.target else own


def own_address_at_meeting() -> str:
    """The address from which this machine sends to MASTER_ADDR; empty where that is none, or loopback.

    The other ranks reach MASTER_ADDR, too, so they have addresses of its family.
    """
    way = way_to(os.environ.get("MASTER_ADDR", ""))
    return "" if way is None or is_loopback(way.own) else way.own


def one_machine() -> bool:
    """Whether the ranks can only reach each other on this machine."""
    host = reachable_host()
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost" or os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


def is_loopback(address: str) -> bool:
    """Whether an IPv4 or IPv6 address, a link's with its scope included, is this machine's own only."""
    return ipaddress.ip_address(address).is_loopback
