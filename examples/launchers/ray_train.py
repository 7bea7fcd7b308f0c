"""Ray Train over fanin: python ray_train.py [workers]

Only `TorchConfig(backend="fanin")` is needed; Ray sets ranks, MASTER_ADDR and MASTER_PORT itself.
"""

from __future__ import annotations

import sys

import ray
import torch
import torch.distributed as dist
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model


def train() -> None:
    """Train a line on random data, on one of the workers."""
    torch.manual_seed(dist.get_rank())
    model = prepare_model(torch.nn.Linear(8, 1))  # DistributedDataParallel
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        inputs = torch.randn(64, 8)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    mean = loss.detach().clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    metrics = {"loss": float(mean), "backend": dist.get_backend()}
    if dist.get_rank() == 0:
        print(metrics, flush=True)  # printed, because the result of `fit` has metrics only with a checkpoint
    ray.train.report(metrics)


if __name__ == "__main__":
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    scaling = ScalingConfig(num_workers=workers)
    trainer = TorchTrainer(train, torch_config=TorchConfig(backend="fanin"), scaling_config=scaling)
    trainer.fit()
