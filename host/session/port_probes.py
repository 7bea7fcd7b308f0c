"""How long packets may be that a switch's data port answers, of any job: PROBE and ECHO (docs/protocol.md).

A path may drop long packets and say nothing of it, as tunnels do whose routers may not send ICMP. Then every short
packet is answered, and what a job needs is not.
"""

from __future__ import annotations

import time

from fanin.protocol.wire import HEADER_BYTES, WORD_BYTES, Kind, Packet, WireError, parse
from fanin.transports.transport import SWITCH, Transport

ATTEMPTS = 4
TIMEOUT_S = 0.5
"""Time limit of each attempt."""
USUAL_LENGTHS = (16_384, 8_924, 4_096, 1_452, 1_372, 1_232, 548, HEADER_BYTES)
"""Lengths of datagrams beside the one that is wanted: of jumbo frames, Ethernet, tunnels, minima."""


def longest_answered(transport: Transport, wanted_bytes: int) -> int:
    """The longest PROBE that comes back as ECHO, of those with `wanted_bytes` and of USUAL_LENGTHS below; 0: none does.

    Takes ATTEMPTS times TIMEOUT_S where the wanted one is not answered, and a round trip where it is. Lengths are those
    of datagrams, in bytes, and multiples of 4.
    """
    wanted = wanted_bytes // WORD_BYTES * WORD_BYTES
    lengths = [wanted, *(length for length in USUAL_LENGTHS if length < wanted)]
    longest = 0
    for attempt in range(ATTEMPTS):
        packet = Packet(kind=Kind.PROBE, slot=attempt).to_bytes()
        transport.send([(packet.ljust(length, b"\0"), SWITCH) for length in lengths if length > longest])
        deadline = time.monotonic() + TIMEOUT_S
        while longest < wanted and (left_s := deadline - time.monotonic()) > 0:
            echoed = [len(data) for data, _ in transport.receive(left_s) if _is_echo(data)]
            longest = max([longest, *(length for length in echoed if length in lengths)])
        if longest == wanted:
            break
    return longest


def _is_echo(data: bytes) -> bool:
    try:
        return parse(data).kind is Kind.ECHO
    except WireError:
        return False
