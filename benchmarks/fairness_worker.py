"""One process of the fairness benchmark: sums for some seconds, or floods the switch for as long."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

import numpy as np

from fanin.benchmarks.control_flood import FLOODS
from fanin.benchmarks.fairness import COUNT, Asked
from fanin.benchmarks.ranks import asked_of, report
from fanin.host.session.joining import JoinTerms
from fanin.host.session.session import Session
from fanin.numerics.reduction import Element, Reduction
from fanin.options import Options, SwitchAddress
from fanin.protocol.wire import Kind, Packet

WARM_UP_SUMS = 3
FLOOD_BURST = 64
LOWEST_PRIORITY = 19


def summing(session: Session, seconds: float) -> dict[str, object]:
    """Sum for `seconds`; element 0 of each sum tells all ranks of the job whether any rank's time is up."""
    done, wrong, step = 0, 0, 0
    began = ended = time.monotonic()
    while True:
        values = np.full(COUNT, session.rank + 1 + step, np.int32)
        values[0] = ended - began > seconds
        _sum(session, values, step + 1)
        step += 1
        expected = session.size * (session.size + 1) // 2 + session.size * (step - 1)
        wrong += int((values[1:] != expected).sum())
        if step == WARM_UP_SUMS:
            began = time.monotonic()
        done += step > WARM_UP_SUMS
        ended = time.monotonic()
        if values[0] > 0:
            return {"sums": done, "seconds": ended - began, "wrong": wrong}


def flooding(session: Session, seconds: float) -> dict[str, object]:
    """Send the switch contributions of our own job from another port, as fast as the link takes them.

    A real stranger has a machine of its own; this process gets only processor time that no other process wants.
    """
    _yield_to_others()
    spec, address = session.spec, session.address
    sent = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as flood:
        flood.connect((address.host, address.port))
        packet = Packet(
            kind=Kind.CONTRIBUTION, job=spec.job, generation=spec.generation, worker=session.rank, slot=0, signature=1
        ).to_bytes()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(FLOOD_BURST):
                try:
                    flood.send(packet)
                    sent += 1
                except OSError:  # the link's queue is full
                    time.sleep(0)
    return {"flooded": sent}


def flooding_control(kind: str, address: SwitchAddress, seconds: float) -> dict[str, object]:
    """Attack the control port of the switch, as a stranger without a job."""
    _yield_to_others()
    end = time.monotonic() + seconds
    return {"flooded": sum(FLOODS[kind](address, lambda: time.monotonic() < end))}


def _yield_to_others() -> None:
    """Set the lowest priority for this process, and for its session if the kernel schedules sessions (autogroup)."""
    os.nice(LOWEST_PRIORITY)
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(LOWEST_PRIORITY), encoding="ascii")


def _sum(session: Session, values: np.ndarray, signature: int) -> None:
    address = values.ctypes.data
    reduction = Reduction(
        source=address,
        destination=address,
        count=COUNT,
        element=Element.INT32,
        signature=signature,
        owner=values,
    )
    session.wait(session.submit(reduction), 60.0)


def main(asked: Asked) -> None:
    """Join a job of two workers, and do what `asked` says."""
    job, own_rank = divmod(int(os.environ["RANK"]), 2)
    options = Options.from_environment(os.environ)
    assert options.switch is not None
    switch = SwitchAddress.parse(options.switch)
    with Session.join(
        JoinTerms(options=options, switch=switch, job_name=f"job {job}", rank=own_rank, size=2)
    ) as session:
        if job == 0 or asked.second_job == "sum":
            found = summing(session, asked.seconds)
        elif asked.second_job == "packets":
            found = flooding(session, asked.seconds + 1.0)
        elif asked.second_job in FLOODS:
            found = flooding_control(asked.second_job, switch, asked.seconds + 1.0)
        else:
            found = {}
    report({"job": job, **found})


if __name__ == "__main__":
    main(asked_of(Asked, __doc__))
