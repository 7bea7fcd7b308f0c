"""The wire format: what one fanin datagram looks like, and how to read and write it.

Rules of this file
------------------
* Every integer is big-endian, so that a P4 parser, a dissector and a person with a hex dump read the same numbers.
* Byte offsets are named once, here. `native/wire/wire_constants.hpp` and the P4 headers are generated from this module
  (`python -m fanin.constants`), and a test fails when they drift apart.
* `parse` is the only way from bytes to a `Packet`. It never raises anything but `WireError`, which carries the
  reason under which the receiver counts the drop. A `Packet` holds legal values only; logic never sees bytes.
* One layout serves every kind: a fixed header, then `code_count` 16-bit scale codes (padded to a whole word),
  then 32-bit words up to the end of the datagram. What the fields mean for each kind stands in docs/protocol.md.

      0                   1                   2                   3
      0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
     +-------------------------------+---------------+---------------+
   0 |             magic             |    version    |     kind      |
     +-------------------------------+---------------+---------------+
   4 |              job              |    worker     |     flags     |
     +-------------------------------+---------------+---------------+
   8 |                          generation                           |
     +---------------------------------------------------------------+
  12 |                             slot                              |
     +---------------------------------------------------------------+
  16 |                             base                              |
     +---------------------------------------------------------------+
  20 |                           signature                           |
     +---------------------------------------------------------------+
  24 |                            bitmap                             |
     +-------------------------------+---------------+---------------+
  28 |         contributors          |  code_count   |     lanes     |
     +-------------------------------+---------------+---------------+
  32 |                           checksum                            |
     +---------------------------------------------------------------+
  36 |   scale codes (16 bits each), padded to 4 bytes; words ...    |
     +---------------------------------------------------------------+
"""

from __future__ import annotations

import enum
import functools
import struct
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MAGIC = 0xFA19
VERSION = 1

OFFSET_MAGIC = 0
OFFSET_VERSION = 2
OFFSET_KIND = 3
OFFSET_JOB = 4
OFFSET_WORKER = 6
OFFSET_FLAGS = 7
OFFSET_GENERATION = 8
OFFSET_SLOT = 12
OFFSET_BASE = 16
OFFSET_SIGNATURE = 20
OFFSET_BITMAP = 24
OFFSET_CONTRIBUTORS = 28
OFFSET_CODE_COUNT = 30
OFFSET_LANES = 31
OFFSET_CHECKSUM = 32
HEADER_BYTES = 36

WORD_BYTES = 4
CODE_BYTES = 2
MAX_WORKERS = 32
"""Workers of one switch: the bitmap is one 32-bit register."""
MAX_CODES = 64
"""Scale codes in one packet; bounds the header so that it fits any path."""
MAX_DATAGRAM_BYTES = 65_507
"""Largest UDP payload over IPv4: 65,535 less 20 (RFC 791) and 8 (RFC 768)."""
MAX_BASE = 2**32 - 1
"""Rounds that one slot can count. A job that gets there must be joined anew."""
ORDER_MASK = 0xFFFFFFFF
"""Orders of transmissions (the bitmap field of a contribution) are 32 bits wide and wrap around."""
SWITCH_WORKER = 0xFF
"""The `worker` field of packets that a switch originates for everybody."""
MAX_RUN = 16
"""Most passes, or bare results, in one run. A receipt tells of the highest order and the 32 before it, so it tells of
every order of two such runs in a row (switch/machine/receipts.py)."""
HELLO_RUNS = 1
"""Bit of a HELLO's `bitmap`: its sender takes bare results as runs. A switch that takes passes as runs answers RUN."""

LANES_SHIFT = 4
"""The `lanes` field, bits 4 to 7: the power of two that these words' lanes are to be multiplied by."""
LANES_UP = 2
"""Bits 2 and 3: log2 of the bits of a lane in these words."""
LANES_DOWN = 0
"""Bits 0 and 1: log2 of the bits of a lane in the round's result."""
MAX_SHIFT = 15
"""Largest shift that the field holds."""

_HEADER = struct.Struct("!HBBHBBIIIIIHBBI")
assert _HEADER.size == HEADER_BYTES


