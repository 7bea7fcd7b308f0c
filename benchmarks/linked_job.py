"""The job of a benchmark whose hosts have one rank each: over links of namespaces, or on this machine without any."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.placed_job import placed_job
from fanin.emulation.network.switch_place import OWN, SwitchPlace
from fanin.emulation.network.switches import Switches
from fanin.emulation.network.topology import Link, Topology
from fanin.emulation.processes import LocalJob


def linked_job(
    stack: ExitStack,
    workers: int,
    link: Link | None,
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    switch_at: SwitchPlace = OWN,
) -> LocalJob:
    """Not started yet. `link` is every host's, None: none; hosts and switches are there until `stack` closes."""
    if link is None:
        return LocalJob(module, arguments, workers, environment or {})
    fabric = stack.enter_context(Fabric(Topology(workers=workers, link=link, switch_at=switch_at)))
    stack.enter_context(Switches(fabric, "native", fabric.folder))
    return placed_job(fabric, module, arguments, environment)


def slowest(reports: Iterable[Mapping[str, Any]]) -> list[float]:
    """The slowest rank's time of every sample (`seconds`, as many from each rank)."""
    return [max(each) for each in zip(*(report["seconds"] for report in reports), strict=True)]
