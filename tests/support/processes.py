"""Real switches and workers for tests: processes that can be killed, stopped and asked, and are gone afterwards."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pytest

from fanin.host.session.joining import JoinTerms
from fanin.host.session.session import Session
from fanin.numerics.reduction import Reduction
from fanin.options import Options, SwitchAddress
from tests.support import builders
from tests.support.forks import Forked, LightServer

T = TypeVar("T")
R = TypeVar("R")

DEADLINE_S = 30.0
"""Far more than anything here takes; only a test that fails waits for it."""
SELECT_FILES = 1024
"""FD_SETSIZE: select() takes lower numbers than this one."""
LIVENESS_S = 2.0
"""Liveness timeout of the switches here, so that tests are quick."""
WORKER_PROGRAM = "tests.support.summing_rank"

Mode = Literal["native-udp", "native-shared-memory", "twin-udp", "native-zmq"]
MODES: tuple[Mode, ...] = ("native-udp", "native-shared-memory", "twin-udp", "native-zmq")


def options(mode: Mode, **given: object) -> Options:
    """A worker's options in this mode."""
    engine: dict[str, object] = {
        "native": mode.startswith("native"),
        "shared_memory": mode.endswith("shared-memory"),
        "connect_timeout_s": 10.0,
    }
    return Options(**{**engine, **given})  # type: ignore[arg-type]


class SwitchProcess:
    """`fanin switch` as a process of its own: a fork, or with `interpreter` as a user starts it."""

    process: Forked | subprocess.Popen[bytes]

    def __init__(self, mode: Mode, *arguments: str, bind: str = "127.0.0.1:0", interpreter: bool = False) -> None:
        engine = ["--native" if mode.startswith("native") else "--twin"] if "--target" not in arguments else []
        both = [] if {"--target", "--parent"} & {*arguments} else ["--data", "udp,zmq"]
        common = [*engine, "--bind", bind, *both, "--liveness-timeout", str(LIVENESS_S), *arguments]
        if interpreter:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fanin", "switch", *common], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        else:
            self.process = Forked(["fanin", "switch", *common], server=LightServer, errors=subprocess.STDOUT)
        self.banner = self._read_until("counts as lost")
        found = re.search(r"udp://127\.0\.0\.1:(\d+)", self.banner)
        assert found, self.banner
        self.port = int(found[1])
        self.address = SwitchAddress("zmq" if mode.endswith("zmq") else "udp", "127.0.0.1", self.port)

    def _read_until(self, words: str) -> str:
        assert self.process.stdout is not None
        text = ""
        while words not in text:
            assert select.select([self.process.stdout], [], [], DEADLINE_S)[0], f"the switch says only {text!r}"
            piece = os.read(self.process.stdout.fileno(), 4096)
            assert piece, f"the switch ended: {text}"
            text += piece.decode()
        return text

    def rest(self) -> str:
        """Output since the last call, if any comes within a moment."""
        assert self.process.stdout is not None
        text = ""
        while select.select([self.process.stdout], [], [], 0.2)[0]:
            text += os.read(self.process.stdout.fileno(), 4096).decode()
        return text

    def end(self, number: int = signal.SIGKILL) -> int:
        """Send a signal and wait for the end; the exit status."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
        status = self.process.wait(DEADLINE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return status


@contextlib.contextmanager
def a_switch(
    mode: Mode, *arguments: str, bind: str = "127.0.0.1:0", interpreter: bool = False
) -> Iterator[SwitchProcess]:
    """A switch that is gone afterwards."""
    switch = SwitchProcess(mode, *arguments, bind=bind, interpreter=interpreter)
    try:
        yield switch
    finally:
        switch.end()


class WorkerProcess:
    """A process that joins a job and reduces without end: see tests/support/summing_rank.py."""

    def __init__(self, address: SwitchAddress, job: str, rank: int, size: int, given: Options, habit: str) -> None:
        engine = {"native": given.native, "shared_memory": given.shared_memory}
        facts = {"switch": str(address), "job": job, "rank": rank, "size": size, "engine": engine, "habit": habit}
        self.process = Forked([WORKER_PROGRAM, json.dumps(facts)], server=LightServer, asked=True)

    def last_words(self) -> dict[str, object]:
        """The worker's exception, once it was raised."""
        output, _ = self.process.communicate(timeout=DEADLINE_S)
        return dict(json.loads(output.splitlines()[-1]))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(DEADLINE_S)
        for pipe in (self.process.stdout, self.process.stdin):
            if pipe is not None and not pipe.closed:
                pipe.close()


