"""A model and its training step, in the few numbers that a layout depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fanin.errors import ConfigurationError
from fanin.layouts.cluster import Measured, read_speeds
from fanin.settings import Bounds, Numbers, Text, check_bounds, commas

FLOAT_BYTES = 4
MAX_LAYERS = 100_000
MAX_MICRO_BATCHES = 1 << 20
MAX_BYTES = 10**13


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Options of `fanin plan`."""

    layers: Annotated[int, Bounds(1, MAX_LAYERS)]
    """Layers of the model, alike in computing and parameters."""
    micro_batches: Annotated[int, Bounds(1, MAX_MICRO_BATCHES)]
    """Micro-batches of a step, over all replicas."""
    activation_bytes: Annotated[int, Bounds(0, MAX_BYTES)]
    """Bytes that one micro-batch carries over a boundary between stages, each way."""
    parameters: Annotated[int | None, Bounds(1, MAX_BYTES)] = None
    """Parameters of the model: 4 bytes each in a sum."""
    gradient_bytes: Annotated[int | None, Bounds(1, MAX_BYTES)] = None
    """Bytes of all gradients, instead. Default: those of the program that was profiled."""
    compute_s: Annotated[float | None, Bounds(0, 1e9)] = None
    """Seconds of computing of a step, all ranks' together. Default: those of the program that was profiled."""
    stages: Numbers = ()
    """Numbers of pipeline stages to look at. Default: all that fit."""
    speeds: Annotated[tuple[float, ...], Text(read_speeds, commas)] = ()
    """Relative speed of each host's computing. Default: all alike."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.parameters is not None and self.gradient_bytes is not None:
            raise ConfigurationError("--parameters and --gradient-bytes: not both. Remedy: leave one out")

    def sizes(self, measured: Measured) -> tuple[int, float]:
        """Bytes of all gradients, and seconds of computing of all ranks, given or profiled.

        Raises ConfigurationError where one is neither given nor profiled.
        """
        given = FLOAT_BYTES * self.parameters if self.parameters is not None else self.gradient_bytes
        size = measured.gradient_bytes if given is None else given
        compute_s = measured.compute_s if self.compute_s is None else self.compute_s
        for value, option in ((size, "--parameters or --gradient-bytes"), (compute_s, "--compute-s")):
            if value is None:
                raise ConfigurationError(
                    f"no program was profiled, so {option} must be given. Remedy: give it, or measure with `fanin "
                    "advise --json ... -- python train.py`"
                )
        assert size is not None
        assert compute_s is not None
        return size, compute_s
