"""One rank of the training-step benchmark: DDP steps of the text transformer over each rival in turn."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from fanin.benchmarks.allreduce_worker import group_of
from fanin.benchmarks.network import AskedSteps
from fanin.benchmarks.ranks import asked_of, group_of_ranks, progress, report
from fanin.benchmarks.rivals import Rival
from fanin.benchmarks.trainee import LEARNING_RATE, WARM_UP_STEPS, Trainee
from fanin.examples import text
from fanin.examples.train import replica_hash


def trainee(rival: Rival) -> Trainee[Rival]:
    """Make a rival's replica, with the same weights for every rival."""
    group = group_of(rival)
    torch.manual_seed(0)
    model = DistributedDataParallel(text.Network(), process_group=group)
    return Trainee(rival, model, torch.optim.AdamW(model.parameters(), LEARNING_RATE))


def run(asked: AskedSteps) -> None:
    """Let every rival take a step in turn, and report each at the end."""
    with group_of_ranks():
        training, _ = text.load()
        trainees = [trainee(rival) for rival in asked.rivals]
        for number in range(WARM_UP_STEPS + asked.steps):
            for one in trainees:
                one.timed_step(training, number)
            progress(f"step {number + 1} of {WARM_UP_STEPS + asked.steps}")
        for one in trainees:
            report(
                {
                    "rival": one.rival.label,
                    "seconds": one.seconds,
                    "replica": replica_hash(one.model),
                    "processor": one.processor.share,
                    "gradient_bytes": sum(p.numel() * p.element_size() for p in one.model.parameters()),
                }
            )


if __name__ == "__main__":
    run(asked_of(AskedSteps, __doc__))
