"""Watching for a rank whose gradients, or weights, are not like the others': `watch_ranks(ddp, every=10)`.

A bad shard of data, another learning rate, stale weights and a flipped bit spoil the loss of all ranks, and the mean
hides whose they are. In every watched step each rank keeps, as its gradients come and before they are averaged, their
norms and a sample of each; once they are averaged, it computes per layer how far its own gradient agrees with the mean
of the others', and hashes its weights. One small gather brings these numbers to all ranks, unawaited; all judge them
alike (rank_judge.py) as the next step begins. A step that is not watched costs a call of a hook.

    norm        the norm of this rank's gradient of a layer, over the median of the others'
    agreement   the cosine between that gradient and the mean of the others'
    weights     bits of a layer that most ranks have otherwise: replicas are alike, so this needs no statistics
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fanin.errors import ArgumentError, UnsupportedError
from fanin.host.torch.training.rank_judge import MIN_RANKS, RankJudge, Values

log = logging.getLogger("fanin")

SAMPLED_ELEMENTS = 4096
"""Elements of each parameter that its agreement is computed from; norms are of all."""
FALSE_ALARMS_PER_STEP = 1e-5
"""False alarms of all ranks together per watched step: one in a hundred thousand."""
MAX_REPORTS = 256
"""Reports that are remembered, the latest ones."""
NUMBERS = 3
"""Numbers of each layer: norm, cosine, hash of the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """A rank that is not like the others."""

    step: int
    """Number of the backward pass with averaging, from 1, since the watch began."""
    rank: int
    kind: str
    """`norm`, `agreement` or `weights`."""
    layer: str
    """Name of the module where it is strangest; of weights the first that differs."""
    norm_ratio: float
    """Norm of the rank's gradient of that layer, over the median of the others'; NaN for weights."""
    cosine: float
    """Cosine between that gradient and the mean of the others'; NaN for weights."""
    usual_cosine: float
    """Median of the other ranks' cosines; NaN for weights."""

    def __str__(self) -> str:
        if self.kind == "weights":
            return f"step {self.step}: rank {self.rank} has other weights than most ranks, first in {self.layer!r}"
        return (
            f"step {self.step}: rank {self.rank} has gradients unlike the others' ({self.kind}): in {self.layer!r} its "
            f"norm is {self.norm_ratio:.3g} times theirs, and its cosine with their mean {self.cosine:.2f} "
            f"(theirs: {self.usual_cosine:.2f})"
        )


def watch_ranks(
    model: nn.Module,
    every: int = 10,
    *,
    callback: Callable[[RankReport], None] | None = None,
    false_alarms_per_step: float = FALSE_ALARMS_PER_STEP,
) -> RankWatch:
    """Watch the ranks of a DistributedDataParallel model in every `every`-th step; collective, alike on all ranks.

    A rank that is unlike the others is logged once on every rank, and handed to `callback`, as the step after the one
    that showed it begins. `false_alarms_per_step`: the most false alarms of all ranks together, per watched step, that
    the test may have (rank_judge.py). Gradients are judged with three ranks or more, after 16 watched steps.

    The group may be of any backend. Raises ArgumentError for numbers out of range, and UnsupportedError for a model
    whose ranks have no gradients to compare: anything but DistributedDataParallel, as FSDP, which shards them.
    """
    if not isinstance(model, DistributedDataParallel):
        raise UnsupportedError(
            f"watch_ranks: {type(model).__name__} is not DistributedDataParallel: what is sharded, or averaged by the "
            "program, has no gradients of one rank beside their mean. Remedy: wrap the model in "
            "DistributedDataParallel, or compare replicas with check_replicas"
        )
    if every < 1 or not 0.0 < false_alarms_per_step < 1.0:
        raise ArgumentError(
            f"watch_ranks: every = {every}, false_alarms_per_step = {false_alarms_per_step}. Remedy: 1 or more, and "
            "between 0 and 1"
        )
    return RankWatch(model, every, callback, false_alarms_per_step)


