"""`fanin switch`: the software switch as a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from fanin import plugins
from fanin.addresses import SwitchAddress, check_brackets, host_and_port
from fanin.cli import modes
from fanin.cli.fields import described
from fanin.cli.metrics import exporter
from fanin.cli.numbers import number_of_64_bits
from fanin.cli.switch_modes import check_options
from fanin.errors import ConfigurationError
from fanin.key_file import VARIABLE, default_path, load_or_create
from fanin.options import Options
from fanin.protocol.control import DEFAULT_PORT, Scheme
from fanin.schemes import DEFAULT, SCHEMES, either, find_scheme, tree_scheme
from fanin.switch_size import DEFAULT_SOURCE_SHARE, flows_like, flows_of, memory_of, slot_bytes

if TYPE_CHECKING:
    from types import ModuleType

    from fanin.curve import CurveKeys
    from fanin.switch.controller.data_plane import DataPlane
    from fanin.switch.p4runtime.opening import Artefacts
    from fanin.switch.p4runtime.server.server import TlsFiles
    from fanin.switch.service.service import SwitchService

TARGETS = "fanin.targets"
"""Group of entry points for targets of other packages."""
KEY_CHARACTERS = 40
"""Length of a CURVE key in Z85."""


SwitchKeyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The switch's own key, for `fanin stats` and `fanin tune`; made if need be. "
        f"Default: {VARIABLE}, then the user's.",
    ),
]
LivenessTimeout = Annotated[float, typer.Option("--liveness-timeout", metavar="SECONDS")]
Quiet = Annotated[bool, typer.Option(help="Print nothing but errors.")]
Parent = Annotated[str | None, typer.Option(metavar="ADDRESS", help="Be a leaf of that switch, udp://HOST:PORT.")]
P4Runtime = Annotated[str, typer.Option(metavar="HOST:PORT", help="Address at which the device serves P4Runtime.")]
DataAddress = Annotated[
    str, typer.Option(metavar="ADDRESS:PORT", help="The switch's own address: workers send data to it.")
]
SwitchMac = Annotated[str | None, typer.Option(metavar="MAC", help="The switch's MAC address, for answers to ARP.")]
ControllerBind = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Address at which workers reach this controller.")
]
BIND = f"0.0.0.0:{DEFAULT_PORT}"
"""Default of --bind: every interface."""
TlsCertificate = Annotated[Path | None, typer.Option(metavar="FILE", help="P4Runtime over TLS: our certificate (PEM).")]
TlsKey = Annotated[Path | None, typer.Option(metavar="FILE", help="Private key of --tls-certificate (PEM).")]
TlsCa = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Authority that must have signed the other side's certificate (PEM)."),
]


def made() -> Callable[..., None]:
    """The command's function, with help, bounds and defaults of the service's options."""
    from fanin.switch.service.service import ServiceOptions

    shared = ("flows", "native", "source_share", "liveness_timeout_s", "shared_memory")
    return described(ServiceOptions, *shared)(switch)


def switch(
    context: typer.Context,
    *,
    bind: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="Address to listen at; [::]:4919 is for IPv6, too; port 0: any free one."
        ),
    ] = BIND,
    memory: Annotated[
        int | None,
        typer.Option(
            metavar="MIB",
            help="Aggregation memory of all jobs. Default: 1,024 a flow, but at most an eighth of the machine's.",
        ),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(help="Instead of --memory: a number of slots of the longest packet.")
    ] = None,
    flows: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Default: one per four cores; a leaf's parent's.")
    ] = None,
    native: Annotated[bool | None, typer.Option("--native/--twin")],
    data: Annotated[
        str, typer.Option(help=f"Transport of data: {' or '.join(SCHEMES)}, or several with commas.")
    ] = DEFAULT,
    curve_keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Encrypt control and zmq data; the file is made if need be.")
    ] = None,
    curve_clients: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --curve-keys: public keys of the clients that are let in, one a line."),
    ] = None,
    key_file: SwitchKeyFile = None,
    source_share: Annotated[float, typer.Option(metavar="FRACTION")] = DEFAULT_SOURCE_SHARE,
    liveness_timeout_s: LivenessTimeout,
    shared_memory: Annotated[bool, typer.Option()],
    parent: Parent = None,
    target: Annotated[
        str,
        typer.Option(
            help="software; p4: the compiled P4 program in its emulator; or one that a package has registered."
        ),
    ] = "software",
    program: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --target p4: a program that p4c-bm2-ss compiled.")
    ] = None,
    p4info: Annotated[Path | None, typer.Option(metavar="FILE", help="P4Info of --program, in text form.")] = None,
    p4runtime: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="With --target p4: serve P4Runtime there; `fanin controller` programs it."
        ),
    ] = None,
    device_id: Annotated[
        int | None,
        typer.Option(
            parser=number_of_64_bits, metavar="NUMBER", help="With --p4runtime: the device's number there. Default: 0."
        ),
    ] = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="[HOST]:PORT", help="Serve metrics for Prometheus there; without HOST on loopback only."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Run a switch. Workers find it with FANIN_SWITCH=udp://host:port or zmq://host:port."""
    from fanin.switch.service.service import ServiceOptions, SwitchService
    from fanin.switch.service.signals import signals

    host, port = where(bind)
    schemes = _schemes(data)
    _check_target(target)
    check_options(context, schemes)
    artefacts = _artefacts(target, program, p4info, p4runtime)
    if artefacts is not None and p4runtime is not None:
        at, tls = where(p4runtime, "--p4runtime"), tls_files(tls_certificate, tls_key, tls_ca)
        serve_device(artefacts, (host, port), at, tls, quiet, device_id or 0)
        return
    modes.refuse_without(context, "--p4runtime", "device_id", "tls_certificate", "tls_key", "tls_ca")
    root = None if parent is None else SwitchAddress.parse(parent)
    many = flows_of(flows)
    if flows is None and artefacts is None:
        many = flows_like(root, many)
    options = ServiceOptions(
        host=host,
        port=port,
        native=native if native is not None else Options.from_environment(os.environ, switch=None).native,
        schemes=schemes if artefacts is None and parent is None else (DEFAULT if parent is None else tree_scheme(),),
        data=_opening(target) if artefacts is None else _emulated(artefacts),
        curve=_keys(curve_keys),
        curve_clients=_clients(curve_clients, curve_keys),
        operator_key=operator_key(key_file, quiet),
        source_share=source_share,
        liveness_timeout_s=liveness_timeout_s,
        parent=root,
        flows=many,
        memory_bytes=memory_of(memory, slots, many),
        parent_curve_key=os.environ.get("FANIN_CURVE_SERVER_KEY") if parent is not None else None,
        shared_memory=shared_memory,
    )
    service = SwitchService(options)
    with contextlib.closing(service), signals(service, embedded=False), contextlib.ExitStack() as stack:
        exported = None if metrics is None else stack.enter_context(exporter(metrics, service))
        if not quiet:
            print("\n".join(describe(service)), flush=True)
        if exported is not None and not quiet:
            print(f"  metrics: TCP port {exported.port}", flush=True)
        service.run()
        if not quiet:
            print("fanin switch: ended", flush=True)


