"""A worker's request: one reduction of one flat array, described by addresses so that no library is favoured.

A `Reduction` names memory by address because the fast path reads and writes the user's tensors in place, with no copy.
Its maker keeps that memory alive until the reduction is done (`owner` helps: the engine holds on to it).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from fanin.errors import ConfigurationError

LANES = (32, 16, 8, 4)
"""Legal lane widths in bits."""
EXACT = 0
"""In the place of a lane width: no lanes are shared. Every rank's elements travel in words of their own, and each rank
reduces them all in the order of ranks (fanin/numerics/exact.py): exact for every operator, at N times the words."""

FIRST_NAMED_CODEC, LAST_NAMED_CODEC = 64, 127
"""In the place of a lane width: a codec of its own (host/codecs/words), such as integers in narrow lanes."""
COPIED = FIRST_NAMED_CODEC + 1
"""In the place of a lane width: bytes as they are, four to a word. Each byte is contributed by one rank and is zero in
all other contributions, so no addition carries."""


WIDE_SUMS = {96 + 15: (8, 8), 96 + 11: (4, 8), 96 + 10: (4, 4), 96 + 7: (2, 8), 96 + 6: (2, 4)}
"""In the place of a lane width: bits up and bits down, of lanes that the switch adds up one by one
(fanin/numerics/wide_sums.py). Integers and float64 then take 32 bits."""
PACKED_LANES = {widths: number - 16 for number, widths in WIDE_SUMS.items()}
"""Numbers by (bits up, bits down) of wide sums whose contributions were packed elsewhere, as on a GPU
(host/codecs/words/packed_lanes.py)."""
QUANTIZED_LANES = (*LANES, *WIDE_SUMS)
"""Every number under which floats are quantized, in lanes that are packed or added up one by one."""


def lanes_number(lanes: int | str) -> int:
    """`Reduction.lanes` for a width in the form that people write; ConfigurationError for an illegal one.

    A number: packed lanes of so many bits. A text: bits up / bits down of wide sums, where "8" and "4" are "8/8" and
    "4/4"; "32" and "16", which need no accumulators, are packed.
    """
    if isinstance(lanes, str):
        wide = {f"{up}/{down}": number for number, (up, down) in WIDE_SUMS.items()}
        number = wide.get(lanes if "/" in lanes else f"{lanes}/{lanes}")
        if number is None and lanes in ("32", "16"):
            number = int(lanes)
        if number is not None:
            return number
    elif lanes in LANES:
        return lanes
    texts = ", ".join(f"'{up}/{down}'" for up, down in WIDE_SUMS.values())
    raise ConfigurationError(f"lanes = {lanes!r}; must be one of {LANES}, or bits up / bits down: {texts}", "lanes")


class Element(enum.IntEnum):
    """Element types that go through the switch. Values are shared with the native code."""

    FLOAT32 = 0
    FLOAT64 = 1
    FLOAT16 = 2
    BFLOAT16 = 3
    INT32 = 4
    INT16 = 5
    INT8 = 6
    UINT8 = 7
    INT64 = 8
    """Wider than what a switch adds: travels with lanes = EXACT only."""

    @property
    def bytes(self) -> int:
        """Size of one element in memory."""
        return (4, 8, 2, 2, 4, 2, 1, 1, 8)[self]

    @property
    def floating(self) -> bool:
        """Whether the element is quantized (floating point) or added as it is (integers, wrapping)."""
        return self <= Element.BFLOAT16


class Operator(enum.IntEnum):
    """Operation on the ranks' elements. Values are shared with the native code; all but SUM need lanes = EXACT."""

    SUM = 0
    MIN = 1
    MAX = 2
    PRODUCT = 3
    BAND = 4
    BOR = 5
    BXOR = 6

    @property
    def bitwise(self) -> bool:
        """Whether the operator is for integers alone."""
        return self >= Operator.BAND


PackedReduction = tuple[int, int, int, Element, int, int, int, int, int, int, float]
"""A reduction that its caller waits for, by the fields that differ from a `Reduction`'s defaults: source, destination,
count, element, lanes, tag, keep_first, keep_count, own_first, own_count and divisor. (A tuple: Python's part around the
engine takes longer than a small reduction does.)"""


