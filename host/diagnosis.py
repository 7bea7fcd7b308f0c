"""The checks of `fanin doctor`: this machine, and the way to a switch, one named check after another.

A check that cannot even begin because an earlier one failed is left out: the first failure is the one to cure.
"""

from __future__ import annotations

import contextlib
import platform
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import fanin
from fanin.errors import FaninError, SwitchUnreachableError
from fanin.extension import native_extension, tag_algorithms
from fanin.host.codecs import make
from fanin.host.session.control import ControlClient
from fanin.host.session.exported import VARIABLE as METRICS_VARIABLE
from fanin.host.session.outputs import check_outputs, flight_recorder_file
from fanin.host.session.path import Reached, discover, exposed, reach, resolve
from fanin.host.session.port_probes import longest_answered
from fanin.host.transports.stack import open_bare
from fanin.key_file import operator_credentials
from fanin.options import Options, SwitchAddress
from fanin.processor_prices import JUMBO_MTU, hosts_price
from fanin.protocol import control
from fanin.protocol.pace import LONGEST_FRAME_BYTES
from fanin.protocol.seal import OPEN
from fanin.protocol.tag_algorithm import preferred
from fanin.protocol.window import RECEIVE_BUFFER_REQUEST_BYTES, packet_shape, slots_for, words_within
from fanin.protocol.wire import VERSION as WIRE_VERSION
from fanin.protocol.wire import datagram_bytes
from fanin.schemes import DEFAULT, SCHEMES, scheme_of
from fanin.transports.path_mtu import LARGEST_MTU
from fanin.variables import without_effect
from fanin.watching.exporter import address_of, require_client

SOL_UDP, UDP_SEGMENT, UDP_GRO = 17, 103, 104
"""Linux, udp(7). The socket module names the last two from Python 3.13 on."""
AMPLE_BUFFER_BYTES = 2 * RECEIVE_BUFFER_REQUEST_BYTES
"""Value of SO_RCVBUF if the system grants all that a socket of ours asks for."""
NOTABLE = ("socket_overflows", "dropped_")
"""Beginnings of the names of a switch's counters that a user should hear of."""


GPU_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/nvhost-ctrl"))
"""A file that a driver for NVIDIA's GPUs makes on Linux: the usual one, WSL's, that of Jetson boards."""
RECENTLY_S = 1.5
"""A leaf whose parent has answered this recently has a parent: it asks more often than that."""
SETTLING_ATTEMPTS, SETTLING_INTERVAL_S = 10, 0.5
"""How often and at which interval a leaf is asked again that does not know its parent's state; after 3 s it knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding. `warning`: it works, and could work better; `failure`: this must be cured."""

    name: str
    state: Literal["ok", "warning", "failure"] = "ok"
    result: str
    remedy: str = ""


def examine_environment(environment: Mapping[str, str]) -> Iterator[Check]:
    """Yield a warning for each variable that looks like one of fanin's and has no effect."""
    for line in without_effect(environment):
        yield Check(name="environment", state="warning", result=line, remedy="correct the name, or unset the variable")


def examine_options(options: Options) -> Iterator[Check]:
    """Yield a failure for each option that can be read, and would yet end a job as soon as its group begins."""

    def metrics() -> None:
        if options.metrics is not None:
            address_of(options.metrics, METRICS_VARIABLE)
            require_client()

    looks: dict[str, Callable[[], object]] = {
        "output files": lambda: check_outputs(options, 0),
        "flight recorder": lambda: options.flight_recorder and flight_recorder_file(options.flight_recorder, 0),
        "codec": lambda: options.codec and make(options.codec),
        "metrics": metrics,
    }
    for name, look in looks.items():
        try:
            look()
        except FaninError as error:
            result, _, remedy = str(error).partition(". Remedy: ")
            yield Check(name=name, state="failure", result=result, remedy=remedy or "correct the variable, or unset it")


def gpu_driver_is_there() -> bool:
    """Whether this machine has a driver for GPUs; looked up without importing torch or starting the driver."""
    return any(path.exists() for path in GPU_DRIVERS)


def examine_machine(options: Options) -> Iterator[Check]:
    """Yield the checks of this machine."""
    yield Check(name="python", result=f"{platform.python_version()} at {sys.executable}, fanin {fanin.__version__}")
    yield _engine(options)
    yield _loopback()
    yield _offload()
    yield _buffers()


