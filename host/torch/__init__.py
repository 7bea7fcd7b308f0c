"""fanin behind torch.distributed: `init_process_group("fanin")`. See docs/torch.md and docs/staleness.md."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fanin.errors import ConfigurationError
from fanin.host.torch.backend import counters, create
from fanin.host.torch.collectives.flight_recorder import dump_flight_recorder
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.handles.call import set_lanes
from fanin.torch_versions import require_torch

if TYPE_CHECKING:
    from fanin.host.torch.training.asynchronous import AsynchronousOptimizer
    from fanin.host.torch.training.codec_hook import CodecState, codec_hook
    from fanin.host.torch.training.federated import Federated, FederatedOptions
    from fanin.host.torch.training.hooks import LanesState, lanes_hook
    from fanin.host.torch.training.meetings.describe import describe_training
    from fanin.host.torch.training.meetings.elastic import ElasticLocalSteps
    from fanin.host.torch.training.meetings.local_steps import LocalSteps
    from fanin.host.torch.training.meetings.members import Members
    from fanin.host.torch.training.meetings.outer import Outer
    from fanin.host.torch.training.meetings.period import Every, Quadratic
    from fanin.host.torch.training.membership import Membership
    from fanin.host.torch.training.nonfinite import nonfinite_reports, on_nonfinite
    from fanin.host.torch.training.rank_watch import RankReport, watch_ranks
    from fanin.host.torch.training.replicas import check_replicas, check_replicas_every
    from fanin.host.torch.training.shard_codecs import ShardCodecs, shard_codecs
    from fanin.host.torch.training.stale import StaleOptions, is_newcomer
    from fanin.host.torch.training.stale_hook import StaleSynchronousState, stale_synchronous_hook
    from fanin.host.torch.training.torchft_group import ProcessGroupFanin
    from fanin.host.torch.training.two_level import TwoLevelState, two_level_hook

_WHERE = {
    "AsynchronousOptimizer": "asynchronous",
    "CodecState": "codec_hook",
    "ElasticLocalSteps": "meetings.elastic",
    "Every": "meetings.period",
    "Federated": "federated",
    "FederatedOptions": "federated",
    "LanesState": "hooks",
    "LocalSteps": "meetings.local_steps",
    "Members": "meetings.members",
    "Membership": "membership",
    "Outer": "meetings.outer",
    "ProcessGroupFanin": "torchft_group",
    "Quadratic": "meetings.period",
    "RankReport": "rank_watch",
    "ShardCodecs": "shard_codecs",
    "StaleOptions": "stale",
    "StaleSynchronousState": "stale_hook",
    "TwoLevelState": "two_level",
    "check_replicas": "replicas",
    "check_replicas_every": "replicas",
    "codec_hook": "codec_hook",
    "describe_training": "meetings.describe",
    "is_newcomer": "stale",
    "lanes_hook": "hooks",
    "nonfinite_reports": "nonfinite",
    "on_nonfinite": "nonfinite",
    "shard_codecs": "shard_codecs",
    "stale_synchronous_hook": "stale_hook",
    "two_level_hook": "two_level",
    "watch_ranks": "rank_watch",
}
"""Module under fanin.host.torch.training of each name that is imported on first use."""

__all__ = [
    "AsynchronousOptimizer",
    "CodecState",
    "ElasticLocalSteps",
    "Every",
    "FaninProcessGroup",
    "Federated",
    "FederatedOptions",
    "LanesState",
    "LocalSteps",
    "Members",
    "Membership",
    "Outer",
    "ProcessGroupFanin",
    "Quadratic",
    "RankReport",
    "ShardCodecs",
    "StaleOptions",
    "StaleSynchronousState",
    "TwoLevelState",
    "check_replicas",
    "check_replicas_every",
    "codec_hook",
    "counters",
    "create",
    "describe_training",
    "dump_flight_recorder",
    "is_newcomer",
    "lanes_hook",
    "nonfinite_reports",
    "on_nonfinite",
    "set_lanes",
    "shard_codecs",
    "stale_synchronous_hook",
    "two_level_hook",
    "watch_ranks",
]


def __getattr__(name: str) -> Any:
    """Import a name of `_WHERE` on first use, because importing all of them would delay `init_process_group`."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _WHERE[name] == "shard_codecs":
        require_torch(name, "2.9", "whose FSDP2 takes custom moves")
    try:
        module = importlib.import_module(f"fanin.host.torch.training.{_WHERE[name]}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torchft":
            raise
        raise ConfigurationError(f"{name} needs torchft. Remedy: pip install 'fanin[torchft]'") from error
    return getattr(module, name)


def __dir__() -> list[str]:
    """Return the module's names, those not yet imported included, for completion at a prompt."""
    return sorted({*globals(), *__all__})
