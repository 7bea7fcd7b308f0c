"""The switches of a fabric: one, a root and one per rack, one per spare host, or BMv2 and its controller."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from fanin.emulation.network import bmv2_switch
from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.switch_process import SwitchProcess
from fanin.emulation.network.topology import Topology
from fanin.errors import ConfigurationError
from fanin.modules import running
from fanin.protocol import control

TARGETS = ("native", "python", "p4", "bmv2")
"""Implementations of a switch. native and python: `fanin switch` with the C++ or the Python engine. p4: the compiled P4
program, run by fanin.switch.p4. bmv2: the same program in simple_switch_grpc."""


def fabric_for(topology: Topology, target: str) -> Fabric:
    """The network for the topology, with ports as the target needs them. ConfigurationError if it cannot run here."""
    if target not in TARGETS:
        raise ConfigurationError(f"--target {target}: must be one of {', '.join(TARGETS)}", "--target")
    if topology.switch_at.started_by_ranks and target != "native":
        raise ConfigurationError(
            f"--target {target} with --switch-at {topology.switch_at}: ranks start the usual switch themselves. "
            "Remedy: leave --target out, or use --switch-at own"
        )
    if topology.switch_at.spares and target not in ("native", "python"):
        raise ConfigurationError(
            f"--target {target} runs on no spare host. Remedy: use native or python, or --switch-at own"
        )
    if topology.racks > 1 and target not in ("native", "python"):
        raise ConfigurationError(f"--target {target} has no two-level tree here. Remedy: use --target native or python")
    if target == "bmv2":
        bmv2_switch.require_tools()
    return Fabric(topology, bridged=target != "bmv2")


class Switches:
    """All switches of a fabric. A context manager: they run from entry to exit."""

    def __init__(self, fabric: Fabric, target: str, log_folder: Path) -> None:
        self.all = _processes(fabric, target, log_folder)
        """Root, then racks' switches; or spare hosts' switches; or BMv2, its controller. Empty if ranks start them."""
        self._falls_with_root = target == "bmv2"
        """Whether the other processes must restart with the root, as BMv2's controller must."""

    @property
    def root(self) -> SwitchProcess:
        """The first switch: the root, BMv2, or the first spare host's. IndexError if ranks start the switches."""
        return self.all[0]

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
        """Kill the root and start it again at the same address, with nothing remembered."""
        fallen = self.all if self._falls_with_root else self.all[:1]
        for switch in reversed(fallen):
            switch.kill()
        for switch in fallen:
            switch.start()

    def close(self) -> None:
        """Stop all switches, the root last, so that none loses its parent. Idempotent."""
        for switch in reversed(self.all):
            switch.stop()


def _processes(fabric: Fabric, target: str, logs: Path) -> list[SwitchProcess]:
    topology, place = fabric.topology, fabric.topology.switch_at
    if place.started_by_ranks:
        return []
    if target == "bmv2":
        return list(bmv2_switch.processes(fabric, logs))

    def process(name: str, namespace: str, address: str, log: str, extra: list[str]) -> SwitchProcess:
        return SwitchProcess(name, namespace, address, command(target, address, extra), logs / log)

    if place.spares:
        return [
            process(
                f"spare {spare}",
                fabric.spare_namespace(spare),
                topology.spare_address(spare),
                f"switch-spare{spare}.log",
                [],
            )
            for spare in range(place.spares)
        ]
    root = process("root", fabric.switch_namespace(), topology.root_address, "switch.log", [])
    racks = [
        process(
            f"rack {rack}",
            fabric.switch_namespace(rack),
            topology.rack_address(rack),
            f"switch-rack{rack}.log",
            ["--parent", root.url],
        )
        for rack in range(topology.racks if topology.racks > 1 else 0)
    ]
    return [root, *racks]


def command(target: str, address: str, extra: list[str]) -> list[str]:
    """The command line of a `fanin switch` at `address`."""
    where = ["--bind", f"{address}:{control.DEFAULT_PORT}"]
    if target == "p4":
        engine = ["--target", "p4"]
    else:
        # Without shared memory, through which packets would bypass the emulated links.
        engine = ["--native" if target == "native" else "--twin", "--no-shared-memory"]
    return running("fanin", "switch", *engine, *where, *extra)
