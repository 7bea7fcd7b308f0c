"""Errors from the last event of a failed engine, which name ranks, address and remedy. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from fanin.errors import (
    AdmissionError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    EvictedError,
    FaninError,
    JoinTimeoutError,
    PathNarrowedError,
    SwitchLostError,
    SwitchUnreachableError,
    WorkerLostError,
)
from fanin.host.session.path import PathFacts
from fanin.options import SwitchAddress
from fanin.protocol.control import Admitted, Explanation, Refusal, Refused
from fanin.protocol.events import EngineStopped, PacketRefused, PathNarrowed, SwitchSilent, WorkersGone
from fanin.protocol.job import JobSpec
from fanin.protocol.window import IP_UDP_HEADER_BYTES, words_within
from fanin.protocol.wire import Reason
from fanin.schemes import scheme_of

FAILURES = (WorkersGone, SwitchSilent, PathNarrowed, PacketRefused, EngineStopped)
"""Events after which an engine does nothing any more."""


class End(enum.Enum):
    """How a switch has ended, by its control connection (line.py): what a rank sees of it, and the arguments of
    `MemberNames.remedy`.
    """

    REFUSED = (
        "its control port refuses another one (nothing listens there any more) and nothing comes from its data port, "
        "so its process has ended",
        (),
        True,
    )
    FORGOTTEN = (
        "the process that answers at its control port now does not know the job, and nothing comes from its data "
        "port: the switch was restarted, or another one has its port",
        (),
        False,
    )
    REPLACED = (
        "its control port accepts connections and does not answer as a switch of this job, and nothing comes from its "
        "data port: its process has ended, and another program (or a switch with another CURVE key) has the port",
        ("see who listens there (`ss -ltnp`)",),
        True,
    )
    DEVICE_GONE = (
        "its P4Runtime connection to the device has ended, and nothing comes over the data path, so the device is gone",
        ("start the device", "start its controller"),
        False,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberNames:
    """The names of this worker, for texts: job, rank, processes."""

    address: SwitchAddress
    job_name: str
    rank: int
    size: int
    processes: tuple[str, ...] = ()
    """`host:pid` by rank, once known; an empty text for a rank that came later."""

    falls_back: bool = False
    """Whether fallback="gloo" would have kept this job going without its switch, so that it is a remedy."""
    starts_switch: bool = False
    """Whether ranks of the job have started its switch, as they do again when the job is started again."""
    worker_ranks: tuple[int, ...] = ()
    """At a leaf of a tree: the ranks of its workers 0, 1, ...; empty where a worker's number is its rank."""

    @property
    def in_words(self) -> str:
        """This worker, as errors name it: `rank 1 of job 'j'`."""
        return f"rank {self.rank} of job {self.job_name!r}"

    def ranks(self, mask: int) -> tuple[int, ...]:
        """The ranks of the workers whose bits are set."""
        workers = ranks_of(mask)
        return tuple(self.worker_ranks[worker] for worker in workers) if self.worker_ranks else workers

    def remedy(self, *first: str, ended: bool = True) -> str:
        """Name the steps after the loss of the switch: `first`, and, unless it is just out of reach, its start."""
        start = ("start the switch",) if ended and not self.starts_switch else ()
        steps = ", then ".join((*first, *start, "start the job again"))
        return f"{steps}, or set FANIN_FALLBACK=gloo on every rank" if self.falls_back else steps

    def name(self, ranks: Sequence[int]) -> str:
        """`rank 3 (node7:4711)`, `ranks 1 (...) and 2 (...)`."""
        known = dict(enumerate(self.processes))
        names = [f"{rank} ({process})" if (process := known.get(rank)) else str(rank) for rank in ranks]
        if len(names) == 1:
            return f"rank {names[0]}"
        return f"ranks {', '.join(names[:-1])} and {names[-1]}"


def ranks_of(mask: int) -> tuple[int, ...]:
    """The ranks whose bits are set."""
    return tuple(rank for rank in range(mask.bit_length()) if mask >> rank & 1)


def used_in_child(who: MemberNames) -> FaninError:
    """The error for a child of fork() that uses its parent's session."""
    return FaninError(
        f"{who.in_words} at {who.address} is the process that this one was forked from. "
        "Remedy: reduce in the parent, or have the child join a job of its own (init_process_group after the fork)"
    )


