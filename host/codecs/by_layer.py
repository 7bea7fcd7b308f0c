"""A codec per parameter, chosen by rules: for example biases and norms in 32 bits, matrices in narrow lanes.

    rules:  WHERE=>CODEC; WHERE=>CODEC; ...           the first rule that a parameter fits decides
    WHERE:  a pattern of names (`*.bias`, `*embed*`), `dims<2`, `size<4096`, or `*` for all others
    CODEC:  as codecs.make reads it, with "," for ":" in a text; without lanes of its own it has this codec's

Within a bucket the parameters of one rule are an array of their own, which goes through the rule's codec. The sums of
one stage travel at the same time, so a bucket takes as many stages as the longest of its codecs.
The default sends arrays of fewer than two dimensions in 32 bits, and rotates all others.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fanin.errors import ConfigurationError
from fanin.host.codecs import make
from fanin.host.codecs.codec import Codec, Encoder, Floats, Part, Place, Stages, State, sums_of

MAX_RULES = 64


@dataclass(frozen=True, slots=True)
class Rule:
    """A codec, and the condition for parameters to go through it."""

    where: str
    codec: Codec

    @property
    def by_name(self) -> bool:
        """Whether the condition is a pattern of names other than `*`."""
        return self.where != "*" and self._limit is None

    @property
    def _limit(self) -> tuple[str, int] | None:
        what, less, limit = self.where.partition("<")
        return (what, int(limit)) if less and what in ("dims", "size") and limit.isdecimal() else None

    def fits(self, name: str, shape: tuple[int, ...]) -> bool:
        """Whether a parameter of this name and shape meets the condition."""
        if self._limit is None:
            return fnmatch.fnmatchcase(name, self.where)
        what, limit = self._limit
        return (len(shape) if what == "dims" else int(np.prod(shape, dtype=np.int64))) < limit


@dataclass(frozen=True, slots=True)
class ByLayer(Codec):
    """Rules that choose a codec for each parameter."""

    name: ClassVar[str] = "by_layer"
    several_sums: ClassVar[bool] = True

    rules: str = field(default="dims<2=>lanes,32;*=>rotated")
    """Text of the rules, in the form at the top of this file; at most 64."""

    def __post_init__(self) -> None:
        Codec.__post_init__(self)
        spaceless = "".join(self.rules.split())
        object.__setattr__(self, "rules", spaceless.replace(":", ",").removesuffix(";"))
        self.read_rules()

    def read_rules(self) -> list[Rule]:
        """The rules in order; ConfigurationError says which is wrong."""
        texts = self.rules.split(";")
        if len(texts) > MAX_RULES:
            raise ConfigurationError(f"rules: {len(texts)}; at most {MAX_RULES}", "rules")
        return [self._rule(text) for text in texts]

    def _rule(self, text: str) -> Rule:
        where, arrow, codec = text.partition("=>")
        if not where or not arrow or not codec:
            raise ConfigurationError(f"rules: {text!r} is none; expected WHERE=>CODEC, as in dims<2=>lanes,32", "rules")
        name, *given = codec.split(",")
        if name == self.name:
            raise ConfigurationError(f"rules: {text!r}: rules cannot be within rules", "rules")
        if not given or ("=" in given[0]):
            given.insert(0, self.lanes)
        if not any(each.startswith("seed=") for each in given):
            given.append(f"seed={self.seed}")
        return Rule(where, make(":".join([name, *given])))

    @property
    def single_stage(self) -> bool:
        """Whether all of its codecs have a single stage."""
        return all(rule.codec.single_stage for rule in self.read_rules())

    def single_stage_at(self, place: Place) -> bool:
        """Whether all codecs of the bucket's parameters have a single stage."""
        return all(codec.single_stage for _, codec, _ in self.members(place))

    def members(self, place: Place) -> list[tuple[int, Codec, list[int]]]:
        """The rules that the bucket needs, in their order: number, codec, and the numbers of their parameters."""
        rules = self.read_rules()
        found: dict[int, list[int]] = {}
        for number, shape in enumerate(place.shapes):
            found.setdefault(_first_fit(rules, place, number, shape), []).append(number)
        return [(index, rules[index].codec, found[index]) for index in sorted(found)]

    @property
    def needs_names(self) -> bool:
        """Whether a rule, or the codec of one, looks at names of parameters."""
        return any(rule.by_name or rule.codec.needs_names for rule in self.read_rules())

    @property
    def needs_accumulators(self) -> bool:
        """Whether one of its codecs needs accumulators."""
        return any(rule.codec.needs_accumulators for rule in self.read_rules())

    def without_memory(self) -> Codec:
        """Return the same rules, with every codec replaced by its version without memory."""
        rules = ";".join(
            f"{rule.where}=>{str(rule.codec.without_memory()).replace(':', ',')}" for rule in self.read_rules()
        )
        return dataclasses.replace(self, rules=rules)

    def encoder(self, place: Place) -> Encoder:
        """Return an encoder of the rules' codecs. ConfigurationError if no rule fits a parameter, or it needs names."""
        return _Encoder(self, place)


