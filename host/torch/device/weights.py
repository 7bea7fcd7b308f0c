"""Weights on a GPU, encoded and decoded there for an all-gather: to the bytes of host/codecs/shifted_weights.py."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from fanin.host.codecs.philox import Purpose, Randomness
from fanin.host.codecs.weight_codec import WeightPlan
from fanin.host.torch.device.launcher import Launch, Launcher
from fanin.host.torch.device.triton_arithmetic import SIXTEEN, as_bits

GROUPS = {8: (1, 1), 6: (4, 3), 4: (2, 1)}
"""By bits of a code: the least number of elements whose codes fill whole bytes, and the number of these bytes."""
ENCODE = Launch(256, 4)
DECODE = Launch(256, 4)


class DeviceWeights:
    """A weight codec on the device; what it launches is ordered by the current stream."""

    dtypes = tuple(SIXTEEN)

    def __init__(self, plan: WeightPlan, *, encode: Launch = ENCODE, decode: Launch = DECODE) -> None:
        """Raises ImportError without Triton."""
        self._plan, self.launches = plan, {"encode": encode, "decode": decode}
        kernels: Any = importlib.import_module("fanin.host.torch.device.weight_kernels")
        self._encode, self._decode = Launcher(kernels.encode), Launcher(kernels.decode)

    def encode(
        self, x: torch.Tensor, into: torch.Tensor, random: Randomness, step: int, rank: int, *, first: int = 0
    ) -> torch.Tensor:
        """Encode x (`WeightCodec.encode`).

        Returns the squared norms of each bucket of x and of its error, float32, shape (buckets, 2).
        """
        buckets = self._buckets(len(x))
        losses = torch.empty(buckets, 2, dtype=torch.float32, device=x.device)
        if buckets:
            with torch.cuda.device_of(x):
                self._launch_encode(x, into, losses, random, step, rank, first)
        return losses

    def _launch_encode(
        self, x: torch.Tensor, into: torch.Tensor, losses: torch.Tensor, random: Randomness, step: int, rank: int,
        first: int,
    ) -> None:  # fmt: skip
        buckets = len(losses)
        launch = self.launches["encode"]
        group, group_bytes = GROUPS[self._plan.bits]
        self._encode(
            launch,
            (buckets,),
            x,
            into,
            losses,
            len(x),
            buckets,
            first // self._plan.bucket,
            *random.of_kernels(Purpose.SHIFTS, step, rank),
            BITS=self._plan.bits,
            GROUP=group,
            GROUP_BYTES=group_bytes,
            BUCKET=self._plan.bucket,
            TILE=launch.tile,
        )

    def decode_rows(self, encoded: torch.Tensor, into: torch.Tensor, *, first: int, count: int) -> None:
        """Decode rows (`WeightCodec.decode_rows`) into float32, bfloat16 or float16."""
        if into.numel():
            with torch.cuda.device_of(into):
                self._launch_decode(encoded, into, first, count)

    def _launch_decode(self, encoded: torch.Tensor, into: torch.Tensor, first: int, count: int) -> None:
        rows, elements = into.shape
        launch, (group, group_bytes) = self.launches["decode"], GROUPS[self._plan.bits]
        bucket, stop = self._plan.bucket, first + elements
        self._decode(
            launch,
            (-(-stop // bucket) - first // bucket, rows),
            encoded,
            as_bits(into),
            encoded.stride(0),
            into.stride(0),
            self._buckets(count),
            first,
            stop,
            SIXTEEN=SIXTEEN[into.dtype],
            BITS=self._plan.bits,
            GROUP=group,
            GROUP_BYTES=group_bytes,
            BUCKET=bucket,
            TILE=launch.tile,
        )

    def _buckets(self, count: int) -> int:
        return -(-count // self._plan.bucket)
