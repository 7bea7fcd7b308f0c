"""BMv2's simple_switch_grpc as a process: its command line, its veth pairs, and the wait until it serves P4Runtime.
Emulated networks, benchmarks and tests all start it here, so its options stand in one place.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fanin.emulation.processes import free_port
from fanin.errors import UnsupportedError
from fanin.p4_ports import CPU_PORT

BINARY = "simple_switch_grpc"
PACKAGE = "BMv2 (github.com/p4lang/behavioral-model) with its P4Runtime server"
DEVICE_ID = 1
START_TIMEOUT_S = 20.0
REPLY_TIMEOUT_S = 20.0
MTU = 9000
"""MTU of the veth pairs; BMv2 takes frames of up to 10,240 bytes."""
ETH_P_ALL = 3
SOL_PACKET, PACKET_IGNORE_OUTGOING = 263, 23
LINKED = itertools.count()
"""Counter in the device names of `linked`, so that two sets of veth pairs of one process do not collide."""


def missing() -> str | None:
    """Return the reason why `launched` and `linked` cannot be used here, or None if they can."""
    if shutil.which(BINARY) is None:
        return f"needs {BINARY} on PATH"
    if os.geteuid() != 0:
        return "needs root, for veth pairs"
    return None


def command(interfaces: Mapping[int, str], address: str, cpu_port: int, thrift_port: int | None = None) -> list[str]:
    """Command line of a BMv2 without a program, with `interfaces` by port, that serves P4Runtime at `address`.

    `cpu_port` is the port through which the program reaches the control plane. A BMv2 built with Thrift (the default)
    also listens on a Thrift port, the same for every switch of a network namespace unless `thrift_port` is given.
    """
    words = [BINARY, "--no-p4", "--device-id", str(DEVICE_ID)]
    if thrift_port is not None:
        words += ["--thrift-port", str(thrift_port)]
    for port, interface in interfaces.items():
        words += ["-i", f"{port}@{interface}"]
    return [*words, "--", "--grpc-server-addr", address, "--cpu-port", str(cpu_port)]


@dataclass(frozen=True, slots=True)
class Links:
    """Veth pairs by port: raw sockets at our ends, and the names of the interfaces at the switch's ends."""

    sockets: dict[int, socket.socket]
    interfaces: dict[int, str]


@contextlib.contextmanager
def linked(ports: Sequence[int]) -> Iterator[Links]:
    """Yield a veth pair for each of these ports, and delete them at exit; needs root."""
    with contextlib.ExitStack() as stack:
        links, number = Links({}, {}), next(LINKED)
        for port in ports:
            inner, outer = (f"fp{os.getpid()}n{number}{end}{port}"[-15:] for end in "sh")
            _ip("link", "add", inner, "type", "veth", "peer", "name", outer)
            stack.callback(_ip, "link", "delete", inner)
            for name in (inner, outer):
                Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1", encoding="ascii")
                _ip("link", "set", name, "mtu", str(MTU), "up")
            # No protocol until `bind`: with one, the socket would receive frames of every interface until then.
            tap = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
            tap.bind((outer, ETH_P_ALL))
            tap.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            tap.settimeout(REPLY_TIMEOUT_S)
            links.sockets[port], links.interfaces[port] = tap, inner
        yield links


@contextlib.contextmanager
def launched(log: Path, links: Links) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run a switch without a program on `links`, logging to `log`; yields its P4Runtime address and its process."""
    with contextlib.ExitStack() as stack:
        address = f"127.0.0.1:{free_port()}"
        output = stack.enter_context(log.open("wb"))
        words = command(links.interfaces, address, CPU_PORT, thrift_port=free_port())
        switch = subprocess.Popen(words, stdout=output, stderr=output)
        stack.callback(switch.wait)
        stack.callback(switch.terminate)
        _await_server(address, switch, log)
        yield address, switch


def _await_server(address: str, switch: subprocess.Popen[bytes], log: Path) -> None:
    import grpc  # the extra fanin[p4] has it
    from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

    deadline = time.monotonic() + START_TIMEOUT_S
    with grpc.insecure_channel(address) as channel:
        # A request, since the thread of grpc.channel_ready_future may still look at the channel once it is closed.
        capabilities = p4runtime_pb2_grpc.P4RuntimeStub(channel).Capabilities
        while True:
            try:
                capabilities(p4runtime_pb2.CapabilitiesRequest(), wait_for_ready=True, timeout=1.0)
                return
            except grpc.RpcError:
                if switch.poll() is not None or time.monotonic() > deadline:
                    said = log.read_text(encoding="utf-8", errors="replace")[-2000:]
                    raise UnsupportedError(
                        f"{BINARY} does not serve P4Runtime at {address}; it says: {said}. Remedy: see its words"
                    ) from None


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