class Kind(enum.IntEnum):
    """Kind of a datagram. Values are on the wire: never renumber."""

    CONTRIBUTION = 1
    """Worker to switch: words of base `base` for `slot`; with Flag.PASS, an arrival without words."""
    RESULT = 2
    """Switch to all workers: round `base` of `slot`, closed."""
    ANSWER = 3
    """Switch to one worker: acknowledges its contribution `base`; result `base` unless Flag.BARE."""
    HELLO = 4
    """Worker to switch: registers the source address (words 0, 1 = token); afterwards a heartbeat."""
    WELCOME = 5
    """Switch to one worker: answers HELLO in the same length; words 0, 1 = workers lost, workers left."""
    NOTICE = 6
    """Switch to worker: something is refused or somebody is gone; `contributors` holds the Reason."""
    BYE = 7
    """Worker to switch: leaves the job (words 0, 1 = token); echoed by the switch."""
    PROBE = 8
    """Anybody to switch: is the data path open at this length? For `fanin doctor`."""
    ECHO = 9
    """Switch to the prober: the PROBE's own bytes, with this kind."""
    RECEIPT = 10
    """Switch to one worker: which of its transmissions have arrived. Only to contributions that carry an order."""


_KINDS = (Kind.CONTRIBUTION, *Kind)
"""Kinds by their number, 1 to 10; number 0 is none."""


class Flag(enum.IntFlag):
    """Bits of the flags field."""

    PASS = 1
    """This contribution is an arrival that adds nothing."""
    CHECKSUM = 2
    """The checksum field holds a CRC-32 (IEEE 802.3, as zlib.crc32) of the datagram with that field zero."""
    BARE = 4
    """On a contribution: its sender keeps none of the round's words, so its result may leave them out. On a result:
    they are left out. On an answer: it acknowledges, and carries no words.
    """
    LATE = 8
    """With PASS: the sender has seen that round `base` is over, so this arrival lets others go on past it (it moves
    the floor) and does not count towards the quorum of the round that is open now. Without PASS it is illegal."""
    RUN = 16
    """On a pass, or a bare result: it stands for several, of consecutive items; the `lanes` field is their number
    (`Packet.run`). On a WELCOME: the switch takes such passes.
    """

    # Twins look at flags several times per packet, and IntFlag's own `&` takes twenty times as long, to make a Flag.
    __and__ = int.__and__  # type: ignore[assignment]
    __rand__ = int.__rand__  # type: ignore[assignment]


_FLAGS = tuple(Flag(bits) for bits in range(2 * max(Flag)))
"""Flags by their bits."""

RECEIPT_REPEATED, RECEIPT_MARKED = 1, 2
"""Bits of a RECEIPT's `contributors`: the contribution that it answers was here already; since the last receipt one has
come that met congestion (fanin/protocol/ecn.py)."""


class Reason(enum.IntEnum):
    """Why a packet was dropped or a worker was told off; the keys of `fanin stats`' drop counters."""

    TOO_SHORT = 1
    BAD_MAGIC = 2
    VERSION = 3
    KIND = 4
    LENGTH = 5
    CHECKSUM = 6
    UNKNOWN_JOB = 7
    GENERATION = 8
    WORKER_RANGE = 9
    STRANGER = 10
    """The source address is not the one registered for that worker."""
    TOKEN = 11
    SLOT_RANGE = 12
    ANCIENT = 13
    """An old duplicate, so old that its base's bitmap has been taken over."""
    FUTURE = 14
    """base > open round: no worker that follows the host rules sends it."""
    MISMATCH = 15
    """Another worker contributed to this round with another signature or length: collectives differ."""
    EVICTED = 16
    WORKER_LOST = 17
    WORKER_LEFT = 18
    WORKER_JOINED = 19
    """News, no refusal, as the two before it: a new process has an evicted worker's place (jobs that go on only)."""
    BRANCH_LOST = 20
    """In a tree of switches: one above or beside the worker's own is gone, or has lost a worker. Final."""
    BRANCH_LEFT = 21
    """In a tree of switches: all workers of another switch have left; workers treat it like WORKER_LEFT."""
    TAG = 22
    """The keyed tag of a job that authenticates its packets is wrong. Counted, and never on the wire."""


TOLD_BY_NOTICE = frozenset(
    {
        Reason.VERSION, Reason.UNKNOWN_JOB, Reason.GENERATION, Reason.STRANGER, Reason.TOKEN, Reason.MISMATCH,
        Reason.EVICTED,
    }
)  # fmt: skip
"""Reasons that a switch tells the sender of the packet by a NOTICE, which is final there; others are only counted."""


