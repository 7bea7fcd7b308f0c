"""A switch as a child process, which rank 0 starts when no switch is configured.

The child never outlives its use: it holds the read end of a pipe from this process, and where the system has them a
pidfd of this process. When either shows that this process is gone (or has closed the pipe), the child serves the jobs
that are still alive and then exits; a job without live workers ends by the liveness timeout. The child has an operating
system session of its own and ignores SIGINT, so that Ctrl-C in a terminal reaches the workers first, and they can still
leave.

The key of its jobs goes down the same pipe before anybody can ask, so the child serves no other jobs, and the key never
travels over the network. All of its options come by the pipe as well, so that `prepare` can start a child before they
are known: it imports while its parent does.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from fanin import files
from fanin.errors import SwitchUnreachableError
from fanin.host.session.threads import started
from fanin.modules import running
from fanin.options import ENVIRONMENT_PREFIX, Options, SwitchAddress
from fanin.protocol.seal import Credentials
from fanin.schemes import DEFAULT
from fanin.switch_order import MAX_LINE_BYTES, SwitchOrder, SwitchReport
from fanin.transports.polling import READABLE, is_ready

START_TIMEOUT_S = 60.0
"""Longest wait for the child to be ready: a Python start on a machine that is busy starting all ranks at once."""
EXIT_STATUS_TIMEOUT_S = 1.0
"""How long a child that has closed its report may take to end."""


class EmbeddedSwitch:
    """A running switch process. Outlives `close` (and its parent) only while other workers still use it."""

    addresses: tuple[SwitchAddress, ...]
    """Addresses for the ranks: each host given to `start_switch`, with the port that the system chose."""

    def __init__(self, process: subprocess.Popen[bytes], addresses: Sequence[SwitchAddress], description: str) -> None:
        """Take over a started process; `start_switch` calls this."""
        self._process = process
        self.addresses = tuple(addresses)
        self._owner = os.getpid()
        self.description = description
        """The switch's own description, in words."""

    @property
    def address(self) -> SwitchAddress:
        """The first of the addresses."""
        return self.addresses[0]

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """Close the pipe to the process, which ends once its last job is gone. Idempotent, never raises or waits.

        Nothing happens in a child forked from the process that started it.
        """
        if os.getpid() == self._owner:
            _let_go(self._process)

    def __enter__(self) -> EmbeddedSwitch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def start_switch(
    host: str | Sequence[str],
    options: Options,
    *,
    scheme: str = DEFAULT,
    liveness_timeout_s: float | None = None,
    credentials: Credentials | None = None,
    parents: Sequence[SwitchAddress] = (),
    rank: int | None = None,
) -> EmbeddedSwitch:
    """Start a switch beside this process, listening on `host` (a name or address that the other ranks can reach).

    With several hosts, the process runs a switch at each. With `parents` it runs leaves instead: the leaf of
    `parents[i]` listens on `host[i]`, or all of them on one host where `host` is a text. `credentials` are those of the
    jobs that it serves; None: any job's.

    `rank`: the one that starts it, for errors; None: this process.

    `options` give flows, ports, native and, where `liveness_timeout_s` is None, the liveness timeout. Raises
    SwitchUnreachableError with the child's own words when it does not come up.
    """
    hosts = (host,) * max(len(parents), 1) if isinstance(host, str) else tuple(host)
    wanted = SwitchAddress(scheme, hosts[0], 0)
    starter = f"process {os.getpid()}" if rank is None else f"rank {rank}"
    order = SwitchOrder(
        hosts=hosts,
        scheme=wanted.scheme,
        flows=options.flows,
        ports=options.port_range,
        native=options.native,
        liveness_timeout_s=options.liveness_timeout_s if liveness_timeout_s is None else liveness_timeout_s,
        parents=tuple(map(str, parents)),
        key="" if credentials is None else credentials.key.hex(),
    )
    child = _PREPARED.take()
    if child is None:
        try:
            child = _Child.start()
        except OSError as error:
            program = error.filename or sys.executable
            raise _told(wanted, starter, f"{program}: {files.in_words(error)}") from None
    try:
        child.tell(order)
        report = _read_report(child, wanted, starter)
    except BaseException:
        child.process.kill()
        child.let_go()
        raise
    os.close(child.report)
    addresses = [SwitchAddress(wanted.scheme, at, port) for at, port in zip(hosts, report.ports, strict=True)]
    return EmbeddedSwitch(child.process, addresses, report.description)


