"""How a model's flat gradient becomes rounds: each chunk owns a slot, so that a slot's rounds are iterations.

One reduction per round carries the whole gradient. Every round gives each shard the same chunks: P F for one with F
flows of P slots, so that chunk c of them meets slot c div F of flow c mod F every time. The array is padded to whole
flows of all shards, one after another. Its first elements are not gradient. In TALLY_BINS of them the workers agree on
the next scale (scale.py); a flag for each parameter may follow, which says that a contribution has a gradient of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fanin.errors import ConfigurationError
from fanin.host.codecs.words import codec_for
from fanin.host.stale.scale import TALLY_BINS
from fanin.numerics.reduction import WIDE_SUMS, Element
from fanin.protocol.job import JobSpec
from fanin.protocol.spread import MIN_PACKETS_PER_SHARD, Spread

MAX_WIDE_CONTRIBUTIONS = 64
"""Most contributions to a round of wide sums: with more, narrowing could hide one worker's entry in the tally
(scale.py).
"""
MAX_SLOTS = 65_536
"""Upper limit of fanin.Options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The shape of every round of one stale job."""

    elements: int
    """Number of gradient elements, float32."""
    words_per_packet: int
    flows: tuple[int, ...]
    """Number of flows of each shard."""
    weights: tuple[int, ...] = (1,)
    """Share of a round for each shard, relative to the others' (fanin/protocol/spread.py)."""
    lanes: int = 32
    workers: int = 1
    """Number N of workers."""
    staleness: int = 0
    """S_max, the largest that may be in force: lanes are sized for M = N (S_max + 1) contributions."""
    flags: int = 0
    """Elements behind the tally that are not gradient, either: one per parameter that may be without a gradient."""
    chunk_elements: int = field(init=False)
    slots: tuple[int, ...] = field(init=False)
    """P, per flow, of each shard that has a part: all, or the first alone where they would get too few packets."""

    def __post_init__(self) -> None:
        if self.elements < 1:
            raise ConfigurationError(
                "a model without parameters has nothing to contribute"
                ". Remedy: give a model with parameters that are trained"
            )
        spec = JobSpec(  # what codecs look at; the job itself may not exist yet
            job=0, generation=0, workers=self.workers, quorum=self.workers, staleness=self.staleness, slots=1,
            words_per_packet=self.words_per_packet, tokens=(0,) * self.workers, accumulators=True,
        )  # fmt: skip
        self._check_tally(spec.contributions)
        # Raises for lanes that hold no level of so many contributions.
        codec = codec_for(Element.FLOAT32, self.lanes, self.head + self.elements, spec)
        object.__setattr__(self, "chunk_elements", codec.packet_elements)
        chunks = codec.packets
        shards = 1 if chunks < MIN_PACKETS_PER_SHARD * len(self.flows) else len(self.flows)
        whole = sum(self.weights[:shards])
        shares = zip(self.weights[:shards], self.flows, strict=False)
        object.__setattr__(self, "slots", tuple(-(-chunks * weight // (whole * flows)) for weight, flows in shares))
        if max(self.slots) > MAX_SLOTS:
            raise ConfigurationError(
                f"{self.elements} gradient elements need {max(self.slots)} slots per flow, and a job has at most "
                f"{MAX_SLOTS}. Remedy: set FANIN_WORDS_PER_PACKET higher, or give the switch more flows"
            )

    def _check_tally(self, contributions: int) -> None:
        """ConfigurationError for lanes in which narrowing might lose a worker's entry in the tally."""
        if self.lanes not in WIDE_SUMS:
            return
        up, down = WIDE_SUMS[self.lanes]
        if down < 8 or contributions > MAX_WIDE_CONTRIBUTIONS:
            raise ConfigurationError(
                f"lanes = {up}/{down} in a stale job of {contributions} contributions per round: the workers agree on "
                "the next scale within the sums, where 8 bits down are needed, and "
                f"{MAX_WIDE_CONTRIBUTIONS} contributions at most. Remedy: lanes = '8/8' or '4/8', fewer workers, or "
                "packed lanes"
            )

    @property
    def head(self) -> int:
        """Elements before the gradient: the tally and the flags."""
        return TALLY_BINS + self.flags

    @property
    def spread(self) -> Spread:
        """Distribution of a round's chunks over the shards: each gets one per slot."""
        return Spread(tuple(slots * flows for slots, flows in zip(self.slots, self.flows, strict=False)), 1)

    @property
    def chunks(self) -> int:
        """Chunks of a round, over all flows."""
        return sum(self.spread.weights)

    @property
    def padded(self) -> int:
        """Elements of the array that a round carries."""
        return self.chunks * self.chunk_elements
