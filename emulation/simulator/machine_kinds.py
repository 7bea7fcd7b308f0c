"""The machines of each kind, which a simulation makes anew for every life of a switch or a worker."""

from __future__ import annotations

from typing import cast

from fanin.emulation.simulator.leaf_trains import TrainLeaf
from fanin.emulation.simulator.machines import Kind, SwitchType, Worker, WorkerType
from fanin.emulation.simulator.trains import SwitchInTrains, TrainSwitch, TrainWorker, WorkerInTrains
from fanin.extension import native_extension
from fanin.host.machine.worker_machine import WorkerMachine
from fanin.protocol.job import JobSpec
from fanin.switch.machine.switch_machine import SwitchMachine


def switch_type(kind: Kind) -> SwitchType:
    """The switch machine of that kind. ConfigurationError if it is native and not built."""
    extension = native_extension(kind != "python")
    make = cast("SwitchType", SwitchMachine if extension is None else extension.SwitchMachine)
    if kind != "trains":
        return make
    return lambda memory_bytes: TrainSwitch(make(memory_bytes), cast("SwitchInTrains", make(memory_bytes)))


def leaf_type(kind: Kind) -> SwitchType:
    """The switch machine of that kind, for leaves. ConfigurationError if it is native and not built."""
    if kind != "trains":
        return switch_type(kind)
    make = switch_type("native")
    return lambda memory_bytes: TrainLeaf(make(memory_bytes), cast("SwitchInTrains", make(memory_bytes)))


def worker_type(kind: Kind) -> WorkerType:
    """The worker machine of that kind. ConfigurationError if it is native and not built."""
    extension = native_extension(kind != "python")
    make = cast("WorkerType", WorkerMachine if extension is None else extension.WorkerMachine)

    def in_trains(spec: JobSpec, worker: int, *, switch: int, token: int, newcomer: bool) -> Worker:
        machine = make(spec, worker, switch=switch, token=token, newcomer=newcomer)
        return TrainWorker(cast("WorkerInTrains", machine))

    return in_trains if kind == "trains" else make
