"""CUDA tensors on their way to the switch: through pinned host memory, in bounded pieces.

Rules
-----
* One thread per group takes requests in order, cuts each into pieces of PIECE_BYTES, copies a piece to the host,
  submits it and, when its result is there, copies what is kept back. Up to PIECES are on their way at once.
* Every rank cuts alike, so the switch sees the same reductions in the same order everywhere. Requests on host memory
  that come while earlier CUDA requests are still being submitted take their place in the same queue.
* Copies run on a stream of our own, after what the caller's stream had queued when the request came. `wait` returns
  when the result is on its way to the device and makes the caller's current stream wait for it, as NCCL's does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import torch

from fanin.host.torch.collectives.request import Request
from fanin.host.torch.handles.host_tensor import copy_back
from fanin.host.torch.handles.work import FaninWork, LocalWork, QueuedWork

if TYPE_CHECKING:
    from fanin.host.session.leased import AnySession
    from fanin.host.torch.handles.completion import Completion
    from fanin.host.torch.handles.failures import Failures

PIECE_BYTES = 4 << 20
"""Bytes per piece: large enough that a copy runs at the bus's speed, small enough that copies and sums overlap."""
PIECES = 4
"""Pieces on their way at once: one copied in, two at the switch, one copied out."""


class StagedWork(QueuedWork):
    """A reduction of a CUDA tensor; or one of host memory behind it."""

    copied: torch.cuda.Event | None = None
    """Recorded behind the last copy to the device."""

    def _await(self, timeout_s: float) -> None:
        super()._await(timeout_s)
        if self.copied is not None:
            torch.cuda.current_stream(self.copied.device).wait_event(self.copied)


@dataclass(slots=True, eq=False)
class _Job:
    """A request and what its thread needs to know."""

    request: Request
    work: StagedWork
    ready: torch.cuda.Event | None
    """Recorded on the caller's stream when the request came; None for host memory."""
    pieces_left: int = 0


@dataclass(slots=True, eq=False)
class _Flight:
    """A piece at the switch."""

    job: _Job
    ticket: int
    buffer: torch.Tensor | None
    target: torch.Tensor | None
    """Where its result goes on the device."""
    offset: int
    """Where the kept part begins in the buffer, in elements."""


