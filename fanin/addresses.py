"""Addresses of switches, and the value of FANIN_SWITCH, which tells where sums are made."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from fanin.errors import ConfigurationError
from fanin.schemes import DEFAULT, either, find_scheme

HOSTS, RANK0 = "hosts", "rank0"
"""Words that may stand in an address's place: switches that ranks start themselves."""
MAX_SWITCHES = 64
"""Addresses of one job: a worker has sockets and threads for each."""
MIN_WEIGHT, MAX_WEIGHT = 1e-3, 1e6
_FORM = "{}://host:port"


def host_and_port(host: str, port: int | str) -> str:
    """`10.0.0.1:4919`, `node1:4919`, `[fd00::1]:4919`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_brackets(what: str, text: str, before: str = "") -> None:
    """ConfigurationError for an IPv6 address without brackets, whose last group nobody can tell from a port."""
    host, _, port = text.rpartition(":")
    if ":" in host and "[" not in host and "@" not in host:
        if not _is_ipv6(host) and _is_ipv6(text):  # all of it is the address, so the port is missing
            host, port = text, "4919"
        raise ConfigurationError(
            f"{what} is an IPv6 address without brackets. Remedy: write it in brackets, as in "
            f"{before}{host_and_port(host, port)}"
        )


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class SwitchAddress:
    """Address of a switch: `udp://host:port` or another scheme of fanin/schemes.py. Control is TCP at the same port."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> SwitchAddress:
        """Read a URL; ConfigurationError says what is wrong with it."""
        scheme, _, rest = text.partition("://")
        check_brackets(f"switch address {text!r}", rest.removesuffix("/"), f"{scheme}://")
        try:
            url = urlsplit(text)
            port = url.port
        except ValueError as error:
            raise ConfigurationError(f"switch address {text!r}: {error}. Remedy: {_FORM.format(DEFAULT)}") from None
        legal = find_scheme(url.scheme) is not None and url.hostname and port is not None and url.path in ("", "/")
        if not legal or not text.isprintable() or url.hostname is None or port is None:
            raise ConfigurationError(f"switch address {text!r}: expected {either(_FORM)}", "the address")
        return cls(url.scheme, url.hostname, port)

    @property
    def is_loopback(self) -> bool:
        """Whether it is on this machine, as far as the address says so."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"{self.scheme}://{host_and_port(self.host, self.port)}"


@dataclass(frozen=True, slots=True)
class SwitchList:
    """The value of FANIN_SWITCH: `rank0`, `hosts`, addresses, or `hosts` and addresses; each but rank0 with `=WEIGHT`.

    A weight is the rate of the link there, in any unit that is the same for all; 1 where none is said.
    """

    word: str = ""
    """`hosts`, `rank0` or nothing."""
    hosts_weight: float = 1.0
    """Weight of the link of each host that does not state its own (FANIN_LINK)."""
    addresses: tuple[SwitchAddress, ...] = ()
    weights: tuple[float, ...] = ()
    """Weights of the addresses, one each."""

    @classmethod
    def parse(cls, text: str) -> SwitchList:
        """Parse the value; ConfigurationError, in one line, for an illegal one."""
        if text == RANK0:
            return cls(RANK0)
        word, hosts_weight = "", 1.0
        addresses: list[SwitchAddress] = []
        weights: list[float] = []
        for item in text.split(","):
            what, weight = _weighted(item.strip(), text)
            if what == RANK0:
                raise ConfigurationError(
                    f"switch = {text!r}: {RANK0} stands alone, without weights or addresses", "switch"
                )
            if what == HOSTS:
                if word:
                    raise ConfigurationError(f"switch = {text!r} says {HOSTS} twice", "switch")
                word, hosts_weight = HOSTS, weight
            else:
                addresses.append(SwitchAddress.parse(what))
                weights.append(weight)
        if len(addresses) > MAX_SWITCHES:
            raise ConfigurationError(f"switch names {len(addresses)} addresses; at most {MAX_SWITCHES}", "switch")
        if len(set(addresses)) < len(addresses):
            twice = next(each for each in addresses if addresses.count(each) > 1)
            raise ConfigurationError(f"switch = {text!r} names an address twice: {twice}", "switch")
        return cls(word, hosts_weight, tuple(addresses), tuple(weights))


def weight_of(said: str) -> float | None:
    """The weight that a text says, the rate of a link in any unit; None for what is none, or out of bounds."""
    try:
        weight = float(said)
    except ValueError:
        return None
    return weight if MIN_WEIGHT <= weight <= MAX_WEIGHT else None


def _weighted(item: str, text: str) -> tuple[str, float]:
    """Split an item `ADDRESS=2` of the list `text` into name and weight; the weight is 1 where none is given."""
    what, equals, said = item.partition("=")
    if not equals:
        return item, 1.0
    weight = weight_of(said)
    if weight is None:
        raise ConfigurationError(
            f"switch = {text!r}: {said!r} is no weight; expected the rate of the link there compared with the "
            f"others', {MIN_WEIGHT:g} to {MAX_WEIGHT:,.0f}",
            "switch",
        )
    return what.strip(), weight
