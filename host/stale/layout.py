"""How a model's flat gradient becomes rounds: each chunk owns a slot, so that a slot's rounds are iterations.

One reduction per round carries the whole gradient. For chunk c to meet slot c div F of flow c mod F in every round,
each round must have exactly P chunks in each of F flows: the array is padded to P F chunks. Its first TALLY_BINS
elements are not gradient: there the workers agree on the next scale (scale.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fanin.errors import ConfigurationError
from fanin.host.codecs.words import codec_for
from fanin.host.stale.scale import TALLY_BINS
from fanin.numerics.reduction import Element
from fanin.protocol.job import JobSpec

MAX_SLOTS = 65_536
"""What fanin.Options takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The shape of every round of one stale job."""

    elements: int
    """Gradient elements, float32."""
    words_per_packet: int
    flows: int
    lanes: int = 32
    workers: int = 1
    """N."""
    staleness: int = 0
    """The largest S that may be in force: lanes are sized for N (S + 1) contributions."""
    chunk_elements: int = field(init=False)
    slots: int = field(init=False)
    """P, per flow."""

    def __post_init__(self) -> None:
        if self.elements < 1:
            raise ConfigurationError("a model without parameters has nothing to contribute")
        spec = JobSpec(  # of the job as far as codecs know it: there may be none yet
            job=0,
            generation=0,
            workers=self.workers,
            quorum=self.workers,
            staleness=self.staleness,
            slots=1,
            words_per_packet=self.words_per_packet,
            tokens=(0,) * self.workers,
        )
        # Raises for lanes that hold no level of so many contributions.
        codec = codec_for(Element.FLOAT32, self.lanes, TALLY_BINS + self.elements, spec)
        object.__setattr__(self, "chunk_elements", codec.packet_elements)
        chunks = codec.packets
        object.__setattr__(self, "slots", -(-chunks // self.flows))
        if self.slots > MAX_SLOTS:
            raise ConfigurationError(
                f"{self.elements} gradient elements need {self.slots} slots per flow, and a job has at most "
                f"{MAX_SLOTS}: set FANIN_WORDS_PER_PACKET higher, or give the switch more flows"
            )

    @property
    def chunks(self) -> int:
        """Chunks of a round, over all flows."""
        return self.slots * self.flows

    @property
    def padded(self) -> int:
        """Elements of the array that a round carries."""
        return self.chunks * self.chunk_elements