@contextlib.contextmanager
def a_worker(
    address: SwitchAddress, job: str, rank: int, size: int, given: Options, *, habit: str = ""
) -> Iterator[WorkerProcess]:
    """A worker process that is gone afterwards; `habit`, what else it does, is among those of summing_rank.py."""
    worker = WorkerProcess(address, job, rank, size, given, habit)
    try:
        yield worker
    finally:
        worker.end()


def has_ended(pidfd: int, within_s: float = DEADLINE_S) -> bool:
    """Wait for a process that is not a child to end; whether it did in time."""
    return bool(select.select([pidfd], [], [], within_s)[0])


@contextlib.contextmanager
def files_left(count: int) -> Iterator[None]:
    """This process may open that many files, and no more."""
    gc.collect()  # or files of tests before this one are closed meanwhile, and their numbers are free
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as opened:
        for _ in range(count + 1):
            limit = os.dup(0)
            opened.callback(os.close, limit)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    """Give files that this process opens meanwhile numbers that select() does not take."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < SELECT_FILES * 2:
        pytest.skip(f"this process may open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, SELECT_FILES * 2), hard))
    with contextlib.ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        number = 0
        while number < SELECT_FILES:
            number = os.dup(0)
            opened.callback(os.close, number)
        yield


def noticed(waited_for: threading.Event, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Is set once anybody waits for that event."""
    found, wait = threading.Event(), waited_for.wait

    def noticing(timeout: float | None = None) -> bool:
        found.set()
        return wait(timeout)

    monkeypatch.setattr(waited_for, "wait", noticing)
    return found


def in_thread(call: Callable[[], object]) -> Future[object]:
    """Run in a thread of its own; the future has the result or the error."""
    future: Future[object] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def until(condition: Callable[[], bool], within_s: float = DEADLINE_S) -> None:
    """Wait for something that happens in another thread or process."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def on_every(act: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Results of `act` for each of the items, each in a thread of its own."""
    futures = [in_thread(partial(act, item)) for item in items]
    return [cast("R", future.result(DEADLINE_S)) for future in futures]


def join_all(address: SwitchAddress, job: str, size: int, given: Options, ranks: range | None = None) -> list[Session]:
    """Sessions of several ranks in this process."""

    def join(rank: int) -> Session:
        return Session.join(JoinTerms(options=given, switch=address, job_name=job, rank=rank, size=size))

    return on_every(join, range(size) if ranks is None else ranks)


def reduction(values: npt.NDArray[np.float32]) -> tuple[Reduction, npt.NDArray[np.float32]]:
    """A sum of `values` over all ranks, and the array that receives it."""
    result = np.zeros_like(values)
    return builders.reduction(values, result), result


def reduce_until_it_fails(session: Session, count: int = 20_000) -> BaseException:
    """Reduce again and again; the error that ends it."""
    values = np.ones(count, np.float32)
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        request, result = reduction(values)
        try:
            session.wait(session.submit(request), DEADLINE_S)
        except BaseException as error:
            return error
        assert (result == session.size).all()
    raise AssertionError("nothing failed")


def cut(session: Session) -> None:
    """Break the control connection, as something on its way might."""
    assert session._line is not None
    descriptor = session._line._connection.descriptor
    assert descriptor is not None
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def reduce_together(sessions: list[Session], count: int = 1000) -> None:
    """One reduction over sessions of this process, checked."""
    values = [np.full(count, session.rank + 1, np.float32) for session in sessions]
    requests = [reduction(value) for value in values]
    tickets = [session.submit(request) for session, (request, _) in zip(sessions, requests, strict=True)]
    for session, ticket, (_, result) in zip(sessions, tickets, requests, strict=True):
        session.wait(ticket, DEADLINE_S)
        assert (result == sum(value[0] for value in values)).all()


def reduced(addresses: list[SwitchAddress], job: str, given: Options, lanes: int) -> list[bytes]:
    """Each rank's result, each at its switch, of a mean of arrays that are made from the ranks."""
    size = len(addresses)

    def join(rank: int) -> Session:
        return Session.join(JoinTerms(options=given, switch=addresses[rank], job_name=job, rank=rank, size=size))

    def mean(session: Session) -> bytes:
        values = np.random.default_rng(session.rank).normal(size=50_000).astype(np.float32)
        result = np.zeros_like(values)
        request = builders.reduction(values, result, lanes=lanes, divisor=size)
        session.wait(session.submit(request), DEADLINE_S)
        return result.tobytes()

    with contextlib.ExitStack() as stack:
        sessions = on_every(join, range(size))
        for session in sessions:
            stack.callback(session.close)
        return on_every(mean, sessions)