def _artefacts(target: str, program: Path | None, p4info: Path | None, p4runtime: str | None) -> Artefacts | None:
    """The program to run; None for the software switch."""
    if target == "p4":
        return cast("Artefacts", load_p4().Artefacts.read(program, p4info))
    if program is not None or p4info is not None or p4runtime is not None:
        raise ConfigurationError(
            "--program, --p4info and --p4runtime are for --target p4. Remedy: add it, or leave them out"
        )
    return None


def _check_target(target: str) -> None:
    """Raise ConfigurationError for a target that is neither fanin's own nor a package's."""
    if target in ("software", "p4") or _opening(target) is not None:
        return
    known = " or ".join(["software", "p4", *plugins.names(TARGETS)])
    raise ConfigurationError(
        f"--target {target!r} is no target. Remedy: {known}; the native engine and its Python twin are --native and "
        "--twin of --target software"
    )


def _opening(target: str) -> Callable[[str, int], DataPlane] | None:
    """The function that opens the data plane of another package's target; None for a target of fanin's own."""
    found = None if target == "software" else plugins.load(TARGETS, target, callable)
    if found is None:
        return None

    def opened(host: str, port: int) -> DataPlane:
        from fanin.switch.controller.data_plane import DataPlane

        with plugins.called(TARGETS, target):
            made = cast("Callable[[str, int], object]", found)(host, port)
        if not isinstance(made, DataPlane):
            raise plugins.refused(TARGETS, target, f"it opens {type(made).__name__}, which is no DataPlane")
        return made

    return opened


def load_p4() -> ModuleType:
    """Import the module that opens data planes of P4 programs; ConfigurationError if its packages are not installed."""
    try:
        from fanin.switch.p4runtime import opening
    except ImportError as error:
        raise ConfigurationError(f"{error}. Remedy: pip install 'fanin[p4]'") from None
    return opening


def tls_files(certificate: Path | None, key: Path | None, ca: Path | None) -> TlsFiles | None:
    """The TLS options as one; None without any."""
    if (certificate is None) != (key is None) or (ca is not None and certificate is None):
        raise ConfigurationError(
            "--tls-certificate and --tls-key belong together, and --tls-ca goes with them. Remedy: give both, or none"
        )
    if certificate is None or key is None:
        return None
    load_p4()
    from fanin.switch.p4runtime.server.server import TlsFiles

    files = TlsFiles(certificate, key, ca)
    files.check()
    return files


