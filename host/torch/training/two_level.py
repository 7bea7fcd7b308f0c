"""DDP's gradients over two levels: `model.register_comm_hook(TwoLevelState(inside="nccl", lanes=8), two_level_hook)`.

A bucket is scattered over the ranks of a host, each rank's shard goes through lanes or a codec between hosts, and the
shards are gathered inside again (host/torch/collectives/two_levels.py). The loss of a shard's quantization is kept as
the residual of the one rank that has the shard: 1/L of the residuals of one level, with L ranks on a host.

Rules
-----
* Shards cut parameters anywhere, so a codec sees a vector without names or shapes. One that chooses by name is refused.
* Sums between hosts are submitted by the lanes of TwoLevels in the order of the buckets. A codec of one stage decodes
  while later buckets travel. One of several stages takes a bucket through all of them before the next one begins: their
  later stages would overtake each other otherwise, and differently on each rank.
* Where each host has one rank, and in a group of new_group on hosts with unlike numbers of ranks, the hooks of one
  level do the work.
"""

# No `from __future__ import annotations`: DDP compares a hook's annotations with classes.

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.futures import Future

from fanin.errors import ConfigurationError, UnsupportedError
from fanin.host.codecs import make
from fanin.host.codecs.codec import Codec, Place
from fanin.host.torch.collectives.arguments import refuse_in_capture
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.collectives.routing import QUANTIZED
from fanin.host.torch.collectives.two_levels import DTYPES, Starting, TwoLevels, Waiting, waiting_for
from fanin.host.torch.training.buckets_only import require_bucket
from fanin.host.torch.training.codec_buckets import Bucket
from fanin.host.torch.training.codec_flight import CodecFlight
from fanin.host.torch.training.codec_hook import CodecState, codec_hook
from fanin.host.torch.training.device_codecs import average, encoder_on_device
from fanin.host.torch.training.hooks import LanesState, lanes_hook
from fanin.host.torch.training.same_parameters import Parameters, same_parameters
from fanin.numerics.reduction import lanes_number

_Owed = tuple[Parameters, Any]
"""A bucket's parameters and what belongs to its shard: a residual, or encoders."""


