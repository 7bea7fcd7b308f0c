"""`fanin p4 run` by the command line of BMv2's simple_switch_grpc, for programs that start one: Mininet, p4-utils.

`fanin p4 bmv2 FOLDER` writes a script of that name there. Options are divided by `--` as BMv2's are: those of the
switch, the program, then those of its P4Runtime server. An option that changes what packets meet, and which is not
implemented, is refused by name; one of logs, Thrift or nanomsg is passed over with a line on standard error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fanin.addresses import host_and_port
from fanin.errors import ConfigurationError
from fanin.p4_ports import CPU_PORT, DROP_PORT

if TYPE_CHECKING:
    from fanin.switch.p4runtime.standalone import RunOptions

PROGRAM = "simple_switch_grpc"
DEFAULT_ADDRESS = "0.0.0.0:9559"
TRACED_LEVELS = ("trace", "debug")
VALUED = (
    "--thrift-port", "--nanolog", "--log-file", "--log-file-max-size", "--log-file-max-files", "--notifications-addr",
    "--debugger-addr", "--dump-packet-data", "--max-port-count",
)  # fmt: skip
FLAGS = ("--log-flush", "--debugger")
SERVER_VALUED = ("--max-mc-groups", "--max-l1-entries", "--max-l2-entries")
SERVER_FLAGS = ("--disable-swap",)
"""Options that are passed over, with and without a value."""
REFUSED = {
    "--use-files": "ports are interfaces or UDP sockets: fanin p4 trace reads a capture",
    "--packet-in": "ports are interfaces or UDP sockets",
    "--restore-state": "--commands FILE writes tables at the start",
}
SERVER_REFUSED = {
    "--dp-grpc-server-addr": "ports are interfaces or UDP sockets",
    "--priority-queues": "there are no queues",
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise ConfigurationError(f"{PROGRAM}: {message}. Remedy: fanin p4 run --help has what there is")


@dataclass(frozen=True, slots=True)
class Read:
    """A command line of BMv2's, read."""

    options: RunOptions
    passed_over: tuple[str, ...]
    """Options that mean nothing here."""


def read(arguments: Sequence[str]) -> Read:
    """Parse a command line of BMv2's. ConfigurationError for an option that is not implemented, or not BMv2's."""
    given = list(arguments)
    at = given.index("--") if "--" in given else len(given)
    ours, over = _parsed(_switch_parser(), given[:at], {*VALUED, *FLAGS}, REFUSED)
    server, more = _parsed(_server_parser(), given[at + 1 :], {*SERVER_VALUED, *SERVER_FLAGS}, SERVER_REFUSED)
    return Read(_options(ours, server), (*over, *more))


def _switch_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, allow_abbrev=False)
    parser.add_argument("-i", "--interface", action="append", default=[])
    parser.add_argument("--device-id", type=int, default=0)
    parser.add_argument("--pcap", nargs="?", const=".")
    parser.add_argument("--no-p4", action="store_true")
    parser.add_argument("--log-console", action="store_true")
    parser.add_argument("--log-level", "-L", default="")
    parser.add_argument(
        "--commands", type=Path, help="fanin's own option: simple_switch_CLI commands to carry out at the start"
    )
    parser.add_argument("--p4info", type=Path, help="fanin's own option: P4Info; made from the program by default")
    for name in (*VALUED, *REFUSED):
        parser.add_argument(name)
    for name in FLAGS:
        parser.add_argument(name, action="store_true")
    parser.add_argument("program", nargs="?", type=Path)
    return parser


def _server_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=PROGRAM, allow_abbrev=False)
    parser.add_argument("--grpc-server-addr", default=DEFAULT_ADDRESS)
    parser.add_argument("--grpc-server-ssl", action="store_true")
    for name in ("cacert", "cert", "key"):
        parser.add_argument(f"--grpc-server-{name}", type=Path)
    parser.add_argument("--grpc-server-with-client-auth", action="store_true")
    parser.add_argument("--cpu-port", type=int, default=CPU_PORT)
    parser.add_argument("--drop-port", type=int, default=DROP_PORT)
    for name in (*SERVER_VALUED, *SERVER_REFUSED):
        parser.add_argument(name)
    for name in SERVER_FLAGS:
        parser.add_argument(name, action="store_true")
    return parser


def _parsed(
    parser: argparse.ArgumentParser, words: list[str], over: set[str], refused: dict[str, str]
) -> tuple[argparse.Namespace, tuple[str, ...]]:
    given = parser.parse_args(words)
    named = {name: getattr(given, name.lstrip("-").replace("-", "_")) for name in (*over, *refused)}
    for name, remedy in refused.items():
        if named[name] is not None:
            raise ConfigurationError(f"{PROGRAM}: {name} is not implemented. Remedy: {remedy}")
    return given, tuple(sorted(name for name in over if named[name] not in (None, False)))


def _options(ours: argparse.Namespace, server: argparse.Namespace) -> RunOptions:
    from fanin.cli.switch import load_p4, tls_files, where

    opening = load_p4()
    from fanin.switch.p4runtime.server.port_set import read_ports
    from fanin.switch.p4runtime.standalone import RunOptions

    if ours.program is None and str(ours.pcap).endswith(".json"):  # --pcap without a folder, in front of the program
        ours.program, ours.pcap = Path(ours.pcap), "."
    if ours.no_p4 == (ours.program is not None):
        raise ConfigurationError(f"{PROGRAM}: either a program or --no-p4 is expected. Remedy: give one of the two")
    if server.drop_port != DROP_PORT:
        raise ConfigurationError(
            f"{PROGRAM}: --drop-port {server.drop_port} is not implemented; it is {DROP_PORT}. "
            "Remedy: leave --drop-port out"
        )
    traced = ours.log_level in TRACED_LEVELS and ours.log_console
    tls = None
    if server.grpc_server_ssl:
        authority = server.grpc_server_cacert if server.grpc_server_with_client_auth else None
        tls = tls_files(server.grpc_server_cert, server.grpc_server_key, authority)
    return RunOptions(
        artefacts=None if ours.program is None else opening.Artefacts.standalone(ours.program, ours.p4info),
        ports=read_ports([_port(each) for each in ours.interface], server.cpu_port),
        p4runtime=where(server.grpc_server_addr, "--grpc-server-addr"),
        device_id=ours.device_id,
        cpu_port=server.cpu_port,
        captures=None if ours.pcap is None else Path(ours.pcap),
        commands=ours.commands,
        tls=tls,
        trace=(lambda lines: print("\n".join(lines), flush=True)) if traced else None,
    )


def _port(word: str) -> str:
    number, at, where = word.partition("@")
    if not at:
        raise ConfigurationError(f"{PROGRAM}: --interface {word!r}: expected PORT@INTERFACE", "--interface")
    return f"{number}={where}"


def main() -> None:
    """Entry point of the script."""
    from fanin.cli import ending

    ending.prepare()
    sys.exit(ending.run(lambda: serve(sys.argv[1:])))


def serve(arguments: Sequence[str]) -> None:
    """Run the switch until a signal."""
    from fanin import __version__
    from fanin.cli.p4_serving import until_a_signal

    if {"-v", "--version"} & set(arguments):
        print(f"{__version__} (fanin, in the place of {PROGRAM})")
        return
    found = read(arguments)
    for name in found.passed_over:
        print(f"{PROGRAM} (fanin): {name} means nothing here", file=sys.stderr)
    host, port = found.options.p4runtime
    until_a_signal(found.options, more=(f"Server listening on {host_and_port(host, port)}",))


if __name__ == "__main__":
    main()
