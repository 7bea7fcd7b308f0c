"""Intel's Tofino model and its driver as processes: command lines, port files, veth pairs, and when they serve.

    sudo python -m fanin.emulation.tofino_model --conf out/fanin.conf --p4info out/fanin.p4info.txtpb

plays fanin's histories (docs/conformance.md) to the Tofino program on the model: `tofino-model` is the device,
`bf_switchd` its driver, which serves BfRt, and `fanin p4 deploy` loads the program and admits jobs. Workers are behind
device port 0, at the host's end of a veth pair. It needs both on PATH, SDE_INSTALL, and root.

open-p4studio (docs/deploy-p4.md) has both; the options are those of its scripts run_tofino_model.sh and run_switchd.sh.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from fanin import files
from fanin.errors import ConfigurationError, FaninError, UnsupportedError

MODEL, DRIVER, HARNESS = "tofino-model", "bf_switchd", "simple_test_harness"
PACKAGE = "open-p4studio (github.com/p4lang/open-p4studio)"
CHIPS = {"tofino": 2, "tofino2": 5}
"""Value of --chip-type for each chip."""
BFRT_PORT = 50052
START_TIMEOUT_S = 180.0
"""Longest start of model and driver; open-p4studio says that they take one to two minutes."""
POLL_S = 0.2
STOP_GRACE_S = 5.0
MAX_SAID_BYTES = 2000
CPU_PORT = 64
"""The model's device port to the processor; its veth pair is VETHS[CPU_PORT]."""
VETHS: Mapping[int, tuple[int, int]] = MappingProxyType({0: (0, 1), CPU_PORT: (250, 251)})
"""By device port: numbers of the veth interfaces at the model's end and at the host's end."""
MTU = 9000
WORKERS_ADDRESS, SWITCH_ADDRESS, SWITCH_MAC = "10.77.0.11/24", "10.77.0.1:4920", "02:fa:19:00:00:01"


def missing(*binaries: str) -> str | None:
    """Reason why the model, or one of `binaries`, cannot be run here; None if all can."""
    for binary in binaries or (MODEL, DRIVER):
        if shutil.which(binary) is None:
            return f"needs {binary} of {PACKAGE} on PATH"
    if binaries:
        return None
    for tool in ("ip", "ethtool"):
        if shutil.which(tool) is None:
            return f"needs {tool}, for veth pairs"
    if "SDE_INSTALL" not in os.environ:
        return f"needs SDE_INSTALL, where {PACKAGE} is installed"
    return None if os.geteuid() == 0 else "needs root, for veth pairs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """A program for the model, and how to run it."""

    conf: Path
    """The compiler's .conf file, as `fanin p4 deploy` takes it."""
    install: Path
    """Folder of the installed SDE, which its documents call SDE_INSTALL."""
    chip: str = "tofino"
    ports: Mapping[int, tuple[int, int]] = field(default_factory=lambda: VETHS)
    bfrt_port: int = BFRT_PORT
    """Port on this machine at which the driver serves BfRt."""
    start_timeout_s: float = START_TIMEOUT_S

    def check(self) -> None:
        """Raise ConfigurationError for an unknown chip."""
        if self.chip not in CHIPS:
            raise ConfigurationError(f"chip {self.chip!r}: expected {' or '.join(CHIPS)}", "the chip")


def port_file(ports: Mapping[int, tuple[int, int]]) -> str:
    """The model's port file, which maps device ports to veth pairs."""
    rows = [{"device_port": port, "veth1": model, "veth2": host} for port, (model, host) in ports.items()]
    return json.dumps({"PortToVeth": rows}, indent=1)


def model_command(options: ModelOptions, ports: Path) -> list[str]:
    """The model's command line, with its port file."""
    options.check()
    return [
        MODEL, "--p4-target-config", str(options.conf), "--install-dir", str(options.install),
        "-d", "1", "-k", "1", "-f", str(ports), "--chip-type", str(CHIPS[options.chip]), "--logs-disable",
        "--port-monitor",
    ]  # fmt: skip


def driver_command(options: ModelOptions) -> list[str]:
    """The driver's command line: without an interactive shell, and reachable from this machine alone."""
    return [
        DRIVER, "--install-dir", str(options.install), "--conf-file", str(options.conf), "--init-mode=cold",
        "--skip-p4", "--background", "--server-listen-local-only",
    ]  # fmt: skip


def harness_command(conf: Path, test: Path, log: Path) -> list[str]:
    """Command line of the model's own harness, without a driver: a program, and a packet test (STF) with entries."""
    return [HARNESS, "-l", str(conf), "--observation-log", str(log), str(test)]


