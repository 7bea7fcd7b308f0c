"""Gradient codecs: how a flat float32 array is transformed before and after the switch's sum.

    q_w = Q(A x_w + e_w)        at worker w; A is the same linear map at all workers, e_w the residual of earlier steps
    s   = sum of q_w            at the switch, in any order
    y   = A^-1 D(s) / N         at every worker, the same bits

Whatever has this form can be summed by a switch. Some codecs need an earlier result for their map (which blocks, which
subspace), so an encoder is a generator of stages: it yields arrays to be summed, and resumes when they hold the sums.

Rules
-----
* An encoder belongs to one bucket at one worker. It has no clock, no socket and no randomness but `Randomness`, so two
  encoders with the same codec, layout, place and history do the same.
* Steps of one encoder follow each other; those of one without memory (`without_memory`) may overlap.
* All that a later step depends on is in `state()`: an encoder that loads it continues to the same bits.
* The part of a contribution that encoding loses is in the residual, or is lost: `lost` and `energy` say how much.
* An element that is not finite becomes NaN at every worker, perhaps with others, and enters no residual.
* A new codec is a module here with a subclass of `Codec`; `codecs.make` finds it by its name.
"""

from __future__ import annotations

import dataclasses
import typing
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from fanin.errors import ConfigurationError
from fanin.host.codecs.philox import Randomness
from fanin.host.codecs.words.narrow_integers import NARROW
from fanin.numerics.fixed_point import Array
from fanin.numerics.lanes import largest_step
from fanin.numerics.reduction import LANES, WIDE_SUMS, Operator, lanes_number
from fanin.numerics.wide_sums import largest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Floats = npt.NDArray[np.float32]
State = dict[str, Array]

_PART_SHIFT = 20
"""First bit of a part's number in `Place.bucket`; numbers of buckets are below 2^20."""
STRETCH = 1 << 15
"""Elements that a codec's arithmetic takes at a time, so that what it reads and writes stays in the cache."""


@dataclass(slots=True)
class Sum:
    """One stage: `values` become their sum, or their mean, over all workers, in place."""

    values: Array
    """Contiguous, shape (n,)."""
    lanes: int = 32
    """The word codec's number (`Reduction.lanes`)."""
    average: bool = True
    """Whether the sum is divided by the number of workers that contributed; sums of integers never are."""
    operator: Operator = Operator.SUM
    """Operator of the reduction; another one than SUM only with lanes = EXACT."""
    scale_code: int = 0
    """Scale code of all elements, if all workers know it already (Reduction.scale_code); 0: they agree on codes."""
    residual: Floats | None = None
    """Added to `values` before quantizing, then overwritten by what quantizing lost, shape (n,); None: neither."""


Stages = Generator[Sum | list[Sum], None, None]
"""A stage is one sum, or several that travel at the same time."""


def sums_of(stage: Sum | list[Sum] | None) -> list[Sum]:
    """Return a stage's sums as a list; an empty one for None, which stands for the end."""
    return [] if stage is None else stage if isinstance(stage, list) else [stage]


@dataclass(frozen=True, slots=True)
class Place:
    """Place of an encoder: this worker among the group's, and the bucket whose parameters have these shapes."""

    rank: int
    size: int
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of the bucket's parameters, in the order in which they lie there, flattened."""
    bucket: int = 0
    names: tuple[str, ...] = ()
    """Names of the parameters, if the driver knows them: as many as shapes, or none."""

    @property
    def sizes(self) -> list[int]:
        """Elements of each parameter."""
        return [int(np.prod(shape, dtype=np.int64)) for shape in self.shapes]

    @property
    def labels(self) -> list[str]:
        """The parameters' names, or their shapes where nobody knows the names."""
        return list(self.names) or [f"{number}: {'x'.join(map(str, s))}" for number, s in enumerate(self.shapes)]

    @property
    def count(self) -> int:
        """Elements of the bucket."""
        return sum(self.sizes)

    def part(self, number: int, shapes: Sequence[tuple[int, ...]], names: Sequence[str] = ()) -> Place:
        """Return the place of part `number` of the bucket, for which other random numbers are drawn."""
        return dataclasses.replace(
            self, shapes=tuple(shapes), names=tuple(names), bucket=self.bucket | number << _PART_SHIFT
        )