def _emulated(artefacts: Artefacts) -> Callable[[str, int], DataPlane]:
    opening = load_p4()
    return lambda host, port: cast("DataPlane", opening.open_emulated(artefacts, host, port))


def serve_device(
    artefacts: Artefacts,
    data: tuple[str, int],
    control: tuple[str, int],
    tls: TlsFiles | None,
    quiet: bool,
    device_id: int,
) -> None:
    """The emulator as a P4Runtime device, until a signal ends it."""
    device = load_p4().open_device(artefacts, data, control, tls, device_id)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with contextlib.closing(device):
        if not quiet:
            print(f"fanin switch: {device.description}", flush=True)
        ended.wait()


def describe(service: SwitchService) -> list[str]:
    """The lines that are printed at start."""
    import fanin
    from fanin.protocol.wire import MAX_DATAGRAM_BYTES, MAX_WORKERS

    options = service.options
    mib = options.memory_bytes / (1 << 20)
    at = host_and_port(options.host, service.port)
    addresses = " and ".join(f"{scheme}://{at}" for scheme in options.schemes)
    lines = [f"fanin switch {fanin.__version__} at {addresses} (control: TCP port {service.port})"]
    lines += [
        f"  {scheme} data: {server.description}; ports {', '.join(map(str, server.ports))}"
        for scheme, server in service.servers.items()
    ]
    lines.append(
        f"  pool: {mib:g} MiB, {options.memory_bytes // slot_bytes()} slots of the longest packet; "
        f"at most {MAX_WORKERS} workers per job, {MAX_DATAGRAM_BYTES} bytes per packet"
    )
    lines.append(f"  a worker counts as lost after {options.liveness_timeout_s:g} s of silence")
    if options.parent is not None:
        lines.append(f"  a leaf of {options.parent}: synchronous jobs, whose other ranks may be at other leaves of it")
    if options.curve is not None:
        lines.append(f"  encrypted (UDP data aside): set FANIN_CURVE_SERVER_KEY='{options.curve.public}' for workers")
    return lines


# --- reading the command line ---


def where(bind: str, option: str = "--bind") -> tuple[str, int]:
    """Host and port of a listening address, which `option` gave."""
    check_brackets(f"{option} {bind!r}", bind)
    host, colon, port = bind.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigurationError(f"{option} {bind!r}: expected host:port with a port in 0..65535", option)
    return host, int(port)


def _schemes(data: str) -> tuple[Scheme, ...]:
    wanted = {part.strip() for part in data.split(",")}
    if not wanted or any(find_scheme(name) is None for name in wanted):
        raise ConfigurationError(f"--data {data!r}: must be {either(joint=', ')} or {either(joint=',')}", "--data")
    return tuple(scheme for scheme in SCHEMES if scheme in wanted)


def _keys(path: Path | None) -> CurveKeys | None:
    from fanin.curve import load_or_create

    return None if path is None else load_or_create(path)


def operator_key(path: Path | None, quiet: bool) -> bytes | None:
    """Return the switch's operator key. None where no file was named and this user's key can be neither read nor made,
    which a line on standard error says unless `quiet`.
    """
    named = path or (Path(given) if (given := os.environ.get(VARIABLE, "")) else None)
    try:
        return load_or_create(named or default_path())
    except (ConfigurationError, RuntimeError) as error:  # RuntimeError: a user without a home
        if named is not None:
            raise
        if not quiet:
            print(
                f"fanin switch: nobody is its operator: {error}. Remedy: --key-file, for `fanin tune` and the names in "
                "`fanin stats`",
                file=sys.stderr,
            )
        return None


def _clients(path: Path | None, keys: Path | None) -> tuple[str, ...] | None:
    """Public keys in Z85, one a line; what follows a # is a comment."""
    if path is None:
        return None
    if keys is None:
        raise ConfigurationError("--curve-clients goes with --curve-keys. Remedy: give both")
    try:
        lines = [line.split(" #")[0].strip() for line in path.read_text().splitlines() if not line.startswith("# ")]
    except (OSError, UnicodeDecodeError) as error:
        wrong = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigurationError(f"--curve-clients {path}: {wrong}. Remedy: name a file of public keys") from None
    clients = tuple(line for line in lines if line)
    if strange := [line for line in clients if len(line) != KEY_CHARACTERS]:
        raise ConfigurationError(
            f"--curve-clients {path}: {strange[0]!r} is no key of {KEY_CHARACTERS} characters (Z85). Remedy: correct it"
        )
    return clients
