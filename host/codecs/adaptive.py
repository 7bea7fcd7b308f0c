"""Lane widths per layer: a budget gives bits to the layers that lose most, a guard widens lanes that lose too much.

    v_l = 2^(-k/2) H D x_l + e_l       per layer, in blocks of its own: the residual stays valid when its lanes change
    s_w = sum over workers of v_l      in one sum for all layers whose lanes are w, clipped as in rotated.py
    e_l = v_l - what was sent

Budget, every `every` steps: rank 0 sums up its rotated gradients x_l, and their means y_l, over the last GATHERED
steps, and estimates what each width of the ladder would lose of a mean:

    err[l][w] = |x_l - Q_up(x_l)|^2 / N + |y_l - Q_down(y_l)|^2

It chooses the cheapest widths whose errors add up to at most `alpha` times what `lanes` for all would have
(knapsack.py). The other ranks get the choice by an integer sum, to which they contribute zeros, beside the gradients of
the same step; it holds from the next step on.

Guard, every WATCH_STEPS steps: per layer the workers sum |v|^2, |e|^2 and |x|^2, exactly, so that all decide alike:

    sum |e|^2 / sum |v|^2 > most_nmse,  or  sqrt(sum |e|^2 / sum |x|^2) > most_owed:     the layer's lanes get wider

by one rung of the ladder, for good: the budget never chooses fewer bits for that layer again. Each widening is logged
as a warning with the layer, the value and the bound. Loss by narrowing is in no residual, so the guard misses it.

Source of the budget: L-GreCo (Markov, Alimohammadi, Frantar, Alistarh, MLSys 2024).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fanin.errors import ConfigurationError
from fanin.host.codecs.blocks import block_squares
from fanin.host.codecs.codec import Codec, Encoder, Floats, Part, Place, Stages, State, Sum, energy_of, levels
from fanin.host.codecs.knapsack import cheapest
from fanin.host.codecs.rotated import clip_for
from fanin.host.codecs.rotation import block_for, clip_blocks, hadamard
from fanin.numerics.reduction import EXACT, WIDE_SUMS, lanes_number
from fanin.numerics.wide_sums import largest

log = logging.getLogger("fanin")

PACKED_LADDER = ("4", "8", "16", "32")
WIDE_LADDER = ("2/4", "2/8", "4/4", "4/8", "8/8", "16", "32")
"""Lanes to choose from, from the most error to the least; `PACKED_LADDER` where `lanes` are packed."""
GATHERED = 10
"""Steps before each budget whose gradients it is computed from."""
WATCH_STEPS = 5
"""Steps over which the guard adds up energies, so that a single outlier step widens nothing."""
MAX_EVERY = 1_000_000


@dataclass(frozen=True, slots=True)
class Adaptive(Codec):
    """Rotated lanes, for each layer as wide as it needs."""

    name: ClassVar[str] = "adaptive"
    several_sums: ClassVar[bool] = True

    feedback: bool = True
    """Whether what clipping and rounding cut off is added to the next step."""
    every: int = 100
    """Steps between budgets, at least 10; 0: no budget, the guard alone."""
    alpha: float = 1.0
    """Error that the budget allows, as a multiple of that of `lanes` for all layers; above 0."""
    most_nmse: float = 0.5
    """Guard's bound on the share of a layer's contributions that encoding loses; above 0. inf: no bound."""
    most_owed: float = 3.0
    """Guard's bound on a layer's residual, as a multiple of its gradient's norm; above 0. inf: no bound."""

    def __post_init__(self) -> None:
        Codec.__post_init__(self)
        if self.every and not GATHERED <= self.every <= MAX_EVERY:
            raise ConfigurationError(f"every = {self.every}; must be 0 or in {GATHERED}..{MAX_EVERY}", "every")
        for name in ("alpha", "most_nmse", "most_owed"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} = {getattr(self, name)}; must be above 0", name)

    def encoder(self, place: Place) -> Encoder:
        """Return an encoder that keeps a residual per element and a lane width per layer."""
        levels(self.bits, place.size)
        return _Encoder(self, place)