class Staging:
    """Carries out requests on CUDA memory. `hand_over` gives the session a request on host memory: its ticket."""

    def __init__(
        self,
        session: AnySession,
        hand_over: Callable[[Request], int],
        failures: Failures,
        completion: Completion,
    ) -> None:
        self._session = session
        self._hand_over = hand_over
        self._failures = failures
        self._completion = completion
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._unsubmitted = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._free: deque[torch.Tensor] = deque()
        self._buffers = 0
        """That are free, at the switch, or on their way there: those that an error has cost do not count."""
        self._flights: deque[_Flight] = deque()
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    @property
    def busy(self) -> bool:
        """Whether requests wait to be submitted, so that later ones must queue behind them."""
        return self._unsubmitted > 0

    def submit(self, request: Request) -> FaninWork:
        """Queue it."""
        if request.source.numel() == 0 and request.count <= 0:
            return LocalWork(self._completion, request.outputs)
        work = StagedWork(
            self._failures, request.name, self._completion, request.outputs, request.timeout_s, request.finish
        )
        ready = None
        if request.source.is_cuda:
            ready = torch.cuda.current_stream(request.source.device).record_event()
        with self._lock:
            self._unsubmitted += 1
            self._jobs.put(_Job(request, work, ready))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fanin-staging", daemon=True)
                self._thread.start()
        return work

    def close(self) -> None:
        """End the thread; what is still queued raises."""
        if self._thread is not None:
            self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._next()) is not None:
            try:
                if job.ready is None:
                    self._submit_host(job)
                else:
                    self._submit_pieces(job)
            except Exception as error:
                job.work.report(error)
            finally:
                with self._lock:
                    self._unsubmitted -= 1
        while self._flights:
            self._land()

    def _next(self) -> _Job | None:
        """The next request; while there is none, pieces are landed."""
        while self._flights:
            try:
                return self._jobs.get_nowait()
            except Empty:
                self._land()
        return self._jobs.get()

    def _submit_host(self, job: _Job) -> None:
        ticket = self._hand_over(job.request)
        job.pieces_left = 1
        self._flights.append(_Flight(job, ticket, None, None, 0))

    def _submit_pieces(self, job: _Job) -> None:
        request = job.request
        source = request.source.reshape(-1)
        stream = self._stream(source.device)
        assert job.ready is not None
        stream.wait_event(job.ready)
        piece_elements = PIECE_BYTES // source.element_size()
        starts = range(0, source.numel(), piece_elements)
        job.pieces_left = len(starts)
        for start in starts:
            buffer = self._buffer()
            try:
                flight = self._depart(job, source[start : start + piece_elements], start, buffer, stream)
            except BaseException:
                self._buffers -= 1  # it is not reused: a shard may have taken its part, and the engine write to it
                raise
            self._flights.append(flight)

    def _depart(
        self, job: _Job, part: torch.Tensor, start: int, buffer: torch.Tensor, stream: torch.cuda.Stream
    ) -> _Flight:
        request = job.request
        host = buffer[: part.numel() * part.element_size()].view(part.dtype)
        with torch.cuda.stream(stream):
            host.copy_(part, non_blocking=True)
            part.record_stream(stream)
        stream.synchronize()
        first, kept = overlap(start, part.numel(), request.keep_first, request.kept_count)
        target = None
        if request.kept is not None and kept:
            at = start + first - request.keep_first
            target = request.kept.reshape(-1)[at : at + kept]
        residual = request.residual
        if residual is not None:
            residual = residual.reshape(-1)[start : start + part.numel()]
        piece = Request(
            name=request.name, source=host, kept=host[first : first + kept] if kept else None, keep_first=first,
            element=request.element, lanes=request.lanes, operator=request.operator,
            average=request.average, factor=request.factor, residual=residual, scale_code=request.scale_code,
            timeout_s=request.timeout_s,
        )  # fmt: skip
        return _Flight(job, self._hand_over(piece), buffer, target, first)

    def _buffer(self) -> torch.Tensor:
        while not self._free and self._buffers == PIECES:
            self._land()
        if self._free:
            return self._free.popleft()
        buffer = torch.empty(PIECE_BYTES, dtype=torch.uint8, device="cpu", pin_memory=True)
        self._buffers += 1
        return buffer

    def _land(self) -> None:
        """Wait for the oldest piece, copy its result to the device, and report when it was its job's last."""
        flight = self._flights.popleft()
        job = flight.job
        try:
            self._session.wait(flight.ticket, job.request.timeout_s)
            if flight.target is not None and flight.buffer is not None:
                size = flight.target.element_size()
                end = flight.offset + flight.target.numel()
                host = flight.buffer[flight.offset * size : end * size].view(flight.target.dtype)
                stream = self._stream(flight.target.device)
                with torch.cuda.stream(stream):
                    copy_back(flight.target, host)
                    flight.target.record_stream(stream)
                stream.synchronize()
        except Exception as error:
            # The buffer is not reused: the engine may still write to it.
            self._buffers -= flight.buffer is not None
            job.work.report(error)
            return
        if flight.buffer is not None:
            self._free.append(flight.buffer)
        job.pieces_left -= 1
        if job.pieces_left == 0:
            if job.ready is not None:
                job.work.copied = self._stream(job.request.source.device).record_event()
            job.work.report()

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = torch.cuda.Stream(device)
        return stream


def overlap(start: int, count: int, keep_first: int, keep_count: int) -> tuple[int, int]:
    """Which elements of a piece are kept: offset in the piece and how many."""
    first = max(start, keep_first)
    last = min(start + count, keep_first + keep_count)
    return (first - start, last - first) if last > first else (0, 0)
