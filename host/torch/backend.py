"""torch's entry point to the backend: `create` makes a group with the options that apply to it."""

from __future__ import annotations

import dataclasses
import logging
import os
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin import json_log
from fanin.errors import ConfigurationError
from fanin.host.torch.collectives import (
    group_resources,
    layers,
    process_group,
    reading,
    reduce_collectives,
    switch_reducer,
    torch_calls,
    two_levels,
)
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.gloo import gloo_works, inner
from fanin.host.torch.handles import call, completion, registered, work
from fanin.host.torch.handles.bucket_names import BucketNames
from fanin.host.torch.handles.dynamo import keep_out
from fanin.options import ENVIRONMENT_PREFIX, Options
from fanin.variables import without_effect

log = logging.getLogger("fanin")

LAUNCHERS = ("FANIN_SWITCH", "FANIN_HOST", "FANIN_RACK", "FANIN_LINK", "FANIN_INTERFACES")
"""Variables that a launcher sets, since a program does not know them: the switch, this host, its rack, its links."""

_world_options: Options | None = None
"""Options of the world's group: groups made without any of their own inherit them."""
_logged: set[str] = set()
"""Warnings about variables without effect that were logged: once in a process is enough."""


def create(backend_options: Any, pg_options: Any) -> FaninProcessGroup:
    """Make a group; called by torch with its `_DistributedBackendOptions` and the user's `pg_options`.

    Raises ConfigurationError for options that are none of ours, and what FaninProcessGroup raises.
    """
    global _world_options
    global_ranks = list(backend_options.global_ranks_in_group)
    own = backend_options.group_rank
    json_log.configure(os.environ, global_ranks[own] if global_ranks else own)
    world = _present_world() if global_ranks else None
    options = options_for(pg_options, None if world is None else _world_options)
    group = FaninProcessGroup(
        backend_options.store,
        backend_options.group_rank,
        backend_options.group_size,
        backend_options.timeout,
        group_name=backend_options.group_id,
        global_ranks=global_ranks,
        options=options,
        world=world,
        parts_with_store=not global_ranks,
    )
    group.nonfinite.namer = BucketNames(group)
    if not global_ranks:
        _world_options = options
    return group


def _present_world() -> FaninProcessGroup | None:
    """The world's group, whose switch and options the groups within it share; None where it is another backend's.

    torch is asked each time, because a model may still hold an earlier world's group, whose switch is gone.
    """
    world = dist.group.WORLD
    return world if isinstance(world, FaninProcessGroup) else None


def options_for(pg_options: Any, inherited: Options | None) -> Options:
    """The user's options; else those of the world's group; else the environment's.

    FANIN_SWITCH, FANIN_HOST, FANIN_RACK, FANIN_LINK and FANIN_INTERFACES fill in fields that `pg_options` leaves empty.
    Without `inherited`, logs a warning for each FANIN_ variable that nobody reads. Raises ConfigurationError.
    """
    for line in without_effect(os.environ) if inherited is None else ():
        if line not in _logged:
            _logged.add(line)
            log.warning("%s", line)
    if pg_options is None:
        return inherited or Options.from_environment(os.environ)
    if not isinstance(pg_options, Options):
        raise ConfigurationError(
            f"pg_options must be a fanin.Options, not {type(pg_options).__name__}. Remedy: pass fanin.Options(...)"
        )
    told = Options.from_environment({name: text for name, text in os.environ.items() if name in LAUNCHERS})
    names = [name.removeprefix(ENVIRONMENT_PREFIX).lower() for name in LAUNCHERS]
    filled = {name: getattr(pg_options, name) or getattr(told, name) for name in names}
    return dataclasses.replace(pg_options, **filled)


def counters(group: c10d.ProcessGroup | None = None) -> dict[str, int | float]:
    """The counters of a group (default: the world's); see FaninProcessGroup.counters.

    Raises TypeError when the group has another backend.
    """
    found = group if group is not None else dist.group.WORLD
    if not isinstance(found, FaninProcessGroup):
        raise TypeError(f"{found!r} is not a fanin group")
    return found.counters()


for _module in (
    process_group,
    torch_calls,
    reading,
    layers,
    two_levels,
    reduce_collectives,
    call,
    switch_reducer,
    group_resources,
    inner,
    gloo_works,
    work,
    registered,
    completion,
):
    keep_out(_module)
