"""Computes the load of a Tofino's port by words per packet: the table of p4/README.md.

    python -m tools.p4_port_arithmetic

A port's bytes are those on the cable: frame, check sequence, preamble and gap. Its parser goes from state to state once
per clock; the clock, and the most states that a packet takes, are the compiler's (p4/build/*.resources.md). A pipe
takes a packet per clock; the last column shows its load by a job with a worker behind each of its 16 ports. A second
pass, in programs that have one, is that of the packet that closes a round: it fetches the other half of the sums
(p4/README.md, *Ports*), with header `again` in front of it, and its port is assumed to need preamble and gap as any
other. A leaf has two of them per round, since the parent's result passes twice as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fanin.formats.frames import HEAD_BYTES
from fanin.protocol.wire import datagram_bytes

PORT_BITS_PER_S = 100e9
PORTS_OF_PIPE = 16
CHECK_BYTES, PREAMBLE_BYTES, GAP_BYTES = 4, 8, 12
WORD_BYTES = 4
CLOCK_HZ = 1.22e9
"""Clock of a Tofino, as p4c-barefoot assumes it."""
PAGES = Path(__file__).resolve().parent.parent / "p4" / "build"

AGAIN_BYTES, LATE_BYTES, LEAF_BYTES = 5, 8, 4
"""Bytes of header `again`, and of its further headers in a program with staleness, and in one that can be a leaf
(p4/tna/types.p4).
"""


@dataclass(frozen=True)
class Build:
    """A program, as it was compiled for a Tofino."""

    name: str
    """Name of its artefacts in p4/build."""
    words: int
    staleness: str
    again_bytes: int = 0
    """Bytes by which a packet is longer in its second pass; 0 if there is none."""
    passes: int = 1
    """Second passes per round; a leaf has one for its contribution to the parent, and one for the parent's result."""

    @property
    def states(self) -> int:
        """Most states of the parser that a packet goes through, from the page of resources."""
        page = (PAGES / f"{self.name}.resources.md").read_text(encoding="utf-8")
        said = re.search(r"at most (\d+) states", page)
        if not said:
            raise ValueError(f"the page of {self.name} does not say how many states of the parser a packet takes")
        return int(said[1])


BUILDS = (
    Build("tofino-16", 16, "stale"),
    Build("tofino-32-synchronous", 32, "synchronous"),
    Build("tofino-32", 32, "stale", AGAIN_BYTES + LATE_BYTES),
    Build("tofino-40", 40, "stale", AGAIN_BYTES + LATE_BYTES),
    Build("tofino-56-synchronous", 56, "synchronous", AGAIN_BYTES),
    Build("tofino-48-synchronous-leaf", 48, "at a leaf", AGAIN_BYTES + LEAF_BYTES, 2),
)


def row(build: Build) -> str:
    """The line of one build. A job is limited by its workers' ports, their parsers, or its second passes."""
    wire = HEAD_BYTES + datagram_bytes(1, build.words) + CHECK_BYTES + PREAMBLE_BYTES + GAP_BYTES
    rate = PORT_BITS_PER_S / 8 / wire
    parsed = CLOCK_HZ / build.states
    goodput = build.words * WORD_BYTES / wire
    passes = PORT_BITS_PER_S / 8 / (wire + build.again_bytes) if build.again_bytes else 0.0
    job = min(rate, parsed, passes / build.passes or rate) * build.words * WORD_BYTES * 8
    taken = PORTS_OF_PIPE * min(rate, parsed) + passes
    again = f"{wire + build.again_bytes} bytes, {passes / 1e6:.1f} M/s" if build.again_bytes else "none"
    return (
        f"| {build.words}, {build.staleness} (`{build.name}`) | {wire} | "
        f"{rate / 1e6:.1f} M/s | {parsed / 1e6:.1f} M/s | "
        f"{goodput * PORT_BITS_PER_S / 1e9:.1f} Gbit/s, {goodput:.0%} | {again} | {job / 1e9:.1f} Gbit/s | "
        f"{taken / 1e6:,.0f} M/s |"
    )


def table() -> str:
    """The whole table, with its heading."""
    head = (
        "| words per packet | bytes on the cable | packets of a port | packets of a parser | sums of a port | "
        f"second passes by a port | sums of a job | packets of a pipe, {PORTS_OF_PIPE} workers |"
    )
    return "\n".join((head, "|---|---:|---:|---:|---:|---:|---:|---:|", *map(row, BUILDS)))


if __name__ == "__main__":
    print(table())
