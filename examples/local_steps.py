"""Handwritten digits with few meetings: workers train alone, and meet every few steps. To be run under torchrun.

    torchrun --nproc-per-node 4 -m fanin.examples.local_steps --period 16 --fragments 4 --overlap 2 --codec 8/8

`--check` trains by plain local steps, and compares the weights with local SGD that rank 0 computes by itself.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fanin.errors import ConfigurationError
from fanin.examples import digits
from fanin.examples.option_numbers import seed, whole
from fanin.examples.train import COLLECTIVE_TIMEOUT, cross_entropy, evaluate, report
from fanin.host.torch import LocalSteps, Outer, check_replicas, describe_training

SAMPLES = 16
"""Samples per step of a worker."""
RATE = 0.25
TOLERATED = 1e-4


def network(seed: int) -> nn.Module:
    """A small network, the same on every rank."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def batch(rank: int, workers: int, step: int) -> tuple[Tensor, Tensor]:
    """Inputs and classes of one worker's step."""
    inputs, targets = (each[rank::workers] for each in digits.load()[0].tensors)
    generator = torch.Generator().manual_seed(1000 * step + rank)
    chosen = torch.randint(len(inputs), (SAMPLES,), generator=generator)
    return inputs[chosen], targets[chosen]


def learn(model: nn.Module, rank: int, workers: int, step: int) -> None:
    """Compute the gradient of one step into the parameters."""
    inputs, targets = batch(rank, workers, step)
    model.zero_grad()
    cross_entropy(model(inputs), targets).backward()


def alone(workers: int, steps: int, period: int, seed: int) -> list[Tensor]:
    """Weights after local SGD in one process, by definition: averages of all workers' weights after every period."""
    models = [network(seed) for _ in range(workers)]
    optimizers = [torch.optim.SGD(each.parameters(), RATE) for each in models]
    for step in range(steps):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            learn(model, rank, workers, step)
            optimizer.step()
        if (step + 1) % period == 0:
            for same in zip(*(each.parameters() for each in models), strict=True):
                mean = torch.stack([each.detach() for each in same]).mean(0)
                for each in same:
                    each.data.copy_(mean)
    return [each.detach() for each in models[0].parameters()]


def train(arguments: argparse.Namespace) -> None:
    """Train with the process group that the environment describes."""
    torch.set_num_threads(1)
    dist.init_process_group("fanin", timeout=COLLECTIVE_TIMEOUT)
    rank, workers = dist.get_rank(), dist.get_world_size()
    model = network(arguments.seed)
    training = LocalSteps(
        model,
        torch.optim.SGD(model.parameters(), RATE),
        period=arguments.period,
        outer=Outer() if arguments.check else Outer(lr=0.7, momentum=0.9, nesterov=True),
        fragments=1 if arguments.check else arguments.fragments,
        overlap=0 if arguments.check else arguments.overlap,
        codec=None if arguments.check else arguments.codec,
    )
    steps = arguments.periods * arguments.period
    for step in range(steps):
        learn(model, rank, workers, step)
        training.step()
    words = describe_training()
    training.flush()
    check_replicas(model)
    if rank == 0:
        print(words)
        report(event="end", steps=steps, **evaluate(model, digits.load()[1]))
        if arguments.check:
            expected = alone(workers, steps, arguments.period, arguments.seed)
            pairs = zip(model.parameters(), expected, strict=True)
            apart = max(float((own.detach() - other).abs().max()) for own, other in pairs)
            if not apart < TOLERATED:
                raise SystemExit(f"the weights are {apart:.2g} from those of one process; at most {TOLERATED} is right")
            print(f"the weights are those of one process, within {apart:.1g}")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--period", type=whole(1), default=8, help="local steps between meetings (default: 8)")
    parser.add_argument("--periods", type=whole(1), default=16, help="how many of them (default: 16)")
    parser.add_argument("--fragments", type=whole(1), default=1, help="parts that meet one by one (default: 1)")
    parser.add_argument("--overlap", type=whole(0), default=0, help="steps for which a meeting travels (default: 0)")
    parser.add_argument("--codec", default="8/8", help="encoding of the deltas: 8/8, 4/8, rotated:8 (default: 8/8)")
    parser.add_argument("--seed", type=seed, default=0, help="seed of the first weights (default: 0)")
    parser.add_argument("--check", action="store_true", help="compare with local SGD in one process")
    arguments = parser.parse_args()
    try:
        train(arguments)
    except ConfigurationError as error:  # a codec that there is not, or an overlap that is longer than the period
        parser.error(str(error))


if __name__ == "__main__":
    main()
