"""`fanin p4`: any compiled v1model program as a switch, a packet's way through one, and what the slots of jobs hold."""

from __future__ import annotations

import contextlib
import dataclasses
import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fanin import files
from fanin.cli import later, modes, p4_deploy
from fanin.cli.epilogs import epilog
from fanin.cli.numbers import number_of_64_bits
from fanin.cli.output import JsonObject
from fanin.cli.p4_serving import until_a_signal
from fanin.cli.switch import P4Runtime, Quiet, TlsCa, TlsCertificate, TlsKey, load_p4, tls_files, where
from fanin.errors import ConfigurationError, FaninError
from fanin.p4_ports import CPU_PORT, DROP_PORT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fanin.switch.p4runtime.controller.reader import DeviceReader
    from fanin.switch.p4runtime.controller.slots import JobOnDevice, Slot
    from fanin.switch.p4runtime.server.device import Device

app = typer.Typer(no_args_is_help=True, help="P4 programs: run one, trace a packet, read a device's slots, test one.")

DEFAULT_SLOTS = 16

P4Info = Annotated[
    Path | None,
    typer.Option("--p4info", metavar="FILE", help="The program's P4Info, in text form. Default: made of the program."),
]
Entries = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Carried out at the start: a p4.v1.WriteRequest, in text form."),
]
CommandFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Carried out behind --entries: commands of BMv2's simple_switch_CLI."),
]
CpuPort = Annotated[int, typer.Option(min=0, max=DROP_PORT - 1, help="The port behind which the control plane is.")]
DeviceId = Annotated[
    int, typer.Option(parser=number_of_64_bits, metavar="NUMBER", help="The device's number in P4Runtime.")
]
SERVED_AT = "127.0.0.1:9559"
"""The port that IANA gives P4Runtime."""


def run(
    program: Annotated[
        Path | None, typer.Argument(help="JSON file that p4c-bm2-ss wrote. Default: a controller loads one.")
    ] = None,
    p4info: P4Info = None,
    port: Annotated[
        list[str] | None,
        typer.Option(metavar="N=WHERE", help="A port: 1=veth0 (an interface) or 2=udp:HOST:PORT; several with commas."),
    ] = None,
    p4runtime: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address to serve P4Runtime at; port 0: any free one.")
    ] = SERVED_AT,
    device_id: DeviceId = 0,
    cpu_port: CpuPort = CPU_PORT,
    entries: Entries = None,
    commands: CommandFile = None,
    names: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='Numbers of names, for types that P4Runtime translates to strings: {"TYPE or URI": {"eth0": 1}}.',
        ),
    ] = None,
    pcap: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write what passes each port there, as two pcap files.")
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Print the way of every packet (the Python interpreter).")
    ] = False,
    native: Annotated[
        bool | None, typer.Option("--native/--python", help="The native interpreter or an error, or the Python one.")
    ] = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    quiet: Quiet = False,
) -> None:
    """Run a compiled v1model program as a switch, with P4Runtime, as one would with BMv2's simple_switch_grpc."""
    opening = load_p4()
    from fanin.switch.p4runtime.server.port_set import read_ports
    from fanin.switch.p4runtime.standalone import RunOptions

    if trace and native:
        raise ConfigurationError("--trace and --native: the native interpreter cannot be watched. Remedy: one of them")
    if program is None and (p4info is not None or entries is not None or commands is not None):
        raise ConfigurationError(
            "--p4info, --entries and --commands belong to a program. Remedy: name it, or leave them out"
        )
    options = RunOptions(
        artefacts=None if program is None else opening.Artefacts.standalone(program, p4info),
        ports=read_ports(port or [], cpu_port),
        p4runtime=where(p4runtime, "--p4runtime"),
        device_id=device_id,
        cpu_port=cpu_port,
        native=native,
        tls=tls_files(tls_certificate, tls_key, tls_ca),
        captures=pcap,
        entries=entries,
        commands=commands,
        names=names,
        trace=_print if trace else None,
    )
    until_a_signal(options, quiet=quiet)


