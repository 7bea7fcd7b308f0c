"""DDP's gradients through a codec: `model.register_comm_hook(CodecState("rotated:8"), codec_hook)`.

Rules
-----
* Every rank submits the same sums in the same order, whatever the timing. A bucket of one stage is submitted when DDP
  hands it over, and decoded when the sum is there. One of several stages submits the next stage of every bucket before
  it right after its own first stage, and what is left with the last bucket: so first stages travel while gradients are
  still computed.
* A large bucket goes through encoders of its own in pieces, where the codec allows it (`Codec.piecewise`): a piece is
  encoded while those before it travel, and decoded while those after it do.
* Encoders are kept by the bucket's number, and made anew where DDP has put other parameters into it: residuals of other
  parameters mean nothing. The ranks then compare codec, seed and shapes, so that unlike ones are an error.
* The first step after a state was loaded is put together anew (codec_restart.py).
"""

# No `from __future__ import annotations`: DDP compares a hook's annotations with classes.
import logging
import sys
import zlib
from collections.abc import MutableMapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.futures import Future
from torch.utils.weak import WeakTensorKeyDictionary

from fanin.errors import CollectiveMismatchError, ConfigurationError, UnsupportedError
from fanin.host.codecs import make
from fanin.host.codecs.codec import Codec, Place
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.collectives.routing import QUANTIZED
from fanin.host.torch.handles.dynamo import keep_out
from fanin.host.torch.training.buckets_only import require_bucket
from fanin.host.torch.training.codec_buckets import Bucket, Row
from fanin.host.torch.training.codec_flight import CodecFlight, all_of
from fanin.host.torch.training.codec_restart import Restart, read_buckets
from fanin.host.torch.training.codec_weights import StepWeights, check_weight
from fanin.host.torch.training.device_codecs import average, encoder_on_device
from fanin.host.torch.training.same_parameters import same_parameters
from fanin.host.torch.training.saved_state import entry
from fanin.numerics.reduction import EXACT

log = logging.getLogger("fanin")
WHOSE = "the state of a CodecState"


