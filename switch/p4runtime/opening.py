"""Open a data plane that runs a compiled program: in this process, or on a P4Runtime device."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p4.v1 import p4runtime_pb2

from fanin import files
from fanin.addresses import host_and_port
from fanin.errors import ConfigurationError, FaninError, ProgramError, UnsupportedError
from fanin.formats.frames import Endpoint, mac_of
from fanin.p4_ports import CPU_PORT, DROP_PORT
from fanin.protocol.window import DEFAULT_RECEIVE_BUFFER_BYTES
from fanin.switch.controller.data_plane import DataPlane
from fanin.switch.controller.job_shape import SwitchBuffers
from fanin.switch.p4.program_file import read_program
from fanin.switch.p4runtime.controller.adoption import adopt
from fanin.switch.p4runtime.controller.data_server import DeviceServer
from fanin.switch.p4runtime.controller.job_control import JobControl, Placement
from fanin.switch.p4runtime.controller.leaf_uplink import ParentPort
from fanin.switch.p4runtime.controller.links import DeviceAddress, GrpcLink, Link, LocalLink, write_once
from fanin.switch.p4runtime.controller.vocabulary import INSERT, MODIFY, Vocabulary
from fanin.switch.p4runtime.server.device import Actions, Device
from fanin.switch.p4runtime.server.p4info import read_p4info, read_p4info_file
from fanin.switch.p4runtime.server.server import GrpcServer, Service, TlsFiles
from fanin.switch.p4runtime.server.status import StatusError
from fanin.switch.p4runtime.server.udp_port import UdpPort

DEVICE_ID = 0
"""Device id of the emulator, and BMv2's default."""
WINDOW = 64
"""Most slots of a job: a software pipeline is slow, so that a longer window would only wait in its queue."""
BUILD = Path(__file__).resolve().parents[2] / "p4" / "build"
"""Folder of the compiled programs in a checkout."""
PROGRAM = "v1model-256"
MAX_DEVICE_WORDS = 96
"""Most words per packet on BMv2: simple_switch ends when a packet grows by more than 512 bytes, and a pass may leave as
a result with all words and codes (p4/README.md)."""
FLOOD_GROUP = 1
"""Multicast group of all ports, for packets to unknown addresses. Jobs' groups begin at 64."""
ARP_REQUEST = 1


@dataclass(frozen=True, slots=True)
class Artefacts:
    """Contents of a compiled program's file and of its P4Info's."""

    program: bytes
    p4info: str
    derived: bool = False
    """Whether the P4Info was derived from the program (derived_info.py)."""
    named: str = "the program"
    """The files, for errors."""

    @classmethod
    def standalone(cls, program: Path, p4info: Path | None) -> Artefacts:
        """Read any program; without a P4Info, derive one from it. ConfigurationError for files that cannot be read."""
        from google.protobuf import text_format

        from fanin.switch.p4.program import load
        from fanin.switch.p4runtime.server.derived_info import derive

        text = read_program(program)
        if p4info is not None:
            return cls(text, read_p4info_file(p4info), named=_named(program, p4info))
        named = files.name(program)
        try:
            derived = derive(load(text, drop_port=DROP_PORT))
        except FaninError as error:
            raise ConfigurationError(
                f"{named} cannot be run here: {error}. Remedy: see docs/p4-emulator.md for what is"
            ) from None
        return cls(text, text_format.MessageToString(derived), derived=True, named=named)

    @classmethod
    def read(cls, program: Path | None, p4info: Path | None) -> Artefacts:
        """Read files; None for both: the repository's own build. ConfigurationError if they are missing."""
        if (program is None) != (p4info is None):
            raise ConfigurationError("--program and --p4info belong together. Remedy: give both or neither")
        paths = program or BUILD / f"{PROGRAM}.json.gz", p4info or BUILD / f"{PROGRAM}.p4info.txtpb"
        try:
            return cls(read_program(paths[0]), read_p4info_file(paths[1]), named=_named(*paths))
        except ConfigurationError as error:
            if program is not None:
                raise
            raise ConfigurationError(f"{error}; or run `make p4` in a checkout") from None

    def message(self) -> Any:
        """The P4Info, for a device that is to get both; ConfigurationError where it is not that of the program.

        That is not known of programs for other targets than BMv2, nor of what this interpreter does not run.
        """
        from fanin.switch.p4.program import load
        from fanin.switch.p4runtime.server.p4info import Described

        info = read_p4info(self.p4info)
        if self.program.lstrip()[:1] == b"{":
            with contextlib.suppress(UnsupportedError):
                try:
                    Described.match(load(self.program, drop_port=DROP_PORT), info)
                except ProgramError as error:
                    raise ConfigurationError(f"{self.named} cannot be loaded: {error}") from None
        return info