def examine_switch(address: SwitchAddress, options: Options) -> Iterator[Check]:
    """Yield the checks of the way to a switch, step by step, and of the switch's own report."""
    timeout_s = options.connect_timeout_s
    try:
        hosts = resolve(address, timeout_s)
        yield Check(name="name", result=f"{address.host} is {', '.join(hosts)}")
    except FaninError as error:
        remedy = "correct the address or the name service"
        yield Check(name="name", state="failure", result=_cause(error), remedy=remedy)
        return
    try:
        there = reach(address, timeout_s, patient=False)
        yield Check(name="tcp", result=f"control port {address.port} of {there.host} accepts connections")
    except FaninError as error:
        other = f"start `fanin switch` there, or open TCP port {address.port} in the firewall"
        remedy = (error.remedy if isinstance(error, SwitchUnreachableError) else "") or other
        yield Check(name="tcp", state="failure", result=_cause(error), remedy=remedy)
        return
    try:
        with ControlClient(
            address,
            curve_server_key=options.curve_server_key,
            timeout_s=timeout_s,
            credentials=operator_credentials(None) or OPEN,
            otherwise_open=True,
        ) as client:
            answer = _settled(client, timeout_s)
    except FaninError as error:
        other = "see that a fanin switch of this version runs there, and that FANIN_CURVE_SERVER_KEY is its key"
        remedy = (error.remedy if isinstance(error, SwitchUnreachableError) else "") or other
        yield Check(name="control", state="failure", result=_cause(error), remedy=remedy)
        return
    if not isinstance(answer, control.Stats):
        yield _not_understood(answer)
        return
    yield _versions(answer)
    if answer.parent is not None:
        yield _parent(answer.parent)
    for data in answer.data:
        yield from _examine_data(data, there, options, wanted=data.scheme == address.scheme)
        yield from _packets_of_jobs(data, there, options, answer.jobs)
        yield from _jumbo_frames(data, there)
        if data.scheme == address.scheme:
            yield _tags(data, there, options)
    yield from _jobs(answer)


def _cause(error: FaninError) -> str:
    """The error without its remedy, which often names this very command."""
    return str(error).partition(". Remedy: ")[0]


def _engine(options: Options) -> Check:
    try:
        extension = native_extension(options.native)
    except FaninError as error:
        return Check(name="engine", state="failure", result=str(error), remedy="build the extension: pip install -e .")
    if extension is not None:
        return Check(name="engine", result=f"native (C++), kernels {extension.kernels_in_use()}")
    if options.native is False:
        return Check(name="engine", state="warning", result="Python twin: FANIN_NATIVE=0", remedy="unset FANIN_NATIVE")
    remedy = "it is slow: install a C++20 compiler and build the extension with pip install -e ."
    return Check(name="engine", state="warning", result="Python twin: fanin._native is not built", remedy=remedy)