@dataclass(frozen=True, slots=True)
class Part:
    """Parameters of one bucket that were encoded together, with the errors of the last step."""

    names: tuple[str, ...]
    codec: str
    """Text of the codec that encoded them."""
    elements: int
    nmse: float
    """Share of this worker's contribution (residual included) that encoding lost."""
    residual_norm: float


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """A codec's arithmetic as plain data, to be done elsewhere, as on a GPU: one sum, and the work before and after."""

    lanes: int
    """The word codec's number."""
    feedback: bool
    rotated: bool
    """Whether a bucket is rotated and clipped before, and rotated back after the sum (rotation.py)."""
    clip: float = float("inf")
    """Bound at which elements are clipped, in root mean squares of their block of the rotation; inf: none."""
    stochastic: bool = False
    """Whether steps are rounded up or down at random, by one scale for the whole bucket (lanes_codec.py)."""


class Encoder(ABC):
    """One bucket's way through a codec at one worker."""

    def __init__(self, place: Place, seed: int) -> None:
        self.place = place
        self.random = Randomness(seed, place.bucket)
        self.energy = 0.0
        """Squared norm of this worker's contribution in the last step, residual included, before it was encoded."""
        self.lost = 0.0
        """Squared norm of the part of that contribution that encoding lost."""

    @abstractmethod
    def reduce(self, x: Floats, step: int) -> Stages:
        """Replace x, shape (place.count,), by the workers' mean, and yield the sums to be made for it.

        `step`: number of the step, the same on every rank.
        """

    def state(self) -> State:
        """Return everything that later steps depend on, as copies."""
        return {}

    def load(self, state: State) -> None:
        """Take over what `state` returned for the same layout; ConfigurationError for another one."""
        own = self.state()
        if {name: each.shape for name, each in own.items()} != {name: each.shape for name, each in state.items()}:
            raise ConfigurationError(
                f"the codec's state is of another layout: {_shapes(state)}, not {_shapes(own)}"
                ". Remedy: load a state that this codec has written for the same tensors"
            )
        self._load(state)

    def _load(self, state: State) -> None:
        """Take over a state of this encoder's own layout; an encoder without state has nothing to take over."""
        assert not state

    @property
    def residual_norm(self) -> float:
        """Euclidean norm of the residual; 0 for an encoder without one."""
        return 0.0

    @property
    def nmse(self) -> float:
        """Share of this worker's contribution that encoding lost in the last step; 0 where there was none."""
        return self.lost / self.energy if self.energy else 0.0

    def parts(self) -> list[Part]:
        """Return the groups of parameters that were encoded apart; empty if the bucket was encoded as a whole."""
        return []


class ResidualEncoder(Encoder):
    """An encoder that adds what a step has lost to the next one, as far as the codec's user wants feedback."""

    def __init__(self, place: Place, seed: int, elements: int, *, feedback: bool = True) -> None:
        """`elements`: size of the residual."""
        super().__init__(place, seed)
        self._feedback = feedback
        self._owed: Floats = np.zeros(elements if feedback else 0, np.float32)

    def state(self) -> State:
        return {"owed": self._owed.copy()} if self._feedback else {}

    def _load(self, state: State) -> None:
        if self._feedback:
            self._owed[:] = state["owed"]

    @property
    def residual_norm(self) -> float:
        return float(np.sqrt(energy_of(self._owed)))