def _named(program: Path, p4info: Path) -> str:
    return f"{files.name(program)} with --p4info {files.name(p4info)}"


def emulated_device(artefacts: Artefacts, native: bool | None = None) -> Device:
    """The emulator with a program loaded. ConfigurationError if it refuses the program.

    `native`: choice of the interpreter, as in V1Switch.
    """
    device = Device(CPU_PORT, secrets.randbelow, native)
    config = p4runtime_pb2.ForwardingPipelineConfig(
        p4info=read_p4info(artefacts.p4info), p4_device_config=artefacts.program
    )
    try:
        device.set_pipeline(Actions.VERIFY_AND_COMMIT, config)
    except StatusError as error:
        raise ConfigurationError(
            f"{artefacts.named} cannot be run here: {error}. Remedy: see docs/p4-emulator.md for what is"
        ) from None
    return device


def open_emulated(artefacts: Artefacts, host: str, port: int) -> DataPlane:
    """Open the emulator with a UDP socket as its port, programmed by this process."""
    udp = UdpPort(host, port)
    try:
        link = LocalLink(emulated_device(artefacts), udp.transmit)
        plane = _plane(link, Placement((udp.end,), ParentPort(UdpPort.NUMBER)), close=udp.close)
    except BaseException:
        udp.close()
        raise
    udp.start(link.receive_batch, link.receive_natively)
    return plane


class ServedDevice:
    """The emulator with a UDP socket as its port and a P4Runtime server, to be programmed by a remote controller."""

    def __init__(self, udp: UdpPort, server: GrpcServer, description: str) -> None:
        self._udp = udp
        self._server = server
        self.description = description
        self.data_port = udp.port
        self.p4runtime_port = server.port

    def close(self) -> None:
        """Give up ports and threads."""
        self._udp.close()
        self._server.close()