def workers_gone(
    who: MemberNames, lost: Sequence[int], left: Sequence[int], timeout_s: float, explanation: Explanation | None = None
) -> WorkerLostError:
    """The error for peers that a collective needs and misses. `explanation`: what the controller says, if asked."""
    parts = []
    if lost and explanation is not None and explanation.gave_up:
        parts.append(f"{who.name(lost)} of job {who.job_name!r} at switch {who.address}: {explanation.gave_up}")
    elif lost:
        are, it, them = ("is", "it", "it") if len(lost) == 1 else ("are", "they", "them")
        parts.append(
            f"{who.name(lost)} of job {who.job_name!r} {are} lost: {it} hung up on switch {who.address} without "
            f"leaving, or nothing came from {them} for {timeout_s:g} s, since a process died or was stopped, or a "
            "network is gone"
        )
    if left:
        parts.append(
            f"{who.name(left)} of job {who.job_name!r} left while rank {who.rank} still waits for "
            f"{'it' if len(left) == 1 else 'them'} at switch {who.address}"
        )
    those = "that rank" if len(lost) + len(left) == 1 else "those ranks"
    remedy = f"see the output of {those}, then start the job again"
    if who.rank in lost:  # it lives, so its packets do not arrive, as behind a firewall that changed
        remedy = f"see why nothing from here arrives there (`fanin doctor {who.address}`), then start the job again"
    return WorkerLostError((*lost, *left), f"{'; '.join(parts)}. Remedy: {remedy}")


def with_forgeries(trouble: str, dropped: int) -> str:
    """Add to the system's complaint the number of packets whose keyed tag did not hold, if there were any."""
    if not dropped:
        return trouble
    forged = f"{dropped:,} packets from its address were dropped, since their keyed tag is wrong: forged, or damaged"
    return f"{trouble}; {forged}" if trouble else forged


IPV6_LONGER_BYTES = 20
"""Header of IPv6 less that of IPv4."""


def path_suspected(who: MemberNames, spec: JobSpec) -> str:
    """Describe a path on which long packets are lost at this time and short ones are not, with the remedy."""
    return (
        f"long packets (up to {spec.packet_bytes} bytes) do not pass between {who.in_words} "
        f"and switch {who.address} at this time, while short ones do: the path has become narrower. Remedy: give it "
        "its MTU back, or start the job again with a lower FANIN_WORDS_PER_PACKET"
    )


def path_moved(joined: PathFacts | None, now: PathFacts | None) -> str:
    """Describe the change of this rank's own address, if there is one: the switch takes its packets from no other."""
    before = joined.own_address if joined is not None else ""
    after = now.own_address if now is not None else ""
    if not before or before == after:
        return ""
    if not after:
        return f"this machine, which joined from {before}, has no way there any more (`ip address`, `ip route`)"
    return f"this machine joined from {before} and would now send from {after}: its address or its route has changed"


def path_narrowed(
    who: MemberNames, event: PathNarrowed, timeout_s: float, joined: PathFacts | None, now: PathFacts | None
) -> PathNarrowedError:
    """The error for packets as long as needed that pass no more. `joined`, `now`: the path as the system knew it.

    Lengths are of UDP payloads; an MTU counts their headers.
    """
    own_address = now.own_address if now is not None else ""
    end = f"rank {who.rank} ({own_address})" if own_address else f"rank {who.rank}"
    mtu = event.passes_bytes + IP_UDP_HEADER_BYTES - (0 if ":" in own_address else IPV6_LONGER_BYTES)
    was = f"was {joined.path_mtu} when this rank joined and" if joined is not None else ""
    device = f" (this machine's own device has {now.path_mtu})" if now is not None else ""
    return PathNarrowedError(
        str(who.address),
        f"switch {who.address} is out of reach for long packets: between {end} of job {who.job_name!r} and it, packets "
        f"of {event.needed_bytes} bytes have not passed for {timeout_s:g} s, there and back, while ones of "
        f"{event.passes_bytes} bytes do. The MTU of the path {was} is about {mtu} now{device}, and who "
        f"drops longer packets does not say so. Remedy: give the path its MTU back (`ip link`, "
        f"tunnels and routes on the way), or set FANIN_WORDS_PER_PACKET={words_within(event.passes_bytes)} on all "
        "ranks and start the job again",
    )


