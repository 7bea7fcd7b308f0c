"""The keyed tag of data packets, readable: it takes the checksum's place in a job that authenticates its packets.

Rules
-----
* A job's data key is derived from the key of its control messages, its index and its generation
  (fanin/protocol/seal.py). Each flow and each worker (by its token) has a key of its own, derived from that;
  results and other packets for all workers have one key for all, since they go out in identical bytes. So a packet
  that was recorded in another job, in another flow, or from an earlier process never holds.
* The tag is computed over the whole datagram, whose checksum field says meanwhile which way it goes: what one side said
  cannot be sent back to it as the other's.
* The datagram, padded with zeros to whole blocks of 32 bytes, is dealt out word by word (64 bits, little-endian) to
  four lanes. Lane j is SipHash-2-4 of the word j and of its own words; the tag is the low half of SipHash-2-4 of the
  datagram's length and the four lanes. Four chains side by side keep a vector unit busy, one would not.
* That is algorithm `siphash`. Algorithm `gcm-siv` keeps keys, directions and the field: the tag is the first 32 bits of
  AES-128-GCM-SIV's (fanin/protocol/gcm_siv.py) with the datagram as associated data, an empty plaintext and a nonce
  that never changes. It is a function of key and datagram alone, so that sending the same bytes again shows nothing.
* 32 bits: see docs/security.md.

Twin of native/kernels/packet_tag.cpp. SipHash: Aumasson and Bernstein, "SipHash: a fast short-input PRF", INDOCRYPT
2012.
"""

from __future__ import annotations

import enum
import hmac
import struct
from collections.abc import Sequence

from fanin.protocol import gcm_siv
from fanin.protocol.tag_algorithm import GCM_SIV, SIPHASH, TagAlgorithm
from fanin.protocol.wire import HEADER_BYTES, OFFSET_CHECKSUM, OFFSET_WORKER, SWITCH_WORKER

NONCE = b"fanin packet"
"""Nonce of every packet under algorithm gcm-siv."""
LANES = 4
BLOCK_BYTES = 8 * LANES
_MASK = 2**64 - 1
_APART = 128
"""Bits from one lane's word to the next one's, where they are in one number."""
_EACH = sum(1 << _APART * lane for lane in range(LANES))


class Direction(enum.IntEnum):
    """Direction of a datagram; it stands in the checksum field while the tag is computed."""

    TO_SWITCH = 1
    FROM_SWITCH = 2


class Purpose(enum.IntEnum):
    """Purpose of a derived key."""

    FLOW = 0
    WORKER = 1
    EVERYBODY = 2


def siphash24(key: bytes, message: bytes) -> int:
    """SipHash-2-4 of any bytes under a key of 16: 64 bits."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v0, v1 = k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D
    v2, v3 = k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573
    tail = message[len(message) // 8 * 8 :].ljust(7, b"\0") + bytes([len(message) & 0xFF])
    words = struct.unpack(f"<{len(message) // 8 + 1}Q", message[: len(message) // 8 * 8] + tail)
    for number in range(len(words) + 2):
        ends = number >= len(words)
        if number == len(words):
            v2 ^= 0xFF
        word = 0 if ends else words[number]
        v3 ^= word
        for _ in range(2):
            v0, v2 = v0 + v1 & _MASK, v2 + v3 & _MASK
            v1, v3 = (v1 << 13 & _MASK | v1 >> 51) ^ v0, (v3 << 16 & _MASK | v3 >> 48) ^ v2
            v0 = v0 << 32 & _MASK | v0 >> 32
            v2, v0 = v2 + v1 & _MASK, v0 + v3 & _MASK
            v1, v3 = (v1 << 17 & _MASK | v1 >> 47) ^ v2, (v3 << 21 & _MASK | v3 >> 43) ^ v0
            v2 = v2 << 32 & _MASK | v2 >> 32
        v0 ^= word
    return v0 ^ v1 ^ v2 ^ v3


def derived(key: bytes, purpose: Purpose, value: int = 0) -> bytes:
    """The key that another one gives for a purpose and a number of 64 bits."""
    halves = [siphash24(key, struct.pack("<BBQ", purpose, half, value)) for half in range(2)]
    return struct.pack("<QQ", *halves)


def of_flow(data_key: bytes, flow: int) -> bytes:
    """The key of one flow of a job; none (empty) where the job has none."""
    return derived(data_key, Purpose.FLOW, flow) if data_key else b""


def of_worker(flow_key: bytes, token: int) -> bytes:
    """Key of packets that a worker sends, and of packets to it alone."""
    return derived(flow_key, Purpose.WORKER, token)


def of_everybody(flow_key: bytes) -> bytes:
    """Key of packets that go to all workers."""
    return derived(flow_key, Purpose.EVERYBODY)


def tag(
    key: bytes, datagram: bytes | bytearray | memoryview, direction: Direction, algorithm: TagAlgorithm = SIPHASH
) -> int:
    """The 32 bits that belong into the datagram's checksum field; what stands there now does not matter."""
    data = bytes(datagram)
    data = data[:OFFSET_CHECKSUM] + struct.pack("!I", direction) + data[HEADER_BYTES:]
    if algorithm == GCM_SIV:
        return int.from_bytes(gcm_siv.tag(key, NONCE, b"", data)[:4], "big")
    data += bytes(-len(data) % BLOCK_BYTES)
    lanes = _lanes(key, data)
    return siphash24(key, struct.pack(f"<{1 + LANES}Q", len(datagram), *lanes)) & 0xFFFFFFFF


