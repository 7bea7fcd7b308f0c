"""The native engine by itself: no torch, no controller. N worker processes and a switch process on loopback.

Everything goes over UDP unless `--shared-memory` is given; then it uses the carrier of training on one machine.

    python -m benchmarks.engine --workers 4 8 --lanes 32 16 8 --bytes 4096 26214400

Every result is checked: against the float64 sum, and bit by bit between workers and between repetitions. Configurations
are interleaved; a row is the median over `--iterations` of the slowest worker's time, between two tiny reductions that
align the workers. `cpu_ms` is processor time of all processes for one reduction, divided by the number of cores: the
time if no core ever idled. `floor_ms` is the ideal: the time that the kernel takes to carry the same bytes through UDP
sockets in full trains, without processing. `resent` and `overflows` must be 0.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import socket
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from fanin._native import SwitchServer, WorkerEngine
from fanin.emulation.simulator.tied_processes import INTERRUPTIONS, end_with, interruptions_blocked
from fanin.numerics.reduction import Element, Reduction
from fanin.protocol.events import Ready
from fanin.protocol.job import JobSpec
from fanin.protocol.window import packet_shape, slots_for
from fanin.protocol.wire import datagram_bytes
from fanin.records.dataclass_files import write_rows

WAIT_S = 60.0
"""Longest time that any part may take before it counts as hung."""
INTERRUPTED = 130
"""Exit status after an interruption."""
MAX_ERROR = {32: 1e-6, 16: 2e-3, 8: 0.25, 4: 3.0}
"""Largest error of an average by lane width, for standard normal gradients and up to eight workers."""


@dataclass(frozen=True)
class Settings:
    """Settings of one job."""

    workers: int
    flows: int
    mtu: int
    words: int | None
    codes: int | None
    slots: int | None
    receive_buffer_bytes: int
    offload: bool
    shared_memory: bool

    def spec(self) -> JobSpec:
        """The job's facts, as a controller would choose them."""
        words, codes = packet_shape(self.mtu)
        words, codes = self.words or words, self.codes or codes
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.receive_buffer_bytes)
            granted = probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        return JobSpec(
            job=1,
            generation=1,
            workers=self.workers,
            quorum=self.workers,
            words_per_packet=words,
            slots=self.slots or slots_for(granted, datagram_bytes(codes, words)),
            codes_per_packet=codes,
            tokens=tuple(range(100, 100 + self.workers)),
        )


@dataclass(frozen=True)
class Row:
    """Measurements of one configuration."""

    workers: int
    lanes: int
    bytes: int
    median_ms: float
    cpu_ms: float
    floor_ms: float
    max_error: float
    resent: int
    overflows: int


def serve(watched: Connection, pipe: Connection, settings: Settings) -> None:
    """Run the switch process; it answers each message with (processor seconds, socket overflows) so far."""
    end_with(watched)
    spec = settings.spec()
    server = SwitchServer(
        "127.0.0.1",
        0,
        settings.flows,
        settings.flows * spec.pool_bytes + (8 << 20),
        receive_buffer_bytes=settings.receive_buffer_bytes,
        offload=settings.offload,
    )
    server.start()
    server.admit(spec)
    pipe.send((server.ports, server.shared_memory(spec.job) if settings.shared_memory else ()))
    while _asked(pipe):
        pipe.send((time.process_time(), server.counters()["socket_overflows"]))
    server.close()