def switch_silent(
    who: MemberNames,
    silent_s: float,
    trouble: str,
    explanation: Explanation | None,
    *,
    moved: str = "",
    firewall: bool = False,
) -> SwitchLostError:
    """The error for a switch that has fallen silent. `explanation` is its controller's, None if that is silent too.

    `moved`: see `path_moved`. `firewall`: connections to its control port were refused while its data still came.
    """
    remedy = who.remedy()
    if moved:
        seen, remedy = moved, who.remedy("give this machine its address and route back", ended=False)
    elif firewall:
        seen = (
            "its control port had refused connections from here before, while its data still came, so look for a "
            "firewall, which rejects data as well by now, or its process has ended"
        )
    elif explanation is None:
        seen = "its control port does not answer either, so its process or its machine is gone or stopped"
    elif explanation.known:
        seen = "its controller still knows the job, so look for a firewall, or a path that loses packets of this size"
    else:
        seen = "its controller answers and does not know the job: the switch was restarted"
    noted = f" (last complaint of the system: {trouble})" if trouble else ""
    return SwitchLostError(
        str(who.address),
        f"switch {who.address} is lost: {who.in_words} heard nothing from it for "
        f"{silent_s:.1f} s; {seen}{noted}. Remedy: {remedy}",
    )


def switch_ended(who: MemberNames, end: End) -> SwitchLostError:
    """The error for a switch whose control connection has shown that it ended."""
    seen, first, ended = end.value
    if end is End.DEVICE_GONE:
        lost = f"the switch behind {who.address} is lost: its controller told {who.in_words} that"
    else:
        lost = f"switch {who.address} is lost: its connection to {who.in_words} closed,"
    return SwitchLostError(str(who.address), f"{lost} {seen}. Remedy: {who.remedy(*first, ended=ended)}")


def reduction_late(
    job_name: str, address: SwitchAddress, rank: int, ticket: int, timeout_s: float, narrow: str
) -> FaninError:
    """The error for a reduction that is late though no rank is known to be gone; `narrow`: the trouble of its path."""
    why = narrow or (
        "every rank is alive, so one of them has not come this far. Remedy: find the rank that does not call this "
        "collective, or allow more time"
    )
    return CollectiveTimeoutError(
        f"Timed out: reduction {ticket} of job {job_name!r} at {address} is not done on rank {rank} after "
        f"{timeout_s:g} s; {why}"
    )


def engine_stopped(who: MemberNames, why: str) -> FaninError:
    """The error for an engine that has stopped by itself."""
    return FaninError(
        f"the engine of {who.in_words} at switch {who.address} stopped: {why}. Remedy: see the log of this rank, then "
        "start the job again"
    )


def broken(who: MemberNames, what: str, error: Exception) -> FaninError:
    """The error for an exception that nobody expects, in a thread of the session; `what`: which one."""
    return FaninError(
        f"{what} of {who.in_words} at switch {who.address} has failed: {error!r}. Remedy: see the log of this rank, "
        "report it, then start the job again"
    )


def session_closed(job_name: str, rank: int, address: SwitchAddress) -> FaninError:
    """The error of a wait or a call after the session was closed: the collective had not ended by then."""
    return FaninError(
        f"the session of rank {rank} in job {job_name!r} at {address} was closed before the collective had ended. "
        "Remedy: wait for collectives before the group is destroyed or the program ends"
    )


def data_path_closed(who: MemberNames, admitted: Admitted, silent_s: float, trouble: str) -> SwitchUnreachableError:
    """The error for a switch whose controller answers and whose data ports do not."""
    ports = ", ".join(map(str, admitted.ports))
    noted = f" (the system says: {trouble})" if trouble else ""
    scheme = scheme_of(admitted.scheme)
    others = ""
    if scheme.packets_are_datagrams:
        others = ", or lower FANIN_WORDS_PER_PACKET if the path is narrower than it says"
        if not admitted.data_host:  # a device behind a controller takes datagrams alone
            others += ", or use zmq://"
    return SwitchUnreachableError(
        str(who.address),
        f"{who.in_words}: switch {who.address} answers on its control port, but nothing came back from its "
        f"{scheme.protocol} port {ports} for {silent_s:.1f} s{noted}. Remedy: open that port in the firewall{others}; "
        f"`fanin doctor {who.address}` tells more",
    )


