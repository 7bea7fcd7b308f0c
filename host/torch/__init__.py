"""fanin behind torch.distributed: `init_process_group("fanin")`. See docs/torch.md."""

from fanin.host.torch.backend import counters, create
from fanin.host.torch.hooks import LanesState, lanes_hook
from fanin.host.torch.process_group import FaninProcessGroup

__all__ = ["FaninProcessGroup", "LanesState", "counters", "create", "lanes_hook"]
