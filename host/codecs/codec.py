"""Gradient codecs: how a flat float32 array is transformed before and after the switch's sum.

    q_w = Q(A x_w + e_w)        at worker w; A is the same linear map at all workers, e_w what earlier steps still owe
    s   = sum of q_w            at the switch, in any order
    y   = A^-1 D(s) / N         at every worker, the same bits

Whatever has this form can be summed by a switch. Some codecs need an earlier result for their map (which blocks, which
subspace), so an encoder is a generator of stages: it yields what is to be summed, and goes on when that is the sum.

Rules
-----
* An encoder belongs to one bucket at one worker. It has no clock, no socket and no randomness but `Randomness`, so two
  encoders with the same codec, layout, place and history do the same.
* Steps of one encoder follow each other; those of one without memory (`without_memory`) may overlap.
* All that a later step depends on is in `state()`: what `load` brings back goes on as if nothing had happened.
* The part of a contribution that encoding loses is in the residual, or is lost: `lost` and `energy` say how much.
* An element that is not finite makes at least itself NaN at every worker, and no residual.
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
"""Buckets' numbers are below 2^20."""
STRETCH = 1 << 15
"""Elements that a codec's arithmetic goes through at a time: what it reads and writes of them stays in the cache."""


@dataclass(slots=True)
class Sum:
    """One stage: `values` become their sum, or their mean, over all workers, in place."""

    values: Array
    """Contiguous, shape (n,)."""
    lanes: int = 32
    """The word codec's number (`Reduction.lanes`)."""
    average: bool = True
    """Divided by the workers that contributed; of integers never."""
    operator: Operator = Operator.SUM
    """Another one with lanes = EXACT only."""
    scale_code: int = 0
    """A scale code for every element, that all workers know already (Reduction.scale_code); 0: they agree on codes."""
    residual: Floats | None = None
    """Added before quantizing, and then what that lost, shape (n,)."""


Stages = Generator[Sum | list[Sum], None, None]
"""A stage is one sum, or several that travel at the same time."""


def sums_of(stage: Sum | list[Sum] | None) -> list[Sum]:
    """A stage's sums; none of None, which stands for the end."""
    return [] if stage is None else stage if isinstance(stage, list) else [stage]


@dataclass(frozen=True, slots=True)
class Place:
    """Place of an encoder: this worker among the group's, and the bucket whose parameters have these shapes."""

    rank: int
    size: int
    shapes: tuple[tuple[int, ...], ...]
    """In the order in which the parameters lie in the bucket, flat."""
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
        """A part of the bucket, which draws random numbers of its own."""
        return dataclasses.replace(
            self, shapes=tuple(shapes), names=tuple(names), bucket=self.bucket | number << _PART_SHIFT
        )


@dataclass(frozen=True, slots=True)
class Part:
    """Parameters that have one account within a bucket, after its last step."""

    names: tuple[str, ...]
    codec: str
    """Text of the codec that encoded them."""
    elements: int
    nmse: float
    """Share of this worker's contribution (residual included) that encoding lost."""
    residual_norm: float


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """A codec's arithmetic for who does it elsewhere, as on a GPU: one sum, and what goes before and after it."""

    lanes: int
    """The word codec's number."""
    feedback: bool
    rotated: bool
    """Whether a bucket is rotated and clipped before, and rotated back after the sum (rotation.py)."""
    clip: float = float("inf")
    """In root mean squares of a row of the rotation."""
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
        """Squared norm of the part of it that encoding lost."""

    @abstractmethod
    def reduce(self, x: Floats, step: int) -> Stages:
        """Make the workers' mean of x, shape (place.count,), in place; `step` counts alike on every rank."""

    def state(self) -> State:
        """Everything that later steps depend on, as arrays of its own."""
        return {}

    def load(self, state: State) -> None:
        """Take over what `state` returned for the same layout; ConfigurationError for another one."""
        own = self.state()
        if {name: each.shape for name, each in own.items()} != {name: each.shape for name, each in state.items()}:
            raise ConfigurationError(f"the codec's state is of another layout: {_shapes(state)}, not {_shapes(own)}")
        self._load(state)

    def _load(self, state: State) -> None:
        """Take over a state of this encoder's own layout; an encoder without state has nothing to take over."""
        assert not state

    @property
    def residual_norm(self) -> float:
        """Euclidean norm of what is still owed."""
        return 0.0

    @property
    def nmse(self) -> float:
        """Share of this worker's contribution that encoding lost in the last step; 0 where there was none."""
        return self.lost / self.energy if self.energy else 0.0

    def parts(self) -> list[Part]:
        """The bucket's parameters by account; empty where the bucket has a single one."""
        return []


