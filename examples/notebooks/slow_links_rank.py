"""A rank of the notebook slow_links.py: trains the same network over each backend in turn, in one job.

    fanin emulate --workers 4 --rate 20mbit -- env python slow_links_rank.py FOLDER

FOLDER must have digits.npz (images and classes), and gets rank*.json: for each backend the loss after every step, the
seconds since the first step, bytes on the wire by Linux's counters of the interface, and a hash of the weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fanin.options import Options

STEPS = 10
BATCH = 64
"""Images per rank and step."""
BACKENDS = ("gloo", "fanin 32", "fanin 16", "fanin 8")
"""Backends to compare; for fanin with its bits per lane."""


def train(backend: str, images: torch.Tensor, classes: torch.Tensor) -> dict[str, Any]:
    """Train for STEPS steps by ordinary DistributedDataParallel, whose only difference is the backend's name."""
    name, _, lanes = backend.partition(" ")
    given: dict[str, Any] = {"pg_options": Options.from_environment(os.environ, lanes=int(lanes))} if lanes else {}
    dist.init_process_group(name, **given)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9)
    losses, times_s = [], []
    dist.barrier()
    before, begin_s = wire_bytes(), time.perf_counter()
    for chosen in batches(len(images)):
        loss = nn.functional.cross_entropy(model(images[chosen]), classes[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        times_s.append(time.perf_counter() - begin_s)
    sent = wire_bytes() - before
    dist.barrier()
    dist.destroy_process_group()
    weights = b"".join(value.numpy().tobytes() for value in network.state_dict().values())
    return {"losses": losses, "times_s": times_s, "wire_bytes": sent, "weights": hashlib.sha256(weights).hexdigest()}


def batches(count: int) -> Iterator[torch.Tensor]:
    """Indices of this rank's images, the same for every backend."""
    drawn = torch.Generator().manual_seed(1 + dist.get_rank())
    for _ in range(STEPS):
        yield torch.randint(count, (BATCH,), generator=drawn)


def wire_bytes() -> int:
    """Bytes that this host has sent and received, without loopback unless that is the only interface."""
    lines = [line.split(":") for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    counts = {name.strip(): fields.split() for name, fields in lines}
    devices = [name for name in counts if name != "lo"]
    return sum(int(counts[name][0]) + int(counts[name][8]) for name in devices)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    with np.load(folder / "digits.npz") as digits:
        shown = torch.from_numpy(digits["images"]), torch.from_numpy(digits["classes"])
    found = {each: train(each, *shown) for each in BACKENDS}
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