def deploy_command(options: ModelOptions, p4info: Path, ports: Path) -> list[str]:
    """Command line of `fanin p4 deploy` for this device, with its port plan."""
    return [
        sys.executable, "-m", "fanin", "p4", "deploy", str(options.conf), "--p4info", str(p4info),
        "--ports", str(ports), "--switch-address", SWITCH_ADDRESS, "--switch-mac", SWITCH_MAC, "--bind", "127.0.0.1:0",
        "--bfrt", f"127.0.0.1:{options.bfrt_port}", "--cpu-interface", f"veth{options.ports[CPU_PORT][1]}", "--go",
    ]  # fmt: skip


@contextlib.contextmanager
def launched(options: ModelOptions, folder: Path) -> Iterator[None]:
    """Run model and driver from entry, when BfRt is served, to exit; `folder` gets their output.

    Raises UnsupportedError if one of them ends first, or BfRt is not served in time, with the end of that one's output.
    """
    (folder / "ports.json").write_text(port_file(options.ports), encoding="ascii")
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(_running(model_command(options, folder / "ports.json"), folder / "model.log"))
        driver = stack.enter_context(_running(driver_command(options), folder / "driver.log"))
        deadline = time.monotonic() + options.start_timeout_s
        while not _listens(options.bfrt_port):
            for process, name in ((model, "model"), (driver, "driver")):
                if process.poll() is not None:
                    raise UnsupportedError(
                        f"the {name} ended ({process.returncode}); {_said(folder, name)}. Remedy: see its log"
                    )
            if time.monotonic() > deadline:
                raise UnsupportedError(
                    f"BfRt is not served at 127.0.0.1:{options.bfrt_port} after {options.start_timeout_s:g} s; "
                    f"{_said(folder, 'driver')}. Remedy: see its log"
                )
            time.sleep(POLL_S)
        yield


@contextlib.contextmanager
def _running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        except OSError as error:
            raise UnsupportedError(f"{command[0]} cannot be started: {files.in_words(error)}") from None
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=POLL_S):
        return True
    return False


def _said(folder: Path, name: str) -> str:
    said = (folder / f"{name}.log").read_bytes()[-MAX_SAID_BYTES:].decode(errors="replace").strip()
    return f"it says: {said}" if said else "it says nothing"


@contextlib.contextmanager
def linked(ports: Mapping[int, tuple[int, int]]) -> Iterator[None]:
    """Make the veth pairs of these ports, and delete them at exit; needs root. Workers are at port 0's host end."""
    with contextlib.ExitStack() as stack:
        for port, (model, host) in ports.items():
            _ip("link", "add", f"veth{model}", "type", "veth", "peer", "name", f"veth{host}")
            stack.callback(_ip, "link", "delete", f"veth{model}")
            for name in (f"veth{model}", f"veth{host}"):
                Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1", encoding="ascii")
                _ip("link", "set", name, "mtu", str(MTU), "up")
            if port == 0:
                _ip("address", "add", WORKERS_ADDRESS, "dev", f"veth{host}")
                _tool("ethtool", "-K", f"veth{host}", "tx", "off", "gso", "off")
        yield


def _ip(*arguments: str) -> None:
    _tool("ip", *arguments)


def _tool(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise FaninError(
            f"{' '.join(command)}: {error.stderr.strip()}. Remedy: run it as root, with iproute2 installed"
        ) from None


def play(options: ModelOptions, p4info: Path, folder: Path, arguments: Sequence[str] = ()) -> int:
    """Run `fanin conformance` against the program on the model; returns its exit status."""
    plan = folder / "plan.json"
    plan.write_text(json.dumps({"ports": [{"device_port": 0, "speed": "10G"}]}), encoding="ascii")
    command = [sys.executable, "-m", "fanin", "conformance", *arguments, "--", *deploy_command(options, p4info, plan)]
    with linked(options.ports), launched(options, folder):
        return subprocess.run(command, check=False).returncode


def main() -> None:
    """Run the command line described at the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--conf", type=Path, required=True, help="the compiler's .conf")
    parser.add_argument("--p4info", type=Path, required=True, help="the program's P4Info, in text form")
    parser.add_argument("--chip", default="tofino", choices=list(CHIPS))
    parser.add_argument("--seeds", default="3", help="random histories of each kind")
    given = parser.parse_args()
    if (reason := missing()) is not None:
        raise SystemExit(reason)
    options = ModelOptions(conf=given.conf, install=Path(os.environ["SDE_INSTALL"]), chip=given.chip)
    with tempfile.TemporaryDirectory(prefix="fanin-tofino-model-") as folder:
        raise SystemExit(play(options, given.p4info, Path(folder), ["--seeds", given.seeds]))


if __name__ == "__main__":
    main()