@dataclass(frozen=True, slots=True)
class _Width:
    """A rung of the ladder."""

    lanes: str
    number: int
    levels: int
    clip: np.float32
    down_levels: int
    """Number of levels of narrowed sums; 0: sums are not narrowed."""
    price: int
    """Bits per element, up and down."""

    @classmethod
    def of(cls, lanes: str, size: int) -> _Width:
        number = lanes_number(lanes) if "/" in lanes else int(lanes)
        bound = levels(number, size)
        up, down = WIDE_SUMS.get(number, (number, number))
        return cls(
            lanes, number, bound, np.float32(clip_for(bound)), largest(down) if number in WIDE_SUMS else 0, up + down
        )

    def lost(self, x: Floats, mean: Floats, size: int) -> float:
        """Estimate the squared error of `mean` in these lanes, for `size` workers that each contribute values like x.

        x and mean: shape (blocks, elements of a block).
        """
        squares = block_squares(x.reshape(-1), x.shape[1])
        clipped = clip_blocks(x, squares, self.clip)
        step = np.max(np.abs(clipped), axis=1, keepdims=True) / np.float32(self.levels)
        error = energy_of((x - _rounded(clipped, step)).reshape(-1)) / size
        if self.down_levels:
            # The step of a narrowed sum is a contribution's step times a power of two.
            most = np.max(np.abs(mean), axis=1, keepdims=True) * np.float32(size)
            with np.errstate(divide="ignore", invalid="ignore"):
                shift = np.ceil(np.log2(np.maximum(most / (step * np.float32(self.down_levels)), 1.0)))
                coarse = np.where(step > 0, step * np.exp2(shift) / np.float32(size), 0.0).astype(np.float32)
            error += energy_of((mean - _rounded(mean, coarse)).reshape(-1))
        return error


@dataclass(slots=True)
class _Layer:
    name: str
    count: int
    block: int
    first: int
    """Offset of the layer among the bucket's elements."""
    padded: slice
    """The layer's elements, filled up to whole blocks, among the filled-up elements of all layers."""

    def blocks(self, array: Floats) -> Floats:
        return array[self.padded].reshape(-1, self.block)

    def squares(self, array: Floats) -> Floats:
        return block_squares(array[self.padded], self.block)


