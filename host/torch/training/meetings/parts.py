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


def load(state: dict[str, Any], parts: Sequence[Part], plan: Plan, place: tuple[int, int]) -> None:
    """Take over what `state_of` returned; ConfigurationError, and nothing changed, where it does not fit.

    At another place, what the codec owed is dropped with a warning.
    """
    own = plan.facts()
    for name in own:
        if state["plan"].get(name) != own[name]:
            raise ConfigurationError(
                f"the state is of local steps with {name} = {state['plan'].get(name)}, not {own[name]}. Remedy: the "
                "same settings; or no state, and a start from the model's weights"
            )
    shapes = [(len(each["start"]), len(each["momentum"])) for each in state["fragments"]]
    if shapes != [(len(each.outer.start), len(each.outer.momentum)) for each in parts]:
        raise ConfigurationError(
            f"the outer state is of fragments of {[count for count, _ in shapes]} elements, and this model's have "
            f"{[each.fragment.count for each in parts]}. Remedy: the model that the state was taken with"
        )
    ours = tuple(state["place"]) == place
    if not ours:
        log.warning("rank %d: the state is of rank %d of %d; what its codec owed is dropped", place[0], *state["place"])
    for each, given in zip(parts, state["fragments"], strict=True):
        each.outer.start[:] = given["start"].numpy()
        each.outer.momentum[:] = given["momentum"].numpy()
        each.outer.landed, each.outer.last_move, each.outer.typical_move = given["moves"]
        if ours:
            each.bucket.load(given["codec"])


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