class _Group:
    """The parameters of one bucket that go through one codec."""

    def __init__(self, codec: Codec, place: Place, members: list[int], number: int) -> None:
        ends = np.cumsum([0, *place.sizes]).tolist()
        self.codec = codec
        self.spans: list[slice] = []
        for member in members:
            joins = bool(self.spans) and self.spans[-1].stop == ends[member]
            first = self.spans.pop().start if joins else ends[member]
            self.spans.append(slice(first, ends[member + 1]))
        self.names = tuple(place.labels[member] for member in members)
        shapes = [place.shapes[member] for member in members]
        names = [place.names[member] for member in members] if place.names else []
        self.encoder = codec.encoder(place.part(number, shapes, names))

    def gathered(self, x: Floats) -> Floats:
        """Return the group's elements, one parameter after the other: a view of x if they are adjacent, else a copy."""
        return x[self.spans[0]] if len(self.spans) == 1 else np.concatenate([x[span] for span in self.spans])

    def scatter(self, values: Floats, x: Floats) -> None:
        """Copy `values`, as `gathered` returned them, back to their places in x; a view is there already."""
        if len(self.spans) == 1:
            return
        first = 0
        for span in self.spans:
            count = span.stop - span.start
            x[span] = values[first : first + count]
            first += count


class _Encoder(Encoder):
    def __init__(self, codec: ByLayer, place: Place) -> None:
        super().__init__(place, codec.seed)
        for rule in codec.read_rules():
            rule.codec.encoder(Place(place.rank, place.size, ()))  # raises for illegal lanes, even of an unused rule
        self._groups = [_Group(each, place, members, rule) for rule, each, members in codec.members(place)]

    def reduce(self, x: Floats, step: int) -> Stages:
        values = [group.gathered(x) for group in self._groups]
        flights = [group.encoder.reduce(each, step) for group, each in zip(self._groups, values, strict=True)]
        while asked := [each for flight in flights for each in sums_of(next(flight, None))]:
            yield asked
        for group, each in zip(self._groups, values, strict=True):
            group.scatter(each, x)
        self.energy = sum(group.encoder.energy for group in self._groups)
        self.lost = sum(group.encoder.lost for group in self._groups)

    def state(self) -> State:
        return {
            f"{number}.{name}": array
            for number, group in enumerate(self._groups)
            for name, array in group.encoder.state().items()
        }

    def _load(self, state: State) -> None:
        for number, group in enumerate(self._groups):
            prefix = f"{number}."
            own = {name.removeprefix(prefix): each for name, each in state.items() if name.startswith(prefix)}
            group.encoder.load(own)

    @property
    def residual_norm(self) -> float:
        return float(np.sqrt(sum(group.encoder.residual_norm**2 for group in self._groups)))

    def parts(self) -> list[Part]:
        found: list[Part] = []
        for group in self._groups:
            encoder = group.encoder
            whole = Part(group.names, str(group.codec), encoder.place.count, encoder.nmse, encoder.residual_norm)
            found += encoder.parts() or [whole]
        return found


def _first_fit(rules: list[Rule], place: Place, number: int, shape: tuple[int, ...]) -> int:
    name = place.names[number] if place.names else ""
    for index, rule in enumerate(rules):
        if rule.by_name and not place.names:
            raise ConfigurationError(
                f"rule {rule.where!r} is for names, which nobody knows here. Remedy: CodecState(..., model=model)"
            )
        if rule.fits(name, shape):
            return index
    raise ConfigurationError(
        f"no rule is for {name or 'a parameter'} of shape {list(shape)}. Remedy: end the rules with *=>lanes,32"
    )
