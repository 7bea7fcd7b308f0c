"""The engine that carries out a worker's reductions, and the choice between the native engine and the pump.

An engine owns one worker's share of one job: it drives one worker machine per flow until it is closed. Its calls may
come from any thread. None of them hangs: each takes a timeout or returns at once.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast

from fanin import files, open_files
from fanin.addresses import host_and_port
from fanin.errors import SwitchUnreachableError
from fanin.extension import native_extension
from fanin.numerics.reduction import PackedReduction, Reduction
from fanin.options import Options
from fanin.protocol.events import WorkerEvent
from fanin.protocol.job import JobSpec
from fanin.schemes import scheme_of
from fanin.transports.transport import SWITCH, Transport

if TYPE_CHECKING:
    from fanin.host.machine.any_worker_machine import AnyWorkerMachine

FILES_PER_FLOW, SPARE_FILES = 8, 64
"""File descriptors that an engine opens per flow, and a reserve for gloo and the program. On many cores a dozen groups
hold a thousand, which is the soft limit of a process on most systems.
"""
NOT_THE_ADDRESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENETUNREACH)
"""Errors that keep an engine from starting although the switch's address may be right."""


@dataclass(frozen=True, slots=True)
class SwitchEndpoint:
    """Address of a job's data: one port per flow."""

    scheme: str
    """Name of a row of fanin/schemes.py, such as udp."""
    host: str
    ports: tuple[int, ...]
    shared_memory: tuple[str, ...] = ()
    """Paths of the switch's shared memory, one per port; the native engine uses it if it can be mapped here."""

    def __str__(self) -> str:
        return f"{self.scheme}://{host_and_port(self.host, ','.join(map(str, self.ports)))}"


class Engine(Protocol):
    """Carries out the reductions of one worker of one job."""

    @property
    def description(self) -> str:
        """Names of the machine, the loop and the transport, in words: `native machine, native loop over udp`."""

    @property
    def failed(self) -> bool:
        """Whether the job is over for this worker; `next_event` says why. Nothing writes to tensors any more."""

    @property
    def spoiled(self) -> int:
        """Number of `Spoiled` events so far; a reduction's are reported before it is done. Once it is above 0,
        `submit_and_wait` returns the ticket of a reduction that is done, too."""

    @property
    def trouble(self) -> str:
        """The operating system's last complaint, in words for a user; empty if none."""

    def submit(self, reduction: Reduction) -> int:
        """Queue a reduction and return its ticket: 1, 2, ... Every worker submits the same ones in the same order.

        ConfigurationError for one that cannot be computed. After a failure it returns a ticket that is never done, so
        a failure just before the call needs no care of the caller.
        """

    def submit_and_wait(self, packed: PackedReduction, timeout_s: float, owner: object) -> int:
        """Submit a reduction and wait for it, in one call.

        Returns 0 once it is done. After `timeout_s` or a failure returns its ticket; the reduction continues like a
        submitted one, and `owner` is kept alive until its end. Between processes of one machine Python takes longer
        around the engine than the engine itself, so a collective that is waited for needs only this call."""

    def begin(self, base: int) -> None:
        """Begin a newcomer's reductions with `base` in every slot; it is at least the base of the event `Stands`."""

    def wait(self, ticket: int, timeout_s: float) -> bool:
        """Wait for a reduction: True once it is done, False after `timeout_s` or as soon as the engine has failed."""

    def done(self, ticket: int) -> bool:
        """Whether every element of the result is in its destination."""

    def subscribe(self) -> None:
        """From now on `next_event` reports ReductionDone and RoundHeard too, and the caller must read them."""

    def next_event(self, timeout_s: float) -> WorkerEvent | None:
        """The next event; waits up to `timeout_s` for one. A failure is reported once, as its own event."""

    def counters(self) -> dict[str, int]:
        """The machines' counters, added up over flows (srtt_us: the largest)."""

    def leave(self, timeout_s: float) -> bool:
        """Say BYE; True once the switch has confirmed it on every flow."""

    def close(self) -> None:
        """Stop at once, without BYE, and give up sockets and threads. A second call does nothing."""


def make_engine(
    options: Options, spec: JobSpec, worker: int, token: int, endpoint: SwitchEndpoint, newcomer: bool = False
) -> Engine:
    """Start the engine that `options` ask for; its `description` says which one it is.

    `newcomer`: the worker comes into a running job, see `Engine.begin`.
    Native loop and machine if they support the scheme, and neither faults, pcap nor trace are asked for. Otherwise a
    thread per flow that pumps packets between a transport and the native machine, or its Python twin where the
    extension is not built or options.native=False.
    Raises ConfigurationError when native=True and the extension is not built, SwitchUnreachableError when the address
    does not resolve, has no route or refuses the connection.
    """
    open_files.make_room(FILES_PER_FLOW * len(endpoint.ports) + SPARE_FILES)
    extension = native_extension(options.native)
    asked_for = {"faults": options.packet_faults, "pcap": options.pcap, "trace": options.trace}
    instruments = [name for name, value in asked_for.items() if value is not None]
    if extension is not None and scheme_of(endpoint.scheme).native_loops and not instruments:
        return _native_engine(extension, options, spec, worker, token, endpoint, newcomer)
    # Imported here: a world's first sum waits for every import.
    from fanin.host.engines import pump_engine
    from fanin.host.transports import open_transport

    machine_type = _twin() if extension is None else extension.WorkerMachine
    with ExitStack() as opened:
        flows: list[tuple[AnyWorkerMachine, Transport]] = []
        for flow, port in enumerate(endpoint.ports):
            transport = open_transport(options, spec, worker, endpoint.scheme, endpoint.host, port, flow)
            opened.callback(transport.close)
            machine = machine_type(
                spec.for_flow(flow),
                worker,
                switch=SWITCH,
                token=token,
                flow=flow,
                flow_count=len(endpoint.ports),
                connect_timeout_s=options.connect_timeout_s,
                newcomer=newcomer,
            )
            flows.append((machine, transport))
        opened.pop_all()
    what = "Python twin" if extension is None else "native machine"
    within = f" with {', '.join(instruments)}" if instruments else ""
    description = f"{what}, Python loop over {endpoint.scheme}{within}"
    return pump_engine.PumpEngine(flows, description=description, name=f"fanin job {spec.job} worker {worker}")


def _twin() -> Callable[..., AnyWorkerMachine]:
    """Import the machine's Python twin."""
    from fanin.host.machine.worker_machine import WorkerMachine

    return WorkerMachine


def _native_engine(
    extension: ModuleType,
    options: Options,
    spec: JobSpec,
    worker: int,
    token: int,
    endpoint: SwitchEndpoint,
    newcomer: bool,
) -> Engine:
    """Start the engine in C++, with batched UDP; SwitchUnreachableError if that fails."""
    try:
        engine = extension.WorkerEngine(
            spec,
            worker,
            token,
            endpoint.host,
            endpoint.ports,
            options.connect_timeout_s,
            shared_memory=endpoint.shared_memory if options.shared_memory is not False else (),
            newcomer=newcomer,
        )
        engine.start()
    except OSError as error:
        told = f"{error.strerror or error}. Remedy: correct the switch's address"
        text = f"{endpoint}: {files.in_words(error) if error.errno in NOT_THE_ADDRESS else told}"
        raise SwitchUnreachableError(str(endpoint), text) from error
    return cast("Engine", engine)
