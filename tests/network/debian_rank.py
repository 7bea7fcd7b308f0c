"""A rank on a machine whose own name is a loopback address, as Debian sets it up; it exchanges something by gloo."""

from __future__ import annotations

import ctypes
import json
import os
import socket

import torch
import torch.distributed as dist

CLONE_NEWUTS = 0x0400_0000


def main() -> None:
    """Say what came from the rank before, and where sums are made."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), "unshare")
    socket.sethostname("localhost")
    os.environ.pop("GLOO_SOCKET_IFNAME")
    dist.init_process_group("fanin")
    rank, size = dist.get_rank(), dist.get_world_size()
    came = torch.empty(1)
    sending = dist.isend(torch.tensor([float(rank)]), (rank + 1) % size)
    dist.recv(came, (rank - 1) % size)
    assert sending is not None
    sending.wait()
    summed = torch.ones(1000)
    dist.all_reduce(summed)
    print(json.dumps({"came": came.tolist(), "sum": summed.unique().tolist()}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