def _lanes(key: bytes, data: bytes) -> list[int]:
    """`siphash24` of each lane, which are side by side in one long number: a word each, and a word of room."""
    import numpy as np  # here, for the reason that `wire.no_words` gives

    blocks = np.zeros((len(data) // BLOCK_BYTES, LANES, 2), "<u8")
    blocks[:, :, 0] = np.frombuffer(data, "<u8").reshape(-1, LANES)
    rows = blocks.tobytes()
    words = [sum(lane << _APART * lane for lane in range(LANES))]
    words += [int.from_bytes(rows[at : at + 2 * BLOCK_BYTES], "little") for at in range(0, len(rows), 2 * BLOCK_BYTES)]
    words.append(_EACH * ((8 * len(words) & 0xFF) << 56))
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:], "little")
    v0, v1 = _EACH * (k0 ^ 0x736F6D6570736575), _EACH * (k1 ^ 0x646F72616E646F6D)
    v2, v3 = _EACH * (k0 ^ 0x6C7967656E657261), _EACH * (k1 ^ 0x7465646279746573)
    every = _EACH * _MASK
    for number in range(len(words) + 2):
        if number == len(words):
            v2 ^= _EACH * 0xFF
        word = words[number] if number < len(words) else 0
        v3 ^= word
        for _ in range(2):
            v0, v2 = v0 + v1 & every, v2 + v3 & every
            r1, r3, r0 = v1 << 13, v3 << 16, v0 << 32  # what leaves a word comes back at its other end
            v1, v3 = ((r1 | r1 >> 64) & every) ^ v0, ((r3 | r3 >> 64) & every) ^ v2
            v0 = (r0 | r0 >> 64) & every
            v2, v0 = v2 + v1 & every, v0 + v3 & every
            r1, r3, r2 = v1 << 17, v3 << 21, v2 << 32
            v1, v3 = ((r1 | r1 >> 64) & every) ^ v2, ((r3 | r3 >> 64) & every) ^ v0
            v2 = (r2 | r2 >> 64) & every
        v0 ^= word
    hashes = v0 ^ v1 ^ v2 ^ v3
    return [hashes >> _APART * lane & _MASK for lane in range(LANES)]


def tagged(key: bytes, datagram: bytes, direction: Direction, algorithm: TagAlgorithm = SIPHASH) -> bytes:
    """The datagram with its tag."""
    made = struct.pack("!I", tag(key, datagram, direction, algorithm))
    return datagram[:OFFSET_CHECKSUM] + made + datagram[HEADER_BYTES:]


def tag_holds(
    key: bytes, datagram: bytes | bytearray | memoryview, direction: Direction, algorithm: TagAlgorithm = SIPHASH
) -> bool:
    """Whether a datagram (of a header at least) carries its tag."""
    claimed = bytes(datagram[OFFSET_CHECKSUM:HEADER_BYTES])
    return hmac.compare_digest(struct.pack("!I", tag(key, datagram, direction, algorithm)), claimed)


class PacketKeys:
    """The keys of one flow of a job, as its switch has them. Without a flow key, nothing is tagged and all holds."""

    def __init__(self, flow_key: bytes, tokens: Sequence[int], algorithm: TagAlgorithm = SIPHASH) -> None:
        self._flow_key, self._algorithm = flow_key, algorithm
        self._workers = [of_worker(flow_key, token) for token in tokens] if flow_key else []
        self._everybody = of_everybody(flow_key) if flow_key else b""

    def renew(self, worker: int, token: int) -> None:
        """Give a worker's place to a new process, so that tags of the earlier process hold no more."""
        if self._flow_key:
            self._workers[worker] = of_worker(self._flow_key, token)

    def finish(self, datagram: bytes) -> bytes:
        """A datagram of the switch's, with its tag."""
        if not self._flow_key:
            return datagram
        worker = datagram[OFFSET_WORKER]
        key = self._everybody if worker == SWITCH_WORKER else self._workers[worker]
        return tagged(key, datagram, Direction.FROM_SWITCH, self._algorithm)

    def holds(self, datagram: bytes | bytearray | memoryview, worker: int) -> bool:
        """Whether a datagram comes from that worker."""
        if not self._flow_key:
            return True
        return tag_holds(self._workers[worker], datagram, Direction.TO_SWITCH, self._algorithm)


class MemberKeys:
    """The keys of one flow of a job, as one of its workers has them, or a leaf at its parent."""

    def __init__(self, flow_key: bytes, token: int, algorithm: TagAlgorithm = SIPHASH) -> None:
        self._algorithm = algorithm
        self._own = of_worker(flow_key, token) if flow_key else b""
        self._everybody = of_everybody(flow_key) if flow_key else b""

    def finish(self, datagram: bytes) -> bytes:
        """A datagram to the switch, with its tag."""
        return tagged(self._own, datagram, Direction.TO_SWITCH, self._algorithm) if self._own else datagram

    def holds(self, datagram: bytes | bytearray | memoryview) -> bool:
        """Whether a datagram comes from the switch, to this worker or to all."""
        key = self._everybody if self._own and datagram[OFFSET_WORKER] == SWITCH_WORKER else self._own
        return not key or tag_holds(key, datagram, Direction.FROM_SWITCH, self._algorithm)
