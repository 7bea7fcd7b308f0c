"""A switch of one's own: a child process that rank 0 starts when no switch is configured.

No orphan, ever: the child holds the other end of a pipe, and of a descriptor that stands for this process. When either
says that this process is gone (or has closed the pipe), the child serves what jobs are still alive and then exits; a
job without live workers ends by itself, by the liveness timeout. It has a session of its own and ignores SIGINT, so
that Ctrl-C in a terminal reaches the workers first, and they can still leave.

The key of the jobs that it is for goes down the same pipe before anybody can ask: it serves no others, and nobody needs
to tell it the key over the network.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import cast

from fanin import files
from fanin.errors import SwitchUnreachableError
from fanin.host.session.threads import started
from fanin.modules import running
from fanin.options import ENVIRONMENT_PREFIX, Options, SwitchAddress
from fanin.protocol.seal import Credentials
from fanin.schemes import DEFAULT
from fanin.transports.polling import READABLE, is_ready

START_TIMEOUT_S = 60.0
"""Longest wait for the child to be ready: a Python start on a machine that is busy starting all ranks at once."""
EXIT_STATUS_TIMEOUT_S = 1.0
"""How long a child that has closed its output may take to end."""
MAX_READY_BYTES = 65_536


class EmbeddedSwitch:
    """A running switch process. Outlives `close` (and its parent) only while other workers still use it."""

    addresses: tuple[SwitchAddress, ...]
    """Where ranks find it: the host given to `start_switch` and the port that the system chose; one for each parent."""

    def __init__(self, process: subprocess.Popen[bytes], addresses: Sequence[SwitchAddress], description: str) -> None:
        """For `start_switch`."""
        self._process = process
        self.addresses = tuple(addresses)
        self._owner = os.getpid()
        self.description = description
        """What the switch says of itself, in words."""

    @property
    def address(self) -> SwitchAddress:
        """The first one."""
        return self.addresses[0]

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process.poll() is None

    def close(self) -> None:
        """Let go of it: it ends by itself once its last job is gone. Idempotent, never raises, waits for nothing.

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
    host: str,
    options: Options,
    *,
    scheme: str = DEFAULT,
    liveness_timeout_s: float | None = None,
    credentials: Credentials | None = None,
    parents: Sequence[SwitchAddress] = (),
) -> EmbeddedSwitch:
    """Start a switch beside this process, listening on `host` (a name or address that the other ranks can reach).

    `credentials` are those of the jobs that it serves; None: any job's. With `parents`, the process has a leaf of each
    of them, in that order: see `addresses`.

    `options` decide flows, native and, where `liveness_timeout_s` is None, that. Raises SwitchUnreachableError with the
    child's own words when it does not come up.
    """
    wanted = SwitchAddress(scheme, host, 0)
    command = running("fanin", "switch", "--embedded", "--bind", _bound(host), "--data", wanted.scheme)
    if options.flows is not None:
        command += ["--flows", str(options.flows)]
    if options.native is not None:
        command += ["--native" if options.native else "--twin"]
    if liveness_timeout_s is None:
        liveness_timeout_s = options.liveness_timeout_s
    if liveness_timeout_s is not None:
        command += ["--liveness-timeout", str(liveness_timeout_s)]
    if parents:
        command += ["--parent", ",".join(map(str, parents))]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, env=_environment()
        )
    except OSError as error:
        raise _failed(wanted, f"{error.filename or sys.executable}: {files.in_words(error)}") from None
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; what it printed says why
            process.stdin.write(("" if credentials is None else credentials.key.hex()).encode() + b"\n")
            process.stdin.flush()
        ready = _read_ready(process, wanted)
    except BaseException:
        process.kill()
        _let_go(process)
        raise
    addresses = [SwitchAddress(wanted.scheme, host, int(port)) for port in cast("list[int]", ready["ports"])]
    return EmbeddedSwitch(process, addresses, str(ready["description"]))


def _bound(host: str) -> str:
    return f"[{host}]:0" if ":" in host else f"{host}:0"


def _environment() -> dict[str, str]:
    """The child's: without the worker's own options, which would mean something else there."""
    return {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}


def _read_ready(process: subprocess.Popen[bytes], address: SwitchAddress) -> dict[str, object]:
    """The child's first line, which says that it serves, or why not."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    deadline = time.monotonic() + START_TIMEOUT_S
    line = b""
    while not line.endswith(b"\n") and len(line) < MAX_READY_BYTES:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not is_ready([descriptor], READABLE, left_s):
            raise _failed(address, f"it was not ready after {START_TIMEOUT_S:g} s")
        piece = os.read(descriptor, 4096)
        if not piece:
            try:
                status = process.wait(EXIT_STATUS_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                raise _failed(address, "it closed its output and did not end") from None
            raise _failed(address, f"it ended with status {status}; see what it printed")
        line += piece
    try:
        ready = json.loads(line)
    except ValueError:
        raise _failed(address, f"it printed {line[:200]!r}") from None
    if "error" in ready:
        raise _failed(address, str(ready["error"]))
    return dict(ready)


def _failed(address: SwitchAddress, why: str) -> SwitchUnreachableError:
    return SwitchUnreachableError(
        str(address),
        f"the switch that this rank starts beside itself on {address.host} did not come up: {why}. Remedy: start one "
        "yourself with `fanin switch` and set FANIN_SWITCH",
    )


def _let_go(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    if process.poll() is None:
        # Nobody waits for it, since the others may still have their BYE to say. This thread takes its exit status, or,
        # where this process ends, whoever inherits its children.
        started(process.wait, name="fanin switch")
