"""AMPNet: a pipeline without a flush. Each stage applies its gradients by itself, through rounds of its own.

    torchrun --nproc-per-node 4 -m fanin.examples.ampnet --check

Gaunt et al., AMPNet, 2017. Rank = stage + 2 x replica. A first stage has at most `--in-flight` microbatches under way.
When a stage has computed a gradient, it hands it to an AsynchronousOptimizer over its replicas, and goes on with the
newest weights, without waiting for the end of a step. A stage's work is emulated: it sleeps, 4 times as long for one
microbatch in ten. `--check` compares accuracy with one process, `--against-1f1b` throughput with torch's Schedule1F1B.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fanin.examples import digits
from fanin.examples.option_numbers import whole
from fanin.examples.train import report
from fanin.host.torch import AsynchronousOptimizer, StaleOptions

STAGES, HIDDEN, SAMPLES, LEARNING_RATE = 2, 48, 16, 0.15
FORWARD_S = (0.004, 0.0025)  # seconds that each stage sleeps in a forward pass; twice as long in a backward pass
SLOW_PROBABILITY, SLOW_FACTOR = 0.1, 4.0
MICROBATCHES_PER_STEP = 4  # of 1F1B, which flushes after each step
LEAST = 2 * MICROBATCHES_PER_STEP  # microbatches of a replica, since 1F1B is measured over half of them
TARGET = 0.9


class Stage(nn.Module):
    """One of the network's two stages."""

    def __init__(self, index: int, draw: random.Random | None) -> None:
        super().__init__()
        first = (nn.Flatten(), nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU())
        self.layers = nn.Sequential(*(first if index == 0 else (nn.Linear(HIDDEN, 10),)))
        self._index, self._draw = index, draw

    def forward(self, values: Tensor) -> Tensor:
        """Activations (samples, HIDDEN), or logits from the last stage; both passes sleep for the emulated work."""
        values = self.layers(values)
        if self._draw is not None:
            seconds = FORWARD_S[self._index] * (SLOW_FACTOR if self._draw.random() < SLOW_PROBABILITY else 1.0)
            time.sleep(seconds)
            if values.requires_grad:
                values.register_hook(lambda _: time.sleep(2 * seconds))
        return values


def make_stages(draw: random.Random | None) -> list[Stage]:
    """Both stages, with the same initial weights in every process."""
    torch.manual_seed(5)
    return [Stage(index, draw) for index in range(STAGES)]