def path_too_narrow(
    who: MemberNames, admitted: Admitted, needed_bytes: int, passes_bytes: int
) -> SwitchUnreachableError:
    """The error for a data port that answers short packets and none as long as the job's. Lengths are of datagrams."""
    return SwitchUnreachableError(
        str(who.address),
        f"{who.in_words}: switch {who.address} answers packets of {passes_bytes} bytes at its "
        f"{scheme_of(admitted.scheme).protocol} port {admitted.ports[0]}, and none of {needed_bytes}, which this job "
        "needs: a link on the way drops longer packets without saying so. Remedy: give the path its MTU back "
        "(`ip link`, tunnels and routes on the way), or set "
        f"FANIN_WORDS_PER_PACKET={words_within(passes_bytes)} on all ranks and start the job again",
    )


def packet_refused(who: MemberNames, reason: Reason, explanation: Explanation | None, timeout_s: float) -> FaninError:
    """The error for a NOTICE that refuses this worker. `explanation`: what the controller says of the job, if asked."""
    if reason is Reason.MISMATCH:
        return CollectiveMismatchError(
            f"{who.in_words} at switch {who.address} and another rank called different collectives, or the same one "
            "with other sizes, dtypes, operators or lanes, or with tensors in host memory on some ranks and on devices "
            "on others. Remedy: make every rank call the same collectives in the same order (threads that call some at "
            "the same time need a group each), with the same FANIN_LANES and FANIN_EXACT_ELEMENTS"
        )
    if reason is Reason.EVICTED:
        return EvictedError(
            (who.rank,),
            f"rank {who.rank} (this one) was taken out of job {who.job_name!r} at switch {who.address}. Remedy: see "
            "who evicted it; join again as a new job",
        )
    if reason in (Reason.BRANCH_LOST, Reason.BRANCH_LEFT):
        return branch_gone(who, explanation)
    if explanation is not None and explanation.lost:
        return workers_gone(who, explanation.lost, explanation.left, timeout_s, explanation)
    told = f": {explanation.text}" if explanation is not None else ""
    return SwitchLostError(
        str(who.address),
        f"switch {who.address} does not know {who.in_words} any more ({reason.name}){told}. "
        "Remedy: start the job again; if the switch was restarted, every job on it must be",
    )


def superseded(who: MemberNames) -> AdmissionError:
    """The error for a job that ended before this rank knew that it had begun, and whose name another job has by now."""
    text = (
        f"job {who.job_name!r} at switch {who.address} ended, or the switch was restarted, and another job of that "
        f"name began, while rank {who.rank} waited for its start. Remedy: see the output of the other ranks and of "
        "the switch, then start the job again"
    )
    return AdmissionError(text)


def branch_gone(who: MemberNames, explanation: Explanation | None) -> FaninError:
    """The error in a tree that has lost a leaf, workers of another leaf, or the root: the controllers know which."""
    told = "its controller does not answer" if explanation is None else explanation.text
    text = (
        f"the tree of switches above {who.address} has lost a part that {who.in_words} needs: "
        f"{told}. Remedy: see the output of what is named there, then start the job again"
    )
    if explanation is not None and (explanation.lost or explanation.left):
        return WorkerLostError((*explanation.lost, *explanation.left), text)
    return SwitchLostError(str(who.address), text)


def join_refused(who: MemberNames, refused: Refused) -> FaninError:
    """The error for a controller's refusal."""
    text = f"switch {who.address} refuses {who.in_words}: {refused.reason}. Remedy: {refused.remedy}"
    if refused.code == Refusal.JOIN_TIMEOUT.value:
        return JoinTimeoutError(refused.ranks, text)
    if refused.code == Refusal.MEMBER_LOST.value:
        return WorkerLostError(refused.ranks, text)
    if refused.code == Refusal.EVICTED.value:
        return EvictedError(refused.ranks, text)
    return AdmissionError(text, refused.code)
