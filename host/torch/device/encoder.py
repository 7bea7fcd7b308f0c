"""A bucket's way through a codec on the device: what `lanes` and `rotated` do in host/codecs, to the same bits.

    begin   launched on the caller's stream: rotation and clipping; then the sum is submitted
    finish  launched behind the sum, on the reducer's stream: rotation back

Rules
-----
* The residual, or what clipping and rounding have cut, stays on the device. A state is the host's encoder's: what one
  has saved the other loads.
* Steps follow each other: `begin` lets the caller's stream wait for the step before.
* Buckets so small that their sum is exact keep `lanes`' residual on the host, whose engine adds it; with stochastic
  rounding they are the host's altogether, since what it rounds to is summed (training/device_codecs.py).
* What only people read (energy, loss) is read from the device when it is asked for. That of `lanes` is of a sample, one
  block in SAMPLED_OF, since a pass over all of it would cost as much as its words do.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fanin.errors import ConfigurationError, NonFiniteError
from fanin.host.codecs.codec import DevicePlan, Part, Place, State
from fanin.host.codecs.philox import Draws, Randomness
from fanin.host.codecs.rotation import block_for
from fanin.host.torch.device.arithmetic import Arithmetic, Rotation
from fanin.host.torch.handles.host_tensor import writing_to
from fanin.host.torch.handles.work import FaninWork

SAMPLE_ELEMENTS, SAMPLED_OF = 1024, 16
"""Length of a sampled block, in elements, and how many blocks there are for each that is sampled for a sum's loss."""


@dataclass(frozen=True, slots=True)
class Contribution:
    """One tensor that is to be averaged in place, and how its result is treated."""

    values: torch.Tensor
    """Flat, on the device."""
    lanes: int
    residual: torch.Tensor | None
    adds: bool
    """Whether the loss is added to the residual, which is no part of the input (`Arithmetic.quantize`)."""
    output: torch.Tensor
    """Tensor that holds the result in the end."""
    finish: Callable[[], None] | None
    """Action that is launched after the sum."""
    draws: Draws | None = None
    """Numbers for stochastic rounding."""


