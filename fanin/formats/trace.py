"""One line of text per datagram, `key=value` pairs that `grep` and `awk` can work with.

    12.345678 > CONTRIBUTION job=1 worker=2 generation=0x5eed slot=7 base=0 codes=1 words=352 bytes=1448

`>` leaves this end, `<` arrives at it. The time is the tracer's clock, in seconds.
"""

from __future__ import annotations

from typing import Literal

from fanin.protocol.wire import Flag, Kind, Packet, Reason, WireError, parse

Direction = Literal[">", "<"]


def describe(data: bytes) -> str:
    """Describe a datagram in one line; for an illegal packet, give the reason."""
    try:
        packet = parse(data)
    except WireError as error:
        return f"ILLEGAL reason={error.reason.name} bytes={len(data)} head={data[:8].hex()}"
    parts = [packet.kind.name, f"job={packet.job}", f"worker={packet.worker}", f"generation={packet.generation:#x}"]
    parts += [f"slot={packet.slot}", f"base={packet.base}", *_details(packet)]
    flags = [flag.name or "" for flag in Flag if flag & packet.flags]
    if flags:
        parts.append(f"flags={'+'.join(flags)}")
    return " ".join([*parts, f"codes={len(packet.codes)}", f"words={len(packet.words)}", f"bytes={len(data)}"])


def trace_line(time_s: float, direction: Direction, data: bytes) -> str:
    """The line of this file's opening, without a line end."""
    return f"{time_s:.6f} {direction} {describe(data)}"


def _details(packet: Packet) -> list[str]:
    """The fields that mean something for this kind."""
    if packet.kind in (Kind.CONTRIBUTION, Kind.RESULT, Kind.ANSWER):
        details = [f"signature={packet.signature:#x}"]
        if packet.kind is not Kind.CONTRIBUTION:
            details += [f"bitmap={packet.bitmap:#x}", f"contributors={packet.contributors}"]
        return details
    if packet.kind is Kind.NOTICE:
        known = packet.contributors in Reason._value2member_map_
        return [f"reason={Reason(packet.contributors).name if known else packet.contributors}"]
    return [f"bitmap={packet.bitmap:#x}"] if packet.kind is Kind.WELCOME else []
