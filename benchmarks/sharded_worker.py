"""One rank of the sharding benchmark: FSDP2 of the text transformer over each rival in turn, by steps or by epochs."""

from __future__ import annotations

import functools
import itertools
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from fanin.benchmarks.device_bytes import device_bytes
from fanin.benchmarks.process_times import spent
from fanin.benchmarks.ranks import COLLECTIVE_TIMEOUT, asked_of, group_of_ranks, progress, report
from fanin.benchmarks.sharded import Asked
from fanin.benchmarks.sharded_rivals import ShardedRival
from fanin.benchmarks.sharded_runs import COMPARED_SEED, Run
from fanin.benchmarks.trainee import LEARNING_RATE, WARM_UP_STEPS, Trainee
from fanin.benchmarks.usable import device_of_rank, usable_groups
from fanin.examples import text
from fanin.examples.sharded import BATCH, shard
from fanin.examples.sharded import LEARNING_RATE as TRAINING_RATE
from fanin.examples.train import cross_entropy
from fanin.host.torch import ShardCodecs, shard_codecs
from fanin.options import Options


@dataclass(slots=True)
class ShardedTrainee(Trainee[ShardedRival]):
    """The sharded model of one rival, and its measurements."""

    codecs: ShardCodecs | None = None
    bytes_before: float = 0.0
    link_bytes: tuple[int, int] = (0, 0)
    """Bytes that this host's device sent and received in the timed steps, the shard's included."""
    host_s: list[float] = field(default_factory=list)
    """Processor time of the host per timed step: this rank's and its shard's, until all ranks have taken the step."""


def group_of(rival: ShardedRival) -> dist.ProcessGroup:
    """Make a group of all ranks over the rival's backend."""
    options = Options.from_environment(os.environ) if rival.backend == "fanin" else None
    group: dist.ProcessGroup = dist.new_group(backend=rival.backend, timeout=COLLECTIVE_TIMEOUT, pg_options=options)
    return group


def trainee(rival: ShardedRival, mesh: DeviceMesh, seed: int, learning_rate: float) -> ShardedTrainee:
    """Make a rival's sharded model, with the same weights for every rival."""
    torch.manual_seed(seed)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if rival.half else None
    model = shard(text.Network().to(mesh.device_type), mesh, policy)
    codecs = None
    if rival.backend == "fanin":
        codecs = shard_codecs(model, weights=rival.weights, gradients=rival.gradients, keep_codes=rival.keep_codes)
    return ShardedTrainee(rival, model, torch.optim.AdamW(model.parameters(), learning_rate, fused=True), codecs=codecs)


def sent_bytes(codecs: ShardCodecs | None) -> float:
    """Bytes that this rank sent, from counters; 0 over gloo alone, which has none."""
    if codecs is None:
        return 0.0
    counted = codecs.traffic()
    return counted.get("engine.bytes_out", 0) + counted.get("gloo.bytes", 0)


def steps_in_turn(meshes: Mapping[str, DeviceMesh], rivals: Sequence[str], steps: int) -> None:
    """Let every rival take a step in turn, and report each at the end."""
    training, _ = text.load()
    usable = [label for label in rivals if label in meshes]
    trainees = [trainee(ShardedRival.parse(label), meshes[label], 0, LEARNING_RATE) for label in usable]
    for number in range(WARM_UP_STEPS + steps):
        for one in trainees:
            if number == WARM_UP_STEPS:
                one.bytes_before = sent_bytes(one.codecs)
            before, spent_before = device_bytes(), spent()
            one.timed_step(training, number)
            dist.barrier()  # other ranks may still need this host's shard for the step
            if number >= WARM_UP_STEPS:
                one.host_s.append(sum(spent().since(spent_before)))
                passed = zip(one.link_bytes, device_bytes(), before, strict=True)
                out, come = (known + now - then for known, now, then in passed)
                one.link_bytes = out, come
        progress(f"step {number + 1} of {WARM_UP_STEPS + steps}")
    for one in trainees:
        report(
            {
                "rival": one.rival.label,
                "seconds": one.seconds,
                "processor": one.processor.share,
                "used_s": statistics.median(one.used_s),
                "host_s": one.host_s,
                "link_bytes": max(one.link_bytes) / steps,
                "waited_s": 0.0 if one.codecs is None else sum(row.waited_ms for row in one.codecs.statement()) / 1e3,
                "parameter_bytes": sum(p.numel() * 4 for p in one.model.parameters()),
                "sent_bytes": (sent_bytes(one.codecs) - one.bytes_before) / steps,
            }
        )