class Worker:
    """One worker in a process of its own; `reduce` is called once per (lanes, bytes) and repetition."""

    def __init__(self, settings: Settings, rank: int, ports: tuple[int, ...], shared_memory: tuple[str, ...]) -> None:
        self.settings = settings
        spec = settings.spec()
        self.engine = WorkerEngine(
            spec,
            rank,
            spec.tokens[rank],
            "127.0.0.1",
            ports,
            receive_buffer_bytes=settings.receive_buffer_bytes,
            offload=settings.offload,
            shared_memory=shared_memory,
        )
        self.engine.start()
        if not isinstance(event := self.engine.next_event(WAIT_S), Ready):
            raise RuntimeError(f"worker {rank}: {event}, {self.engine.trouble}")
        self.rank = rank
        self.gradients: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}

    def run(self, values: np.ndarray, lanes: int, divisor: float) -> None:
        """Reduce the values in place, and divide the sum by `divisor`."""
        address = values.ctypes.data
        ticket = self.engine.submit(
            Reduction(
                source=address,
                destination=address,
                count=values.size,
                element=Element.FLOAT32,
                lanes=lanes,
                divisor=divisor,
            )
        )
        if not self.engine.wait(ticket, WAIT_S):
            raise RuntimeError(f"worker {self.rank}: {self.engine.next_event(0)}, {self.engine.counters()}")

    def reduce(self, lanes: int, size_bytes: int) -> tuple[float, float, float, int]:
        """Reduce the same input as ever; returns (seconds, processor seconds, largest error, CRC-32 of the result)."""
        workers = self.settings.workers
        if size_bytes not in self.gradients:
            of_rank = [np.random.default_rng(rank).standard_normal(size_bytes // 4) for rank in range(workers)]
            mean = np.mean([gradient.astype(np.float32).astype(np.float64) for gradient in of_rank], axis=0)
            gradient = of_rank[self.rank].astype(np.float32)
            self.gradients = {size_bytes: (gradient, mean, np.empty_like(gradient))}
        gradient, mean, values = self.gradients[size_bytes]
        np.copyto(values, gradient)
        for _ in range(2):
            self.run(np.zeros(1, np.float32), 32, 1.0)
        start, cpu_start = time.perf_counter(), time.process_time()
        self.run(values, lanes, float(workers))
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
        self.run(np.zeros(1, np.float32), 32, 1.0)  # other workers still measure
        return seconds, cpu_seconds, float(np.abs(values - mean).max()), zlib.crc32(values.tobytes())


def work(
    watched: Connection,
    pipe: Connection,
    settings: Settings,
    rank: int,
    ports: tuple[int, ...],
    shared_memory: tuple[str, ...],
) -> None:
    """Run a worker process, which reduces as it is asked to over the pipe."""
    end_with(watched)
    worker = Worker(settings, rank, ports, shared_memory)
    pipe.send("ready")
    while (request := _asked(pipe)) is not None:
        measured = worker.reduce(*request)
        counters = worker.engine.counters()
        pipe.send((*measured, counters["retransmissions"], counters["socket_overflows"]))
    worker.engine.leave(1.0)
    worker.engine.close()


def _asked(pipe: Connection) -> Any:
    """The next request over the pipe; None after the last, and where the process that asks has ended."""
    try:
        return pipe.recv()
    except EOFError:
        return None


@contextlib.contextmanager
def job(settings: Settings) -> Iterator[tuple[Connection, list[Connection]]]:
    """Run the processes of one job; yields the pipe to the switch and those to the workers."""
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []

    def start(target: Callable[..., None], *arguments: Any) -> Connection:
        mine, its = context.Pipe()
        with interruptions_blocked():
            process = context.Process(target=target, args=(watched, its, settings, *arguments), daemon=True)
            process.start()
            processes.append(process)
        its.close()
        return mine

    watched, held = context.Pipe(duplex=False)
    try:
        switch = start(serve)
        ports, shared_memory = switch.recv()
        workers = [start(work, rank, ports, shared_memory) for rank in range(settings.workers)]
        for pipe in workers:
            pipe.recv()
        yield switch, workers
        for pipe in workers:
            pipe.send(None)
        for process in processes[1:]:
            process.join(WAIT_S)
        switch.send(None)
        processes[0].join(WAIT_S)
    finally:
        for process in processes:
            process.kill()
        held.close()
        watched.close()


def kernel_seconds_per_byte() -> float:
    """Processor time to send and receive a byte through a UDP socket, in trains of 64,000 bytes."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
    ):
        receiver.bind(("127.0.0.1", 0))
        sender.connect(receiver.getsockname())
        train, room = bytes(64_000), bytearray(65_536)
        for _ in range(100):
            sender.send(train)
            receiver.recv_into(room)
        start = time.process_time()
        for _ in range(1000):
            sender.send(train)
            receiver.recv_into(room)
        return (time.process_time() - start) / (1000 * len(train))


def measure(settings: Settings, lanes: list[int], sizes: list[int], iterations: int) -> list[Row]:
    """Measure all rows of one job."""
    cores = len(os.sched_getaffinity(0))
    per_byte = kernel_seconds_per_byte()
    rows = []
    with job(settings) as (switch, workers):
        for size in sizes:
            seconds: dict[int, list[float]] = {width: [] for width in lanes}
            cpu: dict[int, list[float]] = {width: [] for width in lanes}
            error = dict.fromkeys(lanes, 0.0)
            results: dict[int, set[int]] = {width: set() for width in lanes}
            resent = overflows = 0
            for iteration in range(iterations + 1):
                for width in lanes:
                    switch.send(True)
                    switch_before, _ = switch.recv()
                    for pipe in workers:
                        pipe.send((width, size))
                    answers = [pipe.recv() for pipe in workers]
                    switch.send(True)
                    switch_after, switch_overflows = switch.recv()
                    results[width] |= {answer[3] for answer in answers}
                    error[width] = max(error[width], *(answer[2] for answer in answers))
                    overflows = switch_overflows + sum(answer[5] for answer in answers)
                    resent = sum(answer[4] for answer in answers)
                    if iteration:  # the first iteration warms up
                        seconds[width].append(max(answer[0] for answer in answers))
                        cpu[width].append((switch_after - switch_before + sum(answer[1] for answer in answers)) / cores)
            for width in lanes:
                if len(results[width]) != 1:
                    raise RuntimeError(f"{width} bits, {size} bytes: {len(results[width])} different results")
                if not error[width] <= MAX_ERROR[width]:
                    raise RuntimeError(f"{width} bits, {size} bytes: error {error[width]}")
                rows.append(
                    Row(
                        workers=settings.workers,
                        lanes=width,
                        bytes=size,
                        median_ms=1e3 * statistics.median(seconds[width]),
                        cpu_ms=1e3 * statistics.median(cpu[width]),
                        floor_ms=1e3 * 2 * settings.workers * size * width / 32 * per_byte / cores,
                        max_error=error[width],
                        resent=resent,
                        overflows=overflows,
                    )
                )
    return rows


def main() -> None:
    """Run the command line; Ctrl-C, SIGTERM and SIGHUP end it with a line and status 130, as `fanin`'s commands."""
    for number in INTERRUPTIONS:
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, signal.default_int_handler)
    try:
        _measure_all()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _measure_all() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[4])
    parser.add_argument("--lanes", type=int, nargs="+", default=[32, 16, 8])
    parser.add_argument("--bytes", type=int, nargs="+", default=[4096, 65_536, 1 << 20, 26_214_400])
    parser.add_argument("--iterations", type=int, default=11)
    parser.add_argument("--flows", type=int, default=1)
    parser.add_argument("--mtu", type=int, default=65_536)
    parser.add_argument("--words", type=int, help="words per packet; from --mtu if not given")
    parser.add_argument("--codes", type=int, help="scale codes per packet; from --mtu if not given")
    parser.add_argument("--slots", type=int, help="window in packets; what the receive buffer holds if not given")
    parser.add_argument("--receive-buffer", type=int, default=212_992, help="SO_RCVBUF to ask for (Debian's limit)")
    parser.add_argument("--no-offload", action="store_true", help="without GSO and GRO")
    parser.add_argument("--shared-memory", action="store_true", help="beside UDP, as training on one machine does")
    parser.add_argument("--json", help="write the rows to this file")
    given = parser.parse_args()
    rows = []
    print("workers lanes     bytes  median ms   floor ms     cpu ms  max error  resent overflows", flush=True)
    for workers in given.workers:
        settings = Settings(
            workers,
            given.flows,
            given.mtu,
            given.words,
            given.codes,
            given.slots,
            given.receive_buffer,
            not given.no_offload,
            given.shared_memory,
        )
        for row in measure(settings, given.lanes, given.bytes, given.iterations):
            rows.append(row)
            print(
                f"{row.workers:7} {row.lanes:5} {row.bytes:9} {row.median_ms:10.3f} {row.floor_ms:10.3f} "
                f"{row.cpu_ms:11.3f} {row.max_error:10.2e} {row.resent:7} {row.overflows:9}"
            )
    if given.json:
        write_rows(Path(given.json), rows)


if __name__ == "__main__":
    main()
