"""A rank under torchrun: in the first world the host that is to die does so, and the next world sums again."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from fanin.host.session.shards import ShardedSession
from fanin.host.torch import FaninProcessGroup
from tests.torch.failure_ranks import kill_the_switch


def main() -> None:
    """Sum in every world; in the first one the host that FANIN_DIES names goes."""
    torch.set_num_threads(1)
    been_here = Path(os.environ["BEEN_HERE"])  # TORCHELASTIC_RESTART_COUNT is of one agent: the others count otherwise
    world = int(been_here.exists())
    been_here.touch()
    dist.init_process_group("fanin", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    assert isinstance(group, FaninProcessGroup)
    assert isinstance(group.session, ShardedSession)
    tensor = torch.full((50_000,), rank + 1.0)
    dist.all_reduce(tensor)
    shards = len(group.session.sessions)
    print(f"world {world}: rank {rank} of {size}: the sum is {int(tensor[0])} over {shards} shards", flush=True)
    # A result may reach one rank before another: the host is to die with nothing left on its way.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"summed/{world}/{rank}", "")
    store.wait([f"summed/{world}/{each}" for each in range(size)])
    if world == 0:
        if os.environ["FANIN_HOST"] == os.environ["DIES"]:
            kill_the_switch()
            os.kill(os.getpid(), signal.SIGKILL)
        while True:  # until it raises, and the agents start all ranks anew
            dist.all_reduce(torch.ones(50_000))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
