"""Settings of `fanin advise`, which neither its command line nor its `--help` needs torch for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fanin.errors import ConfigurationError
from fanin.options import Options
from fanin.settings import Bounds, Named, Text, commas

SUM_BYTES = Bounds(4096, 1 << 32)


def read_widths(name: str, text: str) -> tuple[int, ...]:
    """Read widths of lanes, each once: `32,8`."""
    try:
        return tuple(dict.fromkeys(int(each) for each in text.split(",")))
    except ValueError:
        raise ConfigurationError(f"--{name} {text!r}: expected widths with commas, as in 32,8", f"--{name}") from None


def read_switches(name: str, text: str) -> tuple[str, ...]:
    """Read addresses, each perhaps with a weight: `udp://a:4919,udp://b:4919=2`."""
    return tuple(each.strip() for each in text.split(",")) if text else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Settings of the measurement."""

    lanes: Annotated[tuple[int, ...], Text(read_widths, commas)] = (32, 16, 8)
    """Lane widths that training may use."""
    bytes: Annotated[int, SUM_BYTES] = 25 << 20
    """Bytes of the sum that is predicted and measured if no program is profiled."""
    switches: Annotated[tuple[str, ...], Named("switch"), Text(read_switches, commas)] = ()
    """Switches that are there, or could be, such as spare hosts'."""
    program: tuple[str, ...] = ()
    """A command line whose training steps are profiled."""
    measures: Annotated[bool, Named("measure")] = True
    """Measure the best two, besides predicting."""
    names: tuple[str, ...] = ()
    """Names of the ranks' hosts, if the launcher knows them."""

    def __post_init__(self) -> None:
        for lanes in self.lanes:
            Options(lanes=lanes)
        if self.switches:
            Options(switch=",".join(self.switches))
        if self.bytes not in SUM_BYTES:
            raise ConfigurationError(f"--bytes {self.bytes}: must be {SUM_BYTES}", "--bytes")
