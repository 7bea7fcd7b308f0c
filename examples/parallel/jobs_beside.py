"""Three jobs at one switch that has memory for two: these train at the same time, and the third trains over gloo.

    torchrun --nproc-per-node 6 -m fanin.examples.parallel.jobs_beside --check

As in ATP (Lao et al., NSDI 2021) several jobs share a switch, and a job that finds no memory there trains without it.
Rank 0 starts a `fanin switch` of MEMORY_MIB; each pair of ranks is a group of `new_group`, which is a job of its own.
`--check` compares each network with the one that the same job trains while no other is at the switch: bit for bit where
the switch sums both, by accuracy for the job over gloo, whose sums are rounded differently.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fanin.examples import digits
from fanin.examples.parallel import launcher
from fanin.examples.parallel.launcher import Asked, Figures, counters_of, expect
from fanin.examples.train import evaluate, replica_hash
from fanin.host.torch import check_replicas
from fanin.modules import running
from fanin.options import Options

JOBS, RANKS = 3, 2
"""Number of jobs, and ranks of each; the last job finds no memory."""
MEMORY_MIB, SLOTS, WORDS = 1, 48, 1024
"""Memory of the switch, and the pool that a job asks for: 48 results of 4 KiB, twice; two pools fit."""
SAMPLES, RATE = 64, 2e-3
STEPS, QUICK_STEPS = 120, 30
LARGEST_LOSS = 0.01
"""Largest difference in accuracy between the job over gloo and the same job at the switch."""
SWITCH_END_S = 10.0


@dataclass(frozen=True, slots=True)
class Trained:
    """Outcome of one job's training on one of its ranks."""

    bits: str
    """SHA-256 over the parameters."""
    accuracy: float
    bytes: dict[str, int]
    """Bytes of tensors that this rank handed to each carrier, `switch` or `gloo`."""
    began_s: float
    ended_s: float
    """Times of the first step and of the end, on the clock that all processes of a machine share."""

    @property
    def path(self) -> str:
        """Carrier of its gradients."""
        return "switch" if self.bytes["switch"] else "gloo"


@contextmanager
def a_switch(rank: int) -> Iterator[str]:
    """Run a switch, which rank 0 starts and ends; yields its address on every rank."""
    where: list[str] = [""]
    process = None
    if rank == 0:
        process = subprocess.Popen(
            running("fanin", "switch", "--bind", "127.0.0.1:0", "--memory", str(MEMORY_MIB), "--source-share", "1"),
            stdout=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if not name.startswith("FANIN_")},
            text=True,
        )
        assert process.stdout is not None
        found = re.search(r"udp://[\d.]+:\d+", process.stdout.readline())
        expect(found is not None, "the switch did not start")
        where = [found[0]] if found else where
    try:
        dist.broadcast_object_list(where)
        yield where[0]
        dist.barrier()  # no rank needs the switch any more
    finally:
        if process is not None:
            process.terminate()
            process.wait(SWITCH_END_S)


def train(job: int, group: dist.ProcessGroup, steps: int) -> Trained:
    """Train a network of the job's own with DDP over its group, as a separate script would."""
    torch.manual_seed(job)
    training, test = digits.load()
    images, labels = training.tensors
    model = DistributedDataParallel(digits.Network(), process_group=group)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    draws = torch.Generator().manual_seed(job)
    began_s = time.monotonic()
    for _ in range(steps):
        chosen = torch.randint(len(labels), (RANKS * SAMPLES,), generator=draws)[dist.get_rank(group) :: RANKS]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    ended_s = time.monotonic()
    counters = counters_of(group)
    check_replicas(model.module, group=group)
    return Trained(
        bits=replica_hash(model.module),
        accuracy=evaluate(model.module, test)["accuracy"],
        bytes={path: counters.get(f"{path}.bytes", 0) for path in ("switch", "gloo")},
        began_s=began_s,
        ended_s=ended_s,
    )


def group_of(job: int, address: str) -> tuple[dist.ProcessGroup, list[str]]:
    """Make a job's group, in which all ranks take part; returns it, and warnings that the switch cannot be used."""
    options = Options(switch=address, slots=SLOTS, words_per_packet=WORDS, fallback="gloo")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ranks = list(range(job * RANKS, (job + 1) * RANKS))
        group = dist.new_group(ranks, backend="fanin", pg_options=options)
        dist.barrier()
    return group, [str(each.message) for each in caught if "cannot be used" in str(each.message)]


def alone(own: int, address: str, steps: int) -> Trained:
    """Train one job after another, each alone at the switch; returns the outcome of job `own`."""
    found = None
    for job in range(JOBS):
        group, _ = group_of(job, address)
        if job == own:
            found = train(job, group, steps)
            dist.destroy_process_group(group)  # frees its memory at the switch
        dist.barrier()
    assert found is not None
    return found


def beside(own: int, address: str, steps: int) -> tuple[Trained, list[str]]:
    """Train all jobs at once, the last one started when the others have their memory; returns outcome and warnings."""
    groups = [group_of(job, address) for job in range(JOBS)]
    found = train(own, groups[own][0], steps)
    dist.barrier()
    dist.destroy_process_group(groups[own][0])
    return found, groups[own][1]


def overlap(trained: Sequence[Trained]) -> float:
    """Share of the shortest training during which all jobs trained."""
    together_s = min(each.ended_s for each in trained) - max(each.began_s for each in trained)
    return together_s / min(each.ended_s - each.began_s for each in trained)


def play(asked: Asked) -> Figures:
    """Train the jobs one after another, then all at once, and compare."""
    steps = QUICK_STEPS if asked.quick else STEPS
    own = dist.get_rank() // RANKS
    with a_switch(dist.get_rank()) as address:
        single, (shared, warned) = alone(own, address, steps), beside(own, address, steps)
    by_rank: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(by_rank, (single, shared))
    singles, shareds = zip(*by_rank[::RANKS], strict=True)
    together = overlap(shareds[:-1])
    if asked.check:
        last = own == JOBS - 1
        expect(single.path == "switch", f"job {own} alone did not train at the switch")
        expect(shared.path == ("gloo" if last else "switch"), f"job {own} beside others trained by {shared.path}")
        expect(len({each.bits for each in singles}) == JOBS, "jobs of different seeds have to differ")
        if last:
            expect(["bytes of switch memory needed" in each for each in warned] == [True], f"it warned of {warned}")
            lost = abs(single.accuracy - shared.accuracy)
            expect(lost <= LARGEST_LOSS, f"over gloo the accuracy is {lost:.1%} off")
        else:
            expect(single.bits == shared.bits, f"the weights of job {own} are not those that it reaches alone")
            expect(together > 0, "the jobs at the switch did not train at the same time")
    return {
        "steps": steps,
        "accuracy_alone": " ".join(f"{each.accuracy:.1%}" for each in singles),
        "accuracy_beside": " ".join(f"{each.accuracy:.1%}" for each in shareds),
        "together": together,
        "bytes_beside": {path: sum(each.bytes[path] for _, each in by_rank) for path in ("switch", "gloo")},
    }


if __name__ == "__main__":
    launcher.run(play, "jobs_beside", __doc__)
