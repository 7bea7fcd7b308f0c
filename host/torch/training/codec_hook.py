"""DDP's gradients through a codec: `model.register_comm_hook(CodecState("rotated:8"), codec_hook)`.

Rules
-----
* Every rank submits the same sums in the same order, whatever the timing. A codec of one stage submits when DDP hands a
  bucket over, and decodes when the sum is there. A codec of several stages submits the next stage of every bucket
  before it right after the first stage of a bucket, and what is left with the last bucket: so first stages travel
  while gradients are still computed.
* A large bucket goes through encoders of its own in pieces, where the codec allows it (`Codec.piecewise`): a piece is
  encoded while those before it travel, and decoded while those after it do.
* Encoders are kept by the bucket's number, and made anew where DDP has put other parameters into it: residuals of other
  parameters mean nothing. The ranks then compare codec, seed and shapes, so that unlike ones are an error.
* A state that was loaded is of the buckets that DDP had then, and DDP begins again with other ones. So the first step
  after it is put together anew: gradients wait for the last bucket, and go through the encoders that were loaded, in
  the buckets that those are of. From the second step on DDP has these buckets itself.
* A codec works on the bucket itself where that is float32 in the host's memory; float16 and bfloat16 are converted, and
  CUDA's gradients copied to the host.
"""

# No `from __future__ import annotations`: DDP compares a hook's annotations with classes.

import itertools
import logging
import time
import zlib
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch._C import _distributed_c10d as c10d
from torch.futures import Future

from fanin.errors import CollectiveMismatchError, ConfigurationError, UnsupportedError
from fanin.host.codecs import make
from fanin.host.codecs.codec import Codec, Encoder, Floats, Part, Place, Stages, sums_of
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.collectives.work import FaninWork
from fanin.host.torch.training.codec_sums import payload_bytes, start_sum
from fanin.host.torch.training.codec_weights import StepWeights, check_weight
from fanin.numerics.reduction import EXACT

log = logging.getLogger("fanin")

Result = TypeVar("Result")
PIECE = 1 << 20
"""Elements of a large bucket that are encoded while those before them travel, where the codec allows it."""
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
    parts: list[Part]
    """Its parameters by account, where the codec has several: of `by_layer` and `adaptive`."""


class _Piece:
    """Elements of a bucket that go through one encoder, and what their last step cost."""

    def __init__(self, encoder: Encoder, span: slice) -> None:
        self.encoder = encoder
        self.span = span
        self.payload_bytes = 0
        self.encode_s = self.decode_s = 0.0