def prepare() -> None:
    """Start a process that imports now, for the next `start_switch` to use. Never raises; undone by `discard`."""
    _PREPARED.prepare()


def discard() -> None:
    """End the process that `prepare` has started, if nothing has used it."""
    if (child := _PREPARED.take()) is not None:
        child.let_go()


@dataclass(frozen=True, slots=True)
class _Child:
    """A process that waits for its order on standard input."""

    process: subprocess.Popen[bytes]
    report: int
    """The descriptor at which its report arrives."""

    @classmethod
    def start(cls) -> _Child:
        """Start a process; OSError if that fails."""
        report, theirs = os.pipe()
        try:
            process = subprocess.Popen(
                running("fanin.embedded_switch", str(theirs)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # Python's site may print there, which nobody reads
                pass_fds=(theirs,),
                start_new_session=True,
                env=_environment(),
            )
        except BaseException:
            os.close(report)
            raise
        finally:
            os.close(theirs)
        return cls(process, report)

    def tell(self, order: SwitchOrder) -> None:
        """Write the order; that a process has ended is left for `_read_report` to find."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(order.line())
            self.process.stdin.flush()

    def let_go(self) -> None:
        """Close report and pipe; a process without an order then ends."""
        os.close(self.report)
        _let_go(self.process)


class _Prepared:
    """At most one process that waits for its order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def prepare(self) -> None:
        with self._lock:
            if self._child is None:
                with contextlib.suppress(OSError):  # `start_switch` tries again, and says why not
                    self._child = _Child.start()

    def take(self) -> _Child | None:
        with self._lock:
            child, self._child = self._child, None
        if child is not None and child.process.poll() is not None:
            child.let_go()
            return None
        return child

    def forget(self) -> None:
        """In a child of fork(): forget the parent's process, and make a new lock, since the old one may be held."""
        self._lock, self._child = threading.Lock(), None


_PREPARED = _Prepared()
os.register_at_fork(after_in_child=_PREPARED.forget)


def _environment() -> dict[str, str]:
    """Return the child's environment, without the worker's own options, which would mean something else there."""
    return {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}


def _read_report(child: _Child, address: SwitchAddress, starter: str) -> SwitchReport:
    """Read the child's report: that it serves, or why not."""
    deadline = time.monotonic() + START_TIMEOUT_S
    line = b""
    while not line.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not is_ready([child.report], READABLE, left_s):
            raise _failed(address, starter, f"it was not ready after {START_TIMEOUT_S:g} s")
        piece = os.read(child.report, 4096)
        if not piece:
            try:
                status = child.process.wait(EXIT_STATUS_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise _failed(address, starter, "it closed its report and did not end") from None
            raise _failed(address, starter, f"it ended with status {status}; see what it printed")
        line += piece
        if len(line) > MAX_LINE_BYTES:
            break
    try:
        report = SwitchReport.read(line)
    except (ValueError, TypeError, KeyError):
        raise _failed(address, starter, f"it reported {line[:200]!r}") from None
    if report.error:
        raise _told(address, starter, report.error)
    return report


def _failed(address: SwitchAddress, starter: str, why: str) -> SwitchUnreachableError:
    return _told(address, starter, f"{why}. Remedy: start one yourself with `fanin switch` and set FANIN_SWITCH")


def _told(address: SwitchAddress, starter: str, why: str) -> SwitchUnreachableError:
    """The error for a switch that did not come up; `why` has a remedy of its own."""
    what = f"the switch that {starter} starts beside itself on {address.host} did not come up"
    return SwitchUnreachableError(str(address), f"{what}: {why}")


def _let_go(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if process.poll() is None:
        # Do not wait, since the other ranks may still have to say BYE to this switch. A thread takes the exit status;
        # if this process ends before, its children are inherited, and so is that.
        started(process.wait, name="fanin switch")