class RankWatch:
    """A watch over the ranks of one model; `remove()` ends it."""

    def __init__(
        self,
        model: DistributedDataParallel,
        every: int,
        callback: Callable[[RankReport], None] | None,
        false_alarms_per_step: float,
    ) -> None:
        """Begin to watch; `watch_ranks` has checked the arguments."""
        self._model, self._every, self._callback = model, every, callback
        self._group: Any = model.process_group
        self._rank, self._ranks = dist.get_rank(self._group), dist.get_world_size(self._group)
        self._layers = layers_of(model.module)
        self._judge = RankJudge(self._ranks, false_alarms_per_step)
        self._step = 0
        self._kept: dict[Tensor, tuple[Tensor, Tensor]] = {}
        """Squared norm of this rank's gradient, and its sample, by parameter, in a watched step."""
        self._hooks: list[Any] = []
        self._gathering: tuple[int, Tensor, Any] | None = None
        """A watched step's number, and the gather of its numbers."""
        self._reports: deque[RankReport] = deque(maxlen=MAX_REPORTS)
        self._alarmed: set[tuple[int, str]] = set()
        """Ranks whose unlike weights were reported, each with "weights"; forgotten once they are alike again."""
        self._on_forward = model.register_forward_pre_hook(self._before_forward)

    @property
    def reports(self) -> tuple[RankReport, ...]:
        """Ranks that were unlike the others, oldest first: the latest MAX_REPORTS."""
        self.judge()
        return tuple(self._reports)

    def remove(self) -> None:
        """End the watch, and judge its last step."""
        self._on_forward.remove()
        self._unhook()
        self.judge()

    def judge(self) -> None:
        """Judge the last watched step, whose numbers may still be on their way. Every rank does so in each step."""
        if self._gathering is None:
            return
        step, numbers, work = self._gathering
        self._gathering = None
        work.wait()
        table = numbers.cpu().numpy().reshape(self._ranks, len(self._layers), NUMBERS)
        self._judge_weights(step, table[:, :, 2])
        if self._ranks < MIN_RANKS:
            return
        for found in self._judge.judge(table[:, :, 0], table[:, :, 1]):
            self._tell(
                RankReport(
                    step=step,
                    rank=found.rank,
                    kind=found.kind,
                    layer=self._layers[found.layer][0],
                    norm_ratio=found.norm_ratio,
                    cosine=found.cosine,
                    usual_cosine=found.usual_cosine,
                )
            )

    def _judge_weights(self, step: int, hashes: Values) -> None:
        """Compare hashes, shape (ranks, layers), by their bits: they are integers that travel as float64."""
        bits = hashes.copy().view(np.int64)
        for rank in range(self._ranks):
            usual = [Counter(bits[:, layer].tolist()).most_common(1)[0] for layer in range(bits.shape[1])]
            unlike = [
                layer
                for layer, (value, holders) in enumerate(usual)
                if bits[rank, layer] != value or (2 * holders <= self._ranks and holders < self._ranks)
            ]
            if unlike and (rank, "weights") not in self._alarmed:
                layer = self._layers[unlike[0]][0]
                nan = math.nan
                self._tell(
                    RankReport(
                        step=step, rank=rank, kind="weights", layer=layer, norm_ratio=nan, cosine=nan, usual_cosine=nan
                    )
                )
            self._alarmed.add((rank, "weights")) if unlike else self._alarmed.discard((rank, "weights"))

    def _tell(self, report: RankReport) -> None:
        self._reports.append(report)
        log.warning("rank %d: %s", self._rank, report)
        if self._callback is not None:
            self._callback(report)

    # --- a watched step ---

    def _before_forward(self, _module: nn.Module, _inputs: Any) -> None:
        if not (torch.is_grad_enabled() and self._model.training and self._model.require_backward_grad_sync):
            return
        self.judge()
        self._unhook()  # of a step whose backward pass never came
        self._step += 1
        if self._step % self._every == 0:
            parameters = [each for _, layer in self._layers for each in layer]
            self._hooks = [each.register_post_accumulate_grad_hook(self._keep) for each in parameters]

    def _keep(self, parameter: Tensor) -> None:
        """Keep norm and sample of a complete gradient, not averaged yet: DDP's own hook comes after this one."""
        if not self._kept:
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ended)
        gradient = parameter.grad
        if gradient is not None and not gradient.is_sparse:
            self._kept[parameter] = squared_norm(gradient), sample_of(gradient).clone()

    def _backward_ended(self) -> None:
        # The reducer waits for its buckets in a callback that was queued after this one, and before the next.
        torch.autograd.Variable._execution_engine.queue_callback(self._averaged)

    def _averaged(self) -> None:
        """Start to gather this rank's numbers on all ranks, since the gradients have been averaged."""
        kept, self._kept = self._kept, {}
        self._unhook()
        rows = []
        for _, layer in self._layers:
            pairs = [(*kept[each], sample_of(each.grad)) for each in layer if each in kept and each.grad is not None]
            rows.append(torch.cat([numbers_of(pairs, self._ranks), hash_of(layer).view(torch.float64)]))
        own = torch.stack(rows).reshape(-1)
        device = next(self._model.module.parameters()).device
        everyones = torch.empty(self._ranks * own.numel(), dtype=torch.float64, device=device)
        work = dist.all_gather_into_tensor(everyones, own.to(device), group=self._group, async_op=True)
        self._gathering = self._step, everyones, work

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._kept = [], {}


