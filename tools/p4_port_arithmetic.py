"""What a port of a Tofino carries, by words per packet: the table of p4/README.md.

    python -m tools.p4_port_arithmetic

A port's bytes are those of the cable: frame, check sequence, preamble and gap. A pipe takes a packet per clock; what it
needs of that is said for a job that fills it, a worker behind each of its 16 ports. A second pass, where there is one,
is that of the packet that closes a round: it fetches the other half of the sums (p4/README.md, *Ports*), with header
`again` in front of it, and its port is taken to need preamble and gap as any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanin.formats.frames import HEAD_BYTES
from fanin.protocol.wire import datagram_bytes

PORT_BITS_PER_S = 100e9
PORTS_OF_PIPE = 16
CHECK_BYTES, PREAMBLE_BYTES, GAP_BYTES = 4, 8, 12
WORD_BYTES = 4


AGAIN_BYTES, LATE_BYTES = 5, 8
"""Of header `again`, and what a program with staleness has of it besides (p4/tna/types.p4)."""


@dataclass(frozen=True)
class Build:
    """A program."""

    name: str
    words: int
    again_bytes: int = 0
    """What a packet is longer in its second pass; 0: there is none."""


BUILDS = (
    Build("16, stale (`tofino-16`)", 16),
    Build("32, synchronous (`tofino-32-synchronous`)", 32),
    Build("32, stale (`tofino-32`)", 32, AGAIN_BYTES + LATE_BYTES),
    Build("40, stale (`tofino-40`)", 40, AGAIN_BYTES + LATE_BYTES),
    Build("48, synchronous (`tofino-48-synchronous`)", 48, AGAIN_BYTES),
)


def row(build: Build) -> str:
    """A line of the table. A job is as fast as its workers' ports or, if that is slower, as its second passes."""
    wire = HEAD_BYTES + datagram_bytes(1, build.words) + CHECK_BYTES + PREAMBLE_BYTES + GAP_BYTES
    rate = PORT_BITS_PER_S / 8 / wire
    goodput = build.words * WORD_BYTES / wire
    passes = PORT_BITS_PER_S / 8 / (wire + build.again_bytes) if build.again_bytes else 0.0
    job = min(rate, passes or rate) * build.words * WORD_BYTES * 8
    taken = PORTS_OF_PIPE * rate + passes
    again = f"{wire + build.again_bytes} bytes, {passes / 1e6:.1f} M/s" if build.again_bytes else "none"
    return (
        f"| {build.name} | {wire} | {rate / 1e6:.1f} M/s | {goodput * PORT_BITS_PER_S / 1e9:.1f} Gbit/s, "
        f"{goodput:.0%} | {again} | {job / 1e9:.1f} Gbit/s | {taken / 1e6:,.0f} M/s |"
    )


def table() -> str:
    """All of it, with its head."""
    head = (
        "| words per packet | bytes on the cable | packets of a port | sums of a port | second passes by a port | "
        f"sums of a job | packets of a pipe, {PORTS_OF_PIPE} workers |"
    )
    return "\n".join((head, "|---|---:|---:|---:|---:|---:|---:|", *map(row, BUILDS)))


if __name__ == "__main__":
    print(table())
