"""A piece of a bucket on its way through a codec in one step: stage by stage, each the sum of a process group."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np
import torch
from torch.futures import Future

from fanin.host.codecs.codec import Encoder, Floats, Stages, sums_of
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.handles.host_tensor import on_host
from fanin.host.torch.handles.work import FaninWork
from fanin.host.torch.training.codec_buckets import Piece
from fanin.host.torch.training.codec_sums import payload_bytes, start_sum
from fanin.host.torch.training.codec_weights import StepWeights

Result = TypeVar("Result")


class CodecFlight:
    """One piece of a bucket under way in one step.

    A codec works on the bucket itself where that is float32 in the host's memory; float16 and bfloat16 are converted,
    and CUDA's gradients copied to the host.
    """

    def __init__(self, group: FaninProcessGroup, step: int, piece: Piece, bucket: torch.Tensor) -> None:
        gradients = bucket[piece.span]
        self._group, self._piece, self._gradients = group, piece, gradients
        flat = gradients.detach().view(-1)
        self._copied = flat.dtype != torch.float32 or flat.device.type != "cpu"
        if self._copied:
            flat = on_host(flat).to(torch.float32)
        self._x: Floats = flat.numpy()
        self._weights: StepWeights | None = None
        assert isinstance(piece.encoder, Encoder)
        self._stages: Stages = piece.encoder.reduce(self._x, step)
        self._works: list[FaninWork] = []
        piece.payload_bytes = 0
        piece.encode_s = piece.decode_s = 0.0

    @property
    def over(self) -> bool:
        """Whether nothing is left to be summed."""
        return not self._works

    def start(self, weights: StepWeights | None) -> None:
        """Submit the first stage; `weights`: of the step, where means are weighted."""
        self._weights = weights
        if weights is not None:
            self._x *= np.float32(weights.own)
        self._piece.encode_s += self._advance()

    def go_on(self) -> None:
        """Wait for the stage that is under way, and submit the next one."""
        for work in self._works:
            work.wait()
        self._piece.decode_s += self._advance()

    def decoded(self) -> Future[None]:
        """A future for a codec of one stage: done when the sum has come and was decoded, without a call of `go_on`."""
        if self.over:
            done: Future[None] = Future()
            done.set_result(None)
            return done

        def decode(summed: Future[list[Future[Any]]]) -> None:
            all_of(summed, None)
            self._piece.decode_s += self._advance()

        works = [*self._works, *([self._weights.work] if self._weights else [])]
        return torch.futures.collect_all([work.get_future() for work in works]).then(decode)

    def _advance(self) -> float:
        """Submit the next stage, or hand the gradients over after the last; returns the seconds that the codec took."""
        started = time.perf_counter()
        asked = sums_of(next(self._stages, None))
        took_s = time.perf_counter() - started
        self._piece.payload_bytes += sum(payload_bytes(self._group, each) for each in asked)
        self._works = [start_sum(self._group, each) for each in asked]
        if not asked:
            if self._weights is not None:
                self._x *= np.float32(self._weights.factor())
            if self._copied:
                self._gradients.copy_(torch.from_numpy(self._x).view_as(self._gradients))
            if self._gradients.is_cuda:
                # A thread that waits for the future does not wait for this thread's stream.
                torch.cuda.current_stream(self._gradients.device).synchronize()
        return took_s


def finish(flights: Iterable[CodecFlight]) -> None:
    """Wait for all stages of all flights."""
    for each in flights:
        while not each.over:
            each.go_on()


def all_of(futures: Future[list[Future[Any]]], result: Result) -> Result:
    """Return `result`, or raise the error of the first future that has one."""
    for each in futures.value():
        each.value()
    return result
