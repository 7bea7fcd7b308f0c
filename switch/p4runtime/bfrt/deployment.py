"""Deploy an SDE's compiled program to a device, which then serves jobs.

`Deployment.steps` lists the steps without asking the device; `carry_out` takes them and returns a data plane. A program
that runs already is left alone, with the jobs on it, and so are ports that are as planned.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fanin import files
from fanin.errors import ConfigurationError, FaninError, ProgramError
from fanin.formats.frames import Endpoint
from fanin.switch.controller.data_plane import DataPlane
from fanin.switch.p4runtime.bfrt.client import BfrtAddress, BfrtClient, CompiledProgram, Pipeline
from fanin.switch.p4runtime.bfrt.cpu_port import CpuPort
from fanin.switch.p4runtime.bfrt.link import BfrtLink
from fanin.switch.p4runtime.bfrt.ports import PIPE_SHIFT, DevicePorts, PortPlan, one_pipe
from fanin.switch.p4runtime.controller.capacity import RECIRCULATION_PORT, Capacity
from fanin.switch.p4runtime.controller.vocabulary import Vocabulary
from fanin.switch.p4runtime.opening import DeviceNetwork, open_linked

MAX_CONF_BYTES = 1 << 20
Say = Callable[[str], None]


def read_conf(path: Path) -> CompiledProgram:
    """The program that the .conf file of the SDE's compiler describes. ConfigurationError for any other file.

    Its paths are relative to the folder in which the compiler ran; files not found there are searched beside the .conf.
    """
    try:
        document = json.loads(files.read(path, "the program's .conf", MAX_CONF_BYTES))
        programs = [each for device in document["p4_devices"] for each in device["p4_programs"]]
        if len(programs) != 1:
            raise ConfigurationError(
                f"{files.name(path)} has {len(programs)} programs; expected one. Remedy: name a .conf of one program"
            )
        (program,) = programs
        pipelines = tuple(_pipeline(each, path) for each in program["p4_pipelines"])
        return CompiledProgram(str(program["program-name"]), _there(program["bfrt-config"], path), pipelines)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, ConfigurationError):
            raise
        if isinstance(error, KeyError):
            said = f"it lacks {error}"
        else:
            said = "it is no JSON" if isinstance(error, ValueError | RecursionError) else "its parts have other types"
        raise ConfigurationError(
            f"{files.name(path)} is no .conf of the SDE's compiler: {said}. Remedy: name the .conf in the compiler's "
            "output folder"
        ) from None


def _pipeline(described: Mapping[str, Any], conf: Path) -> Pipeline:
    pipes = tuple(described.get("pipe_scope", ()))
    if not all(type(each) is int and 0 <= each < 8 for each in pipes):
        raise ConfigurationError(
            f"{files.name(conf)}: pipe_scope {list(pipes)} has what is no pipe. Remedy: compile again"
        )
    name = str(described["p4_pipeline_name"])
    binary = _there(described["config"], conf, name)
    return Pipeline(name, _there(described["context"], conf, name), binary, pipes)


def _there(given: Any, conf: Path, pipeline: str = "") -> Path:
    path = Path(str(given))
    candidates = (path, conf.parent / path, conf.parent / pipeline / path.name)
    found = next((each for each in candidates if os.path.isfile(each)), None)  # as Path.is_file, and never raises
    if found is None:
        tried = ", ".join(files.name(each) for each in candidates)
        raise ConfigurationError(
            f"{files.name(conf)} names {path.name}, which is not there: tried {tried}. "
            "Remedy: name the .conf in the compiler's output folder"
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Plan for a device: the program that it will run, its ports and its addresses."""

    address: BfrtAddress
    program: CompiledProgram | None
    """The program to load unless it runs already. None: keep the running one."""
    program_name: str
    """Name of the program; empty: the only one on the device."""
    p4info: Any
    ports: tuple[PortPlan, ...]
    """Ports to bring up. Empty: leave the device's ports as they are."""
    end: Endpoint
    """The switch's address for workers."""
    flooded: tuple[int, ...] | None
    """Device ports that packets to unknown addresses leave through. None: all of `ports`."""
    liveness_timeout_s: float

    def check(self) -> None:
        """Check everything that can be checked without the device. ConfigurationError for a plan that cannot work."""
        try:
            Capacity.of(Vocabulary(self.p4info))
        except ProgramError as error:
            raise ConfigurationError(f"--p4info: {error}. Remedy: name that of a program of p4/tna") from None
        if self.ports and all(plan.number is not None for plan in self.ports):
            one_pipe([plan.number for plan in self.ports if plan.number is not None], self._pipes)
        if self._two_passes:
            taken = [plan.number for plan in self.ports if plan.number is not None]
            if leads_back := [number for number in taken if number % (1 << PIPE_SHIFT) == RECIRCULATION_PORT]:
                raise ConfigurationError(
                    f"device port {leads_back[0]} is where packets of this program pass the pipe again. Remedy: leave "
                    "it out of --ports"
                )

    @property
    def _two_passes(self) -> bool:
        return Capacity.of(Vocabulary(self.p4info)).two_passes

    @property
    def _pipes(self) -> tuple[int, ...]:
        if self.program is None:
            return ()
        return tuple(sorted(pipe for each in self.program.pipelines for pipe in each.pipes))

    def steps(self) -> list[str]:
        """The steps of `carry_out`, in words."""
        has = Capacity.of(Vocabulary(self.p4info))
        deepest = "any" if has.depth is None else f"up to {has.depth - 2}"
        address = self.address
        said = [
            f"the program takes {has.jobs} jobs at a time, {has.words_per_packet} words per packet, {has.slots} slots, "
            f"staleness {deepest}",
            f"connect to BfRt at {address.target}, device {address.device_id}, as client {address.client_id}",
        ]
        if self.program is not None:
            pipelines = ", ".join(
                f"{each.name} in pipes {', '.join(map(str, each.pipes)) or 'all'}" for each in self.program.pipelines
            )
            said.append(f"load {self.program.name} ({pipelines}) unless it runs: that clears the device")
        said.append(f"bind to {self.program_name or 'the program that runs'}")
        said += [f"port {plan}" for plan in self.ports]
        if has.two_passes:
            said.append(
                f"nothing for second passes: results go round by port {RECIRCULATION_PORT} of the workers' pipe, at "
                "100 Gbit/s, without cable or entry"
            )
        if self.ports:
            said.append("wait until these ports are up, and see that they are in one pipe that runs the program")
        return said

    def carry_out(self, cpu: CpuPort, say: Say) -> DataPlane:
        """Deploy; `say` receives a line per step. The data plane owns `cpu` and the connection, and closes both."""
        client: BfrtClient | None = None
        try:
            client = BfrtClient(self.address)
            say(f"connected to {self.address.target}")
            if self.program is not None:
                loaded = client.ensure_program(self.program.message())
                say(f"{self.program.name} {'was loaded' if loaded else 'runs already'}")
            info = client.bind(self.program_name)
            flooded = self.flooded or ()
            if self.ports:
                device = DevicePorts(client, info)
                numbers = device.bring_up(self.ports)
                pipe = one_pipe(numbers, self._pipes)
                labels = dict(zip(numbers, (plan.label for plan in self.ports), strict=True))
                if down := device.wait_until_up(numbers):
                    raise FaninError(
                        f"still down: {', '.join(labels[each] for each in down)}. Remedy: the cable, and the same "
                        "speed, FEC and autonegotiation at the other end"
                    )
                named = ", ".join(f"{label} is {number}" for number, label in labels.items())
                say(f"ports are up, in pipe {pipe}: {named}")
                flooded = tuple(numbers) if self.flooded is None else flooded
            link = BfrtLink(client, info, self.p4info, cpu)
        except BaseException:
            if client is not None:
                client.close()
            cpu.close()
            raise
        return open_linked(link, DeviceNetwork(end=self.end, flooded=flooded), self.liveness_timeout_s)
