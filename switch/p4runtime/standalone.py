"""Run any compiled v1model program as a standalone switch: ports, P4Runtime, captures; no jobs and no controller.

It serves the same purpose as BMv2's simple_switch_grpc (docs/p4-run.md compares the two).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from p4.v1 import p4runtime_pb2

from fanin import files
from fanin.errors import ConfigurationError
from fanin.p4_ports import CPU_PORT
from fanin.switch.p4 import V1Switch
from fanin.switch.p4.commands import Commands
from fanin.switch.p4.tracing import Report, TracedSwitch
from fanin.switch.p4runtime.opening import Artefacts
from fanin.switch.p4runtime.server.device import Actions, Device
from fanin.switch.p4runtime.server.p4info import read_p4info
from fanin.switch.p4runtime.server.port_set import PortSet
from fanin.switch.p4runtime.server.server import GrpcServer, Service, TlsFiles
from fanin.switch.p4runtime.server.status import StatusError
from fanin.switch.p4runtime.server.translated import read_names

MAX_ENTRIES_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a standalone switch."""

    artefacts: Artefacts | None
    """The program; None: a controller loads one."""
    ports: dict[int, str]
    """`udp:HOST:PORT` or an interface, by port number."""
    p4runtime: tuple[str, int]
    """Host and port to serve at; port 0: any."""
    device_id: int = 0
    cpu_port: int = CPU_PORT
    """The port number of the control plane, through which the program sends packet-ins."""
    native: bool | None = None
    """Choice of the interpreter, as in V1Switch."""
    tls: TlsFiles | None = None
    captures: Path | None = None
    """Folder for captures of all frames; None: without."""
    entries: Path | None = None
    """A p4.v1.WriteRequest in text form, carried out at the start."""
    commands: Path | None = None
    """A file of commands for BMv2's simple_switch_CLI (switch/p4/commands.py), carried out behind `entries`."""
    names: Path | None = None
    """File with the names for values of translated types (translated.py)."""
    trace: Report | None = None
    """Called with the trace of every packet; the Python interpreter then runs the program."""


class StandaloneSwitch:
    """A running switch with its ports and its server."""

    def __init__(self, options: RunOptions, failed: Callable[[], None] = lambda: None) -> None:
        """Start the switch. ConfigurationError if that fails. A thread calls `failed` when `self.failed` is set."""
        if options.trace is not None:
            self.device = traced_device(options.cpu_port, options.trace)
        else:
            self.device = Device(options.cpu_port, secrets.randbelow, options.native)
        self.device.ports = frozenset({*options.ports, options.cpu_port})
        if options.names is not None:
            self.device.names = read_names(options.names)
        if options.artefacts is not None:
            load(self.device, options.artefacts)
        if options.entries is not None:
            write_entries(self.device, options.entries)
        self._passed_over = () if options.commands is None else carry_out(self.device, options.commands)
        self._ports = PortSet(options.ports, options.captures)
        try:
            self._service = Service(self.device, options.device_id, self._ports.transmit)
            self._server = GrpcServer(self._service, *options.p4runtime, options.tls)
        except BaseException:
            self._ports.close()
            raise
        self.p4runtime_port = self._server.port
        self._options = options
        self._ports.watch(self._service.port_changed)
        self._ports.start(self._service.receive, self._service.receive_natively, failed)

    @property
    def failed(self) -> BaseException | None:
        """The exception that ended the receiving thread; None while it runs."""
        return self._ports.failed

    def describe(self) -> list[str]:
        """The lines that are printed at the start."""
        options, switch = self._options, self.device.switch
        program = "no program yet: a controller loads it" if switch is None else switch.engine
        if options.artefacts is not None and options.artefacts.derived:
            program += "; without --p4info: names and ids are made of the program"
        where = f"{options.p4runtime[0]}:{self.p4runtime_port}{', TLS' * (options.tls is not None)}"
        lines = [
            f"fanin p4: P4Runtime at {where}, device {options.device_id}; {program}",
            f"  ports {self._ports.description}; {options.cpu_port} is the control plane's",
        ]
        if self._passed_over:
            lines.append(f"  commands that do nothing here: {', '.join(self._passed_over)}")
        return lines

    def summary(self) -> str:
        """The counts that are printed at the end."""
        lost = self._service.lost_packets
        if self.device.switch is None:
            return "fanin p4: ended; no program was loaded"
        tally = self.device.switch.tally
        return (
            f"fanin p4: ended; {tally.packets_in} packets in, {tally.packets_out} out, {tally.dropped} dropped by the "
            f"program, {tally.failed} lost to what the program leaves undefined ({tally.endless} in "
            f"passes without end), {self._ports.unsent} that no port could send, {lost} packet-ins that no controller "
            "took"
        )

    def close(self) -> None:
        """Stop all threads, and close the ports and the server."""
        self._ports.close()
        self._server.close()


def traced_device(cpu_port: int, report: Report) -> Device:
    """A device that reports a trace of every packet."""

    def make(text: str | bytes, *, random: Callable[[int], int], native: bool | None = None) -> V1Switch:
        made = TracedSwitch.from_json(text, random=random, native=False)
        assert isinstance(made, TracedSwitch)
        made.report = report
        return made

    return Device(cpu_port, secrets.randbelow, False, make)


def load(device: Device, artefacts: Artefacts) -> None:
    """Load a program; ConfigurationError when it is refused."""
    info = read_p4info(artefacts.p4info)
    config = p4runtime_pb2.ForwardingPipelineConfig(p4info=info, p4_device_config=artefacts.program)
    load_config(device, config, artefacts.named)


def load_config(device: Device, config: Any, named: str = "the program") -> None:
    """Load a ForwardingPipelineConfig. ConfigurationError when the device refuses it, under the name `named`."""
    try:
        device.set_pipeline(Actions.VERIFY_AND_COMMIT, config)
    except StatusError as error:
        raise ConfigurationError(f"{named} cannot be run here: {error}") from None


def carry_out(device: Device, path: Path) -> tuple[str, ...]:
    """Carry out a file of simple_switch_CLI's commands; return the ignored ones. ConfigurationError names the line."""
    assert device.switch is not None
    try:
        text = files.read(path, "--commands", MAX_ENTRIES_BYTES).decode()
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"--commands {path} is no text. Remedy: name a file of simple_switch_CLI's commands"
        ) from None
    commands = Commands(device.switch)
    commands.run(text, f"--commands {path}")
    return tuple(commands.passed_over)


def write_entries(device: Device, path: Path) -> None:
    """Carry out a WriteRequest in text form. ConfigurationError for any other content, or a refused update."""
    try:
        text = files.read(path, "--entries", MAX_ENTRIES_BYTES).decode()
        request: Any = text_format.Parse(text, p4runtime_pb2.WriteRequest())
    except (UnicodeDecodeError, text_format.ParseError, RecursionError) as error:
        said = " ".join(str(error).split())
        raise ConfigurationError(
            f"--entries {path} is no p4.v1.WriteRequest in text form: {said}. Remedy: correct the file"
        ) from None
    for number, update in enumerate(request.updates, 1):
        try:
            device.write(update)
        except StatusError as error:
            raise ConfigurationError(f"--entries {path}: update {number} is refused: {error}") from None