def trace(
    context: typer.Context,
    packet: Annotated[
        str, typer.Argument(help="The frame in hexadecimal, or a pcap or pcapng file: each of its packets.")
    ],
    program: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A compiled program. Default: what runs on --p4runtime's device."),
    ] = None,
    p4info: P4Info = None,
    entries: Entries = None,
    commands: CommandFile = None,
    p4runtime: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="A device: its program, entries and registers are read, not changed."),
    ] = None,
    device_id: DeviceId = 0,
    port: Annotated[int, typer.Option(min=0, max=DROP_PORT - 1, help="The port at which the packet comes in.")] = 1,
    cpu_port: CpuPort = CPU_PORT,
    tls_ca: TlsCa = None,
) -> None:
    """Show a packet's way through a program: parser states, tables with their keys and entries, changes, copies."""
    load_p4()
    frames = _frames(packet)
    if (program is None) == (p4runtime is None):
        raise ConfigurationError("trace wants a program, or a device that runs one. Remedy: --program or --p4runtime")
    if program is None:
        modes.refuse_without(context, "--program: a device has its own", "p4info", "entries", "commands")
    else:
        modes.refuse_without(context, "--p4runtime", "device_id", "tls_ca")
    from fanin.errors import PacketError

    with _traced(program, p4info, entries, p4runtime, device_id, cpu_port, tls_ca) as device:
        assert device.switch is not None
        if commands is not None:
            from fanin.switch.p4runtime.standalone import carry_out

            carry_out(device, commands)
        for frame in frames:
            with contextlib.suppress(PacketError):  # the trace says so
                device.switch.process(port, frame, 0.0)


def slots(
    p4runtime: P4Runtime = SERVED_AT,
    device_id: DeviceId = 0,
    job: Annotated[int | None, typer.Option(min=0, max=65_535, help="The job's number. Default: all jobs.")] = None,
    slot: Annotated[int | None, typer.Option(min=0, max=65_535, help="One slot. Default: those in use.")] = None,
    words: Annotated[bool, typer.Option("--words", help="Also the sums that the open rounds hold.")] = False,
    json: JsonObject = False,
    tls_ca: TlsCa = None,
) -> None:
    """Show what the slots of a device's jobs hold, out of its registers: rounds, floors, who has contributed what."""
    load_p4()
    from fanin.switch.p4runtime.controller.slots import SlotReader, read_jobs
    from fanin.switch.p4runtime.controller.vocabulary import Vocabulary

    with _reader(p4runtime, device_id, tls_ca) as reader:
        info = reader.config().p4info
        decoder, there = SlotReader(reader, info), read_jobs(reader, Vocabulary(info))
        found = [each for each in there if job in (None, each.number)]
        if job is not None and not found:
            numbers = ", ".join(str(each.number) for each in there) or "none"
            raise FaninError(f"the device has no job {job}; it has: {numbers}. Remedy: give one of these")
        read = []
        for each in found:
            wanted = range(each.facts["slots"]) if slot is None else [slot]
            read.append((each, decoder.read(each, list(wanted), sums=words)))
    if json:
        print(json_module.dumps({"jobs": [_as_json(each, held) for each, held in read]}, indent=2))
        return
    for each, held in read:
        _print(_described(each, held, every=slot is not None))
    if not read:
        print("no job")


def vectors(
    folder: Annotated[Path, typer.Argument(help="Folder for the vectors; made if need be.")],
) -> None:
    """Write golden vectors of the P4 program, with a test that PTF's own runner plays against any switch."""
    load_p4()
    from fanin.switch.p4runtime.vectors import export

    _print([str(path) for path in export(folder)])


def bmv2(
    folder: Annotated[Path, typer.Argument(help="Folder for the script; made if need be. Put it on PATH.")],
) -> None:
    """Write a simple_switch_grpc that is fanin's, for Mininet, p4-utils and whatever else starts BMv2 by that name."""
    import shlex

    from fanin.cli.simple_switch import PROGRAM
    from fanin.modules import running

    load_p4()
    path = folder / PROGRAM
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.put(path, f'#!/bin/sh\nexec {shlex.join(running("fanin.cli.simple_switch"))} "$@"\n'.encode())
        path.chmod(0o755)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{folder}: {said}. Remedy: name a folder that can be written") from None
    _print([str(path)])


app.command(cls=later.NamedCommand, epilog=epilog("run"))(run)
app.command(cls=later.NamedCommand, epilog=epilog("p4 trace"))(trace)
app.command(cls=later.NamedCommand, epilog=epilog("slots"))(slots)
app.command(cls=later.NamedCommand, epilog=epilog("vectors"))(vectors)
later.add(app, "deploy", p4_deploy.deploy.__doc__ or "", p4_deploy.made, epilog("deploy"))
app.command(cls=later.NamedCommand, epilog=epilog("bmv2"))(bmv2)


