"""fanin behind torch.distributed: `init_process_group("fanin")`. See docs/torch.md and docs/staleness.md."""

from fanin.host.torch.backend import counters, create
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.training.asynchronous import AsynchronousOptimizer
from fanin.host.torch.training.codec_hook import CodecState, codec_hook
from fanin.host.torch.training.hooks import LanesState, lanes_hook
from fanin.host.torch.training.membership import Membership
from fanin.host.torch.training.stale import StaleOptions, is_newcomer
from fanin.host.torch.training.stale_hook import StaleSynchronousState, stale_synchronous_hook

__all__ = [
    "AsynchronousOptimizer",
    "CodecState",
    "FaninProcessGroup",
    "LanesState",
    "Membership",
    "StaleOptions",
    "StaleSynchronousState",
    "codec_hook",
    "counters",
    "create",
    "is_newcomer",
    "lanes_hook",
    "stale_synchronous_hook",
]
