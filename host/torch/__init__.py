"""fanin behind torch.distributed: `init_process_group("fanin")`. See docs/torch.md and docs/staleness.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fanin.host.torch.backend import counters, create
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.training.asynchronous import AsynchronousOptimizer
from fanin.host.torch.training.codec_hook import CodecState, codec_hook
from fanin.host.torch.training.hooks import LanesState, lanes_hook
from fanin.host.torch.training.membership import Membership
from fanin.host.torch.training.stale import StaleOptions, is_newcomer
from fanin.host.torch.training.stale_hook import StaleSynchronousState, stale_synchronous_hook
from fanin.host.torch.training.two_level import TwoLevelState, two_level_hook
from fanin.torch_versions import require_torch

if TYPE_CHECKING:
    from fanin.host.torch.training.shard_codecs import ShardCodecs, shard_codecs

__all__ = [
    "AsynchronousOptimizer",
    "CodecState",
    "FaninProcessGroup",
    "LanesState",
    "Membership",
    "ShardCodecs",
    "StaleOptions",
    "StaleSynchronousState",
    "TwoLevelState",
    "codec_hook",
    "counters",
    "create",
    "is_newcomer",
    "lanes_hook",
    "shard_codecs",
    "stale_synchronous_hook",
    "two_level_hook",
]


def __getattr__(name: str) -> Any:
    """What needs torch.distributed.fsdp, which takes a second to import: imported when it is asked for."""
    if name in ("ShardCodecs", "shard_codecs"):
        require_torch(name, "2.9", "whose FSDP2 takes custom moves")
        from fanin.host.torch.training import shard_codecs as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