class _Bucket:
    """One bucket's encoders: one, or one for each piece of PIECE elements."""

    def __init__(self, codec: Codec, place: Place, parameters: tuple[int, ...]) -> None:
        self.parameters = parameters
        self.place = place
        count = place.count
        if codec.piecewise and codec.single_stage and count > PIECE:
            ends = [*range(0, count, PIECE), count]
            self.pieces = [
                _Piece(codec.encoder(place.part(number, [(end - first,)])), slice(first, end))
                for number, (first, end) in enumerate(itertools.pairwise(ends))
            ]
        else:
            self.pieces = [_Piece(codec.encoder(place), slice(0, count))]

    @property
    def encoders(self) -> list[Encoder]:
        """Of all pieces."""
        return [each.encoder for each in self.pieces]

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that later steps depend on."""
        if len(self.pieces) == 1:
            return {name: torch.from_numpy(array) for name, array in self.encoders[0].state().items()}
        return {
            f"{number}/{name}": torch.from_numpy(array)
            for number, encoder in enumerate(self.encoders)
            for name, array in encoder.state().items()
        }

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """Take over what `state` returned."""
        arrays = {name: tensor.numpy() for name, tensor in state.items()}
        if len(self.pieces) == 1:
            self.encoders[0].load(arrays)
            return
        for number, encoder in enumerate(self.encoders):
            prefix = f"{number}/"
            encoder.load({name.removeprefix(prefix): each for name, each in arrays.items() if name.startswith(prefix)})

    @property
    def residual_norm(self) -> float:
        """Euclidean norm of what is still owed."""
        return float(np.sqrt(sum(encoder.residual_norm**2 for encoder in self.encoders)))


@dataclass(slots=True)
class _Held:
    """A bucket that waits for the last one, in the first step after a restart."""

    index: int
    buffer: torch.Tensor
    gradients: list[torch.Tensor]
    parameters: list[torch.Tensor]
    future: Future[torch.Tensor]


class _Flight:
    """One piece of a bucket under way in one step."""

    def __init__(self, state: "CodecState", piece: _Piece, bucket: torch.Tensor) -> None:
        gradients = bucket[piece.span]
        self._state, self._piece, self._gradients = state, piece, gradients
        flat = gradients.detach().view(-1)
        self._copied = flat.dtype != torch.float32 or flat.device.type != "cpu"
        if self._copied:
            flat = flat.to("cpu", torch.float32)
        self._x: Floats = flat.numpy()
        self._weights: StepWeights | None = None
        self._stages: Stages = piece.encoder.reduce(self._x, state.step)
        self.works: list[FaninWork] = []
        piece.payload_bytes = 0
        piece.encode_s = piece.decode_s = 0.0

    @property
    def over(self) -> bool:
        """Whether nothing is left to be summed."""
        return not self.works

    def start(self) -> None:
        """Submit the first stage."""
        self._weights = self._state.step_weights
        if self._weights is not None:
            self._x *= np.float32(self._weights.own)
        self._piece.encode_s += self._advance()

    def go_on(self) -> None:
        """Wait for the stage that is under way, and submit the next one."""
        for work in self.works:
            work.wait()
        self.decode()

    def decode(self) -> None:
        """Take the stage that is there, and submit the next one."""
        self._piece.decode_s += self._advance()

    def _advance(self) -> float:
        """Submit the next stage, or hand the gradients over after the last; the seconds of the codec's arithmetic."""
        started = time.perf_counter()
        asked = sums_of(next(self._stages, None))
        took_s = time.perf_counter() - started
        self._piece.payload_bytes += sum(payload_bytes(self._state.group, each) for each in asked)
        self.works = [start_sum(self._state.group, each) for each in asked]
        if not asked:
            if self._weights is not None:
                self._x *= np.float32(self._weights.factor())
            if self._copied:
                self._gradients.copy_(torch.from_numpy(self._x).view_as(self._gradients))
            if self._gradients.is_cuda:
                # A thread that waits for the future does not wait for this thread's stream.
                torch.cuda.current_stream(self._gradients.device).synchronize()
        return took_s


