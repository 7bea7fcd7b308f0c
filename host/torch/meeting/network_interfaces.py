"""The addresses of this machine's interfaces, as Linux has them; elsewhere none are known.

`network_cards` chooses those that FANIN_INTERFACES names.
"""

from __future__ import annotations

import contextlib
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
IFA_F_TEMPORARY, IFA_F_DADFAILED, IFA_F_DEPRECATED, IFA_F_TENTATIVE = 0x01, 0x08, 0x20, 0x40  # linux/if_addr.h
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


@dataclass(frozen=True, slots=True)
class Way:
    """How the kernel sends to a host."""

    own: str
    """The numeric address from which it sends, without an interface."""
    target: str
    """The numeric address of the host, as the resolver has it."""
    interface: str = ""
    """The interface of a link-local own address; empty for any other."""

    @property
    def is_link_local(self) -> bool:
        """Whether the own address names this machine only together with an interface, which each host calls its own."""
        return bool(self.interface)


def network_cards(chosen: InterfaceList, text: str, like: str = "") -> tuple[NetworkCard, ...]:
    """The interfaces that `chosen`, given as `text`, names; ConfigurationError where one is not usable.

    `like`: an address, whose family is preferred where an interface has addresses of both.
    """
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
        raise ConfigurationError(
            f"FANIN_INTERFACES={text}: {why}; {usable_here}", "FANIN_INTERFACES: `ip address` lists them"
        )
    return tuple(NetworkCard(name, address_of(name, like) or "", rate, _speed_mbps(name)) for name, rate in found)


def way_to(host: str) -> Way | None:
    """The way to a name or address; None where none leads there. Sends nothing.

    Of a name with several addresses it is the way to the first one to which this machine has a route: a name may have
    an IPv6 address, and this machine none.
    """
    try:
        found = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, _, _, _, target in found:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # a datagram socket sends nothing here; the system only picks the way
            own = probe.getsockname()
            interface = socket.if_indextoname(own[3]) if family == socket.AF_INET6 and own[3] else ""
            return Way(str(own[0]), str(target[0]), interface)
    return None


def own_address_towards(host: str) -> str | None:
    """The address from which the kernel sends to a name or address; None where no way leads there. Sends nothing."""
    way = way_to(host)
    return None if way is None else way.own


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
    # An interface may have several IPv6 addresses, of which the kernel sends from another one than the card's.
    through = {interface_of(address) for address in used if address is not None}
    if idle := [card.name for card in cards if card.address not in used and card.name not in through]:
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


def address_of(interface: str, like: str = "") -> str | None:
    """An address of that interface by which others reach it; None where it has none.

    Where it has addresses of both families: one of the family of the address `like`, IPv4 without it.
    """
    wide = [address for name, address in _ipv6_addresses() if name == interface]
    try:
        narrow = [str(ipaddress.IPv4Address(ADDRESS.unpack(_ask(SIOCGIFADDR, interface))[0]))]
    except OSError:
        narrow = []
    return next(iter(wide + narrow if ":" in like else narrow + wide), None)


def interface_of(address: str) -> str | None:
    """The interface that has that address; None where none has it, or it is link-local."""
    if ":" in address:
        return next((name for name, its in _ipv6_addresses() if its == address), None)
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
    """Names of interfaces and their IPv6 addresses of global scope (unique local ones are) that can be used.

    Those that stay come first: before temporary addresses (RFC 8981), which change every day, and deprecated ones.
    """
    try:
        lines = IPV6_ADDRESSES.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    found = [
        (int(flags, 16), name, str(ipaddress.IPv6Address(bytes.fromhex(digits))))
        for digits, _, _, scope, flags, name in map(str.split, lines)
        if scope == GLOBAL_SCOPE
    ]
    usable = [each for each in found if not each[0] & (IFA_F_TENTATIVE | IFA_F_DADFAILED)]
    usable.sort(key=lambda each: bool(each[0] & (IFA_F_TEMPORARY | IFA_F_DEPRECATED)))
    return [(name, address) for _, name, address in usable]


def _ask(what: int, interface: str) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        return fcntl.ioctl(any_socket, what, REQUEST.pack(interface.encode()))