class TwoLevelState:
    """State of `two_level_hook`: the groups of both levels, the lanes or the codec between hosts, and what is owed.

    `inside`: "nccl" for CUDA gradients, "gloo" for gradients in host memory. `lanes`: as in `Options.lanes`, 8 or
    "4/8"; None for the group's own. `error_feedback`: keep and add back what lanes cut off, one float32 per element of
    this rank's shard, where lanes are made: on its GPU, or in host memory. `codec`: a codec or its text ("rotated:8",
    docs/codecs.md) instead of lanes; it has its own error feedback. `group`: a fanin group; None for the world's. Every
    rank makes one at the same point, with the same arguments. Residuals are not saved: a training that goes on from a
    checkpoint owes nothing.

    Raises ConfigurationError for a group of another backend, lanes beside a codec, a codec that chooses by parameter
    names, and what `Options.inside` raises where ranks cannot take part.
    """

    def __init__(
        self,
        *,
        inside: str,
        lanes: int | str | None = None,
        error_feedback: bool = False,
        codec: Codec | str | None = None,
        group: c10d.ProcessGroup | None = None,
    ) -> None:
        found = group if group is not None else dist.group.WORLD
        if not isinstance(found, FaninProcessGroup):
            raise ConfigurationError(
                "two_level_hook needs a group whose backend is 'fanin'"
                ". Remedy: init_process_group('fanin'), or that group as process_group"
            )
        if inside not in ("nccl", "gloo"):
            raise ConfigurationError(f"inside = {inside!r}; must be 'nccl' or 'gloo'", "inside")
        if found.options.on_worker_loss == "continue" or found.options.fallback != "raise":
            raise ConfigurationError(
                "two_level_hook is for jobs that end with the first rank or switch that is lost: a group inside a host "
                f"does. Remedy: lanes_hook, or leave out on_worker_loss='continue' and fallback="
                f"{found.options.fallback!r}"
            )
        if codec is not None and (lanes is not None or error_feedback):
            raise ConfigurationError("a codec has lanes and error feedback of its own. Remedy: codec=, or the others")
        if lanes is not None:
            lanes_number(lanes)
        self.codec = make(codec) if isinstance(codec, str) else codec
        if self.codec is not None and self.codec.needs_names:
            raise ConfigurationError(
                f"codec {str(self.codec)!r} chooses by the parameters' names, which shards cut. Remedy: codec_hook, or "
                "another codec"
            )
        self.group, self.lanes, self.error_feedback = found, lanes, error_feedback
        self.levels: TwoLevels | None = found.open_two_levels(inside)
        """Both levels; None: one level."""
        between = None if self.levels is None else self.levels.between
        assert between is None or isinstance(between, FaninProcessGroup)
        self._between: FaninProcessGroup | None = between
        self._one_level: CodecState | LanesState | None = None
        if self.levels is None:
            self._one_level = (
                LanesState(lanes=lanes, error_feedback=error_feedback, group=found)
                if self.codec is None
                else CodecState(self.codec, group=found)
            )
        elif self.codec is not None and between is not None:
            self.codec.encoder(Place(between.rank(), between.size(), ()))  # refuses now, not in backward
        self.step = 0
        """Steps that are done; the same on every rank, since codecs draw random numbers by it."""
        self._owed: dict[int, _Owed] = {}

    def residual_norm(self) -> float:
        """Euclidean norm of what this rank owes for its shards."""
        if self._one_level is not None:
            return self._one_level.residual_norm()
        squares = 0.0
        for _, owed in self._owed.values():
            squares += owed.residual_norm**2 if isinstance(owed, Bucket) else float(owed.square().sum())
        return float(squares**0.5)

    def reduce(self, bucket: c10d.GradBucket) -> Future[torch.Tensor]:
        """Start to average a bucket; returns the future of its gradients, as DDP wants it of `two_level_hook`."""
        if isinstance(self._one_level, LanesState):
            return lanes_hook(self._one_level, bucket)
        if isinstance(self._one_level, CodecState):
            return codec_hook(self._one_level, bucket)
        assert self.levels is not None
        gradients = bucket.buffer()
        if not gradients.is_cpu:
            refuse_in_capture("two_level_hook")
        start = self._start(self._between, bucket, self.step)
        self.step += bucket.is_last()
        work = self.levels.reduce(gradients, [gradients], start, self.group.default_timeout, average=True)
        return work.get_future().then(lambda reduced: reduced.value()[0])

    def _start(self, between: FaninProcessGroup | None, bucket: c10d.GradBucket, step: int) -> Starting:
        """Function to start the mean of the bucket's shard over hosts; it does nothing with all ranks on one host."""
        gradients, index = bucket.buffer(), bucket.index()
        parameters = tuple(bucket.parameters())
        if gradients.dtype not in (DTYPES if self.codec is None else QUANTIZED):
            raise UnsupportedError(f"two_level_hook: gradients of {gradients.dtype}. Remedy: a model in floats")

        def start(shard: torch.Tensor) -> Waiting:
            if between is None:
                return lambda: None
            if self.codec is not None:
                return self._through_codec(between, self.codec, shard, index, parameters, step)
            residual = None
            if self.error_feedback and shard.dtype != torch.float64:
                device = between.residual_device(shard, self.lanes)
                owed = functools.partial(torch.zeros, shard.numel(), dtype=torch.float32, device=device)
                residual = self._kept(index, parameters, shard, owed)
            work = between.all_reduce_lanes(shard, lanes=self.lanes, average=True, residual=residual)
            return waiting_for(work, self.group.default_timeout)

        return start

    def _through_codec(
        self,
        between: FaninProcessGroup,
        codec: Codec,
        shard: torch.Tensor,
        index: int,
        parameters: Parameters,
        step: int,
    ) -> Waiting:
        def make_encoders() -> Bucket:
            place = Place(between.rank(), between.size(), ((shard.numel(),),), index)
            encoder = encoder_on_device(between, codec, shard)
            return Bucket(codec, place, parameters, None if encoder is None else shard.device, encoder)

        encoders: Bucket = self._kept(index, parameters, shard, make_encoders)
        if encoders.device is not None:
            return waiting_for(average(between, encoders, shard, step), self.group.default_timeout)
        flights = [CodecFlight(between, step, piece, shard) for piece in encoders.pieces]
        for each in flights:
            each.start(None)

        def finish() -> None:
            while under_way := [each for each in flights if not each.over]:
                for each in under_way:
                    each.go_on()

        if encoders.single_stage:
            return finish
        finish()
        return lambda: None

    def _kept(self, index: int, parameters: Parameters, shard: torch.Tensor, make_owed: Callable[[], Any]) -> Any:
        """Residual or encoders of the bucket's shard; made at first, and anew where DDP has changed the bucket."""
        known, owed = self._owed.get(index, ((), None))
        count = -1 if owed is None else owed.place.count if isinstance(owed, Bucket) else owed.numel()
        if not same_parameters(known, parameters) or count != shard.numel():
            owed = make_owed()
            self._owed[index] = (parameters, owed)
        return owed


def two_level_hook(state: TwoLevelState, bucket: c10d.GradBucket) -> Future[torch.Tensor]:
    """Average a bucket: scattered inside the host, summed between hosts as the state says, gathered inside.

    `model.register_comm_hook(TwoLevelState(inside="nccl", lanes=8, error_feedback=True), two_level_hook)`
    """
    require_bucket("two_level_hook", bucket)
    return state.reduce(bucket)