class WireError(ValueError):
    """Bytes that are no legal packet; `reason` says under which name to count the drop."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


WITH_LANES = (Kind.CONTRIBUTION, Kind.RESULT, Kind.ANSWER)
"""Kinds whose `lanes` field may say something; in all others, in passes, bare results and answers it is 0."""
_KNOWN_FLAGS = len(_FLAGS) - 1  # an int: ~ of an IntFlag would forget the unknown bits


class LaneField(NamedTuple):
    """The `lanes` field of packets whose lanes a switch adds up one by one: docs/numerics.md, *Wide sums*."""

    up: int
    """Bits of a lane in these words: 2, 4 or 8."""
    down: int
    """Bits of a lane in the round's result: 4 or 8, `up` at least."""
    shift: int = 0
    """These words' lanes stand for 2^shift each: of a sum that was narrowed."""

    @property
    def field(self) -> int:
        """The byte on the wire, never 0."""
        widths = (self.up.bit_length() - 1) << LANES_UP | (self.down.bit_length() - 1) << LANES_DOWN
        return self.shift << LANES_SHIFT | widths

    @property
    def result(self) -> LaneField:
        """Lane field of the round's result, without a shift."""
        return LaneField(self.down, self.down)

    def result_words(self, words: int) -> int:
        """Words of the result of contributions of that many words."""
        return words * self.down // self.up

    @classmethod
    def parse(cls, field: int) -> LaneField | None:
        """Parse the byte of the field; None for 0, where words are added whole. WireError for illegal widths."""
        if not field:
            return None
        up, down = field >> LANES_UP & 3, field >> LANES_DOWN & 3
        if not 1 <= up <= down or down < 2:
            raise WireError(Reason.LENGTH, f"lanes = {field:#04x} is none that a switch adds up")
        return cls(1 << up, 1 << down, field >> LANES_SHIFT)


def codes_bytes(code_count: int) -> int:
    """Bytes that `code_count` scale codes take on the wire, padded to whole words."""
    return (code_count * CODE_BYTES + WORD_BYTES - 1) // WORD_BYTES * WORD_BYTES


def datagram_bytes(code_count: int, word_count: int) -> int:
    """Length in bytes of a datagram with that many codes and words."""
    return HEADER_BYTES + codes_bytes(code_count) + word_count * WORD_BYTES


@functools.cache
def no_words() -> npt.NDArray[np.uint32]:
    """The words of a packet without any: shape (0,), read-only, always the same array."""
    # numpy is imported by the functions that need it: a switch with native loops needs the layout alone, and numpy
    # would double the time that its process takes to start.
    import numpy as np

    none = np.empty(0, np.uint32)
    none.flags.writeable = False
    return none


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packet:
    """A legal packet. `words` are host-order uint32, shape (n,); `codes` are ints in 0..0xFFFF."""

    kind: Kind
    job: int = 0
    worker: int = 0
    flags: Flag = Flag(0)
    generation: int = 0
    slot: int = 0
    base: int = 0
    signature: int = 0
    bitmap: int = 0
    contributors: int = 0
    codes: tuple[int, ...] = ()
    words: npt.NDArray[np.uint32] = field(default_factory=no_words)
    lanes: LaneField | None = None
    """Lane field of a contribution to a round with an accumulator per lane, and of its result; None: words are added
    whole.
    """
    run: int = 1
    """With Flag.RUN in a pass or a bare result: the number of consecutive items. `words` hold the codes of all items
    but the first."""

    def to_bytes(self) -> bytes:
        """The datagram. With Flag.CHECKSUM set, the checksum is filled in."""
        head = _HEADER.pack(
            MAGIC, VERSION, self.kind, self.job, self.worker, self.flags, self.generation, self.slot, self.base,
            self.signature, self.bitmap, self.contributors, len(self.codes), self.lanes_field, 0,
        )  # fmt: skip
        codes = struct.pack(f"!{len(self.codes)}H", *self.codes).ljust(codes_bytes(len(self.codes)), b"\0")
        data = head + codes + self.words.astype(">u4").tobytes()
        if self.flags & Flag.CHECKSUM:
            return data[:OFFSET_CHECKSUM] + struct.pack("!I", zlib.crc32(data)) + data[HEADER_BYTES:]
        return data

    @property
    def lanes_field(self) -> int:
        """The `lanes` field on the wire; in a run its length."""
        if self.run > 1:
            return self.run
        return self.lanes.field if self.lanes else 0

    def part(self, index: int, slots: int) -> Packet:
        """Packet number `index` of a run, 0..run-1, in a job of that many slots.

        Items take slots in turn, and a new base each time around. Passes have consecutive orders, if they have any.
        """
        count, at = len(self.codes), self.slot + index
        width = codes_bytes(count)
        codes = (
            self.codes
            if not index
            else struct.unpack_from(f"!{count}H", self.words.astype(">u4").tobytes(), (index - 1) * width)
        )
        ordered = self.kind is Kind.CONTRIBUTION and self.bitmap
        return replace(
            self,
            flags=_FLAGS[self.flags & ~Flag.RUN],
            slot=at % slots,
            base=self.base + at // slots & ORDER_MASK,
            bitmap=self.bitmap + index & ORDER_MASK if ordered else self.bitmap,
            codes=codes, words=no_words(), run=1,
        )  # fmt: skip

    def followed_by(self, other: Packet, slots: int) -> Packet | None:
        """This and `other`, the next pass or bare result, as one run; None if they make none."""
        import numpy as np

        run = self.run + 1
        if run > MAX_RUN or len(other.codes) != len(self.codes):
            return None
        codes = struct.pack(f"!{len(other.codes)}H", *other.codes).ljust(codes_bytes(len(other.codes)), b"\0")
        words = np.append(self.words, np.frombuffer(codes, ">u4").astype(np.uint32))
        longer = replace(self, flags=self.flags | Flag.RUN, run=run, words=words)
        return longer if longer.part(run - 1, slots).to_bytes() == other.to_bytes() else None

    def reply(
        self,
        kind: Kind,
        *,
        signature: int = 0,
        bitmap: int = 0,
        contributors: int = 0,
        words: npt.NDArray[np.uint32] | None = None,
    ) -> Packet:
        """Return a packet to the sender of this one: same job, worker, generation, slot, base, and use of checksums."""
        return Packet(
            kind=kind,
            job=self.job,
            worker=self.worker,
            flags=_FLAGS[self.flags & Flag.CHECKSUM],
            generation=self.generation,
            slot=self.slot,
            base=self.base,
            signature=signature,
            bitmap=bitmap,
            contributors=contributors,
            words=no_words() if words is None else words,
        )


