"""One rank of the training-step benchmark: DDP steps of the text transformer over each rival in turn."""

from __future__ import annotations

import argparse
import json

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fanin.benchmarks.allreduce_worker import group_of
from fanin.benchmarks.ranks import COLLECTIVE_TIMEOUT
from fanin.benchmarks.rivals import Rival
from fanin.benchmarks.trainee import LEARNING_RATE, WARM_UP_STEPS, Trainee
from fanin.examples import text
from fanin.examples.train import replica_hash


def trainee(rival: Rival) -> Trainee[Rival]:
    """A replica of the same weights for every rival."""
    group = group_of(rival)
    torch.manual_seed(0)
    model = DistributedDataParallel(text.Network(), process_group=group)
    return Trainee(rival, model, torch.optim.AdamW(model.parameters(), LEARNING_RATE))


def run(rivals: list[Rival], steps: int) -> None:
    """Every rival takes a step in turn; a report for each at the end."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)
    training, _ = text.load()
    trainees = [trainee(rival) for rival in rivals]
    for number in range(WARM_UP_STEPS + steps):
        for one in trainees:
            one.timed_step(training, number)
        if dist.get_rank() == 0:
            print(json.dumps({"progress": f"step {number + 1} of {WARM_UP_STEPS + steps}"}), flush=True)
    for one in trainees:
        report = {
            "rival": one.rival.label,
            "seconds": one.seconds,
            "replica": replica_hash(one.model),
            "processor": one.processor.share,
            "gradient_bytes": sum(p.numel() * p.element_size() for p in one.model.parameters()),
        }
        print(json.dumps(report), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rivals", required=True, help="labels, separated by commas")
    parser.add_argument("--steps", type=int, required=True)
    arguments = parser.parse_args()
    run([Rival.parse(label) for label in arguments.rivals.split(",")], arguments.steps)
