"""Weight codecs: how a shard of weights becomes bytes for an all-gather, which adds nothing, and weights again.

    b_r = E(x_r, step, rank r)      at the shard's owner
    y_r = D(b_r)                    at every rank, the owner too: the same bits

Rules
-----
* The bytes alone decide what is decoded, so all ranks compute with the same weights.
* All that is random is drawn by seed, parameter group, step and the owner's rank, so a step can be replayed.
* An element that is not finite makes at least itself NaN at every rank.
* A new codec is a module here with a subclass of `WeightCodec`; `codecs.make_weights` finds it by its name.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fanin.host.codecs.codec import read_fields
from fanin.host.codecs.philox import Randomness

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True)
class Loss:
    """Loss by encoding: squared norms of the values, and of the error. 0 where a value was not finite."""

    energy: float = 0.0
    lost: float = 0.0

    def add(self, other: Loss) -> None:
        """Count other values, too."""
        self.energy += other.energy
        self.lost += other.lost

    @property
    def nmse(self) -> float:
        """The error's share of the values' energy; 0 where there was none."""
        return self.lost / self.energy if self.energy else 0.0


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """Parameters of a shifted grid, for arithmetic that is done elsewhere, as on a GPU."""

    bits: int
    bucket: int
    """Elements that share a grid."""


@dataclass(frozen=True, slots=True)
class WeightCodec(ABC):
    """A codec's parameters; the same on every rank."""

    name: ClassVar[str] = ""
    """Name by which `codecs.make_weights` finds the codec; empty for abstract classes."""

    bits: int = 8
    """Bits of an element's code. Fewer: fewer bytes, and coarser weights."""
    seed: int = dataclasses.field(default=0, kw_only=True)
    """0..2^32 - 1, for whatever is drawn at random."""

    @abstractmethod
    def encoded_bytes(self, count: int) -> int:
        """Bytes of `count` encoded elements."""

    @property
    @abstractmethod
    def block(self) -> int:
        """Elements at whose multiples parts of a shard must begin that are encoded by themselves."""

    @abstractmethod
    def encode(self, x: Floats, into: Bytes, random: Randomness, step: int, rank: int, *, first: int = 0) -> Loss:
        """Encode x, shape (n,), into `into`, shape (encoded_bytes(n),), and return the loss.

        `rank` is the owner's among those who share the weights; replicas of a shard give the same one. x are the
        shard's elements from `first` on, a multiple of `block`: they are decoded to the bits that they have when the
        shard is encoded as a whole.
        """

    @abstractmethod
    def decode_rows(self, encoded: Bytes, into: Floats, *, first: int = 0, count: int | None = None) -> None:
        """Decode each row of `encoded`, shape (ranks, encoded_bytes(n)), into that row of `into`, shape (ranks, n).

        Rows may lie apart; their elements do not. With `count`: n is `count`, and `into` takes only the values from
        `first` on.
        """

    def decode(self, encoded: Bytes, into: Floats, *, first: int = 0, count: int | None = None) -> None:
        """Decode one rank's bytes, shape (encoded_bytes(n),), into shape (n,); otherwise as `decode_rows`."""
        self.decode_rows(encoded[None], into[None], first=first, count=count)

    def device_plan(self) -> WeightPlan | None:
        """Return the codec's arithmetic as plain data; None: only the codec itself can do it."""
        return None

    @classmethod
    def read(cls, texts: list[str]) -> WeightCodec:
        """Make a codec from texts, bits and `field=value`; ConfigurationError says which is wrong."""
        return cls(**read_fields(cls, cls.name, texts, first="bits"))  # type: ignore[arg-type]

    def __str__(self) -> str:
        """The text that `codecs.make_weights` reads."""
        parts = [f"{each.name}={getattr(self, each.name)}" for each in dataclasses.fields(self) if each.name != "bits"]
        return ":".join([self.name, str(self.bits), *parts])
