"""What a port of a Tofino carries, by words per packet: the table of p4/README.md.

    python -m tools.p4_port_arithmetic

A port's bytes are those of the cable: frame, check sequence, preamble and gap. A pipe takes a packet per clock; what it
needs of that is said for a job that fills it, a worker behind each of its 16 ports. A second pass, where there is one,
is that of the packet that closes a round: it fetches the other half of the sums (p4/README.md, *Ports*).
"""

from __future__ import annotations

from dataclasses import dataclass

from fanin.formats.frames import HEAD_BYTES
from fanin.protocol.wire import datagram_bytes

PORT_BITS_PER_S = 100e9
PORTS_OF_PIPE = 16
CHECK_BYTES, PREAMBLE_BYTES, GAP_BYTES = 4, 8, 12
WORD_BYTES = 4


@dataclass(frozen=True)
class Build:
    """A program, there or planned."""

    name: str
    words: int
    second_pass: bool = False


BUILDS = (
    Build("16, stale (`tofino-16`)", 16),
    Build("32, synchronous (`tofino-32-synchronous`)", 32),
    Build("32, stale; pairs", 32, second_pass=True),
    Build("40, stale; pairs", 40, second_pass=True),
    Build("64, synchronous; pairs", 64, second_pass=True),
)


def row(build: Build) -> str:
    """A line of the table."""
    wire = HEAD_BYTES + datagram_bytes(1, build.words) + CHECK_BYTES + PREAMBLE_BYTES + GAP_BYTES
    rate = PORT_BITS_PER_S / 8 / wire
    goodput = build.words * WORD_BYTES / wire
    passes = rate if build.second_pass else 0.0
    taken = PORTS_OF_PIPE * rate + passes
    again = f"{passes / 1e6:.1f} M/s, {passes * wire * 8 / 1e9:.0f} Gbit/s" if build.second_pass else "none"
    return (
        f"| {build.name} | {wire} | {rate / 1e6:.1f} M/s | {goodput * PORT_BITS_PER_S / 1e9:.1f} Gbit/s, "
        f"{goodput:.0%} | {again} | {taken / 1e6:,.0f} M/s |"
    )


def table() -> str:
    """All of it, with its head."""
    head = (
        "| words per packet | bytes on the cable | packets of a port | sums of a port | second passes of a job | "
        f"packets of a pipe, {PORTS_OF_PIPE} workers |"
    )
    return "\n".join((head, "|---|---:|---:|---:|---:|---:|", *map(row, BUILDS)))


if __name__ == "__main__":
    print(table())
