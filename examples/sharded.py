"""A text transformer whose weights and gradients are sharded (FSDP2) and travel in few bits, to be run under torchrun.

    torchrun --nproc-per-node 4 -m fanin.examples.sharded --weights 8 --gradients 8/8

`--weights none --gradients none` trains with exact moves, `--backend gloo` over gloo.
Prints a JSON object per epoch (rank 0), and at the end what rank 0's parameter groups have sent and lost.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from fanin.errors import ConfigurationError
from fanin.examples import text
from fanin.examples.option_numbers import seed, whole
from fanin.examples.train import COLLECTIVE_TIMEOUT, cross_entropy, evaluate, report
from fanin.host.torch import shard_codecs

BATCH = 64
"""Samples per step over all workers together."""
LEARNING_RATE = 2e-3
NONE = "none"


def shard(network: text.Network, mesh: DeviceMesh, policy: MixedPrecisionPolicy | None = None) -> nn.Module:
    """Shard every layer, the large embedding, and the rest; each prefetches the weights of the next."""
    parts: list[nn.Module] = [network.trigrams, *network.layers.layers]
    for part in [*parts, network]:
        fully_shard(part, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())
    for part, following in itertools.pairwise(parts):
        assert isinstance(part, FSDPModule)
        assert isinstance(following, FSDPModule)
        part.set_modules_to_forward_prefetch([following])
    embedding = parts[0]
    assert isinstance(embedding, FSDPModule)
    embedding.set_unshard_in_backward(False)  # its gradient does not depend on its weights
    return network


def train(backend: str, weights: str, gradients: str, epochs: int, seed: int) -> None:
    """Train with the process group that the environment describes."""
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
    rank, workers = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = shard(text.Network(), init_device_mesh("cpu", (workers,)))
    codecs = None
    if backend == "fanin":
        codecs = shard_codecs(
            model,
            weights=None if weights == NONE else weights,
            gradients=None if gradients == NONE else gradients,
        )
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    training, test = text.load()
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(training, workers, rank, seed=seed)
    loader = DataLoader(training, BATCH // workers, sampler=sampler, drop_last=True)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        started, losses = time.perf_counter(), []
        for inputs, classes in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), classes)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        seconds = time.perf_counter() - started
        mean_loss = torch.stack(losses).mean()
        dist.all_reduce(mean_loss)
        tested = evaluate(model, test)  # on every rank: the weights are gathered for it
        if rank == 0:
            report(event="epoch", epoch=epoch + 1, loss=mean_loss.item() / workers, seconds=seconds, **tested)
    if codecs is not None and rank == 0:
        for row in codecs.statement():
            report(event="group", **dataclasses.asdict(row))
        report(event="end", traffic=codecs.traffic(), residual_norm=codecs.residual_norm())
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="fanin", help="backend of torch.distributed (default: fanin)")
    parser.add_argument("--weights", default="8", help="bits of all-gathers: 8, 6, 4, or none (default: 8)")
    parser.add_argument("--gradients", default="8/8", help="lanes of reduce-scatters: 8/8, 4/8, or none (default: 8/8)")
    parser.add_argument("--epochs", type=whole(1), default=2, help="passes over the data (default: 2)")
    parser.add_argument("--seed", type=seed, default=0, help="seed of weights and order of samples (default: 0)")
    arguments = parser.parse_args()
    try:
        train(arguments.backend, arguments.weights, arguments.gradients, arguments.epochs, arguments.seed)
    except ConfigurationError as error:  # a codec that there is not
        parser.error(str(error))


if __name__ == "__main__":
    main()