class DeviceEncoder:
    """Encodes one worker's bucket, or a piece of it, on a device; its state and account are as those of `Encoder`."""

    def __init__(
        self,
        plan: DevicePlan,
        place: Place,
        seed: int,
        device: torch.device,
        arithmetic: Arithmetic[torch.Tensor],
        largest_exact: int,
        *,
        accounts: bool = True,
    ) -> None:
        """`largest_exact`: elements up to which the group's sums are exact. `accounts`: whether `lost` will be read."""
        self._accounts = accounts
        self._rank, self._random = place.rank, Randomness(seed, place.bucket)
        self._plan, self._device, self._arithmetic = plan, device, arithmetic
        self._work: FaninWork | None = None
        self._sample: tuple[torch.Tensor, torch.Tensor | None] | None = None
        """Energy of this worker's sample before the sum, and the residual's sample, for the codec `lanes`."""
        self._squares: torch.Tensor | None = None
        """Squares of the rows in the last step, for the codec `rotated`."""
        self._rotation = Rotation(place.count, block_for(place.count), plan.clip)
        self._exact = place.count <= largest_exact
        self._owed: torch.Tensor | None = None
        self._cut: torch.Tensor | None = None
        """Loss of `rotated` in the last step, without feedback; with it, a buffer for the next step's."""
        if plan.rotated:
            self._exact = self._rotation.padded <= largest_exact
            drawn = self._random.sign_words(place.count)
            self._signs = torch.frombuffer(bytearray(drawn.tobytes() or bytes(4)), dtype=torch.int32).to(device)
        if plan.feedback:
            self._owed = self._zeros(self._rotation.padded if plan.rotated else place.count)

    # --- a step ---

    def begin(self, x: torch.Tensor, step: int) -> Contribution:
        """Launch what precedes the sum of x, shape (count,), float32, bfloat16 or float16. Call `began` next."""
        self._settled(None)
        self._work = None
        with torch.cuda.device_of(x):
            return self._rotate(x) if self._plan.rotated else self._as_it_is(x, step)

    def began(self, work: FaninWork) -> None:
        """Note the handle of the sum, which is under way."""
        self._work = work

    def _as_it_is(self, x: torch.Tensor, step: int) -> Contribution:
        owed = self._owed
        if self._exact:
            # The host adds the residual to float32 elements, and so it must be here.
            values = x.to(torch.float32)
            residual = torch.zeros(len(x), dtype=torch.float32, device="cpu") if owed is None else owed
            finish = None if values is x else lambda: _copy(x, values)
            return Contribution(values, self._plan.lanes, residual, False, x, finish)
        if owed is not None and self._accounts:
            energy = (_sampled(x, step).to(torch.float32) + _sampled(owed, step)).square().sum(dtype=torch.float64)
            self._sample = energy, _sampled(owed, step)
        draws = Draws(self._random, step, self._rank) if self._plan.stochastic else None
        return Contribution(x, self._plan.lanes, owed, False, x, None, draws)

    def _rotate(self, x: torch.Tensor) -> Contribution:
        rotation, arithmetic, signs, owed = self._rotation, self._arithmetic, self._signs, self._owed
        cut = self._fresh(rotation.padded) if self._cut is None or owed is None else self._cut
        sent, squares = self._fresh(rotation.padded), self._fresh(rotation.rows)
        with torch.no_grad():
            arithmetic.rotate(rotation, x, signs, owed, sent, cut, squares)
            if self._exact:
                sent.add_(0.0)  # as the host, which adds a residual of zeros: -0 becomes 0

        def finish() -> None:
            arithmetic.rotate_back(rotation, sent, signs, x, owed, cut, squares)

        if owed is not None:
            self._owed, self._cut = cut, owed
        elif self._accounts:
            self._cut = cut
        self._squares = squares if self._accounts else None
        return Contribution(sent, self._plan.lanes, None if self._exact else cut, not self._exact, x, finish)

    # --- what is asked afterwards ---

    def state(self) -> State:
        """The state in the form of the host's encoder of this codec."""
        owed = self._settled(self._owed)
        return {} if owed is None else {"owed": owed.cpu().numpy().copy()}

    def load(self, state: State) -> None:
        """Restore a state (`Encoder.load`). ConfigurationError for one of another layout."""
        owed = self._settled(self._owed)
        given = {name: each.shape for name, each in state.items()}
        if given != ({} if owed is None else {"owed": tuple(owed.shape)}):
            raise ConfigurationError(
                f"the codec's state is of another layout: {given}"
                ". Remedy: load a state that this codec has written for the same tensors"
            )
        if owed is not None:
            owed.copy_(torch.from_numpy(state["owed"]))

    def parts(self) -> list[Part]:
        """No parts: a bucket on a device has a single account."""
        return []

    @property
    def residual_norm(self) -> float:
        """Euclidean norm of what is still owed."""
        return math.sqrt(_energy(self._settled(self._owed)))

    @property
    def energy(self) -> float:
        """Squared norm of this worker's contribution, or of a sample of it; 0 where it was not finite."""
        if self._plan.rotated:
            squares = self._settled(self._squares)
            return 0.0 if squares is None else _energy_of_squares(squares)
        return 0.0 if self._sample is None else _finite(float(self._sample[0]))

    @property
    def lost(self) -> float:
        """Squared norm of what encoding has lost of the contribution, or of the same sample of it."""
        if self._plan.rotated:
            return _energy(self._settled(self._cut if self._owed is None else self._owed))
        return 0.0 if self._sample is None else _energy(self._settled(self._sample[1]))

    def _settled(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """The tensor, once the caller's stream is behind the step that writes it."""
        if self._work is not None:
            with contextlib.suppress(NonFiniteError):  # raised where the bucket is waited for
                self._work.wait()
        return tensor

    def _zeros(self, count: int) -> torch.Tensor:
        on_host = self._exact and not self._plan.rotated
        return torch.zeros(count, dtype=torch.float32, device="cpu" if on_host else self._device)

    def _fresh(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.float32, device=self._device)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    with writing_to(target):
        target.copy_(source)


def _sampled(x: torch.Tensor, step: int) -> torch.Tensor:
    """One of SAMPLED_OF blocks of x, another one in each step; all of a small x."""
    blocks = x.numel() // (SAMPLED_OF * SAMPLE_ELEMENTS)
    if not blocks:
        return x
    return x[: blocks * SAMPLED_OF * SAMPLE_ELEMENTS].view(blocks, SAMPLED_OF, SAMPLE_ELEMENTS)[:, step % SAMPLED_OF]


def _energy(x: torch.Tensor | None) -> float:
    return 0.0 if x is None else _finite(float(x.square().sum(dtype=torch.float64)))


def _energy_of_squares(squares: torch.Tensor) -> float:
    """Sum of the squares of those rows that are finite."""
    return float(torch.where(torch.isfinite(squares), squares, 0.0).sum(dtype=torch.float64))


def _finite(value: float) -> float:
    return value if value - value == 0 else 0.0
