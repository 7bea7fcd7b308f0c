"""A job of worker processes in a fabric, each rank in its host's namespace and told where sums are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fanin.emulation.network.commands import in_namespace
from fanin.emulation.network.fabric import WORKER_DEVICE, Fabric
from fanin.emulation.processes import LocalJob

MASTER_PORT = 29_500
"""Default TCP port of the ranks' store, in rank 0's namespace."""


def placed_job(
    fabric: Fabric,
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    master_port: int = MASTER_PORT,
) -> LocalJob:
    """A job with a rank for each worker of the fabric's topology; `environment` is the same on all of them.

    Jobs that follow each other in one fabric need different `master_port`s: the last job's may still be in use.
    """
    topology = fabric.topology

    def placed(rank: int, line: list[str]) -> list[str]:
        variables = [f"{name}={value}" for name, value in topology.rank_environment(rank).items()]
        return in_namespace(fabric.worker_namespace(rank), ["env", *variables, *line])

    shared = {"GLOO_SOCKET_IFNAME": WORKER_DEVICE, "MASTER_PORT": str(master_port), **(environment or {})}
    return LocalJob(module, arguments, topology.workers, shared, placed)
