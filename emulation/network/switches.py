"""The switches of a fabric: one, a root and one per rack, or BMv2 and its controller."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

from fanin.emulation.network import bmv2
from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.switch_process import SwitchProcess
from fanin.emulation.network.topology import Topology
from fanin.errors import UnsupportedError
from fanin.protocol import control

TARGETS = ("native", "python", "p4", "bmv2")
"""native and python: `fanin switch` with the C++ or the Python engine. p4: the compiled P4 program, run by
fanin.switch.p4. bmv2: the same program in simple_switch_grpc."""


def fabric_for(topology: Topology, target: str) -> Fabric:
    """The network that the target's switches fit into. UnsupportedError for a target that cannot be run here."""
    if target not in TARGETS:
        raise UnsupportedError(f"--target {target}: must be one of {', '.join(TARGETS)}")
    if topology.racks > 1 and target not in ("native", "python"):
        raise UnsupportedError(f"--target {target} has no two-level tree here; use --target native or python")
    if target == "bmv2":
        bmv2.require_tools()
    return Fabric(topology, bridged=target != "bmv2")


class Switches:
    """All switches of a fabric. A context manager: they run from entry to exit."""

    def __init__(self, fabric: Fabric, target: str, log_folder: Path) -> None:
        topology = fabric.topology
        self._below: list[SwitchProcess] = []
        self._falls_with_root = target == "bmv2"
        """Whether those below end with the root, as a controller does."""
        if target == "bmv2":
            self.root, *self._below = bmv2.processes(fabric, log_folder)
            return
        root = topology.root_address
        self.root = SwitchProcess(
            "root", fabric.switch_namespace(), root, command(target, root, []), log_folder / "switch.log"
        )
        parent = ["--parent", self.root.url]
        self._below = [
            SwitchProcess(
                f"rack {rack}",
                fabric.switch_namespace(rack),
                topology.rack_address(rack),
                command(target, topology.rack_address(rack), parent),
                log_folder / f"switch-rack{rack}.log",
            )
            for rack in range(topology.racks if topology.racks > 1 else 0)
        ]

    @property
    def all(self) -> list[SwitchProcess]:
        """Root first, then racks or BMv2's controller."""
        return [self.root, *self._below]

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

    def restart(self) -> None:
        """Kill the root, and start a new one in its place, which remembers nothing."""
        fallen = self.all if self._falls_with_root else [self.root]
        for switch in reversed(fallen):
            switch.kill()
        for switch in fallen:
            switch.start()

    def close(self) -> None:
        """The root last, so that none loses its parent. Idempotent."""
        for switch in reversed(self.all):
            switch.stop()


def command(target: str, address: str, extra: list[str]) -> list[str]:
    """The command line of a `fanin switch`."""
    where = ["--bind", f"{address}:{control.DEFAULT_PORT}"]
    if target == "p4":
        engine = ["--target", "p4"]
    else:
        # Links of an emulated network mean nothing to workers that share memory with their switch.
        engine = ["--native" if target == "native" else "--twin", "--no-shared-memory"]
    return [sys.executable, "-m", "fanin", "switch", *engine, *where, *extra]