class CodecState:
    """State of `codec_hook`: which codec, which group, and what each bucket still owes.

    `codec`: a codec or its text ("rotated:8", docs/codecs.md), the same on every rank. `group`: a fanin group; None for
    the world's. `model`: whose parameters' names a codec may choose by, and the statement has; None: nobody knows them.
    `weighted`: means are weighted by `weight`, which each rank sets before each backward pass, such as its number
    of samples (codec_weights.py); False: all ranks weigh the same. Raises ConfigurationError for a codec that is not
    there, whose lanes hold too few workers or which must know names, and where the job goes on without lost ranks.
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
            raise ConfigurationError("codec_hook needs a group whose backend is 'fanin'")
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
        self._names = {id(each): name for name, each in model.named_parameters()} if model is not None else {}
        self.codec.encoder(Place(found.rank(), found.size(), ()))  # refuses what it cannot carry now, not in backward
        self.step = 0
        """Steps that are done; the same on every rank, since random numbers are drawn by it."""
        self.weighted = weighted
        self._weight = 1.0
        self.step_weights: StepWeights | None = None
        """Of the step under way."""
        self._buckets: dict[int, _Bucket] = {}
        self._flights: list[_Flight] = []
        self._futures: list[tuple[Future[torch.Tensor], torch.Tensor]] = []
        """Of the buckets that wait for the last one, with what they will hold."""
        self._numbers: dict[int, int] = {}
        """Of each parameter, by its id: its place in the order of DDP's first step."""
        self._loaded: dict[int, dict[str, Any]] = {}
        self._held: list[_Held] = []

    # --- what a user asks ---

    @property
    def weight(self) -> float:
        """What this rank's gradients weigh, at least 0; read when the first bucket of a step is ready."""
        return self._weight

    @weight.setter
    def weight(self, weight: float) -> None:
        if not self.weighted:
            raise ConfigurationError(
                "this CodecState weighs all ranks the same. Remedy: CodecState(..., weighted=True)"
            )
        self._weight = check_weight(weight)

    def statement(self) -> list[Row]:
        """What each bucket's last step cost and lost, in the order of buckets; none before the first step."""
        return [self._row(index, each) for index, each in sorted(self._buckets.items())]

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
        """Go on where `state_dict` was taken, by the same rank of the same number; ConfigurationError: another codec.

        The next steps have the bits that they would have had, if the state was taken after DDP's second step or later.
        Parameters are known by their order in DDP's first step, which the model and DDP's arguments decide; where
        their shapes are others than the state's, it is dropped with a warning.
        """
        if state["codec"] != str(self.codec):
            raise ConfigurationError(f"the state is of codec {state['codec']!r}, not of {str(self.codec)!r}")
        self.step = state["step"]
        self._buckets.clear()
        self._flights.clear()
        self._held.clear()
        self._loaded = dict(state["buckets"])

    # --- what the hook does ---

    def reduce(self, bucket: c10d.GradBucket) -> Future[torch.Tensor]:
        """Start a bucket; the hook's own work."""
        if self._loaded:
            return self._hold(bucket)
        if bucket.index() == 0:
            self._flights, self._futures = [], []  # what a step left that ended in an error
        gradients = bucket.buffer()
        pieces = self._bucket(bucket.index(), gradients, bucket.parameters()).pieces
        if bucket.index() == 0:
            self._weigh()
        if bucket.is_last():  # DDP's first step may have more buckets than those after it
            self._buckets = {index: each for index, each in self._buckets.items() if index <= bucket.index()}
        if self.codec.single_stage:
            summed = [self._started(_Flight(self, piece, gradients)) for piece in pieces]
            self.step += bucket.is_last()
            return torch.futures.collect_all(summed).then(lambda done: _all_of(done, gradients))
        (piece,) = pieces
        flight = _Flight(self, piece, gradients)
        flight.start()
        for other in self._flights:
            if not other.over:
                other.go_on()
        self._flights.append(flight)
        future: Future[torch.Tensor] = Future()
        self._futures.append((future, gradients))
        if bucket.is_last():
            self._finish()
            futures, self._futures = self._futures, []
            for each, result in futures:
                each.set_result(result)
        return future

    def _started(self, flight: _Flight) -> Future[None]:
        """Submit the only stage: the next piece is encoded while this one is on its way."""
        flight.start()
        if flight.over:
            done: Future[None] = Future()
            done.set_result(None)
            return done

        def decoded(summed: Future[list[Future[Any]]]) -> None:
            _all_of(summed, None)
            flight.decode()

        works = [*flight.works, *([self.step_weights.work] if self.step_weights else [])]
        return torch.futures.collect_all([work.get_future() for work in works]).then(decoded)

    def _weigh(self) -> None:
        self.step_weights = StepWeights(self.group, self._weight, self.step) if self.weighted else None

    def _finish(self) -> None:
        """With the last bucket: take all buckets through the stages that are left, in turn."""
        while left := [each for each in self._flights if not each.over]:
            for each in left:
                each.go_on()
        self._flights = []
        self.step += 1

    def _hold(self, bucket: c10d.GradBucket) -> Future[torch.Tensor]:
        """The first step after a restart: with the last bucket, all go through the encoders that were loaded."""
        if bucket.index() == 0:
            self._held = []
        future: Future[torch.Tensor] = Future()
        parts = bucket.gradients(), bucket.parameters()
        self._held.append(_Held(bucket.index(), bucket.buffer(), *parts, future))
        if bucket.is_last():
            held, self._held = self._held, []
            resumed = self._resumed(held)
            self._weigh()
            for bucket_, flat, _ in resumed:
                for piece in bucket_.pieces:
                    flight = _Flight(self, piece, flat)
                    flight.start()
                    self._flights.append(flight)
            self._finish()
            for _, flat, views in resumed:
                for view, part in zip(
                    views, flat.split([view.numel() for view in views]) if views else (), strict=True
                ):
                    view.copy_(part.view_as(view))
            for each in held:
                each.future.set_result(each.buffer)
        return future

    def _resumed(self, held: list[_Held]) -> list[tuple[_Bucket, torch.Tensor, list[torch.Tensor]]]:
        """Each bucket of the state that was loaded, its elements, and the gradients they go back to."""
        loaded, self._loaded = self._loaded, {}
        gradients = [gradient for each in held for gradient in each.gradients]
        parameters = [parameter for each in held for parameter in each.parameters]
        for parameter in parameters:
            self._numbers.setdefault(id(parameter), len(self._numbers))
        by_number = {self._numbers[id(each)]: place for place, each in enumerate(parameters)}
        saved = {
            number: shape
            for each in loaded.values()
            for number, shape in zip(each["parameters"], each["shapes"], strict=True)
        }
        if saved != {number: list(parameters[place].shape) for number, place in by_number.items()}:
            log.warning(
                "rank %d: the codec's state that was loaded is of parameters of other shapes; what it owed is dropped",
                self.group.rank(),
            )
            return [(self._bucket(each.index, each.buffer, each.parameters), each.buffer, []) for each in held]
        found = []
        for index, each in sorted(loaded.items()):
            here = [by_number[number] for number in each["parameters"]]
            views = [gradients[place] for place in here]
            flat = torch.cat([view.reshape(-1) for view in views])
            bucket = self._bucket(index, flat, [parameters[place] for place in here])
            bucket.load(each["state"])
            found.append((bucket, flat, views))
        return found

    def _bucket(self, index: int, gradients: torch.Tensor, parameters: list[torch.Tensor]) -> _Bucket:
        """The bucket's encoder: the one that it had, while its parameters are the same."""
        if gradients.dtype not in DTYPES:
            raise UnsupportedError(
                f"codecs are for float32, float16 and bfloat16 gradients, not {gradients.dtype}. Remedy: no codec for "
                "this model, or lanes_hook"
            )
        own = tuple(id(parameter) for parameter in parameters)
        known = self._buckets.get(index)
        if known is not None and known.parameters == own and known.place.count == gradients.numel():
            return known
        for parameter in own:
            self._numbers.setdefault(parameter, len(self._numbers))
        shapes = tuple(tuple(parameter.shape) for parameter in parameters)
        names = tuple(self._name(parameter) for parameter in parameters) if self._names else ()
        place = Place(self.group.rank(), self.group.size(), shapes, index, names=names)
        if place.count != gradients.numel():
            raise UnsupportedError(f"bucket {index} has {gradients.numel()} elements and parameters of {place.count}")
        self._agree(place)
        made = self._buckets[index] = _Bucket(self.codec, place, own)
        return made

    def _name(self, parameter: torch.Tensor) -> str:
        """As the model calls it, without DDP's prefix."""
        try:
            return self._names[id(parameter)].removeprefix("module.")
        except KeyError:
            raise ConfigurationError(
                f"a parameter of shape {list(parameter.shape)} is not the model's that CodecState was given. Remedy: "
                "CodecState(..., model=model) with the model that DDP wraps"
            ) from None

    def _agree(self, place: Place) -> None:
        """CollectiveMismatchError where another rank has another codec, seed, step, or other shapes in this bucket."""
        weighted = ", weighted," if self.weighted else ""
        text = f"{self.codec}{weighted} at step {self.step}, bucket {place.bucket} of shapes {place.shapes}"
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
        encode_s, decode_s = (sum(getattr(each, name) for each in bucket.pieces) for name in ("encode_s", "decode_s"))
        payload = sum(each.payload_bytes for each in bucket.pieces)
        energy, lost = (sum(getattr(each, name) for each in bucket.encoders) for name in ("energy", "lost"))
        saved_bits = 8 * max(0, plain - payload)
        return Row(
            bucket=index,
            codec=str(self.codec),
            elements=bucket.place.count,
            float32_bytes=plain,
            payload_bytes=payload,
            nmse=lost / energy if energy else 0.0,
            residual_norm=bucket.residual_norm,
            encode_ms=encode_s * 1e3,
            decode_ms=decode_s * 1e3,
            break_even_bit_s=saved_bits / (encode_s + decode_s) if encode_s + decode_s else 0.0,
            parts=[part for encoder in bucket.encoders for part in encoder.parts()],
        )


def _all_of(futures: Future[list[Future[Any]]], result: Result) -> Result:
    """`result`, unless one of them has raised."""
    for each in futures.value():
        each.value()
    return result


def codec_hook(state: CodecState, bucket: c10d.GradBucket) -> Future[torch.Tensor]:
    """Average a bucket over the ranks through the state's codec.

    `model.register_comm_hook(CodecState("rotated:8"), codec_hook)`
    """
    return state.reduce(bucket)