@dataclass(slots=True, kw_only=True)
class Reduction:
    """Sum `count` elements at `source` over all workers into `destination`. Not to be changed once submitted.

    (Not frozen: one is made for every collective, and freezing it costs more than the rest of making it.)

    Only elements [keep_first, keep_first + keep_count) of the result are written, the first of them at `destination`:
    all for an all-reduce, one's own part for a reduce-scatter, none for a rank that is not the root of a reduce.

    With lanes = COPIED, each byte has one owner. This rank contributes elements [own_first, own_first + own_count),
    and passes packets in which it owns none: a part of an all-gather, all of a broadcast at its root. Its own elements
    are not sent back to it: those that are kept are copied, unless they are in their place.
    """

    source: int
    """Address of `count` contiguous elements, or of the `own_count` ones. May be their place within `destination`."""
    destination: int
    """Address that receives `keep_count` elements; unused when that is 0."""
    count: int
    element: Element
    lanes: int = 32
    """Word codec (host/codecs/words): bits per lane of floats, 32, 16, 8 or 4 (integers and float64 then take 32);
    EXACT; or the number of another codec, from FIRST_NAMED_CODEC on.
    """
    operator: Operator = Operator.SUM
    divisor: float = 1.0
    """The result is divided by it (AVG: the number of workers). 0: each chunk by the contributions that it holds."""
    factor: float = 1.0
    """Every element is multiplied by it before it is quantized (PREMUL_SUM)."""
    residual: int = 0
    """Address of `count` float32 of error feedback, updated in place; 0 for none."""
    keep_first: int = 0
    keep_count: int = -1
    """Number of elements to keep; -1: all."""
    own_first: int = 0
    own_count: int = -1
    """With lanes = COPIED: how many elements this rank contributes. -1, otherwise: all of them, as all ranks do."""
    tag: int = 0
    """32 bits for the purpose of the sum, which must agree between ranks as ticket, count, element and lanes must."""
    signature: int = 0
    """32 bits that must agree between ranks; the engine makes one from all that must agree when 0. In a job with
    staleness it must be given, the same for all rounds: contributions of several meet in one."""
    scale_code: int = 0
    """A scale code (docs/numerics.md) for every element, that all ranks have agreed on beforehand; larger elements are
    clipped, and what is clipped goes into the residual. 0: the ranks agree per chunk, one window ahead."""
    passes: bool = False
    """Contribute nothing: the source is not read, and the round goes on without this rank."""
    counts: int = 0
    """Address of a uint32 per chunk of all flows, that receives how many contributions its result holds; 0: none."""
    arrivals: int = 0
    """Address of a uint32 per chunk of all flows, that receives the bitmap of the workers whose contributions, or
    passes, are in its round; 0: none."""
    owner: object = field(default=None, repr=False, compare=False)
    """An object that keeps the memory alive."""

    def __post_init__(self) -> None:
        if self.lanes not in LANES and self.lanes != EXACT and not FIRST_NAMED_CODEC <= self.lanes <= LAST_NAMED_CODEC:
            raise ConfigurationError(f"lanes = {self.lanes}; must be one of {LANES}, or {EXACT} for exact")
        if self.lanes != EXACT and (self.operator is not Operator.SUM or self.element is Element.INT64):
            raise ConfigurationError(f"{self.operator.name} of {self.element.name} needs lanes = {EXACT} (exact)")
        if self.operator is not Operator.SUM and self.divisor != 1.0:
            raise ConfigurationError(f"{self.operator.name} is not divided")
        if self.operator.bitwise and self.element.floating:
            raise ConfigurationError(f"{self.operator.name} of {self.element.name}: bits are for integers")
        if self.lanes == EXACT and (self.scale_code or self.passes):
            raise ConfigurationError("an exact reduction has no scale_code and no pass")
        if self.count < 0 or self.keep_first < 0 or self.keep_first + self.kept > self.count:
            raise ConfigurationError(f"keeping [{self.keep_first}, +{self.kept}) of {self.count} elements")
        if self.own_count >= 0 and self.lanes != COPIED:
            raise ConfigurationError("elements with an owner (own_count) travel as they are: lanes = COPIED")
        if self.own_count >= 0 and not 0 <= self.own_first <= self.count - self.own_count:
            raise ConfigurationError(f"owning [{self.own_first}, +{self.own_count}) of {self.count} elements")
        if self.own_count >= 0 and (self.passes or self.counts):
            raise ConfigurationError(
                "elements with an owner: their rank passes where it has none, and none are counted"
            )
        given = self.count if self.own_count < 0 else self.own_count
        if (not self.source and given and not self.passes) or (not self.destination and self.kept):
            # Tensors without memory of their own (freed, fake, wrapped) give address 0, which would end the process.
            raise ConfigurationError("elements at address 0: a tensor without memory of its own was submitted")
        if self.residual and not (self.element.floating and self.element is not Element.FLOAT64):
            raise ConfigurationError(f"error feedback is for float32, float16 and bfloat16, not {self.element.name}")
        if not 0 <= self.scale_code < 0xFFFF or (self.scale_code and not self.element.floating):
            raise ConfigurationError(f"scale_code = {self.scale_code:#x} for {self.element.name}: no finite scale")
        if self.passes and (self.residual or (self.element.floating and not self.scale_code)):
            raise ConfigurationError("a pass has no residual, and of floating point it needs a scale_code")

    @classmethod
    def of(cls, packed: PackedReduction, owner: object) -> Reduction:
        """Make the Reduction of a packed one."""
        source, destination, count, element, lanes, tag, keep_first, keep_count, own_first, own_count, divisor = packed
        return cls(
            source=source, destination=destination, count=count, element=Element(element), lanes=lanes, tag=tag,
            keep_first=keep_first, keep_count=keep_count, own_first=own_first, own_count=own_count, divisor=divisor,
            owner=owner,
        )  # fmt: skip

    @property
    def kept(self) -> int:
        """Elements of the result that are written."""
        return self.count if self.keep_count < 0 else self.keep_count


def sum_in_place(
    address: int, count: int, element: Element, lanes: int, tag: int, divisor: float = 1.0
) -> PackedReduction:
    """A sum of `count` elements at `address` into the same memory, divided as `Reduction.divisor` says."""
    return (address, address, count, element, lanes, tag, 0, -1, 0, -1, divisor)
