"""Host memory in the place of a device: what it is asked for is done at once. Under threads.py the whole path runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from fanin.host.codecs.philox import Randomness
from fanin.host.codecs.shifted_weights import ShiftedWeights
from fanin.host.codecs.weight_codec import WeightPlan
from fanin.host.torch.collectives.group_resources import GroupResources
from fanin.host.torch.device import cuda, device_agreement, triton_arithmetic
from fanin.host.torch.device.arithmetic import Plan, Rotation
from fanin.host.torch.device.device import Action, Event, Memory, Stream
from fanin.host.torch.device.numpy_arithmetic import NumpyArithmetic
from fanin.host.torch.device.threads import ThreadedDevice
from fanin.host.torch.handles.call import Call
from fanin.host.torch.training import device_codecs


class HostDevice:
    """The device below a ThreadedDevice, in the host's memory: everything is done at once."""

    device = torch.device("cpu")

    def stream(self, name: str) -> Stream:
        """Nothing but a name."""
        return name

    def current(self) -> Stream:
        """The user's stream, a name as well."""
        return "user"

    def record(self, stream: Stream) -> Event:
        """Everything is done when it is asked for."""
        return stream

    def wait_event(self, stream: Stream, event: Event) -> None:
        """Return at once: every event has come."""

    def copy(self, stream: Stream, target: Memory, source: Memory) -> None:
        """Done when it returns."""
        target.copy_(source)

    def launch(self, stream: Stream, action: Action) -> None:
        """Done when it returns."""
        action()

    def synchronize(self, stream: Stream) -> None:
        """Nothing is under way."""

    def done(self, event: Event) -> bool:
        """Whether the event has come, which is always so."""
        return True

    def join(self, event: Event, timeout_s: float | None) -> bool:
        """Nothing to wait for."""
        return True

    def pinned(self, count_bytes: int) -> torch.Tensor:
        """Memory, filled with zeros."""
        return torch.zeros(count_bytes, dtype=torch.uint8)

    def allocate(self, stream: Stream, count_bytes: int) -> torch.Tensor:
        """Allocate memory of the host."""
        return torch.empty(count_bytes, dtype=torch.uint8)

    def retire(self, stream: Stream, memory: Memory, beside: Memory) -> None:
        """Nothing is under way."""

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class TensorArithmetic:
    """`Arithmetic` of tensors on the host, by numpy's functions."""

    def __init__(self) -> None:
        self._by_numpy = NumpyArithmetic()

    def codes(self, plan: Plan, x: Any, residual: Any, codes: Any) -> None:
        """Write the scale codes of x * factor + residual (Arithmetic.codes)."""
        self._by_numpy.codes(plan, _array(x), _array(residual), _array(codes))

    def quantize(self, plan: Plan, x: Any, residual: Any, codes: Any, words: Any, **how: Any) -> None:
        """Write the words under the agreed codes, and the loss (Arithmetic.quantize)."""
        self._by_numpy.quantize(plan, _array(x), _array(residual), _array(codes), _array(words), **how)

    def level(self, codes: Any) -> None:
        """Make every code the largest of them (Arithmetic.level)."""
        self._by_numpy.level(_array(codes))

    def mark(self, codes: Any, marks: Any, rank: int) -> None:
        """Write this rank's marks (Arithmetic.mark)."""
        self._by_numpy.mark(_array(codes), _array(marks), rank)

    def dequantize(self, plan: Plan, words: Any, codes: Any, out: Any, *, skip: int = 0, failed: Any = None) -> None:
        """Write the values that summed words stand for (Arithmetic.dequantize)."""
        arrays = _array(words), _array(codes), _array(out)
        self._by_numpy.dequantize(plan, *arrays, skip=skip, failed=_array(failed))

    def rotate(self, rotation: Rotation, x: Any, signs: Any, owed: Any, sent: Any, cut: Any, squares: Any) -> None:
        """Rotate and clip x, and write what was cut (Arithmetic.rotate)."""
        arrays = (_array(each) for each in (x, signs, owed, sent, cut, squares))
        self._by_numpy.rotate(rotation, *arrays)

    def rotate_back(self, rotation: Rotation, mean: Any, signs: Any, x: Any, owed: Any, cut: Any, squares: Any) -> None:
        """Rotate a mean back, and settle the residual (Arithmetic.rotate_back)."""
        arrays = (_array(each) for each in (mean, signs, x, owed, cut, squares))
        self._by_numpy.rotate_back(rotation, *arrays)


class TensorWeights:
    """`DeviceWeights` of tensors on the host, by the host's codec."""

    dtypes = (torch.float32, torch.bfloat16, torch.float16)

    def __init__(self, plan: WeightPlan) -> None:
        self._codec = ShiftedWeights(plan.bits, bucket=plan.bucket)

    def encode(
        self, x: torch.Tensor, into: torch.Tensor, random: Randomness, step: int, rank: int, *, first: int = 0
    ) -> torch.Tensor:
        """Encode x by the host's codec (DeviceWeights.encode)."""
        loss = self._codec.encode(x.numpy(), into.numpy(), random, step, rank, first=first)
        return torch.tensor([[loss.energy, loss.lost]])

    def decode_rows(self, encoded: torch.Tensor, into: torch.Tensor, *, first: int, count: int) -> None:
        """Decode rows by the host's codec (DeviceWeights.decode_rows)."""
        values = torch.zeros(into.shape)
        self._codec.decode_rows(encoded.numpy(), values.numpy(), first=first, count=count)
        into.copy_(values)


def pretend() -> None:
    """From here on this process's groups take every request for one on a device, which is host memory."""

    def device(_call: Call) -> torch.device:
        return torch.device("cuda", 0)

    def made(_device: torch.device, _asked: str, failed: Callable[[BaseException], None]) -> ThreadedDevice:
        return ThreadedDevice(HostDevice(), failed)

    arithmetic_on = GroupResources.arithmetic_on
    given: dict[Any, dict[str, Any]] = {
        GroupResources: {"arithmetic_on": lambda resources, _device: arithmetic_on(resources, torch.device("cuda", 0))},
        device_codecs: {"DeviceWeights": TensorWeights},
        Call: {"device": property(device)},
        device_agreement: {"has_device": lambda: True},
        cuda: {"make_device": made, "way_for": lambda _device, _asked: ("block", "host memory stands for a device")},
        triton_arithmetic: {"triton_arithmetic": _tried},
    }
    for owner, named in given.items():
        for name, value in named.items():
            setattr(owner, name, value)


def _tried(_device: torch.device, plans: Iterable[Plan] = (), *, marks: bool = False) -> TensorArithmetic:
    """Make the arithmetic after each plan has been tried, as `triton_arithmetic` does."""
    made = TensorArithmetic()
    differing = [plan for plan in plans if triton_arithmetic.lane_differences(made, torch.device("cpu"), plan)]
    assert not differing
    return made


def _array(tensor: torch.Tensor | None) -> Any:
    if tensor is None:
        return None
    tensor = tensor.detach()
    return tensor.view(torch.int16).numpy().view(np.uint16) if tensor.dtype is torch.bfloat16 else tensor.numpy()
