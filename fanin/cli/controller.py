"""`fanin controller`: admits jobs to a programmable switch, which it programs over P4Runtime."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fanin.addresses import host_and_port
from fanin.cli import modes
from fanin.cli.fields import described
from fanin.cli.numbers import number_of_64_bits
from fanin.cli.switch import (
    BIND,
    ControllerBind,
    DataAddress,
    LivenessTimeout,
    P4Runtime,
    Parent,
    Quiet,
    SwitchKeyFile,
    SwitchMac,
    TlsCa,
    TlsCertificate,
    TlsKey,
    load_p4,
    operator_key,
    tls_files,
    where,
)
from fanin.errors import ConfigurationError
from fanin.options import SwitchAddress
from fanin.p4_ports import CPU_PORT
from fanin.schemes import DEFAULT

if TYPE_CHECKING:
    from fanin.switch.controller.data_plane import DataPlane


def made() -> Callable[..., None]:
    """The command's function, with help, bounds and defaults of the service's options."""
    from fanin.switch.service.service import ServiceOptions

    return described(ServiceOptions, "liveness_timeout_s")(controller)


def controller(
    context: typer.Context,
    *,
    p4runtime: P4Runtime,
    switch_address: DataAddress,
    switch_mac: SwitchMac = None,
    bind: ControllerBind = BIND,
    program: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Loaded unless it runs already; default: what is on the device.")
    ] = None,
    p4info: Annotated[Path | None, typer.Option(metavar="FILE", help="The program's P4Info, in text form.")] = None,
    device_id: Annotated[
        int, typer.Option(parser=number_of_64_bits, metavar="NUMBER", help="P4Runtime's number of the device.")
    ] = 0,
    election_id: Annotated[
        int, typer.Option(parser=number_of_64_bits, metavar="NUMBER", help="The highest is in charge.")
    ] = 1,
    flood: Annotated[str, typer.Option(metavar="PORTS", help="Ports that unknown destinations go to: 1,2,3.")] = "",
    parent: Parent = None,
    parent_port: Annotated[
        int, typer.Option(min=1, max=CPU_PORT - 1, metavar="PORT", help="The device's port towards the parent.")
    ] = 1,
    parent_mac: Annotated[
        str | None, typer.Option(metavar="MAC", help="The parent's, or its next hop's. Default: as the emulator's.")
    ] = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    liveness_timeout_s: LivenessTimeout,
    key_file: SwitchKeyFile = None,
    quiet: Quiet = False,
) -> None:
    """Admit jobs to BMv2, the emulator or a Tofino. Workers find it with FANIN_SWITCH=udp://host:port of --bind."""
    opening = load_p4()
    if parent is None:
        modes.refuse_without(context, "--parent", "parent_port", "parent_mac")
    from fanin.switch.controller.resources import UNLIMITED_BYTES
    from fanin.switch.p4runtime.controller.links import DeviceAddress
    from fanin.switch.service.service import ServiceOptions, SwitchService
    from fanin.switch.service.signals import signals

    host, port = where(bind)
    alone = tls_ca is not None and tls_certificate is None and tls_key is None  # the device asks for no certificate
    artefacts = opening.Artefacts.read(program, p4info) if program is not None or p4info is not None else None
    device = DeviceAddress(
        target=p4runtime,
        device_id=device_id,
        election_id=election_id,
        tls=None if alone else tls_files(tls_certificate, tls_key, tls_ca),
        ca=_authority(tls_ca) if alone else None,
    )
    network = opening.DeviceNetwork(
        end=opening.endpoint(switch_address, switch_mac),
        flooded=_ports(flood),
        parent_port=opening.parent_port(parent_port, parent_mac),
    )

    def data(host: str, port: int) -> DataPlane:
        plane: DataPlane = opening.open_remote(device, artefacts, network, liveness_timeout_s)
        return plane

    options = ServiceOptions(
        host=host,
        port=port,
        memory_bytes=UNLIMITED_BYTES,  # the device says when its registers are used up
        schemes=(DEFAULT,),
        data=data,
        liveness_timeout_s=liveness_timeout_s,
        operator_key=operator_key(key_file, quiet),
        parent=None if parent is None else SwitchAddress.parse(parent),
        parent_curve_key=os.environ.get("FANIN_CURVE_SERVER_KEY") if parent is not None else None,
    )
    service = SwitchService(options)
    with contextlib.closing(service), signals(service, embedded=False):
        if not quiet:
            adopted = service.controller.live_jobs
            at = host_and_port(options.host, service.port)
            print(f"fanin controller at udp://{at}: {service.controller.engine}", flush=True)
            print(f"  workers send data to {switch_address}; {adopted} jobs taken over", flush=True)
        service.run()


def _authority(path: Path | None) -> bytes | None:
    from fanin.switch.p4runtime.server.server import check_authority

    return None if path is None else check_authority(path)


def _ports(text: str) -> tuple[int, ...]:
    try:
        ports = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        ports = (-1,)
    if any(not 0 < port < CPU_PORT for port in ports):
        raise ConfigurationError(f"--flood {text!r}: expected port numbers like 1,2,3", "--flood")
    return ports
