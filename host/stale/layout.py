"""How a model's flat gradient becomes rounds: each chunk owns a slot, so that a slot's rounds are iterations.

One reduction per round carries the whole gradient. For chunk c to meet slot c div F of flow c mod F in every round,
each round must have exactly P chunks in each of F flows: the array is padded to P F chunks. Its first TALLY_BINS
elements are not gradient: there the workers agree on the next scale (scale.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fanin.errors import ConfigurationError
from fanin.host.stale.scale import TALLY_BINS
from fanin.numerics.fixed_point import Codec
from fanin.numerics.reduction import Element

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
    contributions: int = 1
    """M = N (S + 1), of the job."""
    chunk_elements: int = field(init=False)
    slots: int = field(init=False)
    """P, per flow."""

    def __post_init__(self) -> None:
        if self.elements < 1:
            raise ConfigurationError("a model without parameters has nothing to contribute")
        codec = Codec(Element.FLOAT32, self.lanes, self.contributions)  # refuses lanes that hold no level
        object.__setattr__(self, "chunk_elements", codec.elements_per_packet(self.words_per_packet))
        chunks = -(-(TALLY_BINS + self.elements) // self.chunk_elements)
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
