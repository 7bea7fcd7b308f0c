"""BMv2 as the switch of a cluster: simple_switch_grpc behind every worker's link, and the controller that programs it.

The switch's namespace has no bridge: every link ends in a port of BMv2, and one more port leads to the controller,
which has the address that workers know. Data goes to an address that no host has, for which the program itself answers
ARP (docs/deploy-p4.md has the same steps by hand).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from fanin.emulation.bmv2_process import BINARY, DEVICE_ID, PACKAGE, command
from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.switch_process import Listener, SwitchProcess
from fanin.errors import ConfigurationError
from fanin.modules import running
from fanin.p4_ports import CPU_PORT
from fanin.protocol import control

TOOLS = {BINARY: PACKAGE, "ethtool": "ethtool"}
PROGRAM = "v1model-64"
"""Program of the deployment guide; BMv2 takes no packet of more than 96 words of the longer program (p4/README.md)."""
DATA_PORT = control.DEFAULT_PORT + 1
SWITCH_MAC = "02:fa:19:00:00:01"
GRPC_PORT = 9559
"""TCP port of BMv2's P4Runtime server."""


def require_tools() -> None:
    """Raise ConfigurationError if a command that BMv2 needs is missing; it names the command and its package."""
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            raise ConfigurationError(
                f"--target bmv2 needs the command `{tool}` on PATH. Remedy: install {package}, or use --target p4, "
                "which runs the same compiled program in Python"
            )


def processes(fabric: Fabric, logs: Path) -> list[SwitchProcess]:
    """BMv2 and its controller, in the order in which they start."""
    try:
        from fanin.switch.p4runtime.opening import BUILD
    except ImportError as error:
        raise ConfigurationError(f"{error}. Remedy: pip install 'fanin[p4]'") from None
    topology, namespace = fabric.topology, fabric.switch_namespace()
    device = command(dict(fabric.free_ports), f"127.0.0.1:{GRPC_PORT}", CPU_PORT)
    flooded = ",".join(str(number) for number, _ in fabric.free_ports)
    program = ["--program", str(BUILD / f"{PROGRAM}.json.gz"), "--p4info", str(BUILD / f"{PROGRAM}.p4info.txtpb")]
    controller = running("fanin", "controller", "--p4runtime", f"127.0.0.1:{GRPC_PORT}", *program)
    controller += ["--device-id", str(DEVICE_ID), "--switch-address", f"{topology.data_address}:{DATA_PORT}"]
    controller += ["--switch-mac", SWITCH_MAC, "--flood", flooded]
    controller += ["--bind", f"{topology.root_address}:{control.DEFAULT_PORT}"]
    return [
        SwitchProcess("bmv2", namespace, topology.root_address, device, logs / "bmv2.log", Listener(GRPC_PORT)),
        SwitchProcess("controller", namespace, topology.root_address, controller, logs / "switch.log"),
    ]
