"""The value of FANIN_INTERFACES: which network interfaces of a host carry a job's data.

| text | interfaces |
|---|---|
| `eth0,eth1` | these two, which must be up |
| `eth` | a text that is no interface's name: all that begin with it, are up and have an address |
| `=eth0,eth1` | these two alone, by their whole names |
| `^docker,veth` | all that are up and have an address, but for those that begin so, and for loopback |
| `^=docker0` | the same but for one, by its whole name |
| `eth0=10,eth1=25` | these two, of which the second is 2.5 times as fast |

Texts without rates mean what they mean in NCCL_SOCKET_IFNAME (NVIDIA NCCL user guide, *Environment Variables*), except
that a whole name there also stands for longer names that begin with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fanin.addresses import MAX_WEIGHT, MIN_WEIGHT, weight_of
from fanin.errors import ConfigurationError

MAX_INTERFACES = 8
"""Interfaces of one host: each has a switch process of its own."""


@dataclass(frozen=True, slots=True)
class InterfaceList:
    """The parsed value of FANIN_INTERFACES."""

    names: tuple[str, ...]
    rates: tuple[float, ...] = ()
    """One for each name, in any unit that is the same on all hosts; empty: none is given."""
    exact: bool = False
    """Whether names are whole; else a name that no interface has is the beginning of names."""
    excludes: bool = False
    """Whether the names are those of interfaces that carry nothing."""

    @classmethod
    def parse(cls, text: str) -> InterfaceList:
        """Parse; ConfigurationError, in one line, for what cannot be meant."""
        rest = text.removeprefix("^")
        excludes, exact = rest != text, rest.startswith("=")
        names, rates = [], []
        for item in rest.split(","):
            name, equals, rate = item.strip().removeprefix("=").partition("=")
            if not name or not name.isprintable() or any(map(str.isspace, name)):
                raise ConfigurationError(
                    f"interfaces = {text!r}: expected names of interfaces, as in eth0,eth1", "interfaces"
                )
            names.append(name)
            if equals:
                rates.append(_rate(rate, text))
        if len(set(names)) < len(names):
            raise ConfigurationError(f"interfaces = {text!r} has a name twice", "interfaces")
        if rates and (excludes or len(rates) < len(names)):
            text = f"interfaces = {text!r}: expected a rate for each interface, or for none"
            raise ConfigurationError(text, "interfaces")
        return cls(tuple(names), tuple(rates), exact, excludes)

    def select(self, present: Sequence[str], usable: Sequence[str]) -> list[tuple[str, float | None]]:
        """The chosen interfaces with their rates, in the order of the list (`excludes`: of `usable`).

        `present`: all of this host; `usable`: those of them that are up and have an address. A name that is no
        interface's is chosen as it is where no usable one begins with it, for the caller to miss.
        """
        if self.excludes:
            return [(each, None) for each in usable if not any(self._stands_for(name, each) for name in self.names)]
        chosen: dict[str, float | None] = {}
        for number, name in enumerate(self.names):
            rate = self.rates[number] if self.rates else None
            whole = self.exact or name in present
            for each in [name] if whole else [each for each in usable if self._stands_for(name, each)] or [name]:
                chosen.setdefault(each, rate)
        return list(chosen.items())

    def _stands_for(self, name: str, interface: str) -> bool:
        return interface == name if self.exact else interface.startswith(name)


def _rate(said: str, text: str) -> float:
    rate = weight_of(said)
    if rate is None:
        raise ConfigurationError(
            f"interfaces = {text!r}: {said!r} is no rate; expected a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:,.0f}",
            "interfaces",
        )
    return rate