@dataclass(frozen=True, slots=True)
class Codec(ABC):
    """A codec's parameters; the same on every rank."""

    name: ClassVar[str] = ""
    """Name by which `codecs.make` finds the codec; empty for abstract classes."""
    several_sums: ClassVar[bool] = False
    """Whether a stage may be several sums, for which a bucket of parameters is needed."""
    several_stages: ClassVar[bool] = False
    """Whether a later stage depends on the sums of an earlier one, whatever the fields are."""

    piecewise: ClassVar[bool] = False
    """Whether a bucket may be cut into pieces that go through encoders of their own."""

    lanes: str = field(default="8")
    """Packed bits per lane, as text: "32", "16", "8" or "4"; or bits up / bits down: "8/8", "4/8", "4/4", "2/8" or
    "2/4"."""
    seed: int = field(default=0, kw_only=True)
    """0..2^32 - 1, for whatever is drawn at random."""

    def __post_init__(self) -> None:
        self.bits  # noqa: B018 - raises for lanes that do not exist
        if not 0 <= self.seed < 1 << 32:
            raise ConfigurationError(f"seed = {self.seed}; must be in 0..2^32 - 1", "seed")

    @property
    def bits(self) -> int:
        """Number of the word codec of `lanes`: the width if they are packed. ConfigurationError if there is none."""
        if "/" in self.lanes:
            return lanes_number(self.lanes)
        if not self.lanes.isascii() or not self.lanes.isdigit() or int(self.lanes) not in LANES:
            pairs = ", ".join(f"{up}/{down}" for up, down in WIDE_SUMS.values())
            raise ConfigurationError(
                f"lanes = {self.lanes!r}; must be one of {', '.join(map(str, LANES))}, {pairs}", "lanes"
            )
        return int(self.lanes)

    @property
    def single_stage(self) -> bool:
        """Whether nothing that it sums depends on an earlier sum of the same step."""
        return not self.several_stages

    def single_stage_at(self, place: Place) -> bool:
        """Whether this bucket takes a single stage, though other buckets may take more."""
        return self.single_stage

    @property
    def needs_names(self) -> bool:
        """Whether its encoders must be given the parameters' names (Place.names)."""
        return False

    @property
    def needs_accumulators(self) -> bool:
        """Whether it asks for wide sums, which not every switch can make."""
        return self.bits in WIDE_SUMS

    @abstractmethod
    def encoder(self, place: Place) -> Encoder:
        """Return an encoder for one bucket. ConfigurationError for more workers than the lanes hold."""

    def device_plan(self, size: int) -> DevicePlan | None:
        """Return the codec's arithmetic among `size` workers as plain data; None: only its encoder can do it."""
        return None

    def without_memory(self) -> Codec:
        """Return the codec without residuals, for tensors that cannot be matched with those of the step before."""
        given = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return type(self)(**{**given, "feedback": False}) if "feedback" in given else self

    def __str__(self) -> str:
        """The text that `codecs.make` reads."""
        parts = [f"{each.name}={getattr(self, each.name)}" for each in dataclasses.fields(self) if each.name != "lanes"]
        return ":".join([self.name, self.lanes, *parts])

    @classmethod
    def read(cls, texts: list[str]) -> Codec:
        """Make a codec from texts, `lanes` and `field=value`; ConfigurationError says which is wrong."""
        return cls(**read_fields(cls, cls.name, texts, first="lanes"))  # type: ignore[arg-type]


def check_share(share: float) -> None:
    """Raise ConfigurationError unless 0 < share <= 1."""
    if not 0 < share <= 1:
        raise ConfigurationError(f"share = {share}; must be above 0 and at most 1", "share")


def read_fields(kind: type[DataclassInstance], name: str, texts: list[str], *, first: str) -> dict[str, object]:
    """The fields of codec `name` from `field=value` texts, the first of which may be the value of `first` alone."""
    hints = typing.get_type_hints(kind)
    given: dict[str, object] = {}
    for position, text in enumerate(texts):
        field_name, equals, value = text.partition("=")
        if not equals and position == 0:
            field_name, value = first, text
        elif field_name not in {each.name for each in dataclasses.fields(kind)}:
            raise ConfigurationError(f"codec {name!r} has no field {field_name!r}", "the codec")
        try:
            hint = hints[field_name]
            given[field_name] = {"True": True, "False": False}[value] if hint is bool else hint(value)
        except (KeyError, ValueError):
            raise ConfigurationError(f"codec {name!r}: {field_name} = {value!r} is not legal", "the codec") from None
    return given


def levels(bits: int, workers: int) -> int:
    """Return B, the largest number of steps of one contribution, in lanes of word codec `bits` with so many workers."""
    if bits in WIDE_SUMS:
        return largest(WIDE_SUMS[bits][0])
    return largest_step(bits, workers)


def integer_lanes(bits: int, workers: int) -> int:
    """Return the number of the word codec that sums small integers in packed lanes of `bits`.

    ConfigurationError for wide sums, and where the lanes hold no level of so many workers.
    """
    if bits in WIDE_SUMS:
        up, down = WIDE_SUMS[bits]
        raise ConfigurationError(
            f"lanes = {up}/{down}: small integers are summed without loss, in packed lanes. Remedy: take lanes = 8 or 4"
        )
    largest_step(bits, workers)
    return bits if bits == 32 else NARROW + bits


def energy_of(x: Floats) -> float:
    """Squared norm of x, added up in float32; 0 if an element is not finite."""
    with np.errstate(invalid="ignore", over="ignore"):
        found = float(np.dot(x, x))
    return found if np.isfinite(found) or np.isfinite(x).all() else 0.0


def stretches(count: int, block: int) -> Iterator[slice]:
    """`count` elements, a multiple of `block`, in consecutive slices of whole blocks, about STRETCH elements each."""
    length = max(1, STRETCH // block) * block
    return (slice(start, min(start + length, count)) for start in range(0, count, length))


def _shapes(state: State) -> str:
    return ", ".join(f"{name}{list(each.shape)}" for name, each in sorted(state.items())) or "nothing"
