"""Switch processes in a fabric's namespaces: one, or a root and one per rack."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from fanin import control
from fanin.emulation.network.commands import in_namespace
from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.namespaces import inside
from fanin.errors import FaninError, UnsupportedError

TARGETS = ("native", "python", "p4", "bmv2")
"""native and python: `fanin switch` with the C++ or the Python engine. p4: the compiled P4 program, run by
fanin.switch.p4. bmv2: the same program in simple_switch_grpc."""
START_LIMIT_S = 30.0
POLL_S = 0.05
STOP_GRACE_S = 3.0


class SwitchProcess:
    """One running switch. Restartable: at the same address, with nothing remembered."""

    def __init__(self, name: str, namespace: str, address: str, command: list[str], log: Path) -> None:
        self.name = name
        self.address = address
        self._namespace = namespace
        self._command = in_namespace(namespace, command)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What workers are told."""
        return f"udp://{self.address}:{control.DEFAULT_PORT}"

    @property
    def pid(self) -> int | None:
        """While it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it and wait until its control port answers; FaninError with its last words when it does not."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FANIN_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
            )
        deadline = time.monotonic() + START_LIMIT_S
        while not inside(self._namespace, self._listens):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                words = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise FaninError(f"switch {self.name} did not start: {words[-1] if words else 'it said nothing'}")
            select.select([], [], [], POLL_S)

    def signal(self, number: signal.Signals) -> None:
        """Send it, if the switch runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """As an operator would, with a limit. Idempotent."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_GRACE_S)
                self._process = None
            except subprocess.TimeoutExpired:
                self.kill()

    def _listens(self) -> bool:
        # Control is TCP and opens last, after the data ports.
        state = Path("/proc/thread-self/net/tcp").read_text(encoding="ascii")
        return any(
            line.split()[1].endswith(f":{control.DEFAULT_PORT:04X}") and line.split()[3] == "0A"
            for line in state.splitlines()[1:]
        )


class Switches:
    """All switches of a fabric. A context manager: they run from entry to exit."""

    def __init__(self, fabric: Fabric, target: str, log_folder: Path, extra: list[str] | None = None) -> None:
        topology = fabric.topology
        if topology.racks > 1 and target not in ("native", "python"):
            raise UnsupportedError(f"--target {target} has no two-level tree here; use --target native or python")
        self.target = target
        root = topology.root_address
        self.root = SwitchProcess(
            "root", fabric.switch_namespace(), root, command(target, root, [*(extra or [])]), log_folder / "switch.log"
        )
        parent = ["--parent", self.root.url]
        self.racks = [
            SwitchProcess(
                f"rack {rack}",
                fabric.switch_namespace(rack),
                topology.rack_address(rack),
                command(target, topology.rack_address(rack), [*parent, *(extra or [])]),
                log_folder / f"switch-rack{rack}.log",
            )
            for rack in range(topology.racks if topology.racks > 1 else 0)
        ]

    @property
    def all(self) -> list[SwitchProcess]:
        """Root first."""
        return [self.root, *self.racks]

    def __enter__(self) -> Switches:
        try:
            for switch in self.all:
                switch.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Racks first, so that none loses its parent. Idempotent."""
        for switch in reversed(self.all):
            switch.stop()


def command(target: str, address: str, extra: list[str]) -> list[str]:
    """The command line of a switch; UnsupportedError for a target that this fanin does not run."""
    fanin = [sys.executable, "-m", "fanin"]
    if target not in TARGETS:
        raise UnsupportedError(f"--target {target}: must be one of {', '.join(TARGETS)}")
    if target in ("native", "python"):
        engine = "--native" if target == "native" else "--twin"
        # Links of an emulated network mean nothing to workers that share memory with their switch.
        where = ["--bind", f"{address}:{control.DEFAULT_PORT}", "--no-shared-memory"]
        return [*fanin, "switch", engine, *where, *extra]
    if target == "p4":
        return [*fanin, "switch", "--target", "p4", "--bind", f"{address}:{control.DEFAULT_PORT}", *extra]
    raise UnsupportedError(
        f"--target {target}: run by hand in the switch's namespace, with `fanin controller` before it; see p4/README.md"
    )
