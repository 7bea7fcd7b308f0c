"""A switch process in a namespace: it is started and awaited, killed, restarted."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from fanin.emulation.network.commands import in_namespace
from fanin.emulation.network.namespaces import inside
from fanin.errors import FaninError
from fanin.protocol import control

START_LIMIT_S = 30.0
POLL_S = 0.05
STOP_GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class Listener:
    """A TCP port that is open once the process is ready; a switch opens control last, after its data ports."""

    port: int

    def is_open(self) -> bool:
        """Whether some process listens on the port, in the calling thread's namespace."""
        lines = Path("/proc/thread-self/net/tcp").read_text(encoding="ascii").splitlines()[1:]
        states = (line.split()[1:4] for line in lines)
        return any(local.endswith(f":{self.port:04X}") and state == "0A" for local, _, state in states)


class SwitchProcess:
    """A process of a switch. A restarted one has the same address, and has forgotten everything."""

    def __init__(
        self, name: str, namespace: str, address: str, command: list[str], log: Path, listens: Listener | None = None
    ) -> None:
        self.name = name
        self._listens_at = listens or Listener(control.DEFAULT_PORT)
        self.address = address
        self.namespace = namespace
        self._command = in_namespace(namespace, command)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """URL of the control port, which workers are given."""
        return f"udp://{self.address}:{control.DEFAULT_PORT}"

    @property
    def pid(self) -> int | None:
        """Process id of the running process, or None."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process and wait until its port is open; a FaninError has the last line of its log."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FANIN_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
            )
        deadline = time.monotonic() + START_LIMIT_S
        while not inside(self.namespace, self._listens_at.is_open):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                words = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                raise FaninError(
                    f"switch {self.name} did not start: {words[-1] if words else 'it said nothing'}. "
                    "Remedy: see what it says there"
                )
            select.select([], [], [], POLL_S)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the process with SIGKILL, as a crash would end it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End the process with SIGTERM, and with SIGKILL after STOP_GRACE_S; a second call does nothing."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_GRACE_S)
                self._process = None
            except subprocess.TimeoutExpired:
                self.kill()
