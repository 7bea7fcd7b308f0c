"""Two tasks with one trunk: gradients are summed per task, and projected if they contradict each other.

    torchrun --nproc-per-node 4 -m fanin.examples.parallel.several_tasks --check

Multi-task learning as in Crawshaw's survey, 2020; the projection is PCGrad (Yu et al., 2020). The tasks are a digit and
whether it is odd. Each rank sends one tensor with a row per task through the switch. Only the sums are projected, since
gradients of single ranks contradict each other by chance, and all ranks must project alike.
`--check` compares the first steps with one process, and both accuracies with those of networks with a single task.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from fanin.examples import digits
from fanin.examples.parallel import launcher
from fanin.examples.parallel.launcher import Asked, Figures, apart, expect
from fanin.host.torch import check_replicas

CLASSES = {"digit": 10, "odd": 2}
WIDTH = 96
SAMPLES, RATE = 128, 2e-3
STEPS, QUICK_STEPS, COMPARED = 500, 100, 3
LARGEST_LOSS = 0.01
TOLERANCE = 1e-4


class Network(nn.Module):
    """A trunk, and a head for each task."""

    def __init__(self, tasks: Sequence[str]) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.trunk = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
        self.heads = nn.ModuleDict({task: nn.Linear(WIDTH, CLASSES[task]) for task in tasks})

    def losses(self, images: Tensor, labels: dict[str, Tensor]) -> dict[str, Tensor]:
        """Losses by task: sums over samples divided by SAMPLES, so that losses of ranks add up to that of the step."""
        seen = self.trunk(images)
        return {
            task: nn.functional.cross_entropy(head(seen), labels[task], reduction="sum") / SAMPLES
            for task, head in self.heads.items()
        }

    def gradients(self, images: Tensor, labels: dict[str, Tensor]) -> Tensor:
        """One row per task: the gradient of its loss for all parameters, with zeros for the other task's head."""
        rows = []
        for loss in self.losses(images, labels).values():
            found = torch.autograd.grad(loss, list(self.parameters()), retain_graph=True, materialize_grads=True)
            rows.append(torch.cat([each.flatten() for each in found]))
        return torch.stack(rows)


def projected(rows: Tensor) -> tuple[Tensor, bool]:
    """PCGrad: remove from each row its component against the others, and add the rows up; and whether any was removed.

    With two rows the order of projections, which the paper draws at random, has no effect.
    """
    contradict = len(rows) > 1 and bool(rows[0] @ rows[1] < 0)
    if not contradict:
        return rows.sum(0), False
    dot = rows[0] @ rows[1]
    first = rows[0] - dot / rows[1].square().sum() * rows[1]
    second = rows[1] - dot / rows[0].square().sum() * rows[0]
    return first + second, True


def apply(network: Network, optimizer: torch.optim.Optimizer, gradient: Tensor) -> None:
    """Take one step of the optimizer."""
    parameters = list(network.parameters())
    parts = gradient.split([each.numel() for each in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.grad = part.view_as(parameter).clone()
    optimizer.step()


@functools.cache
def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, flat, and labels: of training and of test."""
    (images, labels), (test_images, test_labels) = (each.tensors for each in digits.load())
    return images.flatten(1), labels, test_images.flatten(1), test_labels


def batch(step: int, rank: int, ranks: int) -> tuple[Tensor, dict[str, Tensor]]:
    """A rank's part of the samples of a step."""
    images, labels, *_ = data()
    chosen = torch.randint(len(labels), (SAMPLES,), generator=torch.Generator().manual_seed(step))[rank::ranks]
    return images[chosen], {"digit": labels[chosen], "odd": labels[chosen] % 2}


def train(tasks: Sequence[str], steps: int, rank: int, ranks: int) -> tuple[Network, int]:
    """Train over `ranks` ranks, this process being one; returns the network, and the steps in conflict."""
    network, contradicting = Network(tasks), 0
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    for step in range(steps):
        rows = network.gradients(*batch(step, rank, ranks))
        if ranks > 1:
            dist.all_reduce(rows)
        gradient, contradict = projected(rows)
        contradicting += contradict
        apply(network, optimizer, gradient)
    return network, contradicting


@torch.no_grad()
def accuracies(network: Network) -> dict[str, float]:
    """Accuracy on the test set, by task."""
    *_, images, labels = data()
    seen, wanted = network.trunk(images), {"digit": labels, "odd": labels % 2}
    return {task: float((head(seen).argmax(-1) == wanted[task]).float().mean()) for task, head in network.heads.items()}


def play(asked: Asked) -> Figures:
    """Train both tasks at once, and each by itself."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    steps = QUICK_STEPS if asked.quick else STEPS
    network, contradicting = train(list(CLASSES), steps, rank, ranks)
    check_replicas(network)
    found = accuracies(network)
    single = {task: accuracies(train([task], steps, rank, ranks)[0])[task] for task in CLASSES}
    few = [
        parameters_to_vector(train(list(CLASSES), COMPARED, *place)[0].parameters())
        for place in ((rank, ranks), (0, 1))
    ]
    difference = apart(*few)
    if asked.check:
        expect(difference <= TOLERANCE, f"{difference:.2g} from one process after {COMPARED} steps")
        expect(contradicting > 0, "no gradients of the tasks contradicted each other, so nothing was projected")
        for task, alone in single.items():
            within = found[task] >= alone - LARGEST_LOSS
            expect(asked.quick or within, f"{task}: {found[task]:.1%}, and {alone:.1%} by itself")
    return {
        "difference": difference, "steps": steps, "contradicting": contradicting,
        **found, **{f"{task}_alone": alone for task, alone in single.items()},
    }  # fmt: skip


if __name__ == "__main__":
    launcher.run(play, "several_tasks", __doc__)