def whole(one: ShardedTrainee) -> list[torch.Tensor]:
    """Gather all weights whole."""
    return [p.full_tensor() for p in one.model.parameters() if isinstance(p, DTensor)]


def apart(one: ShardedTrainee, reference: list[torch.Tensor]) -> float:
    """Distance from reference weights: norm of the difference over the parameter's, of the parameter farthest off."""
    found = zip(whole(one), reference, strict=True)
    return max(float((own - first).norm() / first.norm()) for own, first in found)


def trainings_in_turn(meshes: Mapping[str, DeviceMesh], runs: Sequence[Run]) -> None:
    """Carry out one training after another; report losses and distances from the first rival's weights."""
    references: dict[str, list[torch.Tensor]] = {}
    for number, run in enumerate(runs):
        if run.rival not in meshes:
            continue
        one = trainee(ShardedRival.parse(run.rival), meshes[run.rival], run.seed, TRAINING_RATE)
        compared = references if run.seed == COMPARED_SEED else None
        report({"training": number, **training_of(run, one, compared)})


def training_of(run: Run, one: ShardedTrainee, references: dict[str, list[torch.Tensor]] | None) -> dict[str, object]:
    """Train, and return the report. `references`: the first rival's weights, which its run stores; others compare."""
    training, test = text.load()
    rank, workers = dist.get_rank(), dist.get_world_size()
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(training, workers, rank, seed=run.seed)
    loader = DataLoader(training, BATCH // workers, sampler=sampler, drop_last=True)
    apart_step = None
    for epoch in range(run.epochs):
        sampler.set_epoch(epoch)
        losses = []
        for batch in itertools.islice(loader, run.epoch_steps or None):
            losses.append(one.step(*(each.to(one.device) for each in batch)))
            if references is not None and epoch == 0 and len(losses) == 1:
                apart_step = apart(one, references.setdefault("step", whole(one)))
        progress(f"seed {run.seed}, {run.rival}, epoch {epoch + 1} of {run.epochs}")
    mean = torch.stack(losses).mean().cpu()
    dist.all_reduce(mean)
    inputs, classes = (each.to(one.device) for each in test.tensors)
    with torch.no_grad():
        tested = cross_entropy(one.model(inputs[rank::workers]).float(), classes[rank::workers]).cpu()
    dist.all_reduce(tested)
    return {
        "loss": mean.item() / workers,
        "test_loss": tested.item() / workers,
        "apart_step": apart_step,
        "apart": None if references is None else apart(one, references.setdefault("end", whole(one))),
    }


def run(asked: Asked) -> None:
    """Measure and report the requested steps and trainings."""
    with group_of_ranks():
        device = device_of_rank(asked.device)
        labels = [*(asked.rivals if asked.steps else ()), *(run.rival for run in asked.trainings)]
        groups = usable_groups(
            {label: functools.partial(group_of, ShardedRival.parse(label)) for label in labels}, device
        )
        meshes = {label: DeviceMesh.from_group(group, device.type) for label, group in groups.items()}
        if asked.steps:
            steps_in_turn(meshes, asked.rivals, asked.steps)
        trainings_in_turn(meshes, asked.trainings)


if __name__ == "__main__":
    run(asked_of(Asked, __doc__))
