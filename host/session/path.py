"""Facts that a worker's own machine knows about the way to the switch: whether it answers, path MTU, receive buffer.

Everything here is bounded in time, name resolution included.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import threading
import time
from dataclasses import dataclass

from fanin.addresses import host_and_port
from fanin.errors import SwitchUnreachableError
from fanin.interruptions import interrupts
from fanin.options import SwitchAddress
from fanin.protocol.window import RECEIVE_BUFFER_REQUEST_BYTES
from fanin.schemes import scheme_of
from fanin.transports.numeric import host_of, socket_address
from fanin.transports.path_mtu import DEFAULT_MTU, LARGEST_MTU, datagram_mtu, stream_mtu

RETRY_INTERVAL_S = 0.1
"""Between two attempts to connect."""
NAME_TIMEOUT_S = 1.0
"""How long a switch's name may take to resolve where an error is to name both ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFacts:
    """Facts about the path that Join reports."""

    path_mtu: int
    receive_buffer_bytes: int
    """The receive buffer, as SO_RCVBUF reads: see fanin/protocol/window.py."""
    local: bool
    """Whether packets stay on this machine: the address is one of its own."""
    own_address: str = ""
    """This machine's numeric address on this way; empty where none is known."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The address at which the switch's control port accepts TCP."""

    host: str
    """Numeric address of the host."""
    stream_mtu: int
    """The longest packet that TCP would send there."""


def start_hint(address: SwitchAddress, *, refused_ipv6: bool = False) -> str:
    """The remedy where no switch answers. `refused_ipv6`: an address of IPv6 refuses connections, as it does where a
    switch was started without --bind.
    """
    if refused_ipv6:
        return (
            f"Remedy: start one there with `fanin switch --bind '[::]:{address.port}'`, since without --bind it is on "
            f"IPv4 alone, or correct {_source(address)}; `fanin doctor {address}` tells more"
        )
    bind = host_and_port(address.host, address.port)
    return (
        f"Remedy: start one there (`fanin switch --bind {bind}`) or correct {_source(address)}; "
        f"`fanin doctor {address}` tells more"
    )


def _source(address: SwitchAddress) -> str:
    """The place that has an address to be corrected: FANIN_SWITCH, where it holds this one."""
    return "FANIN_SWITCH" if str(address) in os.environ.get("FANIN_SWITCH", "") else "the address"


def resolve(address: SwitchAddress, timeout_s: float) -> list[str]:
    """Numeric addresses of the switch's host, best first. SwitchUnreachableError when the name does not resolve."""
    found: list[str] = []
    failures: list[OSError | UnicodeError] = []

    def ask() -> None:
        try:
            answers = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            found.extend(dict.fromkeys(host_of(answer[4]) for answer in answers))
        except (OSError, UnicodeError) as error:  # UnicodeError: letters that no name of a host may have
            failures.append(error)

    # A thread, since the system's resolver takes no timeout; a daemon, since it may outlive this call.
    asking = threading.Thread(target=ask, name="fanin resolve", daemon=True)
    asking.start()
    asking.join(timeout_s)
    if found:
        return found
    why = f"no answer for {timeout_s:.1f} s"
    if failures:
        why = getattr(failures[0], "strerror", None) or "it is not the name of a host"
    _, scoped, interface = address.host.partition("%")
    if scoped and interface not in {name for _, name in socket.if_nameindex()}:
        raise SwitchUnreachableError(
            str(address),
            f"switch {address}: this machine has no interface {interface!r}. Remedy: correct {_source(address)}; "
            "`ip address` lists the interfaces, and the one that leads to the switch belongs there",
        )
    raise SwitchUnreachableError(
        str(address),
        f"the name {address.host!r} of switch {address} does not resolve ({why}). Remedy: correct {_source(address)}, "
        "or this machine's name service",
    )


