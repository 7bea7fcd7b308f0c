"""Common parts of the benchmarks of training steps: a rival's replica, its samples, and its clock."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fanin.benchmarks.processor import ProcessorMeter
from fanin.examples.train import cross_entropy

SAMPLES_PER_WORKER = 4
WARM_UP_STEPS = 2
LEARNING_RATE = 1e-3

R = TypeVar("R")


@dataclass(slots=True)
class Trainee(Generic[R]):
    """One rival's model, and the durations of its timed steps."""

    rival: R
    model: nn.Module
    optimizer: torch.optim.Optimizer
    seconds: list[float] = field(default_factory=list)
    used_s: list[float] = field(default_factory=list)
    """Processor time of this rank per step, with all of its threads."""
    processor: ProcessorMeter = field(default_factory=ProcessorMeter)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.model.parameters()).device

    def step(self, inputs: Tensor, classes: Tensor) -> Tensor:
        """Take one step of training; returns its loss."""
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(inputs).float(), classes)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def timed_step(self, training: TensorDataset, number: int) -> None:
        """Take step `number` on this rank's samples, after a barrier, and time it unless it is one of the first."""
        inputs, classes = (each.to(self.device) for each in samples_of(training, number))
        synchronize(self.device)
        dist.barrier()
        timed = number >= WARM_UP_STEPS
        if timed:
            self.processor.start()
        started, used = time.perf_counter(), time.process_time()
        self.step(inputs, classes)
        synchronize(self.device)
        if timed:
            self.seconds.append(time.perf_counter() - started)
            self.used_s.append(time.process_time() - used)
            self.processor.stop()


def synchronize(device: torch.device) -> None:
    """Wait for the work queued on a CUDA device, whose calls return early; does nothing for other devices."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def samples_of(training: TensorDataset, number: int) -> tuple[Tensor, Tensor]:
    """This rank's inputs and classes of step `number`."""
    rank, workers = dist.get_rank(), dist.get_world_size()
    first = ((number * workers + rank) * SAMPLES_PER_WORKER) % (len(training) - SAMPLES_PER_WORKER)
    inputs, classes = training[first : first + SAMPLES_PER_WORKER]
    return inputs, classes
