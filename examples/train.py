"""Ordinary data-parallel training, to be run under torchrun. Only the backend's name refers to fanin.

    torchrun --nproc-per-node 4 -m fanin.examples.train --backend fanin --task digits

Reports each epoch (rank 0) and the end (every rank): in a terminal as a line, elsewhere as a JSON object, which
`fanin demo` and `fanin emulate` read.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import sys
import time
from collections.abc import Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from fanin.emulation.process_output import print_object
from fanin.examples.faults import add_fault_option, inject
from fanin.examples.option_numbers import seed, whole
from fanin.examples.tasks import TASKS
from fanin.examples.traffic import traffic

COLLECTIVE_TIMEOUT = timedelta(seconds=60)
PROGRESS_INTERVAL_S = 0.25
HASH_DIGITS = 12
"""Number of digits of a hash that are shown to people."""


def train(task_name: str, backend: str, epochs: int | None, seed: int, progress: bool = False) -> None:
    """Train a task of TASKS with the process group that the environment describes; `progress`: report steps, too."""
    task = TASKS[task_name]
    epochs = task.epochs if epochs is None else epochs
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
    rank, workers = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = DistributedDataParallel(task.network())
    # DDP then times the communication of every step, instead of every hundredth
    model._set_ddp_runtime_logging_sample_rate(1)
    optimizer = torch.optim.AdamW(model.parameters(), task.learning_rate)
    training, test = task.data()
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(training, workers, rank, seed=seed)
    loader = DataLoader(training, task.batch // workers, sampler=sampler, drop_last=True)
    step_s: list[float] = []
    told_s = 0.0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        losses = []
        for inputs, classes in loader:
            started = time.perf_counter()
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), classes)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
            step_s.append(time.perf_counter() - started)
            if progress and rank == 0 and started - told_s >= PROGRESS_INTERVAL_S:
                told_s = started
                report(event="progress", done=len(step_s), of=epochs * len(loader))
        mean_loss = torch.stack(losses).mean()
        dist.all_reduce(mean_loss)
        if rank == 0:
            report(
                event="epoch",
                epoch=epoch + 1,
                steps=len(step_s),
                loss=mean_loss.item() / workers,
                step_s=statistics.median(step_s),
                communication_s=communication_s(model),
                wire_bytes=sum(traffic()),
                **evaluate(model.module, test),
            )
    sent, received = traffic()
    report(
        event="end",
        replica=replica_hash(model.module),
        wire_bytes_sent=sent,
        wire_bytes_received=received,
        gradient_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
    )
    dist.barrier()
    dist.destroy_process_group()


def cross_entropy(logits: Tensor, classes: Tensor) -> Tensor:
    """Mean cross-entropy over all predictions."""
    return nn.functional.cross_entropy(logits.flatten(0, -2), classes.flatten())


def communication_s(model: DistributedDataParallel) -> float:
    """Mean time per step from the first gradient bucket's all-reduce to the end of the last, by DDP's own clock."""
    return float(model._get_ddp_logging_data()["avg_backward_comm_time"]) * 1e-9


@torch.no_grad()
def evaluate(network: nn.Module, test: TensorDataset) -> dict[str, float]:
    """Accuracy and mean loss on the whole test set."""
    inputs, classes = test.tensors
    logits = network(inputs)
    accuracy = (logits.argmax(-1) == classes).float().mean()
    return {"accuracy": accuracy.item(), "test_loss": cross_entropy(logits, classes).item()}


def replica_hash(network: nn.Module) -> str:
    """SHA-256 over the bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for value in network.state_dict().values():
        digest.update(value.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def report(**record: object) -> None:
    """Report to the starter of this process: a line if standard output is a terminal, or else a JSON object."""
    if not sys.stdout.isatty():
        print_object(record)
    elif record["event"] != "progress":
        sys.stdout.write(in_words(record) + "\n")  # in one write, since ranks share torchrun's output
        sys.stdout.flush()


def in_words(record: Mapping[str, object]) -> str:
    """A report as text for people: numbers with four digits, hashes shortened."""

    def written(value: object) -> str:
        if isinstance(value, float):
            return f"{value:.4g}"
        return f"{value:,}" if isinstance(value, int) else str(value)[:HASH_DIGITS]

    rank = f"rank {dist.get_rank()}, " if dist.is_initialized() else ""
    facts = [f"{name.replace('_', ' ')} {written(value)}" for name, value in record.items() if name != "event"]
    return f"{rank}{record['event']}: {', '.join(facts)}"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="digits", help="model and data (default: digits)")
    parser.add_argument("--backend", default="fanin", help="backend of torch.distributed (default: fanin)")
    parser.add_argument("--epochs", type=whole(1), help="passes over the data (default: 12 of digits, 2 of text)")
    parser.add_argument("--seed", type=seed, default=0, help="seed of weights and order of samples (default: 0)")
    parser.add_argument("--progress", action="store_true", help="rank 0 also says how many steps are done")
    add_fault_option(parser)
    arguments = parser.parse_args()
    inject(parser, arguments.fault)
    train(arguments.task, arguments.backend, arguments.epochs, arguments.seed, arguments.progress)


if __name__ == "__main__":
    main()
