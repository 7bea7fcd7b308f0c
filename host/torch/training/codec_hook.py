"""DDP's gradients through a codec: `model.register_comm_hook(CodecState("rotated:8"), codec_hook)`.

Rules
-----
* Every rank submits the same sums in the same order, whatever the timing. A codec of one stage submits when DDP hands a
  bucket over, and decodes when the sum is there. A codec of several stages submits the next stage of every bucket
  before it right after the first stage of a bucket, and what is left with the last bucket: so first stages travel
  while gradients are still computed.
* Encoders are kept by the bucket's number, and made anew where DDP has put other parameters into it: residuals of other
  parameters mean nothing. The ranks then compare codec, seed and shapes, so that unlike ones are an error.
* A codec works on float32 of its own; float16 and bfloat16 are converted, and CUDA's gradients copied to the host.
"""

# No `from __future__ import annotations`: DDP compares a hook's annotations with classes.

import time
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.futures import Future

from fanin.errors import CollectiveMismatchError, ConfigurationError, UnsupportedError
from fanin.host.codecs import make
from fanin.host.codecs.codec import Codec, Encoder, Floats, Place, Stages, Sum
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.collectives.work import FaninWork
from fanin.host.torch.training.codec_sums import payload_bytes, start_sum
from fanin.numerics.reduction import EXACT

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Gradients that a codec takes."""


@dataclass(slots=True)
class Row:
    """What `CodecState.statement` says of one bucket, of its last step."""

    bucket: int
    codec: str
    elements: int
    float32_bytes: int
    payload_bytes: int
    """In words of contributions, without headers: what this rank sent, and about what it received."""
    nmse: float
    """Share of this rank's contribution (residual included) that encoding lost."""
    residual_norm: float
    encode_ms: float
    """In the codec's own arithmetic before sums, and after them."""
    decode_ms: float
    break_even_bit_s: float
    """The link rate above which the codec's arithmetic takes longer than the bytes that it saves; 0: it saves none."""


class _Bucket:
    """One bucket's encoder, and what its last step cost."""

    def __init__(self, codec: Codec, place: Place, parameters: tuple[int, ...]) -> None:
        self.parameters = parameters
        self.place = place
        self.encoder: Encoder = codec.encoder(place)
        self.payload_bytes = 0
        self.encode_s = self.decode_s = 0.0


class _Flight:
    """One bucket under way in one step."""

    def __init__(self, state: "CodecState", bucket: _Bucket, gradients: torch.Tensor) -> None:
        self._state, self._bucket, self._gradients = state, bucket, gradients
        self._x: Floats = np.empty(gradients.numel(), np.float32)
        torch.from_numpy(self._x).copy_(gradients.detach().reshape(-1))
        self._stages: Stages = bucket.encoder.reduce(self._x, state.step)
        self.future: Future[torch.Tensor] = Future()
        self.work: FaninWork | None = None
        bucket.payload_bytes = 0
        bucket.encode_s = bucket.decode_s = 0.0

    @property
    def over(self) -> bool:
        """Whether nothing is left to be summed."""
        return self.work is None

    def start(self) -> None:
        """Submit the first stage."""
        started = time.perf_counter()
        asked = next(self._stages, None)
        self._bucket.encode_s += time.perf_counter() - started
        self._submit(asked)

    def go_on(self) -> None:
        """Wait for the stage that is under way, and submit the next one."""
        assert self.work is not None
        self.work.wait()
        self.decode()

    def decode(self) -> None:
        """Take the stage that is there, and submit the next one."""
        started = time.perf_counter()
        asked = next(self._stages, None)
        self._bucket.decode_s += time.perf_counter() - started
        self._submit(asked)

    def _submit(self, asked: Sum | None) -> None:
        if asked is None:
            self.work = None
            self._gradients.copy_(torch.from_numpy(self._x).view_as(self._gradients))
            if self._gradients.is_cuda:
                # A thread that waits for the future does not wait for this thread's stream.
                torch.cuda.current_stream(self._gradients.device).synchronize()
            return
        self._bucket.payload_bytes += payload_bytes(self._state.group, asked)
        self.work = start_sum(self._state.group, asked)


