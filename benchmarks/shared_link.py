"""`fanin bench network --shared-link`: workers, jobs and TCP flows behind one link (root; docs/emulation.md).

One namespace holds every worker and every TCP sender, another the switch and the receivers; between them is one link
with a rate and a queue, which is the sending host's own. With an uplink, each worker and each TCP sender is a host with
a link of its own, which sends single frames, and they meet at the uplink of their rack: its queue is in the middle of
the path, and sees neither sockets nor trains. The switch and the receivers share a host at its other end.
Only the engine and the switch run: no torch, no controller. Sums are checked. Rates cover the second half of the time
in which all of them send, in frames with all headers, first transmissions only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

from fanin.benchmarks.harness import Output, table
from fanin.benchmarks.ideal import ETHERNET_IP_UDP_BYTES, TCP_HEADERS_BYTES
from fanin.emulation.figures import FigureTable
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.emulation.network.topology import Link, Topology
from fanin.emulation.processes import LocalJob
from fanin.errors import ConfigurationError
from fanin.protocol.window import packet_shape
from fanin.protocol.wire import HEADER_BYTES, WORD_BYTES
from fanin.settings import words_of

Marks = Sequence[tuple[float, int]]
"""Progress of one job or flow: pairs of (time, amount so far)."""
MIN_SECONDS = 2.0
MIN_BYTES = 2 * WORD_BYTES
SECONDS, SECONDS_BESIDE_TCP = 10.0, 40.0
"""Default duration of a row, without and with TCP flows. A CUBIC flow comes back to the window at which it lost a
packet after as many seconds as the cube root of 0.75 windows (RFC 9438, section 4.2): 5.6 s for 240 packets. A few such
times show how flows begin, not how they share.
"""
MAX_PROCESSES = 64
OWN_QUEUE_BYTES = Link().queue_bytes
"""Queue of the hosts' own links if an uplink is shared: large enough that nothing is dropped there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The workers and TCP flows that share the link, and the duration."""

    workers: int
    """Number of workers of each job."""
    jobs: int
    tcp_flows: int
    """Number of CUBIC flows, in the direction of contributions."""
    size: int
    """Bytes of int32 per reduction."""
    link: Link
    """The shared link; with an uplink, the own link of every worker and TCP sender."""
    seconds: float
    uplink: Link | None = None
    """The shared uplink of a rack whose hosts are the workers and the TCP senders; None: `link` is shared."""

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= 32 or self.jobs < 1 or self.tcp_flows < 0:
            raise ConfigurationError(
                "workers must be in 1..32, jobs at least 1, tcp-flows at least 0", "--workers, --jobs or --tcp-flows"
            )
        if 1 + self.workers * self.jobs + 2 * self.tcp_flows > MAX_PROCESSES:
            raise ConfigurationError(
                f"these are more than {MAX_PROCESSES} processes. Remedy: fewer --workers, --jobs or --tcp-flows"
            )
        if self.shared.rate_bit_s is None:
            raise ConfigurationError("a link without a rate is not shared. Remedy: name one with --rate, or --uplink")
        if self.shared.mtu != self.link.mtu:
            raise ConfigurationError("the uplink's MTU must be that of the other links", "the MTUs")
        if self.size < MIN_BYTES or self.size % WORD_BYTES:
            raise ConfigurationError(
                f"bytes = {self.size}; must be a multiple of {WORD_BYTES}, and {MIN_BYTES} or more, with --shared-link",
                "--bytes",
            )
        if self.seconds < MIN_SECONDS:
            raise ConfigurationError(f"seconds = {self.seconds:g}; must be at least {MIN_SECONDS:g}", "--seconds")
        _ = self.topology  # raises ConfigurationError for too many hosts

    @property
    def shared(self) -> Link:
        """The shared link, which is the bottleneck."""
        return self.uplink or self.link

    @property
    def topology(self) -> Topology:
        """One host with all senders and its link; with an uplink, a host for each sender, and the uplink."""
        if self.uplink is None:
            return Topology(workers=1, link=self.link)
        return Topology(
            workers=self.workers * self.jobs + self.tcp_flows,
            switch_at=SwitchPlace("spare-only", 1),
            link=replace(self.link, queue_bytes=OWN_QUEUE_BYTES),
            uplink=self.uplink,
            lone_rack=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Results of one row. Shares are relative to the link's rate, in the direction of contributions."""

    workers: int
    jobs: int
    tcp_flows: int
    rate_bit_s: float
    queue_bytes: int
    job_shares: tuple[float, ...]
    """Each job's share of the link."""
    tcp_shares: tuple[float, ...]
    """Each TCP flow's share of the link."""
    fair_share: float
    """1 / (workers of all jobs + TCP flows): an equal share for each."""
    jain: float
    """Jain's index over jobs: 1 if all have the same share."""
    packets: int
    resent: int
    lost: int
    """Number of contributions and results that were found to be lost."""
    cuts: int
    timeouts: int
    dropped: int
    """Packets dropped by the queues of the shared link, TCP's included; trains, where hosts send them, count once."""
    dropped_elsewhere: int
    """Packets dropped by the queues of other links."""

    @property
    def together(self) -> float:
        """Share of the link that jobs and TCP flows use together."""
        return sum(self.job_shares) + sum(self.tcp_shares)

    @property
    def worker_to_fair(self) -> tuple[float, ...]:
        """By job, a worker's share relative to the fair share."""
        return tuple(share / self.workers / self.fair_share for share in self.job_shares)

    @property
    def tcp_to_fair(self) -> tuple[float, ...]:
        """Share of each TCP flow, relative to its fair share."""
        return tuple(share / self.fair_share for share in self.tcp_shares)


def usual_seconds(tcp_flows: int) -> float:
    """Default duration of a row in seconds."""
    return SECONDS_BESIDE_TCP if tcp_flows else SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Command line of a process (shared_link_worker.py)."""

    address: str
    workers: int
    jobs: int
    bytes: int
    mtu: int
    seconds: float


def bench(plans: Sequence[Plan], output: Output) -> list[Shares]:
    """Measure each plan, check, print a table; write the rows, with their derived figures."""
    rows = [measure(plan, output.console) for plan in plans]
    output.show(list(map(record_of, rows)), overview(rows) if len(rows) > 1 else table_of(rows[0]))
    return rows


def measure(plan: Plan, console: Console) -> Shares:
    """Measure one row of the table."""
    from fanin.emulation.network.commands import in_namespace, ip_batch
    from fanin.emulation.network.fabric import WORKER_DEVICE, Fabric
    from fanin.emulation.network.traffic import Meters

    topology, link = plan.topology, plan.shared
    words, _ = packet_shape(link.mtu)
    members = plan.workers * plan.jobs
    far = topology.root_address if plan.uplink is None else topology.spare_address(0)
    asked = Asked(
        address=far, workers=plan.workers, jobs=plan.jobs, bytes=plan.size, mtu=link.mtu, seconds=plan.seconds
    )
    with Fabric(topology) as fabric, console.status(f"{members} workers and {plan.tcp_flows} TCP flows share a link"):
        hosts = [fabric.host_namespace(host) for host in range(topology.hosts)]
        outer = fabric.switch_namespace() if plan.uplink is None else fabric.spare_namespace(0)
        if plan.uplink is not None:
            for namespace in (*hosts, outer):  # without this, queues on the way would accept or drop whole trains
                ip_batch(namespace, [f"link set {WORKER_DEVICE} gso_max_segs 1"])

        def place(rank: int, command: list[str]) -> list[str]:
            flow, end = divmod(rank - 1 - members, 2)
            receiver = rank == 0 or (rank > members and end == 0)
            host = rank - 1 if rank <= members else members + flow
            return in_namespace(outer if receiver else hosts[host if plan.uplink else 0], command)

        processes = 1 + members + 2 * plan.tcp_flows
        meters = Meters(fabric)
        with LocalJob("fanin.benchmarks.shared_link_worker", words_of(asked), processes, {}, place) as job:
            reports: dict[int, dict[str, Any]] = dict(job.reports())
        dropped = {name: sample.dropped for name, sample in meters.sample(0.0).items()}
        meters.close()
        shared = fabric.cables[-1].name
    workers = [reports[1 + number] for number in range(members)]
    packets = -(-plan.size // WORD_BYTES // words)
    frame_bytes = packets * (ETHERNET_IP_UDP_BYTES + HEADER_BYTES) + plan.size
    segment_bytes = link.mtu - (TCP_HEADERS_BYTES - 14)
    rate = link.rate_bit_s
    assert rate is not None
    firsts = [workers[number * plan.workers]["marks"] for number in range(plan.jobs)]
    flows = [reports[1 + members + 2 * flow]["marks"] for flow in range(plan.tcp_flows)]
    since, until = common([*firsts, *flows])
    jobs = [plan.workers * frame_bytes * 8 * rate_within(marks, since, until) / rate for marks in firsts]
    headers = 1 + TCP_HEADERS_BYTES / segment_bytes
    tcp = [8 * headers * rate_within(marks, since, until) / rate for marks in flows]
    return Shares(
        workers=plan.workers,
        jobs=plan.jobs,
        tcp_flows=plan.tcp_flows,
        rate_bit_s=rate,
        queue_bytes=link.queue_bytes,
        job_shares=tuple(jobs),
        tcp_shares=tuple(tcp),
        fair_share=1 / (members + plan.tcp_flows),
        jain=sum(jobs) ** 2 / (len(jobs) * sum(share**2 for share in jobs)),
        packets=_total(workers, "packets_out"),
        resent=_total(workers, "retransmissions"),
        lost=_total(workers, "losses"),
        cuts=_total(workers, "cuts"),
        timeouts=_total(workers, "timeouts"),
        dropped=dropped[shared],
        dropped_elsewhere=sum(dropped.values()) - dropped[shared],
    )


def common(all_marks: Sequence[Marks]) -> tuple[float, float]:
    """Second half of the time in which all of them make progress; later, the remaining ones have the link alone."""
    begin = max((marks[0][0] for marks in all_marks if marks), default=0.0)
    end = min((marks[-1][0] for marks in all_marks if marks), default=0.0)
    return (begin + end) / 2, end


def rate_within(marks: Marks, since: float, until: float) -> float:
    """Amount per second from `since` to `until`, interpolated between marks; above 0 also for a flow that stood still.

    Raises ConfigurationError if the marks do not span that time.
    """
    if len(marks) < 2 or not marks[0][0] <= since < until <= marks[-1][0]:
        raise ConfigurationError("too few reductions to tell a rate. Remedy: more --seconds, or fewer --bytes")
    import numpy as np  # --help must not import numpy

    times, counts = zip(*marks, strict=True)
    before, after = np.interp((since, until), times, counts)
    return float(after - before) / (until - since)


def _total(workers: Sequence[dict[str, Any]], counter: str) -> int:
    return sum(worker["counters"][counter] for worker in workers)


def record_of(shares: Shares) -> dict[str, Any]:
    """The row as an object for JSON, with its derived figures."""
    told = {"together": shares.together, "worker_to_fair": shares.worker_to_fair, "tcp_to_fair": shares.tcp_to_fair}
    return {**asdict(shares), **told}


def overview(rows: Sequence[Shares]) -> FigureTable:
    """Table of several rows for the terminal."""
    first = rows[0]
    return table(
        f"{_jobs_of(first)} behind one link of {first.rate_bit_s / 1e6:g} Mbit/s",
        rows,
        [
            ("queue", lambda row: f"{row.queue_bytes >> 10} KiB"),
            ("TCP", "tcp_flows:d"),
            ("of link", "together:.3f"),
            ("worker", lambda row: _spread(row.worker_to_fair)),
            ("TCP flow", lambda row: _spread(row.tcp_to_fair)),
            ("sent again", "resent:,"),
            ("packets", "packets:,"),
            ("dropped", "dropped:,"),
            ("elsewhere", "dropped_elsewhere:,"),
        ],
        caption="worker, TCP flow: what each had of its fair share, in the second half of the run, workers' by job;\n"
        "dropped by the link's queues, and elsewhere by others",
    )


def _spread(shares: Sequence[float]) -> str:
    """Two shares as they are, more as the smallest and the largest: there may be 64, and --json has all of them."""
    if len(shares) > 2:
        return f"{min(shares):.2f} to {max(shares):.2f}"
    return " ".join(f"{each:.2f}" for each in shares)


def table_of(shares: Shares) -> FigureTable:
    """Table of one row for the terminal."""
    flows = f" and {shares.tcp_flows} TCP flow{'s' * (shares.tcp_flows > 1)}" if shares.tcp_flows else ""
    title = f"{_jobs_of(shares)}{flows} behind one link of {shares.rate_bit_s / 1e6:g} Mbit/s "
    title += f"with a queue of {shares.queue_bytes >> 10} KiB"
    found = FigureTable(title, ("what", "value"))
    found.add("of the link, together", f"{shares.together:.3f}")
    for number, share in enumerate(shares.job_shares):
        found.add(f"job {number}, of the link", f"{share:.3f}")
    if shares.jobs > 1:
        found.add("Jain's index over jobs", f"{shares.jain:.3f}")
    if shares.tcp_flows:
        for job, each in enumerate(shares.worker_to_fair):
            found.add(f"worker of job {job}, of its fair share", f"{each:.2f}")
        for flow, each in enumerate(shares.tcp_to_fair):
            found.add(f"TCP flow {flow}, of its fair share", f"{each:.2f}")
    found.add("packets sent again", f"{shares.resent:,} of {shares.packets:,}")
    found.add("known to be lost", f"{shares.lost:,}")
    found.add("windows cut; timers expired", f"{shares.cuts:,}; {shares.timeouts:,}")
    found.add("dropped by its queues; by others", f"{shares.dropped:,}; {shares.dropped_elsewhere:,}")
    found.caption = "second half of the run; frames with all headers, each counted once"
    return found


def _jobs_of(shares: Shares) -> str:
    workers = f"{shares.workers} worker{'s' * (shares.workers > 1)}"
    return f"{shares.jobs} jobs of {workers}" if shares.jobs > 1 else workers
