"""The first step after a codec's state was loaded, in the buckets to which the state belongs.

A state belongs to the buckets that DDP had when it was taken, and DDP begins again with other ones. So the gradients of
the first step wait for its last bucket, are put together into the state's buckets, and go through the loaded encoders.
From the second step on DDP has these buckets itself.
"""

# No `from __future__ import annotations`: DDP compares a hook's annotations with classes.

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d
from torch.futures import Future

from fanin.host.torch.training.saved_state import checked, entry, mapping, sequence, tensors


@dataclass(slots=True)
class Held:
    """A bucket of DDP's that waits for the last one of the step."""

    index: int
    buffer: torch.Tensor
    gradients: list[torch.Tensor]
    parameters: list[torch.Tensor]
    future: Future[torch.Tensor]


@dataclass(slots=True)
class Regrouped:
    """A bucket of the state, or of DDP's where the state is of other parameters."""

    index: int
    flat: torch.Tensor
    """The bucket's elements, flat."""
    parameters: list[torch.Tensor]
    views: list[torch.Tensor]
    """The gradients that `hand_out` copies the elements to; none where `flat` is DDP's own buffer."""
    state: dict[str, torch.Tensor] | None
    """The state that the bucket's encoders load; None: they begin anew."""

    def hand_out(self) -> None:
        """Copy the elements to the gradients that they belong to."""
        if self.views:
            for view, part in zip(self.views, self.flat.split([view.numel() for view in self.views]), strict=True):
                view.copy_(part.view_as(view))


def read_buckets(state: object, whose: str) -> dict[int, dict[str, Any]]:
    """Buckets of a CodecState's state by index; ConfigurationError for what is none."""
    found = mapping(entry(state, "buckets", object, whose), f"'buckets' of {whose}")
    buckets = {}
    for index, each in found.items():
        name = f"bucket {index!r} of {whose}"
        numbers = [checked(number, int, f"'parameters' of {name}") for number in sequence(each, "parameters", name)]
        shapes = [
            [checked(side, int, f"'shapes' of {name}") for side in checked(shape, list, f"'shapes' of {name}")]
            for shape in sequence(each, "shapes", name, len(numbers))
        ]
        buckets[checked(index, int, f"the index of {name}")] = {
            "shapes": shapes,
            "parameters": numbers,
            "state": tensors(each, "state", name),
        }
    return buckets


class Restart:
    """The buckets of the first step that wait, and the state that was loaded."""

    def __init__(self, loaded: dict[int, dict[str, Any]]) -> None:
        self._loaded = loaded
        self._held: list[Held] = []

    def hold(self, bucket: c10d.GradBucket) -> Future[torch.Tensor]:
        """Keep a bucket; its future is done by `finish`."""
        if bucket.index() == 0:
            self._held = []
        buffer = bucket.buffer()
        future: Future[torch.Tensor] = Future(devices=[buffer.device] if buffer.is_cuda else None)
        held = Held(bucket.index(), buffer, bucket.gradients(), bucket.parameters(), future)
        self._held.append(held)
        return held.future

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Parameters of all buckets that wait, in DDP's order."""
        return [parameter for each in self._held for parameter in each.parameters]

    def regrouped(self, numbers: Mapping[torch.Tensor, int]) -> tuple[list[Regrouped], bool]:
        """The state's buckets, and True; or the buckets that wait and False, where its parameters are others.

        `numbers`: place of each parameter, as the state knows it.
        """
        parameters, gradients = self.parameters, [gradient for each in self._held for gradient in each.gradients]
        by_number = {numbers[each]: place for place, each in enumerate(parameters)}
        saved = {
            number: shape
            for each in self._loaded.values()
            for number, shape in zip(each["parameters"], each["shapes"], strict=True)
        }
        if saved != {number: list(parameters[place].shape) for number, place in by_number.items()}:
            return [Regrouped(each.index, each.buffer, each.parameters, [], None) for each in self._held], False
        found = []
        for index, each in sorted(self._loaded.items()):
            here = [by_number[number] for number in each["parameters"]]
            views = [gradients[place] for place in here]
            flat = torch.cat([view.reshape(-1) for view in views])
            found.append(Regrouped(index, flat, [parameters[place] for place in here], views, each["state"]))
        return found, True

    def finish(self) -> None:
        """Complete the futures of the kept buckets, whose gradients are averaged by now."""
        for each in self._held:
            each.future.set_result(each.buffer)
