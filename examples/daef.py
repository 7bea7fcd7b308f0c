"""DAEF: an autoencoder trained in one pass over distributed data, by two sums per layer through the switch.

    torchrun --nproc-per-node 4 -m fanin.examples.daef --check

Fontenla-Romero et al., DAEF, 2023; each layer is a ROLANN (Fontenla-Romero et al., 2021): a layer with invertible
activation f is the weighted least-squares solution of f^-1(desired), whose normal equations are sums over samples,
which the switch adds up. Nothing else leaves a worker: neither samples nor their number.

The network learns the digits 1 to 9 and tells 0s from them by its reconstruction error. `--check` compares every layer
with the central result, from all samples in one process, and the anomalies' AUC with an autoencoder trained by Adam.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from fanin.examples import digits
from fanin.examples.option_numbers import seed
from fanin.examples.train import report

ANOMALY = 0
LATENT, HIDDEN = 12, 48
PENALTY = 1e-3
"""Lambda of the least squares; it makes their condition 6e5, so rounding stays below TOLERANCE on any processor."""
MARGIN = 0.05
"""Desired outputs lie within (MARGIN, 1 - MARGIN), where the inverse of the logistic function is finite."""
TOLERANCE = 1e-9
"""Largest relative difference between the central weights and those of any split."""
AUC_TOLERANCE = 0.02

Sum = Callable[[Tensor], Tensor]
"""Function that adds a float64 tensor up over all workers."""


@dataclass(frozen=True, slots=True)
class Autoencoder:
    """Weights of each layer, shape (inputs + 1, outputs), with the bias in the last row."""

    layers: tuple[Tensor, ...]

    def reconstruct(self, samples: Tensor) -> Tensor:
        """Reconstruction of samples; both have shape (samples, features)."""
        for weights in self.layers:
            samples = torch.sigmoid(with_ones(samples) @ weights)
        return samples

    def errors(self, samples: Tensor) -> Tensor:
        """Mean squared error of each sample's reconstruction."""
        return (self.reconstruct(samples) - samples).square().mean(dim=1)


def with_ones(samples: Tensor) -> Tensor:
    """Append a feature that is 1, for the bias."""
    return torch.cat([samples, samples.new_ones(len(samples), 1)], dim=1)


def rolann(inputs: Tensor, desired: Tensor, add: Sum) -> Tensor:
    """Fit the layer that maps `inputs` (samples, features) to `desired` (samples, outputs): (features + 1, outputs).

    Two sums: G = sum X F F X^T and m = sum X F F f^-1(d) of each output, F = diag(f'(f^-1(d))); then
    (G + lambda I) w = m. Note that m holds f^-1(d), and not d.
    """
    x = with_ones(inputs)
    before = torch.logit(desired)
    slopes = desired * (1 - desired)
    gram = add(torch.einsum("so,si,sj->oij", slopes.square(), x, x))
    right = add(torch.einsum("so,si->oi", slopes.square() * before, x))
    penalty = PENALTY * torch.eye(x.shape[1], dtype=torch.float64)
    weights: Tensor = torch.linalg.solve(gram + penalty, right.unsqueeze(-1)).squeeze(-1).T
    return weights


def encoder(inputs: Tensor, add: Sum) -> Tensor:
    """Fit the first layer: the leading eigenvectors of sum X X^T. It needs one sum, and no desired output."""
    _, vectors = torch.linalg.eigh(add(inputs.T @ inputs))
    leading = vectors[:, -LATENT:]
    signs = leading.gather(
        0, leading.abs().argmax(dim=0, keepdim=True)
    ).sign()  # the sign of an eigenvector is arbitrary
    return torch.cat([leading * signs, leading.new_zeros(1, LATENT)])


def fit(samples: Tensor, add: Sum) -> Autoencoder:
    """Fit encoder, a hidden layer with the outputs of random weights (as in DAEF), and last layer."""
    layers = [encoder(samples, add)]
    latent = torch.sigmoid(with_ones(samples) @ layers[0])
    random = torch.Generator().manual_seed(0)  # the same weights at every worker
    auxiliary = torch.randn(LATENT + 1, HIDDEN, generator=random, dtype=torch.float64)
    wanted = torch.sigmoid(with_ones(latent) @ auxiliary).clamp(MARGIN, 1 - MARGIN)
    layers.append(rolann(latent, wanted, add))
    hidden = torch.sigmoid(with_ones(latent) @ layers[1])
    layers.append(rolann(hidden, samples.clamp(MARGIN, 1 - MARGIN), add))
    return Autoencoder(tuple(layers))


def by_adam(samples: Tensor, steps: int = 1000) -> Callable[[Tensor], Tensor]:
    """Train an autoencoder of the same shape by Adam; returns the function of its errors per sample."""
    torch.manual_seed(0)
    shape = (samples.shape[1], LATENT, HIDDEN, samples.shape[1])
    layers = [part for i, o in itertools.pairwise(shape) for part in (nn.Linear(i, o), nn.Sigmoid())]
    network = nn.Sequential(*layers).double()
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for step in range(steps):
        batch = samples[torch.arange(step * 64, step * 64 + 64) % len(samples)]
        loss = (network(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def errors(given: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = (network(given) - given).square().mean(dim=1)
        return found

    return errors


def load() -> tuple[Tensor, Tensor, Tensor]:
    """Training samples without the anomaly, test samples, and a mask of anomalies in the latter; float64 in 0..1."""
    training, test = digits.load()
    images, labels = training.tensors
    flat = images.flatten(1).double()[labels != ANOMALY]
    return flat, test.tensors[0].flatten(1).double(), test.tensors[1] == ANOMALY


def split(samples: Tensor, workers: int, seed: int) -> Sequence[Tensor]:
    """Split samples at cuts drawn with the seed, some parts perhaps empty; evenly for seed 0."""
    cuts = np.sort(np.random.default_rng(seed).integers(0, len(samples) + 1, workers - 1))
    sizes = np.diff([0, *cuts, len(samples)]).tolist()
    return samples.split(sizes) if seed else samples.tensor_split(workers)


def add_over_workers(tensor: Tensor) -> Tensor:
    """All-reduce a tensor through the switch."""
    dist.all_reduce(tensor)
    return tensor


def largest_difference(one: Autoencoder, other: Autoencoder) -> float:
    """Largest difference of two autoencoders' weights over the layers, relative to each layer's largest weight."""
    pairs = zip(one.layers, other.layers, strict=True)
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", type=seed, default=0, help="seed of an uneven split; 0: even")
    parser.add_argument("--check", action="store_true", help="compare with the central result, and with Adam")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fanin")
    rank, workers = dist.get_rank(), dist.get_world_size()
    samples, test, anomalous = load()
    model = fit(split(samples, workers, arguments.split)[rank], add_over_workers)
    facts: dict[str, Any] = {"event": "end", "auc": float(roc_auc_score(anomalous, model.errors(test)))}
    if arguments.check:
        facts["difference"] = largest_difference(model, fit(samples, lambda tensor: tensor))
        facts["auc_by_adam"] = float(roc_auc_score(anomalous, by_adam(samples)(test)))
    report(**facts)
    dist.destroy_process_group()
    if arguments.check and facts["difference"] > TOLERANCE:
        raise SystemExit(f"rank {rank}: {facts['difference']:.3g} from the central weights; at most {TOLERANCE}")
    if arguments.check and facts["auc"] < facts["auc_by_adam"] - AUC_TOLERANCE:
        raise SystemExit(f"rank {rank}: AUC {facts['auc']:.3f}, by Adam {facts['auc_by_adam']:.3f}")


if __name__ == "__main__":
    main()
