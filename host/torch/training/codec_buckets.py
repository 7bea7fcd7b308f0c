"""A bucket of DDP's gradients: its encoders, what they owe, and what its last step cost."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fanin.errors import ConfigurationError
from fanin.host.codecs.codec import Codec, Encoder, Part, Place
from fanin.host.torch.device.encoder import DeviceEncoder
from fanin.host.torch.training.same_parameters import Parameters

PIECE = 1 << 20
"""Elements of a large bucket that are encoded while those before them travel, where the codec allows it."""


@dataclass(slots=True)
class Row:
    """The row of `CodecState.statement` for one bucket's last step."""

    bucket: int
    codec: str
    elements: int
    float32_bytes: int
    payload_bytes: int
    """Bytes of the words that this rank contributed, without headers; it received about as many."""
    nmse: float
    """Share of this rank's contribution (residual included) that encoding lost; of `lanes` on a GPU of a sample,
    and 0 without feedback."""
    residual_norm: float
    encode_ms: float
    """Time of the codec's own arithmetic before sums, `decode_ms`: after; on a GPU, of the thread that launches it."""
    decode_ms: float
    break_even_bit_s: float
    """The link rate above which the codec's arithmetic takes longer than the bytes that it saves; 0: it saves none."""
    parts: list[Part]
    """Accounts of parts of its parameters, where the codec has several accounts: `by_layer` and `adaptive`."""


class Piece:
    """Elements of a bucket that go through one encoder, and what their last step cost."""

    def __init__(self, encoder: Encoder | DeviceEncoder, span: slice) -> None:
        self.encoder = encoder
        self.span = span
        self.payload_bytes = 0
        self.encode_s = self.decode_s = 0.0


class Bucket:
    """One bucket's encoders: one, or one for each piece of PIECE elements."""

    def __init__(
        self,
        codec: Codec,
        place: Place,
        parameters: Parameters,
        device: torch.device | None = None,
        encoder: Callable[[Place], Encoder | DeviceEncoder] | None = None,
    ) -> None:
        """`device`, `encoder`: where and how pieces are encoded, if not on the host by the codec's own encoders."""
        make = encoder or codec.encoder
        self.codec = codec
        self.device = device
        self.parameters = parameters
        self.place = place
        self.single_stage = codec.single_stage_at(place)
        count = place.count
        if codec.piecewise and self.single_stage and count > PIECE:
            ends = [*range(0, count, PIECE), count]
            self.pieces = [
                Piece(make(place.part(number, [(end - first,)])), slice(first, end))
                for number, (first, end) in enumerate(itertools.pairwise(ends))
            ]
        else:
            self.pieces = [Piece(make(place), slice(0, count))]

    @property
    def encoders(self) -> list[Encoder | DeviceEncoder]:
        """Encoders of all pieces."""
        return [each.encoder for each in self.pieces]

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that later steps depend on."""
        if len(self.pieces) == 1:
            return {name: torch.from_numpy(array) for name, array in self.encoders[0].state().items()}
        return {
            f"{number}/{name}": torch.from_numpy(array)
            for number, encoder in enumerate(self.encoders)
            for name, array in encoder.state().items()
        }

    def fitting(self, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return a state that `load` takes; ConfigurationError for one of another layout."""
        own, given = ({name: tuple(each.shape) for name, each in of.items()} for of in (self.state(), state))
        if own != given:
            raise ConfigurationError(
                f"the state of codec {str(self.codec)!r} has {given}, and its state here {own}. Remedy: the codec and "
                "the model that the state was taken with"
            )
        return state

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Restore what `state` has returned."""
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in state.items()}
        if len(self.pieces) == 1:
            self.encoders[0].load(arrays)
            return
        for number, encoder in enumerate(self.encoders):
            prefix = f"{number}/"
            encoder.load({name.removeprefix(prefix): each for name, each in arrays.items() if name.startswith(prefix)})

    @property
    def residual_norm(self) -> float:
        """Euclidean norm of what is still owed."""
        return float(np.sqrt(sum(encoder.residual_norm**2 for encoder in self.encoders)))

    def row(self) -> Row:
        """Cost and loss of the last step."""
        plain = 4 * self.place.count
        encode_s, decode_s = (sum(getattr(each, name) for each in self.pieces) for name in ("encode_s", "decode_s"))
        payload = sum(each.payload_bytes for each in self.pieces)
        energy, lost = (sum(getattr(each, name) for each in self.encoders) for name in ("energy", "lost"))
        saved_bits = 8 * max(0, plain - payload)
        return Row(
            bucket=self.place.bucket,
            codec=str(self.codec),
            elements=self.place.count,
            float32_bytes=plain,
            payload_bytes=payload,
            nmse=lost / energy if energy else 0.0,
            residual_norm=self.residual_norm,
            encode_ms=encode_s * 1e3,
            decode_ms=decode_s * 1e3,
            break_even_bit_s=saved_bits / (encode_s + decode_s) if encode_s + decode_s else 0.0,
            parts=[part for encoder in self.encoders for part in encoder.parts()],
        )
