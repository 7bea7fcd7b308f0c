"""State of a packet besides its fields, and functions that compiled code calls at run time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from fanin.errors import PacketError
from fanin.switch.p4.expressions import MAX_SHIFT

NO_CUT = 1 << 30
"""`PacketState.cut` of a packet that is not truncated."""

log = logging.getLogger("fanin.switch.p4")


class ParserStop(Exception):  # noqa: N818 (no error of ours: a parser's way out)
    """Ends parsing with an error of the program: `code`, after `at` parsed bytes."""

    def __init__(self, code: int, at: int) -> None:
        super().__init__(code)
        self.code = code
        self.at = at


class PacketState:
    """One packet on its way through parser, pipelines and deparser: `k` in compiled code."""

    __slots__ = (
        "arrived", "clone", "cut", "digest", "exit", "length", "now_us", "payload", "port", "random", "recirculate",
        "resubmit",
    )  # fmt: skip

    def __init__(self, arrived: int, random: Callable[[int], int], now_us: int = 0, port: int = 0) -> None:
        """A packet of `arrived` bytes that came in at `now_us` through `port`. `random(n)` draws from 0..n-1."""
        self.arrived = arrived
        self.port = port
        """Port of arrival, kept in all passes, unlike the field ingress_port."""
        self.now_us = now_us
        self.digest = 0
        """Number of a learn list if the program asked for a digest; 0 otherwise."""
        self.length = arrived
        """Length in bytes, updated as headers are added and removed."""
        self.payload = b""
        """Bytes behind the parsed headers."""
        self.cut = NO_CUT
        """Length to which the packet is cut when it leaves the switch."""
        self.exit = False
        self.clone: tuple[int, int] | None = None
        """Mirror session and field list if the program asked for a clone; else None."""
        self.resubmit = 0
        """Number of a field list if the program asked to resubmit; 0 otherwise."""
        self.recirculate = 0
        self.random = random

    def copied(self) -> PacketState:
        """The state of a replica, without the requests (clone, digest, resubmit, ...) made for the original."""
        copy = PacketState(self.arrived, self.random, self.now_us, self.port)
        copy.length, copy.payload, copy.cut = self.length, self.payload, self.cut
        return copy

    def log(self, text: str, values: Sequence[int]) -> None:
        """Log the text of a program's log_msg."""
        for value in values:
            text = text.replace("{}", str(value), 1)
        log.info("%s", text)


# --- functions of compiled code ---


def shifted(value: int, amount: int) -> int:
    """`value << amount`, 0 for amounts of MAX_SHIFT or more, since packets may choose the amount."""
    return value << amount if amount < MAX_SHIFT else 0


def element(bases: tuple[int, ...], index: int) -> int:
    """The first place of a stack's element. PacketError for an element that does not exist."""
    if not 0 <= index < len(bases):
        raise PacketError(f"element {index} of a header stack of {len(bases)} was asked for")
    return bases[index]


def last(f: list[int], bases: tuple[int, ...], following: int) -> int:
    """The first place of a stack's last element; `following`: place of its fill level. PacketError if it is empty."""
    if not f[following]:
        raise PacketError("the last element of an empty header stack was asked for")
    return bases[f[following] - 1]


def pushed(f: list[int], bases: tuple[int, ...], following: int, places: int, valid: int, count: int) -> None:
    """push_front (P4_16 section 8.18): move elements up by `count`, with invalid ones at the front."""
    f[following] = min(len(bases), f[following] + count)
    for at in range(len(bases) - 1, count - 1, -1):
        source = bases[at - count]
        f[bases[at] : bases[at] + places] = f[source : source + places]
    for base in bases[:count]:
        f[base + valid] = 0


def popped(f: list[int], bases: tuple[int, ...], following: int, places: int, valid: int, count: int) -> None:
    """pop_front (P4_16 section 8.18): move elements down by `count`, with invalid ones at the end."""
    f[following] = max(0, f[following] - count)
    for at in range(len(bases) - count):
        source = bases[at + count]
        f[bases[at] : bases[at] + places] = f[source : source + places]
    for base in bases[max(0, len(bases) - count) :]:
        f[base + valid] = 0


RUNTIME = {
    "PacketError": PacketError,
    "ParserStop": ParserStop,
    "element": element,
    "last": last,
    "popped": popped,
    "pushed": pushed,
    "shifted": shifted,
}
"""Names that compiled code uses."""