def parse(data: bytes | bytearray | memoryview) -> Packet:
    """Read one datagram; raise WireError for anything that is not exactly a legal packet."""
    import numpy as np

    if len(data) < HEADER_BYTES:
        raise WireError(Reason.TOO_SHORT, f"{len(data)} bytes; a header has {HEADER_BYTES}")
    (magic, version, kind, job, worker, flags, generation, slot, base, signature, bitmap, contributors, code_count,
     lanes, checksum) = _HEADER.unpack_from(data)  # fmt: skip
    if magic != MAGIC:
        raise WireError(Reason.BAD_MAGIC, f"magic {magic:#06x}; fanin's is {MAGIC:#06x}")
    if version != VERSION:
        raise WireError(Reason.VERSION, f"protocol version {version}; this side speaks {VERSION}")
    if not 0 < kind < len(_KINDS):
        raise WireError(Reason.KIND, f"kind {kind} is unknown")
    words_at = HEADER_BYTES + codes_bytes(code_count)
    if len(data) > MAX_DATAGRAM_BYTES or code_count > MAX_CODES or len(data) < words_at or (len(data) - words_at) % 4:
        raise WireError(Reason.LENGTH, f"{len(data)} bytes with {code_count} codes is no legal length")
    wordless = flags & Flag.PASS or (flags & Flag.BARE and kind != Kind.CONTRIBUTION)
    run = 1
    if flags & Flag.RUN and kind != Kind.WELCOME:
        run, lanes = lanes, 0
        joined = flags & Flag.PASS if kind == Kind.CONTRIBUTION else flags & Flag.BARE and kind == Kind.RESULT
        if not joined or not 2 <= run <= MAX_RUN or len(data) != HEADER_BYTES + run * codes_bytes(code_count):
            raise WireError(Reason.LENGTH, f"{len(data)} bytes with {code_count} codes is no run of {run}")
    if flags & ~_KNOWN_FLAGS or (lanes and (kind not in WITH_LANES or wordless)):
        raise WireError(Reason.LENGTH, f"reserved bits are set: flags {flags:#x}, lanes {lanes:#x}")
    summed = LaneField.parse(lanes)
    if flags & Flag.CHECKSUM:
        zeroed = bytes(data[:OFFSET_CHECKSUM]) + b"\0\0\0\0" + bytes(data[HEADER_BYTES:])
        if zlib.crc32(zeroed) != checksum:
            raise WireError(Reason.CHECKSUM, f"checksum {checksum:#010x} does not match the packet")
    return Packet(
        kind=_KINDS[kind],
        job=job,
        worker=worker,
        flags=_FLAGS[flags],
        generation=generation,
        slot=slot,
        base=base,
        signature=signature,
        bitmap=bitmap,
        contributors=contributors,
        codes=struct.unpack_from(f"!{code_count}H", data, HEADER_BYTES),
        words=np.frombuffer(data, ">u4", offset=words_at).astype(np.uint32), lanes=summed, run=run,
    )  # fmt: skip