def microbatches(replica: int, replicas: int, size: int = SAMPLES) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of one replica's share of the training set for ever; both stages of a replica draw the same."""
    inputs, labels = (each[replica::replicas] for each in digits.load()[0].tensors)
    drawn = torch.Generator().manual_seed(replica)
    while True:
        for chosen in torch.randperm(len(inputs), generator=drawn)[: len(inputs) // size * size].split(size):
            yield inputs[chosen], labels[chosen]


def train_stage(rank: int, replicas: int, group: dist.ProcessGroup, count: int, in_flight: int) -> tuple[Stage, float]:
    """Train asynchronously on `count` microbatches; returns the stage, and microbatches per second of this replica."""
    index, replica = rank % STAGES, rank // STAGES
    stage = make_stages(random.Random(rank))[index]
    options = StaleOptions(staleness=1, quorum=replicas)
    inner = torch.optim.SGD(stage.parameters(), LEARNING_RATE)
    # With the policy `wait` every gradient counts; both replicas have equally many.
    optimizer = AsynchronousOptimizer(inner, stage, rounds=count, policy="wait", options=options, group=group)
    data, sends = microbatches(replica, replicas), deque[tuple[Any, Tensor]](maxlen=count)
    under_way: deque[tuple[dict[str, Tensor], Tensor]] = deque()

    def forward(values: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        # Copy the weights, because newer ones arrive before this microbatch's backward pass.
        weights = {name: each.detach().clone().requires_grad_() for name, each in stage.named_parameters()}
        return weights, torch.func.functional_call(stage, weights, (values,))

    def apply(weights: dict[str, Tensor]) -> None:
        for name, parameter in stage.named_parameters():
            parameter.grad = weights[name].grad
        optimizer.step()

    def finish_oldest() -> None:
        weights, activations = under_way.popleft()
        dist.recv(gradient := torch.empty_like(activations), rank + 1)
        activations.backward(gradient)
        apply(weights)

    first_counted, started_s = min(MICROBATCHES_PER_STEP, count - 1), 0.0
    for number in range(count):
        if number == first_counted:  # the first ones load the data set, and modules of torch
            dist.barrier()
            started_s = time.perf_counter()
        inputs, labels = next(data)
        if index == 0:
            weights, activations = forward(inputs)
            sends.append((dist.isend(activations.detach(), rank + 1), activations))  # (a send that waits would hang)
            under_way.append((weights, activations))
            finish_oldest() if len(under_way) >= in_flight else None
            continue
        dist.recv(activations := torch.empty(SAMPLES, HIDDEN), rank - 1)
        weights, logits = forward(activations.requires_grad_())
        nn.functional.cross_entropy(logits, labels).backward()
        assert activations.grad is not None
        sends.append((dist.isend(activations.grad, rank - 1), activations))
        apply(weights)
    while under_way:
        finish_oldest()
    seconds = time.perf_counter() - started_s
    all(work.wait() for work, _ in sends)
    optimizer.flush()
    return stage, (count - first_counted) / seconds


def rate_of_1f1b(rank: int, replicas: int, group: dist.ProcessGroup, count: int) -> float:
    """Microbatches per second of torch's synchronous pipeline, gradients averaged over the replicas in each step."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # takes as long to import as torch

    index, replica = rank % STAGES, rank // STAGES
    module = make_stages(random.Random(rank))[index]
    pipelines = [dist.new_group([STAGES * each, STAGES * each + 1]) for each in range(replicas)]
    pipeline = PipelineStage(module, index, STAGES, torch.device("cpu"), group=pipelines[replica])
    schedule = Schedule1F1B(pipeline, MICROBATCHES_PER_STEP, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.SGD(module.parameters(), LEARNING_RATE)
    data = microbatches(replica, replicas, SAMPLES * MICROBATCHES_PER_STEP)
    steps, started_s = count // MICROBATCHES_PER_STEP, 0.0
    for step in range(-1, steps):
        if step == 0:  # the first step exchanges shapes
            dist.barrier()
            started_s = time.perf_counter()
        inputs, labels = next(data)
        optimizer.zero_grad()
        schedule.step(inputs) if index == 0 else schedule.step(target=labels)
        for parameter in module.parameters():
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG, group=group)
        optimizer.step()
    return steps * MICROBATCHES_PER_STEP / (time.perf_counter() - started_s)


def accuracy(stages: list[Stage]) -> float:
    """Accuracy of both stages together on the test set."""
    inputs, labels = digits.load()[1].tensors
    with torch.no_grad():
        logits = stages[1].layers(stages[0].layers(inputs))
    return int((logits.argmax(-1) == labels).sum()) / len(labels)


def train_alone(replicas: int, count: int) -> float:
    """Train in one process that takes a microbatch of each replica in turn; returns its accuracy."""
    stages = make_stages(None)
    optimizer = torch.optim.SGD([each for stage in stages for each in stage.parameters()], LEARNING_RATE)
    replicas_data = [microbatches(each, replicas) for each in range(replicas)]
    for inputs, labels in (next(data) for _ in range(count) for data in replicas_data):
        optimizer.zero_grad()
        nn.functional.cross_entropy(stages[1](stages[0](inputs)), labels).backward()
        optimizer.step()
    return accuracy(stages)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--microbatches", type=whole(LEAST), default=1000, help="microbatches of each replica")
    parser.add_argument("--in-flight", type=whole(1), default=4, help="microbatches that a first stage has under way")
    parser.add_argument("--check", action="store_true", help="compare accuracy with one process")
    parser.add_argument("--against-1f1b", action="store_true", help="compare throughput with torch's pipeline")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fanin")
    rank, replicas = dist.get_rank(), dist.get_world_size() // STAGES
    own = [dist.new_group(list(range(index, STAGES * replicas, STAGES))) for index in range(STAGES)][rank % STAGES]
    stage, rate = train_stage(rank, replicas, own, arguments.microbatches, arguments.in_flight)
    stages = make_stages(None)
    for index, each in enumerate(stages):  # rank 0 has the first stage, rank 1 the last
        for parameter, trained in zip(each.parameters(), (stage if index == rank else each).parameters(), strict=True):
            parameter.data.copy_(trained.data)
            dist.broadcast(parameter.data, index)
    facts: dict[str, Any] = {"event": "end", "microbatches_per_s": rate, "accuracy": accuracy(stages)}
    if arguments.check:
        facts["accuracy_alone"] = train_alone(replicas, arguments.microbatches)
    if arguments.against_1f1b:
        facts["speed_up"] = rate / rate_of_1f1b(rank, replicas, own, arguments.microbatches // 2)
    report(**facts)
    dist.destroy_process_group()
    if arguments.check and facts["accuracy"] < TARGET:
        raise SystemExit(f"rank {rank}: {facts}; at least {TARGET:.0%}")


if __name__ == "__main__":
    main()