class _Encoder(Encoder):
    def __init__(self, codec: Adaptive, place: Place) -> None:
        super().__init__(place, codec.seed)
        self._codec = codec
        self._widths = _ladder(codec, place.size)
        self._layers: list[_Layer] = []
        first = padded = 0
        for label, count in zip(place.labels, place.sizes, strict=True):
            block = block_for(count)
            end = padded + -(-count // block) * block
            self._layers.append(_Layer(label, count, block, first, slice(padded, end)))
            first, padded = first + count, end
        self._signs = self.random.signs(padded)
        layers = len(self._layers)
        self._uniform = next(n for n, width in enumerate(self._widths) if width.lanes == codec.lanes)
        self._choice = np.full(layers, self._uniform, np.int32)
        self._floor = np.zeros(layers, np.int32)
        """Lowest rung of the ladder that the budget may choose for each layer; the guard raises it."""
        self._owed: Floats = np.zeros(padded if codec.feedback else 0, np.float32)
        self._watched = np.zeros((3, layers))
        """|v|^2, |e|^2 and |x|^2, of the steps since the guard looked."""
        self._account = np.zeros((2, layers))
        """|v|^2 and |e|^2 of the last step."""
        gathers = padded if codec.every and place.rank == 0 else 0
        self._gathered: Floats = np.zeros((2, gathers), np.float32)
        """Sums over steps of rank 0's rotated gradients and of the workers' means; empty at others, or with every=0."""

    def reduce(self, x: Floats, step: int) -> Stages:
        if not len(x):
            return
        rotated: Floats = np.zeros_like(self._signs)
        for layer in self._layers:
            rotated[layer.padded][: layer.count] = x[layer.first : layer.first + layer.count]
        rotated *= self._signs
        for layer in self._layers:
            hadamard(rotated[layer.padded], layer.block)
        choice, watch = self._decision(step), self._observation(step)
        fresh, gathers = self._energies(rotated), self._gathers(step)
        if gathers:
            self._gather(0, rotated, step)
        if self._codec.feedback:
            rotated += self._owed
        total = self._energies(rotated)
        clipped: Floats = np.empty_like(rotated)
        for layer, width in zip(self._layers, self._choice, strict=True):
            blocks = layer.blocks(rotated)
            layer.blocks(clipped)[:] = clip_blocks(blocks, layer.squares(rotated), self._widths[width].clip)
        groups = [np.flatnonzero(self._choice == width).tolist() for width in np.unique(self._choice)]
        sums = [self._sum(group, clipped) for group in groups]
        yield [*sums, *([choice] if choice else []), *([watch] if watch else [])]
        with np.errstate(invalid="ignore"):
            cut = np.subtract(rotated, clipped, out=rotated)
        for group, each in zip(groups, sums, strict=True):
            self._scatter(group, each, clipped, cut)
        for layer in self._layers:
            blocks = layer.blocks(cut)
            bad = ~np.isfinite(layer.squares(cut))
            if bad.any():
                blocks[bad] = layer.blocks(self._owed)[bad] if self._codec.feedback else 0.0
        lost = self._energies(cut)
        self._account[:] = total, lost
        self._watched += total, lost, fresh
        self.energy, self.lost = float(total.sum()), float(lost.sum())
        if self._codec.feedback:
            self._owed = cut
        if gathers:
            self._gather(1, clipped, step)
        if watch:
            self._guard(watch.values.reshape(3, -1), step)
        if choice:
            self._take(choice.values, step)
        for layer in self._layers:
            hadamard(clipped[layer.padded], layer.block)
        clipped *= self._signs
        for layer in self._layers:
            x[layer.first : layer.first + layer.count] = clipped[layer.padded][: layer.count]

    # --- sums ---

    def _sum(self, group: list[int], clipped: Floats) -> Sum:
        values = np.concatenate([clipped[self._layers[each].padded] for each in group])
        width = self._widths[self._choice[group[0]]]
        return Sum(values, width.number, residual=np.zeros(len(values), np.float32))

    def _scatter(self, group: list[int], asked: Sum, mean: Floats, cut: Floats) -> None:
        """Copy the sum's values to their layers in `mean`, and add what quantizing lost to `cut`."""
        assert asked.residual is not None
        first = 0
        for each in group:
            here = self._layers[each].padded
            end = first + here.stop - here.start
            mean[here] = asked.values[first:end]
            with np.errstate(invalid="ignore"):
                cut[here] += asked.residual[first:end]
            first = end

    def _energies(self, array: Floats) -> npt.NDArray[np.float64]:
        """Squared norm of each layer, over its finite elements."""
        found = [layer.squares(array) for layer in self._layers]
        return np.array([float(each[np.isfinite(each)].sum(dtype=np.float64)) for each in found])

    # --- the guard ---

    def _observation(self, step: int) -> Sum | None:
        """Return a sum over workers of the energies since the guard looked last; None in steps where it does not look.

        The energies of this worker start again at 0.
        """
        if (step + 1) % WATCH_STEPS:
            return None
        watched = Sum(self._watched.astype(np.float32).reshape(-1), EXACT, average=False)
        self._watched[:] = 0.0
        return watched

    def _guard(self, sums: Floats, step: int) -> None:
        """Widen the lanes of layers that lose too much; alike on every rank, since all have the same sums."""
        total, lost, fresh = sums.astype(np.float64)
        for index, layer in enumerate(self._layers):
            nmse = lost[index] / total[index] if total[index] > 0 else 0.0
            owed = float(np.sqrt(lost[index] / fresh[index])) if fresh[index] > 0 and self._codec.feedback else 0.0
            for what, value, bound in (
                ("NMSE", nmse, self._codec.most_nmse),
                ("residual in norms of its gradient", owed, self._codec.most_owed),
            ):
                if value > bound:
                    self._widen(index, layer, f"{what} {value:.3g} is above {bound:g}", step)
                    break

    def _widen(self, index: int, layer: _Layer, why: str, step: int) -> None:
        now = int(self._choice[index])
        wider = min(now + 1, len(self._widths) - 1)
        if now == wider:
            return  # 32 bits already: the residual stems from the narrower lanes before
        self._choice[index] = self._floor[index] = wider
        if self.place.rank == 0:
            log.warning(
                "codec %s, step %d: layer %s, bucket %d: its %s; from now on lanes of %s instead of %s",
                self._codec.name, step, layer.name, self.place.bucket, why, self._widths[wider].lanes,
                self._widths[now].lanes,
            )  # fmt: skip

    # --- the budget ---

    def _gathers(self, step: int) -> bool:
        """Whether the next budget is computed from this step's gradients, among others."""
        every = self._codec.every
        return bool(every and self.place.rank == 0 and every - GATHERED <= step % every < every)

    def _gather(self, which: int, values: Floats, step: int) -> None:
        if step % self._codec.every == self._codec.every - GATHERED and which == 0:
            self._gathered[:] = 0.0
        with np.errstate(invalid="ignore", over="ignore"):
            self._gathered[which] += np.where(np.isfinite(values), values, 0.0)

    def _decision(self, step: int) -> Sum | None:
        """Return a sum that gives all ranks rank 0's choice, since the others add zeros; None in steps without one."""
        every = self._codec.every
        if not every or step < every or step % every:
            return None
        mine = self._budgeted() if self.place.rank == 0 else np.zeros(len(self._layers), np.int32)
        return Sum(mine, average=False)

    def _budgeted(self) -> npt.NDArray[np.int32]:
        """Choose each layer's rung: the cheapest with errors up to `alpha` times the uniform choice's, or that one."""
        x, mean = self._gathered
        errors = np.array([
            [width.lost(layer.blocks(x), layer.blocks(mean), self.place.size) for width in self._widths]
            if layer.count else [0.0] * len(self._widths)
            for layer in self._layers
        ])  # fmt: skip
        prices = np.array([[float(layer.count * width.price) for width in self._widths] for layer in self._layers])
        most = self._codec.alpha * float(errors[:, self._uniform].sum())
        prices[np.arange(len(self._widths)) < self._floor[:, None]] = np.inf
        found, rows = cheapest(prices, errors, most), np.arange(len(self._layers))
        kept = np.maximum(self._uniform, self._floor)
        if found is None:
            return kept
        # The knapsack rounds errors up, so it may miss the uniform choice, whose error may be the bound itself.
        if errors[rows, kept].sum() <= most and prices[rows, kept].sum() <= prices[rows, found].sum():
            return kept
        return np.array(found, np.int32)

    def _take(self, choice: npt.NDArray[np.int32], step: int) -> None:
        """Adopt the choice that all ranks have received."""
        # The guard may have raised a floor in this very step.
        taken = np.maximum(np.clip(choice, 0, len(self._widths) - 1), self._floor).astype(np.int32)
        changed = np.flatnonzero(taken != self._choice)
        if len(changed) and self.place.rank == 0:
            log.info(
                "codec %s, step %d, bucket %d: the budget changes the lanes of %d of %d layers",
                self._codec.name, step, self.place.bucket, len(changed), len(self._layers),
            )  # fmt: skip
        self._choice = taken

    # --- what is kept ---

    def state(self) -> State:
        return {
            "owed": self._owed.copy(), "choice": self._choice.copy(), "floor": self._floor.copy(),
            "watched": self._watched.copy(), "gathered": self._gathered.copy(),
        }  # fmt: skip

    def _load(self, state: State) -> None:
        self._owed = np.array(state["owed"], np.float32)
        self._choice, self._floor = (np.array(state[name], np.int32) for name in ("choice", "floor"))
        self._watched = np.array(state["watched"], np.float64)
        self._gathered = np.array(state["gathered"], np.float32)

    @property
    def residual_norm(self) -> float:
        return float(np.sqrt(energy_of(self._owed)))

    def parts(self) -> list[Part]:
        total, lost = self._account
        return [
            Part(
                (layer.name,),
                f"{self._codec.name}:{self._widths[self._choice[index]].lanes}",
                layer.count,
                float(lost[index] / total[index]) if total[index] else 0.0,
                float(np.sqrt(lost[index])) if self._codec.feedback else 0.0,
            )
            for index, layer in enumerate(self._layers)
        ]


def _ladder(codec: Adaptive, size: int) -> list[_Width]:
    """Return the codec's ladder, without packed lanes that hold no level of `size` workers."""
    found = []
    for lanes in WIDE_LADDER if "/" in codec.lanes else PACKED_LADDER:
        try:
            found.append(_Width.of(lanes, size))
        except ConfigurationError:
            continue  # packed lanes without a level for so many workers
    return found


def _rounded(x: Floats, step: Floats) -> Floats:
    """Round each row of x to multiples of its step; a row whose step is 0 stays as it is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(step > 0, np.rint(x / step) * step, x).astype(np.float32)
