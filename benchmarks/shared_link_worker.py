"""One process of `fanin bench network --shared-link`: the switch, a worker, or one end of a TCP flow, by its rank.

Rank 0 is the switch; then come the workers, job by job; then, for each TCP flow, its receiver and its sender. Each
prints one JSON object. Workers sum int32 tensors, PIPELINED of them at a time, so that they always have something to
send, as TCP has. They stop when worker 0 of their job says so in the first element of the tensor, and compare every sum
with the expected one.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from typing import Any

import numpy as np

from fanin.benchmarks.ranks import asked_of, report
from fanin.benchmarks.shared_link import Asked
from fanin.extension import native_extension
from fanin.numerics.reduction import Element, Reduction
from fanin.protocol.events import Ready
from fanin.protocol.job import JobSpec
from fanin.protocol.window import RECEIVE_BUFFER_REQUEST_BYTES, packet_shape, slots_for
from fanin.protocol.wire import datagram_bytes

PORT = 7100
"""Port of the switch, in its own namespace; TCP flows use the ports after it."""
WAIT_S = 60.0
CONNECT_S = 20.0
STOP = 1 << 20
PIPELINED = 2
"""Reductions under way at a time. With one, the link's queue would empty at the end of each, to the others' benefit."""
TCP_BLOCK = bytes(1 << 16)


def spec_of(job: int, workers: int, mtu: int) -> JobSpec:
    """The job's facts, as a controller would choose them."""
    words, codes = packet_shape(mtu)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_REQUEST_BYTES)
        granted = probe.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    return JobSpec(
        job=job,
        generation=1 + job,
        workers=workers,
        quorum=workers,
        words_per_packet=words,
        slots=slots_for(granted, datagram_bytes(codes, words)),
        codes_per_packet=codes,
        tokens=tuple(range(100, 100 + workers)),
    )


def serve(given: Asked) -> dict[str, object]:
    """Run the switch until all other processes are done."""
    native = native_extension(True)
    assert native is not None
    specs = [spec_of(job, given.workers, given.mtu) for job in range(given.jobs)]
    memory = sum(spec.pool_bytes for spec in specs) + (8 << 20)
    server = native.SwitchServer(given.address, PORT, 1, memory)
    for spec in specs:  # before a worker can say HELLO
        server.admit(spec)
    server.start()
    left: set[int] = set()
    until = time.monotonic() + given.seconds + WAIT_S
    while len(left) < given.jobs and time.monotonic() < until:
        time.sleep(0.1)
        left = {spec.job for spec in specs if server.members(spec.job)[2] == spec.full_mask}
    counters = server.counters()
    server.close()
    return {"counters": counters}


def work(given: Asked, job: int, worker: int) -> dict[str, object]:
    """Run a worker; returns times and amounts summed up so far, and counters."""
    native = native_extension(True)
    assert native is not None
    spec = spec_of(job, given.workers, given.mtu)
    engine = native.WorkerEngine(spec, worker, spec.tokens[worker], given.address, [PORT], connect_timeout_s=CONNECT_S)
    engine.start()
    if not isinstance(event := engine.next_event(CONNECT_S + 1), Ready):
        raise SystemExit(f"worker {worker} of job {job}: {event}, {engine.trouble}")
    tensors = [np.empty(given.bytes // 4, np.int32) for _ in range(PIPELINED)]
    marks: list[tuple[float, int]] = []
    under_way: deque[tuple[int, np.ndarray[Any, np.dtype[np.int32]]]] = deque()
    began, stopping = 0.0, False
    while not stopping or under_way:
        # Submit here, too, and wait for, each sum that another worker had submitted before it heard of the stop.
        while not stopping and tensors:
            tensor = tensors.pop()
            tensor.fill(1 + worker)
            elapsed = time.monotonic() - began if began else 0.0
            tensor[0] = STOP if worker == 0 and elapsed >= given.seconds else 0
            address = tensor.ctypes.data
            what = Reduction(source=address, destination=address, count=tensor.size, element=Element.INT32, lanes=32)
            under_way.append((engine.submit(what), tensor))
        ticket, tensor = under_way.popleft()
        if not engine.wait(ticket, WAIT_S):
            raise SystemExit(f"worker {worker} of job {job}: {engine.next_event(0)}, {engine.counters()}")
        began = began or time.monotonic()
        if not (tensor[1:] == given.workers * (given.workers + 1) // 2).all():
            raise SystemExit(f"worker {worker} of job {job}: a sum is wrong")
        stopping |= int(tensor[0]) >= STOP
        tensors.append(tensor)
        marks.append((time.monotonic(), len(marks) + 1))
    counters = engine.counters()
    engine.leave(1.0)
    engine.close()
    return {"job": job, "worker": worker, "marks": marks, "counters": counters}


def receive(given: Asked, flow: int) -> dict[str, object]:
    """Run the receiving end of a TCP flow; returns bytes by time."""
    with socket.create_server((given.address, PORT + 1 + flow)) as listener:
        listener.settimeout(CONNECT_S)
        connection, _ = listener.accept()
    marks: list[tuple[float, int]] = []
    received, buffer = 0, bytearray(1 << 18)
    with connection:
        connection.settimeout(WAIT_S)
        while size := connection.recv_into(buffer):
            received += size
            if not marks or time.monotonic() - marks[-1][0] > 0.05:
                marks.append((time.monotonic(), received))
    return {"flow": flow, "marks": marks}


def send(given: Asked, flow: int) -> dict[str, object]:
    """Run the sending end of a TCP flow: CUBIC (RFC 9438), for the benchmark's duration."""
    until = time.monotonic() + CONNECT_S
    while True:
        try:
            connection = socket.create_connection((given.address, PORT + 1 + flow), timeout=CONNECT_S)
            break
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        until = time.monotonic() + given.seconds + 1.0
        while time.monotonic() < until:
            connection.sendall(TCP_BLOCK)
    return {}


def main(given: Asked) -> None:
    """Run the process of this rank."""
    rank = int(os.environ["RANK"])
    members = given.workers * given.jobs
    if rank == 0:
        found = serve(given)
    elif rank <= members:
        found = work(given, (rank - 1) // given.workers, (rank - 1) % given.workers)
    else:
        flow, end = divmod(rank - 1 - members, 2)
        found = send(given, flow) if end else receive(given, flow)
    report(found)


if __name__ == "__main__":
    main(asked_of(Asked, __doc__))