def layers_of(model: nn.Module) -> list[tuple[str, list[nn.Parameter]]]:
    """Modules with parameters of their own that are trained, by name, in the model's order; each parameter once."""
    seen: set[int] = set()
    layers = []
    for name, module in model.named_modules():
        own = [each for each in module.parameters(recurse=False) if each.requires_grad and id(each) not in seen]
        seen.update(map(id, own))
        if own:
            layers.append((name or type(module).__name__, own))
    return layers


def squared_norm(gradient: Tensor) -> Tensor:
    """Squared norm, a float64 without dimensions, on the gradient's device."""
    norm: Tensor = torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32)
    return norm.double().square()


def sample_of(gradient: Tensor) -> Tensor:
    """At most about SAMPLED_ELEMENTS elements, evenly spread, float32; the gradient's own memory where it is that."""
    flat = gradient.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // SAMPLED_ELEMENTS)].float()


def numbers_of(pairs: list[tuple[Tensor, Tensor, Tensor]], ranks: int) -> Tensor:
    """Norm of a layer's gradient on this rank, and its cosine with the mean of the other ranks', float64, shape (2,).

    `pairs`: for each parameter the squared norm, this rank's sample and that of the mean over all ranks. Zeros where
    there is nothing to compare.
    """
    if not pairs:
        return torch.zeros(2, dtype=torch.float64, device="cpu")
    squares = torch.stack([each for each, _, _ in pairs]).sum()
    own = torch.cat([each for _, each, _ in pairs]).double()
    others = torch.cat([each for _, _, each in pairs]).double() * ranks - own  # times (ranks - 1), which cancels out
    cosine = (own @ others) / (own.norm() * others.norm()).clamp_min(1e-300)
    return torch.stack([squares.sqrt(), cosine]).cpu()


def hash_of(layer: list[nn.Parameter]) -> Tensor:
    """Sum of the bits of a layer's weights as integers, int64, shape (1,): another one for any one changed weight.

    Weights are added eight bytes at a time, with wraparound, and the rest of a tensor one by one: on a CPU that takes a
    tenth of the time of widening each.
    """
    total = torch.zeros(1, dtype=torch.int64, device="cpu")
    for each in layer:
        narrow = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[each.element_size()]
        bits = each.detach().contiguous().view(-1).view(narrow)
        together = 8 // each.element_size()
        if bits.storage_offset() % together:  # a part of a larger tensor, which cannot be read eight bytes at a time
            bits = bits.clone()
        paired = bits.numel() - bits.numel() % together
        total += (bits[:paired].view(torch.int64).sum() + bits[paired:].sum(dtype=torch.int64)).cpu()
    return total