@dataclass(frozen=True, slots=True)
class Codec(ABC):
    """A codec's parameters; the same on every rank."""

    name: ClassVar[str] = ""
    """The name that it is found by; empty for abstract classes."""
    several_sums: ClassVar[bool] = False
    """Whether a stage may be several sums, for which a bucket of parameters is needed."""
    several_stages: ClassVar[bool] = False
    """Whether a later stage depends on the sums of an earlier one, whatever the fields are."""

    piecewise: ClassVar[bool] = False
    """Whether the elements of a bucket may go through several encoders, one after the other."""

    lanes: str = field(default="8")
    """Packed bits per lane, as text: "32", "16", "8" or "4"; or bits up / bits down: "8/8", "4/8", "4/4", "2/8" or
    "2/4"."""
    seed: int = field(default=0, kw_only=True)
    """0..2^32 - 1, for whatever is drawn at random."""

    def __post_init__(self) -> None:
        self.bits  # noqa: B018 - raises for what is not there
        if not 0 <= self.seed < 1 << 32:
            raise ConfigurationError(f"seed = {self.seed}; must be in 0..2^32 - 1")

    @property
    def bits(self) -> int:
        """The word codec's number of the lanes: their width, where they are packed. ConfigurationError for none."""
        if "/" in self.lanes:
            return lanes_number(self.lanes)
        if not self.lanes.isascii() or not self.lanes.isdigit() or int(self.lanes) not in LANES:
            pairs = ", ".join(f"{up}/{down}" for up, down in WIDE_SUMS.values())
            raise ConfigurationError(f"lanes = {self.lanes!r}; must be one of {', '.join(map(str, LANES))}, {pairs}")
        return int(self.lanes)

    @property
    def single_stage(self) -> bool:
        """Whether nothing that it sums depends on an earlier sum of the same step."""
        return not self.several_stages

    def single_stage_at(self, place: Place) -> bool:
        """The same of this bucket, whose parameters may need fewer stages than others."""
        return self.single_stage

    @property
    def needs_names(self) -> bool:
        """Whether it must know the parameters' names (Place.names)."""
        return False

    @property
    def needs_accumulators(self) -> bool:
        """Whether it asks for wide sums, which not every switch can make."""
        return self.bits in WIDE_SUMS

    @abstractmethod
    def encoder(self, place: Place) -> Encoder:
        """For one bucket. ConfigurationError for more workers than its lanes hold."""

    def device_plan(self, size: int) -> DevicePlan | None:
        """Plain data that describe this codec among `size` workers; None: only an encoder of this codec knows."""
        return None

    def without_memory(self) -> Codec:
        """The same codec with nothing that one step owes the next: for tensors that nobody can tell apart."""
        given = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return type(self)(**{**given, "feedback": False}) if "feedback" in given else self

    def __str__(self) -> str:
        """The text that `codecs.make` reads."""
        parts = [f"{each.name}={getattr(self, each.name)}" for each in dataclasses.fields(self) if each.name != "lanes"]
        return ":".join([self.name, self.lanes, *parts])

    @classmethod
    def read(cls, texts: list[str]) -> Codec:
        """From `lanes` and `field=value` texts; ConfigurationError says which is wrong."""
        return cls(**read_fields(cls, cls.name, texts, first="lanes"))  # type: ignore[arg-type]


def check_share(share: float) -> None:
    """ConfigurationError for what is no share of the elements that may travel."""
    if not 0 < share <= 1:
        raise ConfigurationError(f"share = {share}; must be above 0 and at most 1")


def read_fields(kind: type[DataclassInstance], name: str, texts: list[str], *, first: str) -> dict[str, object]:
    """The fields of codec `name` from `field=value` texts, the first of which may be the value of `first` alone."""
    hints = typing.get_type_hints(kind)
    given: dict[str, object] = {}
    for position, text in enumerate(texts):
        field_name, equals, value = text.partition("=")
        if not equals and position == 0:
            field_name, value = first, text
        elif field_name not in {each.name for each in dataclasses.fields(kind)}:
            raise ConfigurationError(f"codec {name!r} has no field {field_name!r}")
        try:
            hint = hints[field_name]
            given[field_name] = {"True": True, "False": False}[value] if hint is bool else hint(value)
        except (KeyError, ValueError):
            raise ConfigurationError(f"codec {name!r}: {field_name} = {value!r} is not legal") from None
    return given


def levels(bits: int, workers: int) -> int:
    """B: the largest step of one contribution in such lanes."""
    if bits in WIDE_SUMS:
        return largest(WIDE_SUMS[bits][0])
    return largest_step(bits, workers)


def integer_lanes(bits: int, workers: int) -> int:
    """The word codec for small integers in such lanes; 32 bits are the plain one. ConfigurationError: no level."""
    if bits in WIDE_SUMS:
        up, down = WIDE_SUMS[bits]
        raise ConfigurationError(
            f"lanes = {up}/{down}: small integers are summed without loss, in packed lanes: take lanes = 8 or 4"
        )
    largest_step(bits, workers)
    return bits if bits == 32 else NARROW + bits


def energy_of(x: Floats) -> float:
    """The squared norm, in float64 across blocks that are summed in float32."""
    with np.errstate(invalid="ignore", over="ignore"):
        found = float(np.dot(x, x))
    return found if np.isfinite(found) or np.isfinite(x).all() else 0.0


def stretches(count: int, block: int) -> Iterator[slice]:
    """`count` elements, a multiple of `block`, in consecutive slices of whole blocks, about STRETCH elements each."""
    length = max(1, STRETCH // block) * block
    return (slice(start, min(start + length, count)) for start in range(0, count, length))


def _shapes(state: State) -> str:
    return ", ".join(f"{name}{list(each.shape)}" for name, each in sorted(state.items())) or "nothing"