def reach(address: SwitchAddress, timeout_s: float, *, patient: bool) -> Reached:
    """The address at which the switch's control port accepts TCP.

    `patient`: try again for `timeout_s` when the connection is refused, since the switch may be starting just then.
    Raises SwitchUnreachableError with the last reason.
    """
    deadline = time.monotonic() + timeout_s
    hosts = resolve(address, timeout_s)
    if all(map(_lacks_interface, hosts)):
        remedy = f"name it, as in {SwitchAddress(address.scheme, f'{hosts[0]}%eth0', address.port)}"
        raise SwitchUnreachableError(
            str(address),
            f"no switch can be reached at {address}: a link-local address wants the interface of this machine that "
            f"leads there. Remedy: {remedy}",
            remedy,
        )
    why, unreachable, refused_ipv6 = "no answer", False, False
    for attempt in range(int(timeout_s / RETRY_INTERVAL_S) + 1):
        for host in hosts:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            try:
                # The first attempt leaves time for the name's other addresses.
                own_s = left_s if attempt else left_s / len(hosts)
                with socket.create_connection((host, address.port), own_s) as connected:
                    return Reached(host, stream_mtu(connected))
            except OSError as error:
                if interrupts(error):  # a time limit by SIGALRM often raises a TimeoutError
                    raise
                silent = isinstance(error, TimeoutError)
                why = "no answer: a firewall drops it, or the host is down" if silent else os_error_text(error)
                unreachable = error.errno == errno.ENETUNREACH
                refused_ipv6 = error.errno == errno.ECONNREFUSED and all(":" in each for each in hosts)
        if not patient or time.monotonic() + RETRY_INTERVAL_S >= deadline:
            break
        time.sleep(RETRY_INTERVAL_S)
    tried = f"; tried for {timeout_s:g} s" if patient else ""
    remedy = route_remedy(hosts[0]) if unreachable else ""
    hint = f"Remedy: {remedy}" if remedy else start_hint(address, refused_ipv6=refused_ipv6)
    raise SwitchUnreachableError(
        str(address),
        f"no switch answers at {address} (TCP port {address.port} for control: {why}{tried}). {hint}",
        remedy,
    )


def route_remedy(host: str) -> str:
    """The remedy where no network leads to `host`, a numeric address."""
    if ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        return "bring the loopback interface up, `ip link set lo up`"
    return f"see `ip address` and `ip route get {host}`"


def discover(scheme: str, there: Reached, port: int) -> PathFacts:
    """Ask the kernel about datagrams to that host. Sends nothing."""
    host = there.host
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_REQUEST_BYTES)
        buffer_bytes = probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        mtu, local, own_address = DEFAULT_MTU, False, ""
        with contextlib.suppress(OSError):
            probe.connect(socket_address(host, port)[1])
            own_address = host_of(probe.getsockname())
            local = own_address == host
            mtu = datagram_mtu(probe) if local else min(datagram_mtu(probe), there.stream_mtu)
    if not scheme_of(scheme).packets_are_datagrams:
        mtu = LARGEST_MTU  # a message has no packet size there, so the longest datagram is fine
    return PathFacts(path_mtu=mtu, receive_buffer_bytes=buffer_bytes, local=local, own_address=own_address)


def look_again(address: SwitchAddress) -> PathFacts | None:
    """The way to the switch as the system knows it now; None where the name does not resolve within NAME_TIMEOUT_S."""
    with contextlib.suppress(OSError, SwitchUnreachableError):
        there = Reached(resolve(address, NAME_TIMEOUT_S)[0], LARGEST_MTU)
        return discover(address.scheme, there, address.port)
    return None


def exposed(facts: PathFacts, scheme: str, *, curve: bool) -> bool:
    """Whether somebody elsewhere may see packets on this way, and forge them if they carry no keyed tag."""
    row = scheme_of(scheme)
    return row.leaves_machine and not facts.local and not (row.curve_protects and curve)


def os_error_text(error: OSError) -> str:
    """An operating system error in a user's words."""
    if error.errno == errno.ENETUNREACH:
        return f"{error.strerror}: no network of this machine leads there"
    if error.errno == errno.EHOSTUNREACH:  # nobody answers ARP or neighbour discovery, or ICMP says so
        return f"{error.strerror}: no host has that address on its network, or a firewall rejects it"
    if error.errno == errno.EACCES:  # ICMPv6 "administratively prohibited", as firewalld sends
        return f"{error.strerror}: a firewall rejects it"
    if error.errno == errno.ECONNREFUSED:
        return "connection refused: nothing listens there, or a firewall rejects it"
    if error.errno == errno.EINVAL:
        return f"{error.strerror}: a link-local address wants its interface, as in udp://[fe80::1%eth0]:4919"
    return error.strerror or str(error)


def _lacks_interface(host: str) -> bool:
    """Whether a numeric address is a link-local one of IPv6 without the interface that it belongs to."""
    return ":" in host and "%" not in host and ipaddress.ip_address(host).is_link_local
