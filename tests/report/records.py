"""Records of runs that never were, with every part filled in: what the report's tests draw. Functions of nothing."""

from __future__ import annotations

import math

from fanin.records.record import (
    VERSION,
    Activity,
    Event,
    LinkRecord,
    LinkSample,
    Progress,
    Quantity,
    Row,
    RunRecord,
    Span,
    SwitchRecord,
    SwitchSample,
    WorkerRecord,
)

STEP_S = 0.1
PARTS: tuple[tuple[Activity, float], ...] = (("compute", 0.05), ("quantize", 0.006), ("send", 0.02), ("wait", 0.024))


def spans(rank: int, steps: int, straggler: int) -> tuple[Span, ...]:
    """Equal steps in which a straggler computes longer, and the others wait for it."""
    made = []
    for step in range(steps):
        at = step * STEP_S
        for activity, length_s in PARTS:
            extra = {"compute": 0.018, "wait": -0.018}.get(activity, 0.0) if rank == straggler else 0.0
            waited = (straggler,) if activity == "wait" and rank != straggler else ()
            end = at + length_s + extra
            made.append(Span(activity=activity, start_s=at, end_s=end, step=step, bytes=600_000, waited_for=waited))
            at = end
    return tuple(made)


def emulated(workers: int = 4, steps: int = 200, title: str = "8 workers at 1 Gbit/s") -> RunRecord:
    """An `emulate` run with a straggler and a fault."""
    duration_s, straggler = steps * STEP_S, workers - 1
    moments = [0.5 * tick for tick in range(int(2 * duration_s) + 1)]

    def carried(time_s: float, rank: int) -> int:
        return int(8e7 * (time_s + 0.4 * math.sin(time_s + rank) - 0.4 * math.sin(rank)))

    return RunRecord(
        version=VERSION, kind="emulate", title=title, command="fanin emulate --workers 4 -- python train.py",
        started="2026-11-21T12:00:00Z", duration_s=duration_s, outcome="finished", software="0.1.0",
        kernel="Linux 6.18", machine="2 cores",
        settings={"workers": workers, "rate": "1gbit", "delay_s": 5e-5, "loss": 0.001, "checksum": True, "racks": None},
        workers=tuple(
            WorkerRecord(
                rank=rank, place=f"namespace fanin-w{rank}", outcome="finished",
                slowdown=2.0 if rank == straggler else 1.0, spans=spans(rank, steps, straggler),
                counters={"packets_out": 120_000.0 + rank, "retransmissions": 90.0 + 7 * rank, "gaps": 70.0,
                          "timeouts": 20.0 + 7 * rank, "srtt_us": 310.0},
            )
            for rank in range(workers)
        ),
        links=tuple(
            LinkRecord(
                name=f"worker {rank}", rate_bit_s=1e9, delay_s=5e-5, loss=0.001,
                samples=tuple(
                    LinkSample(time_s=moment, up_bytes=carried(moment, rank), down_bytes=carried(moment, rank + 2),
                               dropped=int(3 * moment))
                    for moment in moments
                ),
            )
            for rank in range(workers)
        ),
        switches=(
            SwitchRecord(
                name="switch", target="native", description="native machine, native loop over udp",
                samples=tuple(
                    SwitchSample(time_s=moment, counters={"duplicates": 4.0 * moment, "dropped_checksum": moment // 2})
                    for moment in moments
                ),
                last_arrivals={str(rank): 50 + 400 * (rank == straggler) for rank in range(workers)},
            ),
        ),
        progress=tuple(
            Progress(time_s=(epoch + 1) * duration_s / 12, rank=0, epoch=epoch + 1, step=22 * (epoch + 1),
                     loss=2.3 * math.exp(-0.5 * epoch), accuracy=1 - 0.5 * math.exp(-0.6 * epoch), step_s=STEP_S,
                     communication_s=0.03)
            for epoch in range(12)
        ),
        events=(Event(time_s=duration_s / 3, kind="fault", text="link of worker 1 down for 2 s"),),
        notes=("The kernel has no netem: delay and loss come from fanin's own forwarding element.",),
    )  # fmt: skip


def measured() -> RunRecord:
    """A benchmark over sizes, worker counts and rates, with whole steps."""
    sizes, counts, rates = (1 << 16, 1 << 20, 26_214_400), (4, 8), (1e8, 1e9)
    rows = [
        _row(backend, lanes, workers, size, rate)
        for rate in rates
        for workers in counts
        for size in sizes
        for backend, lanes in (("fanin", 32), ("fanin", 16), ("fanin", 8), ("gloo", 32))
    ]
    steps = [
        Row(
            backend=backend,
            lanes=lanes,
            workers=4,
            bytes=29_000_000,
            rate_bit_s=rate,
            measures="step",
            median_s=median_s,
            fastest_s=median_s * 0.97,
            slowest_s=median_s * 1.1,
            samples=20,
            ideal_s=None,
            ratio_to_gloo=4.9 / median_s,
            max_error=None,
        )
        for rate in rates
        for backend, lanes, median_s in (("fanin", 32, 2.9), ("fanin", 8, 1.1), ("gloo", 32, 4.9))
    ]
    return RunRecord(
        version=VERSION,
        kind="bench",
        title="All-reduce on real links",
        outcome="finished",
        software="0.1.0",
        command="fanin bench network --workers 8 --rate 1gbit --lanes 32,16,8 --against gloo",
        duration_s=412.0,
        started="2026-11-21T12:00:00Z",
        kernel="Linux 6.18",
        machine="2 cores",
        rows=(*rows, *steps),
    )


def _row(backend: str, lanes: int, workers: int, size: int, rate: float) -> Row:
    share = lanes / 32 if backend == "fanin" else 2 * (workers - 1) / workers
    ideal_s = size * share * 8 * 1.04 / rate
    median_s = ideal_s * 1.05 + 4e-4
    gloo_s = size * 2 * (workers - 1) / workers * 8 * 1.04 / rate * 1.05 + 4e-4
    return Row(
        backend=backend,
        lanes=lanes,
        workers=workers,
        bytes=size,
        rate_bit_s=rate,
        measures="allreduce",
        median_s=median_s,
        fastest_s=median_s * 0.96,
        slowest_s=median_s * 1.15,
        samples=11,
        ideal_s=ideal_s,
        ratio_to_gloo=gloo_s / median_s,
        max_error=3e-7,
        retransmissions=3 if backend == "fanin" else None,
    )


def compared() -> RunRecord:
    """Training in several modes under several conditions, with one that never reached its target."""
    conditions, modes = ("even workers", "one of them 3 times slower, always"), ("synchronous", "stale", "asynchronous")
    return RunRecord(
        version=VERSION,
        kind="bench",
        title="Does staleness pay?",
        command="fanin bench staleness",
        duration_s=60.0,
        started="2026-11-21T12:00:00Z",
        outcome="finished",
        software="0.1.0",
        kernel="Linux 6.18",
        machine="2 cores",
        quantities=tuple(
            Quantity(
                plot="Time to 90 % accuracy",
                group=condition,
                name=mode,
                unit="s",
                value=None if mode == "stale" and group else 4.0 + group + index,
                caption="Smoothed.",
            )
            for group, condition in enumerate(conditions)
            for index, mode in enumerate(modes)
        ),
        progress=tuple(
            Progress(
                time_s=0.5 * point * (1 + index),
                rank=0,
                group=condition,
                label=mode,
                accuracy=1 - 0.8 * math.exp(-0.3 * point),
                loss=2 * math.exp(-0.2 * point),
            )
            for condition in conditions
            for index, mode in enumerate(modes)
            for point in range(12)
        ),
    )