class CodecState:
    """State of `codec_hook`: which codec, which group, and what each bucket still owes.

    `codec`: a codec or its text ("rotated:8", docs/codecs.md), the same on every rank. `group`: a fanin group; None for
    the world's. `model`: whose parameters' names a codec may choose by, and the statement has; None: nobody knows them.
    `weighted`: means are weighted by `weight`, which each rank sets before each backward pass, such as its number
    of samples (codec_weights.py); False: all ranks weigh the same. Raises ConfigurationError for a codec that does not
    exist, whose lanes hold too few workers or which must know names, and in a job that continues without lost ranks.
    """

    def __init__(
        self,
        codec: Codec | str,
        *,
        group: c10d.ProcessGroup | None = None,
        model: nn.Module | None = None,
        weighted: bool = False,
    ) -> None:
        found = group if group is not None else dist.group.WORLD
        if not isinstance(found, FaninProcessGroup):
            raise ConfigurationError(
                "codec_hook needs a group whose backend is 'fanin'"
                ". Remedy: init_process_group('fanin'), or that group as process_group"
            )
        if found.options.on_worker_loss == "continue":
            raise ConfigurationError(
                "codecs are for jobs that end with the first rank that is lost (on_worker_loss='raise'): what a lost "
                "rank still owes, and its share of a stage, cannot be made up for. Remedy: lanes_hook"
            )
        self.group = found
        self.codec = make(codec) if isinstance(codec, str) else codec
        if self.codec.needs_names and model is None:
            raise ConfigurationError(
                f"codec {str(self.codec)!r} chooses by the parameters' names. Remedy: CodecState(..., model=model)"
            )
        self._names: MutableMapping[torch.Tensor, str] = WeakTensorKeyDictionary()
        if model is not None:
            self._names.update({each: name for name, each in model.named_parameters()})
        self.codec.encoder(Place(found.rank(), found.size(), ()))  # refuses what it cannot carry now, not in backward
        self.step = 0
        """Steps that are done; the same on every rank, since random numbers are drawn by it."""
        self.weighted = weighted
        self._weight = 1.0
        self.step_weights: StepWeights | None = None
        """Weights of the step under way."""
        self._buckets: dict[int, Bucket] = {}
        self._flights: list[CodecFlight] = []
        """Flights of several stages in this step."""
        self._futures: list[tuple[Future[torch.Tensor], torch.Tensor]] = []
        """Futures of buckets of several stages, with the tensors that they will hold."""
        self._numbers: MutableMapping[torch.Tensor, int] = WeakTensorKeyDictionary()
        """Place of each parameter in the order of DDP's first step."""
        self._restart: Restart | None = None

    # --- what a user asks ---

    @property
    def weight(self) -> float:
        """Weight of this rank's gradients, at least 0; read when the first bucket of a step is ready."""
        return self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        if not self.weighted:
            raise ConfigurationError(
                "this CodecState weighs all ranks the same. Remedy: CodecState(..., weighted=True)"
            )
        self._weight = check_weight(weight)

    def statement(self) -> list[Row]:
        """Cost and loss of each bucket's last step, in the order of buckets; none before the first step."""
        return [each.row() for _, each in sorted(self._buckets.items())]

    def arithmetic_s(self) -> float:
        """Seconds of the codec's own arithmetic in the last step; unlike `statement`, looks at no residual."""
        return sum(piece.encode_s + piece.decode_s for each in self._buckets.values() for piece in each.pieces)

    def residual_norm(self) -> float:
        """Euclidean norm of all that is still owed by this rank."""
        return float(np.sqrt(sum(each.residual_norm**2 for each in self._buckets.values())))

    def state_dict(self) -> dict[str, Any]:
        """Everything that a restart needs: the step, and each bucket's residuals and subspaces, of this rank alone."""
        buckets = {
            index: {
                "shapes": [list(shape) for shape in each.place.shapes],
                "parameters": [self._numbers[parameter] for parameter in each.parameters],
                "state": each.state(),
            }
            for index, each in self._buckets.items()
        }
        return {"codec": str(self.codec), "step": self.step, "buckets": buckets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, by the same rank of the same number.

        ConfigurationError, and nothing changed, for a state of another codec, and for what is no such state.
        The next steps have the bits that they would have had, if the state was taken after DDP's second step or later.
        Parameters are known by their order in DDP's first step, which the model and DDP's arguments decide; where
        their shapes are others than the state's, it is dropped with a warning.
        """
        codec = entry(state, "codec", str, WHOSE)
        if codec != str(self.codec):
            raise ConfigurationError(
                f"the state is of codec {codec!r}, not of {str(self.codec)!r}. Remedy: the codec of the state"
            )
        step, buckets = entry(state, "step", int, WHOSE), read_buckets(state, WHOSE)
        self.step = step
        self._buckets.clear()
        self._flights.clear()
        self._restart = Restart(buckets) if buckets else None

    # --- what the hook does ---

    def reduce(self, bucket: c10d.GradBucket) -> Future[torch.Tensor]:
        """Start to average a bucket; returns the future of its gradients, as DDP wants it of `codec_hook`."""
        if self._restart is not None:
            return self._hold(self._restart, bucket)
        index, last, gradients = bucket.index(), bucket.is_last(), bucket.buffer()
        if index == 0:
            self._flights, self._futures = [], []  # what a step left that ended in an error
        own = self._bucket(index, gradients, bucket.parameters())
        if index == 0:
            self._weigh()
        if last:  # DDP's first step may have more buckets than those after it
            self._buckets = {number: each for number, each in self._buckets.items() if number <= index}
        future = self._submit(own, gradients)
        if last:
            self._finish()
            for each, result in self._futures:
                each.set_result(result)
            self._futures = []
        return future

    def _submit(self, own: Bucket, gradients: torch.Tensor) -> Future[torch.Tensor]:
        """Submit a bucket's first stage, and then the next stage of each bucket before it."""
        if own.device is not None:
            work = average(self.group, own, gradients, self.step)
            return work.get_future().then(lambda averaged: averaged.value()[0])
        earlier, decoded = list(self._flights), []
        future: Future[torch.Tensor] = Future()
        for piece in own.pieces:  # the next piece is encoded while this one is on its way
            flight = CodecFlight(self.group, self.step, piece, gradients)
            flight.start(self.step_weights)
            if own.single_stage:
                decoded.append(flight.decoded())
            else:
                self._flights.append(flight)
        if own.single_stage:
            future = torch.futures.collect_all(decoded).then(lambda done: all_of(done, gradients))
        else:
            self._futures.append((future, gradients))
        for other in earlier:
            if not other.over:
                other.go_on()
        return future

    def _weigh(self) -> None:
        self.step_weights = StepWeights(self.group, self._weight, self.step) if self.weighted else None

    def _finish(self) -> None:
        """Take all buckets through the stages that are left, in turn, and end the step; called with the last bucket."""
        while left := [each for each in self._flights if not each.over]:
            for each in left:
                each.go_on()
        self._flights = []
        self.step += 1

    def _hold(self, restart: Restart, bucket: c10d.GradBucket) -> Future[torch.Tensor]:
        """Keep a bucket of the first step after a restart; with the last one, all go through the loaded encoders."""
        future = restart.hold(bucket)
        if not bucket.is_last():
            return future
        self._restart = None
        for parameter in restart.parameters:
            self._numbers.setdefault(parameter, len(self._numbers))
        regrouped, known = restart.regrouped(self._numbers)
        if not known:
            log.warning(
                "rank %d: the codec's state that was loaded is of parameters of other shapes; what it owed is dropped",
                self.group.rank(),
            )
        owned = []
        for each in regrouped:
            owned.append(self._bucket(each.index, each.flat, each.parameters))
            if each.state is not None:
                owned[-1].load(each.state)
        self._weigh()
        works = []
        for own, each in zip(owned, regrouped, strict=True):
            if own.device is not None:
                works.append(average(self.group, own, each.flat, self.step))
                continue
            for piece in own.pieces:
                flight = CodecFlight(self.group, self.step, piece, each.flat)
                flight.start(self.step_weights)
                self._flights.append(flight)
        self._finish()
        for work in works:
            work.wait()
        for each in regrouped:
            each.hand_out()
        restart.finish()
        return future

    def _bucket(self, index: int, gradients: torch.Tensor, parameters: list[torch.Tensor]) -> Bucket:
        """The bucket with its encoders: the known one while its parameters are the same, else a new one."""
        if gradients.dtype not in QUANTIZED:
            raise UnsupportedError(
                f"codecs are for float32, float16 and bfloat16 gradients, not {gradients.dtype}. Remedy: no codec for "
                "this model, or lanes_hook"
            )
        own = tuple(parameters)
        known = self._buckets.get(index)
        if known is not None and same_parameters(known.parameters, own) and known.place.count == gradients.numel():
            return known
        encoder = None if self.weighted else encoder_on_device(self.group, self.codec, gradients)
        for parameter in own:
            self._numbers.setdefault(parameter, len(self._numbers))
        shapes = tuple(tuple(parameter.shape) for parameter in parameters)
        names = tuple(self._name(parameter) for parameter in parameters) if self._names else ()
        place = Place(self.group.rank(), self.group.size(), shapes, index, names=names)
        if place.count != gradients.numel():
            raise UnsupportedError(
                f"bucket {index} has {gradients.numel()} elements and parameters of {place.count}. Remedy: report it"
            )
        self._agree(place)
        made = self._buckets[index] = Bucket(
            self.codec, place, own, device=None if encoder is None else gradients.device, encoder=encoder
        )
        return made

    def _name(self, parameter: torch.Tensor) -> str:
        """The parameter's name in the model, without DDP's prefix."""
        try:
            return self._names[parameter].removeprefix("module.")
        except KeyError:
            raise ConfigurationError(
                f"a parameter of shape {list(parameter.shape)} is not the model's that CodecState was given. Remedy: "
                "CodecState(..., model=model) with the model that DDP wraps"
            ) from None

    def _agree(self, place: Place) -> None:
        """Raise CollectiveMismatchError unless all ranks have the same codec, seed, step, and shapes in this bucket."""
        weighted = ", weighted," if self.weighted else ""
        text = f"{self.codec}{weighted} at step {self.step}, bucket {place.bucket} of shapes {place.shapes}"
        own = zlib.crc32(text.encode())
        bounds = torch.tensor([own, -own], device="cpu")
        self.group.all_reduce_lanes(bounds, lanes=EXACT, operator=dist.ReduceOp.MAX).wait()
        if int(bounds[0]) != own or int(bounds[1]) != -own:
            raise CollectiveMismatchError(
                f"rank {place.rank} has codec {text}, and another rank something else. Remedy: the same codec, seed "
                "and model on every rank, and state_dicts of the same step"
            )


def codec_hook(state: CodecState, bucket: c10d.GradBucket) -> Future[torch.Tensor]:
    """Average a bucket over the ranks through the state's codec.

    `model.register_comm_hook(CodecState("rotated:8"), codec_hook)`
    """
    require_bucket("codec_hook", bucket)
    return state.reduce(bucket)


keep_out(sys.modules[__name__])
