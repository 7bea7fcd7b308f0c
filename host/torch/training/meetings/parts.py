"""A fragment with all that belongs to it: outer state, codec and residual; its form in a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fanin.errors import ConfigurationError
from fanin.host.codecs import make
from fanin.host.codecs.codec import Codec, Floats, Place
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.training.codec_buckets import Bucket
from fanin.host.torch.training.meetings.fragments import Fragment
from fanin.host.torch.training.meetings.outer import Outer, OuterState
from fanin.host.torch.training.meetings.plan import Plan
from fanin.host.torch.training.saved_state import checked, entry, floats, mapping, number, sequence, tensors
from fanin.numerics.reduction import WIDE_SUMS, lanes_number
from fanin.options import Options

log = logging.getLogger("fanin")


@dataclass(slots=True)
class Part:
    """One fragment at one rank."""

    fragment: Fragment
    outer: OuterState
    bucket: Bucket
    met_step: int = 0
    """Number of local steps done when this part last handed something in."""
    handed_in: Floats | None = None
    """This rank's weights at that moment, while the result is under way: what follows is not handed in yet. None: the
    rank goes on from the start weights."""

    def delta(self) -> torch.Tensor:
        """The change that this rank has learned and not handed in, shape (count,)."""
        return self.fragment.delta(self.outer.start if self.handed_in is None else self.handed_in)

    def set_weights(self, mix: float | Literal["keep"]) -> None:
        """Go on from the start weights: mixed with the rank's own, or with what it has learned since it handed in."""
        start = self.outer.start
        if mix == "keep":
            start = start if self.handed_in is None else start - self.delta().numpy()
            mix = 0.0
        self.fragment.write(start, mix)
        self.handed_in = None


def parts_of(fragments: Sequence[Fragment], codec: Codec, outer: Outer, group: FaninProcessGroup) -> list[Part]:
    """Parts that begin with the fragments' weights of now."""
    return [
        Part(each, OuterState.of(each.weights(), outer), bucket_of(codec, group, each, number))
        for number, each in enumerate(fragments)
    ]


def state_of(parts: Sequence[Part], plan: Plan, place: tuple[int, int], step: int, number: int) -> dict[str, Any]:
    """The form in a checkpoint of the rank at `place` (rank, ranks), before meeting `number`."""
    return {
        "plan": plan.facts(),
        "step": step,
        "number": number,
        "place": place,
        "fragments": [
            {
                "start": torch.from_numpy(each.outer.start.copy()),
                "momentum": torch.from_numpy(each.outer.momentum.copy()),
                "moves": (each.outer.landed, each.outer.last_move, each.outer.typical_move),
                "codec": each.bucket.state(),
            }
            for each in parts
        ],
    }


def load(state: dict[str, Any], parts: Sequence[Part], plan: Plan, place: tuple[int, int]) -> tuple[int, int]:
    """Take over what `state_of` returned, and return its step and number of meetings.

    ConfigurationError, and nothing changed, where it does not fit. At another place, what the codec owed is dropped
    with a warning.
    """
    whose = "the state of local steps"
    theirs, own = mapping(entry(state, "plan", object, whose), f"'plan' of {whose}"), plan.facts()
    for name in own:
        if theirs.get(name) != own[name]:
            raise ConfigurationError(
                f"the state is of local steps with {name} = {theirs.get(name)}, not {own[name]}. Remedy: the "
                "same settings; or no state, and a start from the model's weights"
            )
    step, met = entry(state, "step", int, whose), entry(state, "number", int, whose)
    rank, ranks = (checked(each, int, f"'place' of {whose}") for each in sequence(state, "place", whose, 2))
    ours = (rank, ranks) == place
    loaded = _read(sequence(state, "fragments", whose), parts, ours=ours)
    if not ours:
        log.warning("rank %d: the state is of rank %d of %d; what its codec owed is dropped", place[0], rank, ranks)
    for each, given in zip(parts, loaded, strict=True):
        each.outer.start[:] = given.start
        each.outer.momentum[:] = given.momentum
        each.outer.landed, each.outer.last_move, each.outer.typical_move = given.moves
        if ours:
            each.bucket.load(given.codec)
    return step, met


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A fragment's part of a state that fits."""

    start: Floats
    momentum: Floats
    moves: tuple[int, float, float]
    codec: dict[str, torch.Tensor]


def _read(fragments: list[Any], parts: Sequence[Part], *, ours: bool) -> list[_Loaded]:
    """Read the fragments of a state; ConfigurationError where they are not of this model. Nothing changes."""
    names = [f"fragment {index} of the state of local steps" for index in range(len(fragments))]
    given = [floats(each, "start", name) for name, each in zip(names, fragments, strict=True)]
    if [len(each) for each in given] != [each.fragment.count for each in parts]:
        raise ConfigurationError(
            f"the outer state is of fragments of {[len(each) for each in given]} elements, and this model's have "
            f"{[each.fragment.count for each in parts]}. Remedy: the model that the state was taken with"
        )
    return [
        _Loaded(
            start.numpy(),
            floats(each, "momentum", name, len(part.outer.momentum)).numpy(),
            _moves(each, name),
            part.bucket.fitting(tensors(each, "codec", name)) if ours else {},
        )
        for name, each, start, part in zip(names, fragments, given, parts, strict=True)
    ]


def _moves(fragment: object, name: str) -> tuple[int, float, float]:
    landed, last, typical = sequence(fragment, "moves", name, 3)
    what = f"'moves' of {name}"
    return checked(landed, int, what), number(last, what), number(typical, what)


def codec_of(codec: Codec | str | None, options: Options) -> Codec:
    """The codec from "4/8", "rotated:8" or a codec; None: the group's lanes, without a residual."""
    if isinstance(codec, Codec):
        return codec
    if codec is not None:
        return make(f"lanes:{codec}" if codec[:1].isdigit() else codec)
    number = lanes_number(options.lanes)
    lanes = "/".join(map(str, WIDE_SUMS[number])) if number in WIDE_SUMS else str(number)
    return make(f"lanes:{lanes}:feedback=False")


def bucket_of(codec: Codec, group: FaninProcessGroup, fragment: Fragment, number: int) -> Bucket:
    """The codec of fragment `number`, which owes nothing yet; ConfigurationError where it chooses by names."""
    if codec.needs_names:
        raise ConfigurationError(
            f"codec {str(codec)!r} chooses by the parameters' names, which fragments divide. Remedy: another codec"
        )
    return Bucket(codec, Place(group.rank(), group.size(), fragment.shapes, number), ())