def open_device(
    artefacts: Artefacts,
    data: tuple[str, int],
    control: tuple[str, int],
    tls: TlsFiles | None,
    device_id: int = DEVICE_ID,
) -> ServedDevice:
    """Serve the emulator at a data and a P4Runtime address, each (host, port). ConfigurationError when that fails."""
    if data[0] in ("", "0.0.0.0"):
        raise ConfigurationError(
            "--bind: with --p4runtime the controller must know the data address. Remedy: give one of this host's"
        )
    udp = UdpPort(*data)
    try:
        device = emulated_device(artefacts)
        engine = "Python interpreter" if device.switch is None else device.switch.engine
        service = Service(device, device_id, udp.transmit)
        server = GrpcServer(service, *control, tls)
    except BaseException:
        udp.close()
        raise
    udp.start(service.receive, service.receive_natively)
    served = host_and_port(control[0], server.port)
    where = f"data at udp://{data[0]}:{udp.port}, P4Runtime at {served}, device {device_id}"
    return ServedDevice(udp, server, f"P4 program in the emulator, {engine}; {where}{', TLS' * (tls is not None)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNetwork:
    """The switch's address on a device, and the ports for traffic other than aggregation."""

    end: Endpoint
    """The switch's address: workers send to it, and results come from it."""
    flooded: tuple[int, ...] = ()
    """Ports through which packets to unknown destinations leave. Empty: such packets are dropped."""
    parent_port: ParentPort = ParentPort()
    """Port towards the parent switch, if the device is a leaf."""


def open_remote(
    address: DeviceAddress, artefacts: Artefacts | None, network: DeviceNetwork, liveness_timeout_s: float
) -> DataPlane:
    """Open a P4Runtime device, and take over the jobs that still run on it.

    With `artefacts`, that program is loaded unless the device runs it already.
    """
    info = None if artefacts is None else artefacts.message()
    link = GrpcLink(address)
    try:
        if artefacts is not None:
            link.ensure_pipeline(info, artefacts.program)
    except BaseException:
        link.close()
        raise
    return open_linked(link, network, liveness_timeout_s)


def open_linked(link: Link, network: DeviceNetwork, liveness_timeout_s: float) -> DataPlane:
    """Open a device that runs the program, over a link that is closed with it, and take over the jobs on it."""
    try:
        plane = _plane(link, Placement((network.end,), network.parent_port), adopts_s=liveness_timeout_s)
        _connect(link, network)
        return plane
    except BaseException:
        link.close()
        raise


def _plane(
    link: Link, placement: Placement, *, adopts_s: float | None = None, close: Callable[[], None] = lambda: None
) -> DataPlane:
    """The data plane of a device. `adopts_s`: take over the jobs on the device, with this liveness timeout."""
    vocabulary = Vocabulary(link.p4info())
    control = JobControl(link, vocabulary, placement)
    control.serve()
    if adopts_s is not None:
        adopt(control, link, vocabulary, adopts_s, time.monotonic())
    words = control.capacity.words_per_packet
    (end,) = placement.endpoints
    host = socket.inet_ntoa(end.address.to_bytes(4, "big"))
    buffers = SwitchBuffers(
        receive_buffer_bytes=DEFAULT_RECEIVE_BUFFER_BYTES,
        shared=True,
        words_per_packet=words if adopts_s is None else min(words, MAX_DEVICE_WORDS),
        codes_per_packet=control.capacity.codes_per_packet,
        accumulators=False,
        slots=WINDOW,
    )
    server = DeviceServer(control, link, (end.port,), close)
    return DataPlane(
        server,
        buffers,
        "" if adopts_s is None else host,
        tags=(),
        running=tuple(job.spec for job in control.jobs.values()),
    )


def _connect(link: Link, network: DeviceNetwork) -> None:
    """Write entries for ARP requests for the switch's address, and for packets that are not of fanin."""
    vocabulary = Vocabulary(link.p4info())
    end = network.end
    match = {"operation": ARP_REQUEST, "address": end.address}
    write_once(link, vocabulary.entry(INSERT, "addresses", match, "reply", {"mac": int.from_bytes(end.mac, "big")}))
    if network.flooded:
        replicas = [(port, port) for port in network.flooded]
        write_once(link, vocabulary.group(INSERT, FLOOD_GROUP, replicas))
        link.write(
            [
                vocabulary.group(MODIFY, FLOOD_GROUP, replicas),
                vocabulary.default("hosts", "flood", {"group": FLOOD_GROUP}),
            ]
        )


def parent_port(port: int, mac: str | None) -> ParentPort:
    """The port towards a parent. ConfigurationError for an invalid port or MAC address."""
    try:
        hardware = None if mac is None else bytes.fromhex(mac.replace(":", ""))
    except ValueError:
        hardware = b""
    if not 0 < port < CPU_PORT or (hardware is not None and len(hardware) != 6):
        raise ConfigurationError(
            f"parent port {port}, MAC {mac!r}: expected 1..{CPU_PORT - 1}, and six bytes",
            "--parent-port or --parent-mac",
        )
    return ParentPort(port, hardware)


def endpoint(text: str, mac: str | None) -> Endpoint:
    """The Endpoint of an address such as `10.0.0.254:4919`, and a MAC address. ConfigurationError otherwise."""
    host, _, port = text.rpartition(":")
    try:
        address = int.from_bytes(socket.inet_aton(host), "big")
        number = int(port)
        hardware = mac_of(address) if mac is None else bytes.fromhex(mac.replace(":", ""))
    except (OSError, ValueError):
        raise ConfigurationError(
            f"{text!r} with MAC {mac!r}: expected an IPv4 address and a port, and six bytes", "it"
        ) from None
    if not 0 < number < 1 << 16 or len(hardware) != 6 or host.count(".") != 3:
        raise ConfigurationError(f"{text!r} with MAC {mac!r}: expected an IPv4 address and a port, and six bytes", "it")
    return Endpoint(hardware, address, number)
