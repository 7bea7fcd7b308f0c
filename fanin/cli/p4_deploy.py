"""`fanin p4 deploy`: from what a Tofino's compiler has made to a switch that serves jobs, over BfRt."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fanin.addresses import host_and_port
from fanin.cli.fields import described
from fanin.cli.switch import (
    BIND,
    ControllerBind,
    DataAddress,
    LivenessTimeout,
    SwitchKeyFile,
    SwitchMac,
    load_p4,
    operator_key,
    where,
)
from fanin.errors import ConfigurationError
from fanin.schemes import DEFAULT

if TYPE_CHECKING:
    from fanin.switch.controller.data_plane import DataPlane

MAX_DEVICE_PORT = 511
BFRT_PORT = 50052


def made() -> Callable[..., None]:
    """The command's function, with help, bounds and defaults of the service's options."""
    from fanin.switch.service.service import ServiceOptions

    return described(ServiceOptions, "liveness_timeout_s")(deploy)


def deploy(
    *,
    conf: Annotated[Path, typer.Argument(help="The .conf that the compiler wrote beside the program.")],
    p4info: Annotated[Path, typer.Option("--p4info", metavar="FILE", help="The program's P4Info, in text form.")],
    switch_address: DataAddress,
    switch_mac: SwitchMac = None,
    ports: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ports to bring up, JSON. Default: they are left as they are.")
    ] = None,
    flood: Annotated[
        str | None,
        typer.Option(metavar="PORTS", help="Device ports for unknown destinations. Default: those of --ports."),
    ] = None,
    bfrt: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address at which the device serves BfRt.")] = (
        f"127.0.0.1:{BFRT_PORT}"
    ),
    device_id: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="BfRt's number of the device.")] = 0,
    client_id: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Our number; no other BfRt client may have it.")
    ] = 0,
    cpu_interface: Annotated[
        str, typer.Option(metavar="NAME", help="The interface at which the switch's processor sees its packets.")
    ] = "bf_pci0",
    bind: ControllerBind = BIND,
    load: Annotated[bool, typer.Option("--load/--no-load", help="Load the program, or leave what runs.")] = True,
    go: Annotated[bool, typer.Option("--go", help="Do it. Without this, say what would be done.")] = False,
    liveness_timeout_s: LivenessTimeout,
    key_file: SwitchKeyFile = None,
) -> None:
    """Load a compiled program on a Tofino, bring up its ports, and admit jobs to it; a dry run without --go."""
    opening = load_p4()
    from fanin.switch.controller.resources import UNLIMITED_BYTES
    from fanin.switch.p4runtime.bfrt.client import BfrtAddress
    from fanin.switch.p4runtime.bfrt.cpu_port import InterfacePort
    from fanin.switch.p4runtime.bfrt.deployment import Deployment, read_conf
    from fanin.switch.p4runtime.bfrt.ports import read_plan
    from fanin.switch.p4runtime.server.p4info import read_p4info, read_p4info_file
    from fanin.switch.service.service import ServiceOptions, SwitchService
    from fanin.switch.service.signals import signals

    where(bfrt, "--bfrt")
    host, port = where(bind)
    program = read_conf(conf)
    deployment = Deployment(
        address=BfrtAddress(bfrt, device_id, client_id),
        program=program if load else None,
        program_name=program.name,
        p4info=read_p4info(read_p4info_file(p4info)),
        ports=() if ports is None else tuple(read_plan(ports)),
        end=opening.endpoint(switch_address, switch_mac),
        flooded=None if flood is None else _numbers(flood),
        liveness_timeout_s=liveness_timeout_s,
    )
    deployment.check()
    reached = f"udp://{host_and_port('SWITCH' if host in ('', '0.0.0.0', '::') else host, port)}"
    worker = f"FANIN_SWITCH={reached} torchrun ... train.py"
    if not go:
        serve = f"pass packets by way of {cpu_interface}, admit jobs at {bind}; workers send data to {switch_address}"
        for number, step in enumerate((*deployment.steps(), serve, f"on each worker: {worker}"), 1):
            print(f"{number}. {step}")
        print("nothing was done: --go does it", flush=True)
        return

    def data(host: str, port: int) -> DataPlane:
        return deployment.carry_out(InterfacePort(cpu_interface), lambda said: print(f"  {said}", flush=True))

    options = ServiceOptions(
        host=host,
        port=port,
        memory_bytes=UNLIMITED_BYTES,  # the device says when its registers are used up
        schemes=(DEFAULT,),
        data=data,
        liveness_timeout_s=liveness_timeout_s,
        operator_key=operator_key(key_file, quiet=False),
    )
    service = SwitchService(options)
    with contextlib.closing(service), signals(service, embedded=False):
        at = host_and_port(options.host, service.port)
        print(f"fanin p4 deploy: controller at udp://{at}: {service.controller.engine}")
        print(f"  {service.controller.live_jobs} jobs taken over; on each worker: {worker}", flush=True)
        service.run()


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) < 4 and int(part) <= MAX_DEVICE_PORT for part in parts):
        raise ConfigurationError(f"--flood {text!r}: expected device ports like 128,136", "--flood")
    return tuple(int(part) for part in parts)
