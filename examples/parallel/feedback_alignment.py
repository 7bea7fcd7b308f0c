"""Direct feedback alignment: every layer learns from the same ternary error, and one sum carries all gradients.

    torchrun --nproc-per-node 4 -m fanin.examples.parallel.feedback_alignment --check

Nokland, 2016; Launay et al., with a photonic co-processor, 2020. A hidden layer's error is
delta_l = (B_l e) * f'(a_l), where B_l is fixed and drawn from a seed, and e is the error of the outputs, of which the
optical device takes the signs of what is above a threshold. No layer waits for the one after it, so the gradients of
all layers are there at once, and a step is one all-reduce through the switch.
`--check` compares the first steps with one process, and accuracy with that of backpropagation.
"""

from __future__ import annotations

import functools
import itertools

import torch
import torch.distributed as dist
from torch import Tensor

from fanin.examples import digits
from fanin.examples.parallel import launcher
from fanin.examples.parallel.launcher import Asked, Figures, apart, counted, expect

SHAPE = (64, 192, 192, 10)
SAMPLES = 128
"""Samples per step, over all ranks together."""
THRESHOLD = 0.15
"""Least size of an error that the device sees."""
FEEDBACK = 0.006
"""Standard deviation of the fixed matrices: larger ones saturate the hidden layers before they align."""
RATE, MOMENTUM = 0.2, 0.9
STEPS, QUICK_STEPS, COMPARED = 600, 200, 3
"""Steps; those that are compared with one process."""
LEAST_ACCURACY, LARGEST_LOSS = 0.93, 0.02
TOLERANCE = 1e-4


class Layers:
    """Weights of all layers in one flat tensor, biases in the last rows, and the fixed matrices of feedback."""

    def __init__(self, backpropagated: bool) -> None:
        drawn = torch.Generator().manual_seed(3)
        self.sizes = [(rows + 1, columns) for rows, columns in itertools.pairwise(SHAPE)]
        start = [torch.randn(rows, columns, generator=drawn) / rows**0.5 for rows, columns in self.sizes]
        start[-1].zero_()  # the last layer then grows towards the feedback
        self.flat = torch.cat([each.flatten() for each in start])
        self.velocity = torch.zeros_like(self.flat)
        self.backpropagated = backpropagated
        self.feedback = [FEEDBACK * torch.randn(SHAPE[-1], width, generator=drawn) for width in SHAPE[1:-1]]

    def weights(self) -> list[Tensor]:
        """Views of the flat tensor, one per layer."""
        parts = self.flat.split([rows * columns for rows, columns in self.sizes])
        return [part.view(size) for part, size in zip(parts, self.sizes, strict=True)]

    def activations(self, inputs: Tensor) -> list[Tensor]:
        """Inputs of every layer, with ones, and the logits at the end."""
        found = []
        for index, weights in enumerate(self.weights()):
            found.append(torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1))
            inputs = found[-1] @ weights
            if index < len(self.sizes) - 1:
                inputs = inputs.tanh()
        return [*found, inputs]

    def gradient(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Sum over samples, flat, of the cross entropy's gradient, or of what feedback makes of its error."""
        *seen, logits = self.activations(inputs)
        error = logits.softmax(-1) - torch.nn.functional.one_hot(labels, SHAPE[-1])
        coarse = error.sign() * (error.abs() > THRESHOLD)
        deltas, weights = [error], self.weights()
        for index in range(len(self.sizes) - 2, -1, -1):
            slope = 1 - seen[index + 1][:, :-1].square()
            back = deltas[0] @ weights[index + 1][:-1].T if self.backpropagated else coarse @ self.feedback[index]
            deltas.insert(0, back * slope)
        return torch.cat([(x.T @ delta).flatten() for x, delta in zip(seen, deltas, strict=True)])

    def step(self, gradient: Tensor) -> None:
        """Apply a gradient of SAMPLES samples."""
        self.velocity.mul_(MOMENTUM).add_(gradient, alpha=1 / SAMPLES)
        self.flat.sub_(self.velocity, alpha=RATE)

    def accuracy(self, inputs: Tensor, labels: Tensor) -> float:
        """Part of these samples whose label is the likeliest one."""
        return float((self.activations(inputs)[-1].argmax(-1) == labels).float().mean())


@functools.cache
def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images, flat, and labels: of training and of test."""
    (images, labels), (test_images, test_labels) = (each.tensors for each in digits.load())
    return images.flatten(1), labels, test_images.flatten(1), test_labels


def batch(step: int, rank: int, ranks: int) -> tuple[Tensor, Tensor]:
    """A rank's part of the samples of a step."""
    images, labels, *_ = data()
    chosen = torch.randint(len(labels), (SAMPLES,), generator=torch.Generator().manual_seed(step))[rank::ranks]
    return images[chosen], labels[chosen]


def play(asked: Asked) -> Figures:
    """Train by feedback and by backpropagation; the accuracy of both."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    *_, test_images, test_labels = data()
    steps = QUICK_STEPS if asked.quick else STEPS
    accuracy: dict[bool, float] = {}
    difference, sums = 0.0, 0
    for backpropagated in (False, True):
        layers, alone = Layers(backpropagated), Layers(backpropagated)
        with counted() as moved:
            for step in range(steps):
                gradient = layers.gradient(*batch(step, rank, ranks))
                dist.all_reduce(gradient)
                layers.step(gradient)
                if asked.check and step < COMPARED:
                    alone.step(alone.gradient(*batch(step, 0, 1)))
                    difference = max(difference, apart(layers.flat, alone.flat))
        accuracy[backpropagated] = layers.accuracy(test_images, test_labels)
        if not backpropagated:
            sums = sum(moved[path] for path in ("switch", "shards")) // (layers.flat.numel() * 4)
            highest, lowest = layers.flat.clone(), layers.flat.clone()
            dist.all_reduce(highest, dist.ReduceOp.MAX)
            dist.all_reduce(lowest, dist.ReduceOp.MIN)
            expect(torch.equal(highest, lowest), "replicas differ")
    if asked.check:
        lost = accuracy[True] - accuracy[False]
        expect(difference <= TOLERANCE, f"{difference:.2g} from one process after {COMPARED} steps")
        expect(accuracy[False] >= LEAST_ACCURACY, f"accuracy {accuracy[False]:.1%}; at least {LEAST_ACCURACY:.0%}")
        expect(
            asked.quick or lost <= LARGEST_LOSS,
            f"{lost:.1%} less accurate than backpropagation; at most {LARGEST_LOSS:.0%}",
        )
        expect(ranks == 1 or sums == steps, f"{sums} tensors of all layers were summed in {steps} steps")
    return {
        "difference": difference, "accuracy": accuracy[False], "by_backpropagation": accuracy[True],
        "sums_per_step": sums / steps, "steps": steps,
    }  # fmt: skip


if __name__ == "__main__":
    launcher.run(play, "feedback_alignment", __doc__)