def _loopback() -> Check:
    """Ranks of one machine, and the switch that rank 0 starts, meet on it."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("127.0.0.1", control.DEFAULT_PORT))
    except OSError as error:
        remedy = "bring it up: ip link set lo up"
        return Check(name="loopback", state="failure", result=f"127.0.0.1: {error.strerror}", remedy=remedy)
    return Check(name="loopback", result="up")


def _offload() -> Check:
    found = {}
    for name, option, value in (("GSO", UDP_SEGMENT, 1400), ("GRO", UDP_GRO, 1)):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.setsockopt(SOL_UDP, option, value)
                found[name] = True
            except OSError:
                found[name] = False
    result = ", ".join(f"{name} {'yes' if there else 'no'}" for name, there in found.items())
    if all(found.values()):
        return Check(name="offload", result=f"UDP {result}")
    return Check(
        name="offload", state="warning", result=f"UDP {result}", remedy="Linux 5.0 or later batches UDP in the kernel"
    )


def _buffers() -> Check:
    granted = discover(DEFAULT, Reached("127.0.0.1", LARGEST_MTU), control.DEFAULT_PORT).receive_buffer_bytes
    gains = []
    for path, mtu in (("loopback", 65_536), ("Ethernet", 1500)):
        words, codes = packet_shape(mtu)
        packet_bytes = datagram_bytes(codes, words)
        now, then = slots_for(granted, packet_bytes), slots_for(AMPLE_BUFFER_BYTES, packet_bytes)
        gains.append(f"{now} packets of {packet_bytes} bytes on {path}{f' ({then} if raised)' * (then > now)}")
    result = f"sockets get {granted:,} bytes to receive into, so the window is {', '.join(gains)}"
    if granted >= AMPLE_BUFFER_BYTES:
        return Check(name="buffers", result=result)
    remedy = (
        "not needed; on long or fast paths a wider window helps: "
        f"sudo sysctl -w net.core.rmem_max={RECEIVE_BUFFER_REQUEST_BYTES} on workers and switch"
    )
    return Check(name="buffers", result=result, remedy=remedy)


def _not_understood(answer: control.Reply) -> Check:
    if isinstance(answer, control.Refused):
        return Check(name="control", state="failure", result=answer.reason, remedy=answer.remedy)
    return Check(
        name="control", state="failure", result="an unexpected answer", remedy="see what listens at this address"
    )


def _versions(answer: control.Stats) -> Check:
    ours = f"fanin {fanin.__version__}, packets {WIRE_VERSION}, control {control.VERSION}"
    if answer.wire_version != WIRE_VERSION:
        result = f"here: {ours}; switch: fanin {answer.software}, packets {answer.wire_version}"
        return Check(name="versions", state="failure", result=result, remedy="install the same fanin on both sides")
    if answer.software != fanin.__version__:
        result = f"compatible, not the same: here {ours}; switch: fanin {answer.software}"
        return Check(name="versions", state="warning", result=result, remedy="install the same fanin on both sides")
    return Check(name="versions", result=f"both sides: {ours}; the switch runs {answer.engine}")


def _settled(client: ControlClient, timeout_s: float) -> control.Reply:
    """Return the switch's statistics; a leaf that does not know its parent's state yet is asked again for a while."""
    answer = client.ask(control.Ask(), timeout_s)
    for _ in range(SETTLING_ATTEMPTS):
        parent = answer.parent if isinstance(answer, control.Stats) else None
        if parent is None or parent.state in ("silent", "refuses") or parent.silent_s < RECENTLY_S:
            break
        time.sleep(SETTLING_INTERVAL_S)
        answer = client.ask(control.Ask(), timeout_s)
    return answer


def _parent(parent: control.ParentReport) -> Check:
    """Whether a leaf's parent answers."""
    if parent.state == "answers":
        return Check(name="parent", result=parent.text)
    if parent.state == "unknown":
        return Check(name="parent", state="warning", result=parent.text, remedy="ask again in a few seconds")
    port = parent.address.rpartition(":")[2]
    remedy = (
        f"start `fanin switch` at {parent.address}, without --parent, open TCP port {port} in the firewalls between "
        "them, or correct the --parent of the leaf"
    )
    return Check(name="parent", state="failure", result=parent.text, remedy=remedy)


def _tags(data: control.DataReport, there: Reached, options: Options) -> Check:
    """Whether the packets of a job that joins from here, with these options, would carry keyed tags."""
    facts = discover(data.scheme, there, data.ports[0])
    outside = exposed(facts, data.scheme, curve=options.curve_server_key is not None)
    if options.authenticate and not data.tags:
        remedy = "leave FANIN_AUTHENTICATE unset, or use a software switch"
        return Check(name="tags", state="failure", result="this switch's pipeline computes none", remedy=remedy)
    if options.authenticate or (options.authenticate is None and outside and data.tags):
        algorithm = preferred([data.tags, tag_algorithms(options.native) if options.tag is None else (options.tag,)])
        if algorithm is None:
            result = f"the switch tags by {' or '.join(data.tags)}, this rank by {options.tag} alone"
            return Check(name="tags", state="failure", result=result, remedy="leave FANIN_TAG unset on every rank")
        return Check(name="tags", result=f"data packets carry keyed tags ({algorithm}), in jobs with a secret")
    why = "packets do not leave this machine" if facts.local else "CURVE protects them"
    if outside:
        why = "FANIN_AUTHENTICATE=0" if data.tags else "this switch's pipeline computes none"
    return Check(name="tags", result=f"data packets carry no keyed tags: {why}")


def _examine_data(data: control.DataReport, there: Reached, options: Options, wanted: bool) -> Iterator[Check]:
    """Whether data ports answer, at the shortest and at the longest length. Those of another scheme may be closed."""
    mtu = discover(data.scheme, there, data.ports[0]).path_mtu
    words, codes = packet_shape(mtu)
    full = datagram_bytes(codes, words)
    for port in data.ports:
        name = f"{data.scheme} port {port}"
        protocol = scheme_of(data.scheme).protocol
        closed: Literal["failure", "warning"] = "failure" if wanted else "warning"
        firewall = f"open {protocol} port {port} in the firewalls of both machines (answers come back from it)"
        try:
            transport = open_bare(options, data.scheme, there.host, port)
        except FaninError as error:
            yield Check(name=name, state=closed, result=str(error), remedy=firewall)
            continue
        try:
            longest = longest_answered(transport, full)
            if longest == 0:
                trouble = transport.trouble or "no answer to the shortest packet"
                streams = [row.name for row in SCHEMES.values() if not row.packets_are_datagrams]
                other = "" if data.scheme in streams else f", or use {' or '.join(streams)}://"
                yield Check(name=name, state=closed, result=trouble, remedy=firewall + other)
            elif longest == full:
                yield Check(name=name, result=f"answers packets of up to {full} bytes (MTU {mtu})")
            else:
                yield Check(
                    name=name,
                    state=closed,
                    result=f"answers packets of {longest} bytes, none of {full}, though the interface's MTU is {mtu}",
                    remedy=f"set FANIN_WORDS_PER_PACKET={words_within(longest)}, or lower the interface's MTU to the "
                    "path's",
                )
        finally:
            transport.close()


