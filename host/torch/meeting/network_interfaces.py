"""The addresses of this machine's interfaces, as Linux has them; elsewhere none are known."""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct
from pathlib import Path

SIOCGIFFLAGS, SIOCGIFADDR = 0x8913, 0x8915  # linux/sockios.h
REQUEST = struct.Struct("16s24x")  # struct ifreq of linux/if.h: a name, and what is asked for
FLAGS = struct.Struct("16xH22x")
ADDRESS = struct.Struct("20x4s16x")
IFF_LOOPBACK, IFF_RUNNING = 0x8, 0x40  # linux/if.h
IPV6_ADDRESSES = Path("/proc/net/if_inet6")
GLOBAL_SCOPE = "00"
OUTSIDE = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses that no host has (RFC 5737, RFC 3849): the route to them is the default route."""


def address_of(interface: str) -> str | None:
    """An address of that interface by which others reach it, IPv4 if there is one; None where it has none."""
    try:
        return str(ipaddress.IPv4Address(ADDRESS.unpack(_ask(SIOCGIFADDR, interface))[0]))
    except OSError:
        return next((address for name, address in _ipv6_addresses() if name == interface), None)


def interface_of(address: str) -> str | None:
    """The interface that has that address; None where none has it."""
    return next((name for _, name in socket.if_nameindex() if address_of(name) == address), None)


def address_outside() -> str | None:
    """This machine's address on the way out; without such a way, that of the first interface which is connected."""
    for target, family in OUTSIDE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))  # sends nothing
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return next(
        (address for _, name in socket.if_nameindex() if _is_connected(name) if (address := address_of(name))), None
    )


def _is_connected(interface: str) -> bool:
    try:
        (flags,) = FLAGS.unpack(_ask(SIOCGIFFLAGS, interface))
    except OSError:
        return False
    return bool(flags & IFF_RUNNING) and not flags & IFF_LOOPBACK


def _ipv6_addresses() -> list[tuple[str, str]]:
    """Names of interfaces and their IPv6 addresses of global scope."""
    try:
        lines = IPV6_ADDRESSES.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    found = [line.split() for line in lines]
    return [
        (name, str(ipaddress.IPv6Address(bytes.fromhex(digits))))
        for digits, _, _, scope, _, name in found
        if scope == GLOBAL_SCOPE
    ]


def _ask(what: int, interface: str) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        return fcntl.ioctl(any_socket, what, REQUEST.pack(interface.encode()))
