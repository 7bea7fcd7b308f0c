"""A pipeline whose microbatches skip and swap stages, over point-to-point messages, with replicas that sum over fanin.

    torchrun --nproc-per-node 12 -m fanin.examples.parallel.skipped_stages --check

Blagoev et al., SkipPipe, 2025. Every microbatch has a path of its own (skip_planner.py), which leaves out a third of
the stages, and every stage works for equally many microbatches. torch's schedules run all stages in order, so this
example has its own runner, which follows each stage's order of visits, and sends activations and gradients along the
paths. These go through gloo; the gradients of a stage's replicas are one sum through the switch.
`--check` compares gradients with one process, the planned time of an iteration with the full pipeline's, and the loss
after leaving out half of the layers, for either training. The figures show the losses of text: at this size the
pipeline that skips learns less per step. Times are planned in units of a forward pass; the measured ratio is of stages
that sleep for so long, since two cores do not run six stages at once.
"""

from __future__ import annotations

import functools
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fanin.examples import text
from fanin.examples.parallel import launcher
from fanin.examples.parallel.launcher import Asked, Figures, apart, expect
from fanin.examples.parallel.skip_planner import Path, planned, scheduled
from fanin.examples.parallel.skip_runner import Data, Runner
from fanin.examples.train import cross_entropy

WIDTH = 32
MICROBATCHES, WINDOWS = 8, 4
"""Number of microbatches of each replica, and of windows in each."""
STEPS, QUICK_STEPS, RATE = 120, 4, 8e-3
TESTED = 96
"""Number of windows of the test set that are used."""
SLEEP_S = 0.02
"""Seconds to sleep per unit of time, in emulated iterations."""
LARGEST_TIME, TOLERANCE = 0.75, 1e-5


class Ends(nn.Module):
    """Stage 0: embeds bytes, and computes the loss of activations."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.logits = nn.Embedding(text.BYTE_VALUES, WIDTH), nn.Linear(WIDTH, text.BYTE_VALUES)

    def loss(self, hidden: Tensor, following: Tensor) -> Tensor:
        """Mean cross-entropy of activations of shape (windows, length, width)."""
        return cross_entropy(self.logits(hidden), following)


class Layer(nn.Module):
    """Any other stage: a residual layer that sees the position and the two before it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Sequential(nn.Linear(3 * WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, hidden: Tensor) -> Tensor:
        """Transform activations; shape (windows, length, width) in and out."""
        before = nn.functional.pad(self.norm(hidden), (0, 0, 2, 0))
        seen = torch.cat([before[:, 2:], before[:, 1:-1], before[:, :-2]], dim=2)
        made: Tensor = hidden + self.inner(seen)
        return made


def make_stages(stages: int) -> list[Any]:
    """All stages, with the same initial weights in every process."""
    torch.manual_seed(7)
    return [Ends(), *(Layer() for _ in range(stages - 1))]


def loss_of(model: list[Any], path: Path, windows: Tensor, following: Tensor) -> Tensor:
    """Loss of a microbatch on its path, computed in one process."""
    hidden = model[0].bytes(windows)
    for stage in path:
        hidden = model[stage](hidden)
    found: Tensor = model[0].loss(hidden, following)
    return found


@functools.cache
def data() -> tuple[Tensor, ...]:
    """Windows and the bytes that follow them: of training and of test."""
    return tuple(tensor for each in text.load() for tensor in each.tensors)


def batch(step: int, replica: int, replicas: int) -> Data:
    """A replica's microbatches of a step."""
    windows, following, *_ = data()
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(step))
    own = order[: replicas * MICROBATCHES * WINDOWS].view(replicas, MICROBATCHES, WINDOWS)[replica]
    return [(windows[chosen], following[chosen]) for chosen in own]


def play(asked: Asked) -> Figures:
    """Train the full pipeline and the one that skips, and compare them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    stages = 4 if size == 8 else 6
    replicas, stage, replica = size // stages, rank % stages, rank // stages
    groups = [dist.new_group(list(range(each, size, stages))) for each in range(stages)]
    found: dict[str, tuple[float, float]] = {}
    times, measured, difference = {}, {}, 0.0
    for name, skipped in (("full", 0), ("skipping", stages // 3)):
        paths = planned(MICROBATCHES, stages, skipped)
        times[name], orders = scheduled(paths, stages)
        module = make_stages(stages)[stage]
        runner = Runner(stage, rank - stage, module, paths, orders[stage], (WINDOWS, text.WINDOW_BYTES, WIDTH))
        optimizer = torch.optim.Adam(module.parameters(), RATE)
        for step in range(QUICK_STEPS if asked.quick else STEPS):
            optimizer.zero_grad()
            runner.iteration(batch(step, replica, replicas))
            flat = torch.cat([each.grad.flatten() for each in module.parameters()]) / replicas
            dist.all_reduce(flat, group=groups[stage])
            if asked.check and step == 0:
                difference = max(difference, apart(flat, alone(stages, paths, replicas)[stage]))
            parts = flat.split([each.numel() for each in module.parameters()])
            for parameter, part in zip(module.parameters(), parts, strict=True):
                parameter.grad = part.view_as(parameter).clone()
            optimizer.step()
        found[name] = tested(module, stages, paths)
        measured[name] = 0.0 if asked.quick else emulated(runner, batch(0, replica, replicas))
    ratio = times["skipping"] / times["full"]
    (full, full_halved), (loss, halved) = found["full"], found["skipping"]
    if asked.check:
        expect(difference <= TOLERANCE, f"gradients are {difference:.2g} from one process")
        expect(ratio <= LARGEST_TIME, f"an iteration takes {ratio:.0%} of the full pipeline's time")
        expect(asked.quick or halved - loss < full_halved - full, "without half of the layers it is no better")
    return {
        "difference": difference, "planned_time_ratio": ratio,
        "emulated_time_ratio": measured["skipping"] / measured["full"] if measured["full"] else 0.0,
        "loss": loss, "loss_full": full, "loss_halved": halved, "loss_full_halved": full_halved,
    }  # fmt: skip


def alone(stages: int, paths: list[Path], replicas: int) -> list[Tensor]:
    """Gradients of the first step computed by one process, a flat tensor per stage."""
    model = make_stages(stages)
    for replica in range(replicas):
        for path, own in zip(paths, batch(0, replica, replicas), strict=True):
            (loss_of(model, path, *own) / MICROBATCHES / replicas).backward()
    return [torch.cat([each.grad.flatten() for each in module.parameters()]) for module in model]


@torch.no_grad()
def tested(module: Any, stages: int, paths: list[Path]) -> tuple[float, float]:
    """Test loss: mean over the paths of training, and mean over the two choices that leave out every second layer."""
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, module.state_dict())
    model = make_stages(stages)
    for each, state in zip(model, states[:stages], strict=True):
        each.load_state_dict(state)
    windows, following = (each[:TESTED] for each in data()[2:])
    layers = tuple(range(1, stages))
    halves = [float(loss_of(model, layers[start::2], windows, following)) for start in (0, 1)]
    losses = [float(loss_of(model, path, windows, following)) for path in sorted(set(paths))]
    return sum(losses) / len(losses), sum(halves) / 2


def emulated(runner: Runner, microbatches: Data) -> float:
    """Seconds of an iteration in which each visit also sleeps for its planned time."""
    runner.sleep_s = SLEEP_S
    dist.barrier()
    started_s = time.monotonic()
    runner.iteration(microbatches)
    dist.barrier()
    return time.monotonic() - started_s


if __name__ == "__main__":
    launcher.run(play, "skipped_stages", __doc__)