class CodecState:
    """State of `codec_hook`: which codec, which group, and what each bucket still owes.

    `codec`: a codec or its text ("rotated:8", docs/codecs.md), the same on every rank. `group`: a fanin group; None for
    the world's. Raises ConfigurationError for a codec that is not there or whose lanes hold too few workers, and where
    the job goes on without ranks that are lost.
    """

    def __init__(self, codec: Codec | str, *, group: c10d.ProcessGroup | None = None) -> None:
        found = group if group is not None else dist.group.WORLD
        if not isinstance(found, FaninProcessGroup):
            raise ConfigurationError("codec_hook needs a group whose backend is 'fanin'")
        if found.options.on_worker_loss == "continue":
            raise ConfigurationError(
                "codecs are for jobs that end with the first rank that is lost (on_worker_loss='raise'): what a lost "
                "rank still owes, and its share of a stage, cannot be made up for. Remedy: lanes_hook"
            )
        self.group = found
        self.codec = make(codec) if isinstance(codec, str) else codec
        self.codec.encoder(Place(found.rank(), found.size(), ()))  # refuses what it cannot carry now, not in backward
        self.step = 0
        """Steps that are done; the same on every rank, since random numbers are drawn by it."""
        self._buckets: dict[int, _Bucket] = {}
        self._flights: list[_Flight] = []
        self._loaded: dict[int, dict[str, Any]] = {}

    # --- what a user asks ---

    def statement(self) -> list[Row]:
        """What each bucket's last step cost and lost, in the order of buckets; none before the first step."""
        return [self._row(index, each) for index, each in sorted(self._buckets.items())]

    def residual_norm(self) -> float:
        """Euclidean norm of all that is still owed by this rank."""
        return float(np.sqrt(sum(each.encoder.residual_norm**2 for each in self._buckets.values())))

    def state_dict(self) -> dict[str, Any]:
        """Everything that a restart needs: the step, and each bucket's residuals and subspaces, of this rank alone."""
        buckets = {
            index: {
                "shapes": [list(shape) for shape in each.place.shapes],
                "state": {name: torch.from_numpy(array) for name, array in each.encoder.state().items()},
            }
            for index, each in self._buckets.items()
        }
        return {"codec": str(self.codec), "step": self.step, "buckets": buckets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, by the same rank of the same number; ConfigurationError: another codec.

        A bucket takes its part when it is first handed over with the same shapes. DDP puts parameters into other
        buckets after its first step, so saved residuals are mostly taken up with the second one.
        """
        if state["codec"] != str(self.codec):
            raise ConfigurationError(f"the state is of codec {state['codec']!r}, not of {str(self.codec)!r}")
        self.step = state["step"]
        self._buckets.clear()
        self._loaded = dict(state["buckets"])

    # --- what the hook does ---

    def reduce(self, bucket: c10d.GradBucket) -> Future[torch.Tensor]:
        """Start a bucket; the hook's own work."""
        gradients = bucket.buffer()
        flight = _Flight(self, self._bucket(bucket), gradients)
        flight.start()
        if self.codec.single_stage:
            self.step += bucket.is_last()
            if flight.work is None:
                return _done(gradients)

            def decoded(summed: Future[Any]) -> torch.Tensor:
                summed.value()  # raises what the sum has raised
                flight.decode()
                return gradients

            return flight.work.get_future().then(decoded)
        for other in self._flights:
            if not other.over:
                other.go_on()
        self._flights.append(flight)
        if bucket.is_last():
            self._finish()
        return flight.future

    def _finish(self) -> None:
        """With the last bucket: take all buckets through the stages that are left, in turn."""
        while left := [each for each in self._flights if not each.over]:
            for each in left:
                each.go_on()
        flights, self._flights = self._flights, []
        self.step += 1
        for each in flights:
            each.future.set_result(each._gradients)

    def _bucket(self, bucket: c10d.GradBucket) -> _Bucket:
        """The bucket's encoder: the one that it had, while its parameters are the same."""
        if bucket.index() == 0 and self._flights:
            self._flights = []  # what a step left that ended in an error
        gradients, index = bucket.buffer(), bucket.index()
        if gradients.dtype not in DTYPES:
            raise UnsupportedError(
                f"codecs are for float32, float16 and bfloat16 gradients, not {gradients.dtype}. Remedy: no codec for "
                "this model, or lanes_hook"
            )
        parameters = tuple(id(parameter) for parameter in bucket.parameters())
        known = self._buckets.get(index)
        if known is not None and known.parameters == parameters and known.place.count == gradients.numel():
            return known
        shapes = tuple(tuple(parameter.shape) for parameter in bucket.parameters())
        place = Place(self.group.rank(), self.group.size(), shapes, index)
        if place.count != gradients.numel():
            raise UnsupportedError(f"bucket {index} has {gradients.numel()} elements and parameters of {place.count}")
        self._agree(place)
        made = self._buckets[index] = _Bucket(self.codec, place, parameters)
        # DDP's first step has other buckets than those after it: what was loaded waits for the layout that it is of.
        if index in self._loaded and [list(shape) for shape in shapes] == self._loaded[index]["shapes"]:
            loaded = self._loaded.pop(index)["state"]
            made.encoder.load({name: tensor.numpy() for name, tensor in loaded.items()})
        return made

    def _agree(self, place: Place) -> None:
        """CollectiveMismatchError where another rank has another codec, seed, step, or other shapes in this bucket."""
        text = f"{self.codec} at step {self.step}, bucket {place.bucket} of shapes {place.shapes}"
        own = zlib.crc32(text.encode())
        bounds = torch.tensor([own, -own])
        self.group.all_reduce_lanes(bounds, lanes=EXACT, operator=dist.ReduceOp.MAX).wait()
        if int(bounds[0]) != own or int(bounds[1]) != -own:
            raise CollectiveMismatchError(
                f"rank {place.rank} has codec {text}, and another rank something else. Remedy: the same codec, seed "
                "and model on every rank, and state_dicts of the same step"
            )

    def _row(self, index: int, bucket: _Bucket) -> Row:
        plain = 4 * bucket.place.count
        busy_s = bucket.encode_s + bucket.decode_s
        saved_bits = 8 * max(0, plain - bucket.payload_bytes)
        return Row(
            bucket=index,
            codec=str(self.codec),
            elements=bucket.place.count,
            float32_bytes=plain,
            payload_bytes=bucket.payload_bytes,
            nmse=bucket.encoder.nmse,
            residual_norm=bucket.encoder.residual_norm,
            encode_ms=bucket.encode_s * 1e3,
            decode_ms=bucket.decode_s * 1e3,
            break_even_bit_s=saved_bits / busy_s if busy_s else 0.0,
        )


def _done(gradients: torch.Tensor) -> Future[torch.Tensor]:
    future: Future[torch.Tensor] = Future()
    future.set_result(gradients)
    return future


def codec_hook(state: CodecState, bucket: c10d.GradBucket) -> Future[torch.Tensor]:
    """Average a bucket over the ranks through the state's codec.

    `model.register_comm_hook(CodecState("rotated:8"), codec_hook)`
    """
    return state.reduce(bucket)
