"""Senders outside of a job, whose packets may have no effect but to be counted.

A stranger sends one of these, with equal probability:

* bytes that begin like a packet and continue at random, from an unregistered address;
* a copy of a packet that a switch has received, with up to four bytes changed and a valid checksum, from that address;
* such a copy with another generation, from the address of its sender: forging an address is possible over UDP, and a
  forger who sees no packets does not know the generation. (One who sees them can add to sums: docs/protocol.md.)
"""

from __future__ import annotations

import random
import struct
import zlib
from collections import deque

from fanin.emulation.simulator.peer_addresses import STRANGER_ADDRESS
from fanin.emulation.simulator.virtual_network import Datagrams, Network
from fanin.protocol.wire import HEADER_BYTES, MAGIC, OFFSET_CHECKSUM, OFFSET_FLAGS, OFFSET_GENERATION, VERSION, Flag

REMEMBERED = 64
"""Number of the last received packets that strangers copy from."""
VISITS_PER_FAULT = 40
"""Packets that strangers send to each switch during one fault."""
MOST_CHANGED_BYTES = 4


class Strangers:
    """All strangers: they see the packets that switches receive, and send their own."""

    def __init__(self, network: Network, switches: list[int], dice: random.Random) -> None:
        """`switches`: addresses; `dice`: a generator of their own, so that runs without strangers do not change."""
        self._network, self._switches, self._dice = network, switches, dice
        self._seen: deque[tuple[bytes, int]] = deque(maxlen=REMEMBERED)
        self._sent: set[bytes] = set()

    def stepped(self, address: int, received: tuple[bytes, int] | None, sent: Datagrams) -> None:
        """Implements the protocol `network.Watcher`."""
        if received is None or address not in self._switches or received[1] == STRANGER_ADDRESS:
            return
        # Skip strangers' own packets and damaged ones: a second change might restore the generation and, with a valid
        # checksum, make a member's packet with other words.
        if len(received[0]) >= HEADER_BYTES and received[0] not in self._sent and _is_sound(received[0]):
            self._seen.append(received)

    def visit(self, for_s: float) -> None:
        """Send to every switch VISITS_PER_FAULT times at random, within the next `for_s` seconds."""
        for switch in self._switches:
            for _ in range(VISITS_PER_FAULT):
                self._network.queue.after(self._dice.random() * for_s, self._knock, switch)

    def _knock(self, switch: int) -> None:
        data, source = self._packet()
        self._sent.add(data)
        self._network.arrive(source, switch, data)

    def _packet(self) -> tuple[bytes, int]:
        what = self._dice.randrange(3)
        if not self._seen or what == 0:
            head = struct.pack("!HB", MAGIC, VERSION)
            return head + self._dice.randbytes(self._dice.randint(0, HEADER_BYTES + 40)), STRANGER_ADDRESS
        original, source = self._dice.choice(self._seen)
        copy = bytearray(original)
        if what == 1:
            for _ in range(self._dice.randint(0, MOST_CHANGED_BYTES)):
                copy[self._dice.randrange(len(copy))] = self._dice.getrandbits(8)
            return _with_checksum(copy), STRANGER_ADDRESS
        copy[OFFSET_GENERATION] ^= 1 << self._dice.randrange(8)
        return _with_checksum(copy), source


def _is_sound(packet: bytes) -> bool:
    return _with_checksum(bytearray(packet)) == packet


def _with_checksum(packet: bytearray) -> bytes:
    if len(packet) >= HEADER_BYTES and packet[OFFSET_FLAGS] & Flag.CHECKSUM:
        struct.pack_into("!I", packet, OFFSET_CHECKSUM, 0)
        struct.pack_into("!I", packet, OFFSET_CHECKSUM, zlib.crc32(packet))
    return bytes(packet)
