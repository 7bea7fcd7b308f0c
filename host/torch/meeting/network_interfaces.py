"""The addresses of this machine's interfaces, as Linux has them; elsewhere none are known.

`network_cards` chooses those that FANIN_INTERFACES names.
"""

from __future__ import annotations

import fcntl
import ipaddress
import logging
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fanin.errors import ConfigurationError
from fanin.interface_list import MAX_INTERFACES, InterfaceList

SIOCGIFFLAGS, SIOCGIFADDR = 0x8913, 0x8915  # linux/sockios.h
REQUEST = struct.Struct("16s24x")  # struct ifreq of linux/if.h: a name, and what is asked for
FLAGS = struct.Struct("16xH22x")
ADDRESS = struct.Struct("20x4s16x")
IFF_LOOPBACK, IFF_RUNNING = 0x8, 0x40  # linux/if.h
IPV6_ADDRESSES = Path("/proc/net/if_inet6")
GLOBAL_SCOPE = "00"
SPEED = "/sys/class/net/{}/speed"
"""Rate of an interface in Mbit/s (Linux, Documentation/ABI/testing/sysfs-class-net); -1, or no answer, where it has
none, as a virtual one has."""
OUTSIDE = ("192.0.2.1", "2001:db8::1")
"""Addresses that no host has (RFC 5737, RFC 3849): the route to them is the default route."""

log = logging.getLogger("fanin")


@dataclass(frozen=True, slots=True)
class NetworkCard:
    """An interface of this host that carries data between hosts."""

    name: str
    address: str
    rate: float | None = None
    """Rate that FANIN_INTERFACES gives it, in a unit that is the same on all hosts."""
    speed_mbps: int | None = None
    """Rate of its link in Mbit/s, as its driver reports it."""


def network_cards(chosen: InterfaceList, text: str) -> tuple[NetworkCard, ...]:
    """The interfaces that `chosen`, given as `text`, names; ConfigurationError where one is not usable."""
    there = [name for _, name in socket.if_nameindex()]
    usable = [name for name in there if _is_connected(name) and address_of(name) is not None]
    found = chosen.select(there, usable)
    why = ""
    if not found:
        why = "all interfaces that are up and have an address are left out"
    elif len(found) > MAX_INTERFACES:
        why = f"{len(found)} interfaces are meant, and a host can have {MAX_INTERFACES}"
    for name, _ in found:
        if name not in there:
            why = f"this machine has no interface {name}"
        elif not _has_flag(name, IFF_RUNNING):
            why = f"interface {name} is down, or its cable is not connected"
        elif address_of(name) is None:
            why = f"interface {name} has no address"
    if why:
        usable_here = f"those that are up and have an address are {', '.join(usable)}" if usable else "none is usable"
        raise ConfigurationError(f"FANIN_INTERFACES={text}: {why}; {usable_here}. Remedy: `ip address` lists them")
    return tuple(NetworkCard(name, address_of(name) or "", rate, _speed_mbps(name)) for name, rate in found)


def own_address_towards(host: str) -> str | None:
    """The address from which the kernel sends to a name or address; None where no way leads there. Sends nothing."""
    try:
        family, _, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None


def card_towards(host: str) -> str:
    """The card through which the kernel sends to a name or address, for people: `eth1 (10.0.1.2)`."""
    address = own_address_towards(host)
    if address is None:
        return f"none towards {host}"
    return f"{interface_of(address) or 'unnamed'} ({address})"


def warn_of_idle_cards(cards: Sequence[NetworkCard], hosts: Iterable[str]) -> None:
    """Log the cards through which the kernel sends nothing that is for `hosts`: names or addresses of other machines.

    It sends by destination: of two cards on one network, all packets for that network leave through one.
    """
    if len(cards) < 2 or not (others := tuple(hosts)):  # looking names up may take time
        return
    used = {own_address_towards(host) for host in others}
    if idle := [card.name for card in cards if card.address not in used]:
        log.warning(
            "FANIN_INTERFACES: this host sends nothing through %s, since other interfaces are on the way to %s. "
            "Remedy: give every card a network of its own, on all hosts",
            ", ".join(idle),
            ", ".join(others),
        )


def _speed_mbps(interface: str) -> int | None:
    try:
        speed = int(Path(SPEED.format(interface)).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return speed if speed > 0 else None


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
    """Return the address from which this machine reaches other networks, or that of its first connected interface."""
    if own := next(filter(None, map(own_address_towards, OUTSIDE)), None):
        return own
    return next(
        (address for _, name in socket.if_nameindex() if _is_connected(name) if (address := address_of(name))), None
    )


def _is_connected(interface: str) -> bool:
    return _has_flag(interface, IFF_RUNNING) and not _has_flag(interface, IFF_LOOPBACK)


def _has_flag(interface: str, flag: int) -> bool:
    try:
        (flags,) = FLAGS.unpack(_ask(SIOCGIFFLAGS, interface))
    except OSError:
        return False
    return bool(flags & flag)


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