def _packets_of_jobs(
    data: control.DataReport, there: Reached, options: Options, jobs: Sequence[control.JobReport]
) -> Iterator[Check]:
    """Whether packets as long as those of running jobs pass from here: a path may have become narrower meanwhile.

    Those of jobs within one machine are left out: longer than any network's frames.
    """
    if not scheme_of(data.scheme).packets_are_datagrams:
        return
    lengths = {
        datagram_bytes(1, job.words_per_packet): job.name
        for job in jobs
        if job.state == "running" and job.scheme == data.scheme
    }
    here = packet_shape(discover(data.scheme, there, data.ports[0]).path_mtu)[0]
    longest = max((size for size in lengths if size <= LONGEST_FRAME_BYTES), default=0)
    if longest <= datagram_bytes(1, here):  # the port has been tried with longer ones
        return
    with contextlib.closing(open_bare(options, data.scheme, there.host, data.ports[0])) as transport:
        if longest_answered(transport, longest) < longest:
            yield Check(
                name=f"job {lengths[longest]}",
                state="warning",
                result=f"its packets of {longest} bytes do not pass from here: if this host has a rank of it, the path "
                "has become narrower since it joined",
                remedy="give the path its MTU back, or start the job again, with a lower FANIN_WORDS_PER_PACKET if "
                "the system here does not know how narrow it is",
            )


def _jumbo_frames(data: control.DataReport, there: Reached) -> Iterator[Check]:
    """Name the processor time that longer packets would save, on a path whose MTU is below JUMBO_MTU."""
    facts = discover(data.scheme, there, data.ports[0])
    if facts.local or not scheme_of(data.scheme).packets_are_datagrams or facts.path_mtu >= JUMBO_MTU:
        return
    saved = {lanes: 1 - hosts_price(lanes, JUMBO_MTU) / hosts_price(lanes, facts.path_mtu) for lanes in (32, 8)}
    yield Check(
        name="jumbo frames",
        result=f"packets of {facts.path_mtu:,} bytes; with {JUMBO_MTU:,}, sums would take "
        + " and ".join(f"{share:.0%} less processor time over {lanes}-bit lanes" for lanes, share in saved.items()),
        remedy=f"not needed; where cards and switches can, and processors are busy: MTU {JUMBO_MTU} on every "
        f"interface and switch of the path (ip link set dev INTERFACE mtu {JUMBO_MTU})",
    )


def _jobs(answer: control.Stats) -> Iterator[Check]:
    waiting = [job for job in answer.jobs if job.state in ("forming", "starting")]
    for job in waiting:
        missing = [str(member.rank) for member in job.members if member.state in ("missing", "joined")]
        yield Check(
            name=f"job {job.name}",
            state="warning",
            result=f"{job.state} for {job.age_s:.0f} s; waits for rank{'s' * (len(missing) > 1)} {', '.join(missing)}",
            remedy="see why they did not start, or whether they use another FANIN_SWITCH or job name",
        )
    used, whole = answer.memory_used_bytes / (1 << 20), answer.memory_bytes / (1 << 20)
    others = f"{len(answer.jobs) - len(waiting)} running, {len(waiting)} waiting"
    if not answer.operator:
        others = f"{answer.job_count} (the switch's key, FANIN_KEY_FILE, shows which)"
    memory = f"; {used:,.1f} of {whole:,.0f} MiB used" if answer.memory_bytes else ""
    yield Check(name="jobs", result=f"{others}{memory}")
    for data in answer.data:
        noted = [f"{name} {count:,}" for name, count in data.counters.items() if count and name.startswith(NOTABLE)]
        if noted:
            result = f"since it started, over {data.scheme}: {', '.join(sorted(noted))}"
            yield Check(name="drops", result=result, remedy="docs/errors.md says what each reason means")