# --- trace ---


def _frames(packet: str) -> list[bytes]:
    """The frames that `packet` names: hexadecimal digits, or the packets of a capture."""
    from fanin.formats.pcapng import read_capture

    plain = "".join(packet.split()).removeprefix("0x")
    with contextlib.suppress(ValueError):
        if plain:
            return [bytes.fromhex(plain)]
    return read_capture(files.read(Path(packet), "packet"))


@contextlib.contextmanager
def _traced(
    program: Path | None,
    p4info: Path | None,
    entries: Path | None,
    p4runtime: str | None,
    device_id: int,
    cpu_port: int,
    tls_ca: Path | None,
) -> Iterator[Device]:
    """A device here that prints the way of its packets, in the state of the one that was named."""
    from fanin.switch.p4runtime.controller.reader import RemoteCells, copy_state
    from fanin.switch.p4runtime.opening import Artefacts
    from fanin.switch.p4runtime.standalone import load, load_config, traced_device, write_entries

    device = traced_device(cpu_port, _print)
    if program is not None:
        load(device, Artefacts.standalone(program, p4info))
        if entries is not None:
            write_entries(device, entries)
        yield device
        return
    assert p4runtime is not None
    with _reader(p4runtime, device_id, tls_ca) as reader:
        config = reader.config()
        if not config.p4_device_config:
            raise FaninError("the device does not tell its program. Remedy: --program and --p4info instead")
        load_config(device, config)
        copy_state(reader, device)
        assert device.switch is not None
        for register in config.p4info.registers:
            array = device.switch.program.registers[register.preamble.name]
            array.cells = RemoteCells(reader, register.preamble.id, array.size)
        device.switch.watch_registers()  # type: ignore[attr-defined]
        yield device


@contextlib.contextmanager
def _reader(p4runtime: str, device_id: int, tls_ca: Path | None) -> Iterator[DeviceReader]:
    from fanin.switch.p4runtime.controller.links import DeviceAddress
    from fanin.switch.p4runtime.controller.reader import DeviceReader
    from fanin.switch.p4runtime.server.server import check_authority

    where(p4runtime, "--p4runtime")
    ca = None if tls_ca is None else check_authority(tls_ca)
    with contextlib.closing(DeviceReader(DeviceAddress(target=p4runtime, device_id=device_id, ca=ca))) as reader:
        yield reader


def _print(lines: list[str]) -> None:
    print("\n".join(lines), flush=True)


# --- slots ---


def _described(job: JobOnDevice, held: list[Slot], *, every: bool) -> list[str]:
    facts = job.facts
    lines = [
        f"job {job.number}: generation {facts['generation']}, {facts['workers']} workers, live "
        f"{facts['live']:#x}, quorum {facts['quorum']}, S {facts['staleness']}, {facts['slots']} slots from "
        f"{facts['first_slot']} on, {facts['words']} words and {facts['codes']} codes per packet"
    ]
    shown = held if every else [slot for slot in held if not slot.fresh][:DEFAULT_SLOTS]
    for slot in shown:
        holds = f"{slot.count} contributions" if slot.count else "nothing yet"
        line = f"  slot {slot.number}: " + (
            "nothing has come for it" if slot.fresh else f"round {slot.open_round} holds {holds}, floor {slot.floor}"
        )
        if slot.count:
            line += f"; {slot.words} words, {slot.codes} codes, signature {slot.signature:#010x}"
        lines.append(line)
        lines += [f"    base {entry.base}: workers {', '.join(map(str, entry.workers))}" for entry in slot.ring]
        if slot.sums is not None:
            lines.append("    sums " + " ".join(f"{word:08x}" for word in slot.sums))
    hidden = 0 if every else sum(not slot.fresh for slot in held) - len(shown)
    if hidden:
        lines.append(f"  and {hidden} more in use: --json shows all, --slot one")
    if not shown:
        lines.append("  no slot is in use")
    return lines


def _as_json(job: JobOnDevice, held: list[Slot]) -> dict[str, object]:
    return {"job": job.number, **job.facts, "held": [dataclasses.asdict(slot) for slot in held if not slot.fresh]}
