"""One rank of the sharding benchmark: FSDP2 of the text transformer over each rival in turn, steps or epochs."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from fanin.benchmarks.allreduce_worker import COLLECTIVE_TIMEOUT
from fanin.benchmarks.device_bytes import device_bytes
from fanin.benchmarks.sharded_rivals import ShardedRival
from fanin.benchmarks.trainee import LEARNING_RATE, WARM_UP_STEPS, Trainee
from fanin.examples import text
from fanin.examples.sharded import BATCH, shard
from fanin.examples.sharded import LEARNING_RATE as TRAINING_RATE
from fanin.examples.train import cross_entropy
from fanin.host.torch import ShardCodecs, shard_codecs
from fanin.options import Options


@dataclass(slots=True)
class ShardedTrainee(Trainee[ShardedRival]):
    """One rival's shards."""

    codecs: ShardCodecs | None = None
    bytes_before: float = 0.0
    link_bytes: tuple[int, int] = (0, 0)
    """That left this host in the timed steps, and that came: the shard's, too."""


def mesh_of(rival: ShardedRival) -> DeviceMesh:
    """All ranks over the rival's backend, in a group of their own."""
    if rival.backend == "fanin":
        options = Options.from_environment(os.environ)
        return DeviceMesh.from_group(
            dist.new_group(backend="fanin", timeout=COLLECTIVE_TIMEOUT, pg_options=options), "cpu"
        )
    return DeviceMesh.from_group(dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT), "cpu")


def trainee(rival: ShardedRival, mesh: DeviceMesh, seed: int, learning_rate: float) -> ShardedTrainee:
    """The same weights for every rival."""
    torch.manual_seed(seed)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if rival.half else None
    model = shard(text.Network(), mesh, policy)
    codecs = None
    if rival.backend == "fanin":
        codecs = shard_codecs(model, weights=rival.weights, gradients=rival.gradients, keep_codes=rival.keep_codes)
    return ShardedTrainee(rival, model, torch.optim.AdamW(model.parameters(), learning_rate, fused=True), codecs=codecs)


def sent_bytes(codecs: ShardCodecs | None) -> float:
    """By this rank, from counters; 0 over gloo alone, which has none."""
    if codecs is None:
        return 0.0
    counted = codecs.traffic()
    return counted.get("engine.bytes_out", 0) + counted.get("gloo.bytes", 0)


def steps_in_turn(rivals: list[ShardedRival], steps: int) -> Iterator[dict[str, object]]:
    """Every rival takes a step in turn; a report for each at the end."""
    training, _ = text.load()
    trainees = [trainee(rival, mesh_of(rival), 0, LEARNING_RATE) for rival in rivals]
    for number in range(WARM_UP_STEPS + steps):
        for one in trainees:
            if number == WARM_UP_STEPS:
                one.bytes_before = sent_bytes(one.codecs)
            before = device_bytes()
            one.timed_step(training, number)
            dist.barrier()  # what other ranks still need of this host is this step's
            if number >= WARM_UP_STEPS:
                passed = zip(one.link_bytes, device_bytes(), before, strict=True)
                out, come = (known + now - then for known, now, then in passed)
                one.link_bytes = out, come
        if dist.get_rank() == 0:
            yield {"progress": f"step {number + 1} of {WARM_UP_STEPS + steps}"}
    for one in trainees:
        yield {
            "rival": one.rival.label,
            "seconds": one.seconds,
            "processor": one.processor.share,
            "used_s": statistics.median(one.used_s),
            "link_bytes": max(one.link_bytes) / steps,
            "waited_s": 0.0 if one.codecs is None else sum(row.waited_ms for row in one.codecs.statement()) / 1e3,
            "parameter_bytes": sum(p.numel() * 4 for p in one.model.parameters()),
            "sent_bytes": (sent_bytes(one.codecs) - one.bytes_before) / steps,
        }


def whole(one: ShardedTrainee) -> list[torch.Tensor]:
    """All weights, gathered."""
    return [p.full_tensor() for p in one.model.parameters() if isinstance(p, DTensor)]


def apart(one: ShardedTrainee, reference: list[torch.Tensor]) -> float:
    """Of the parameter that is farthest from the reference's: the norm of the difference, by its own."""
    found = zip(whole(one), reference, strict=True)
    return max(float((own - first).norm() / first.norm()) for own, first in found)


def losses_in_turn(rivals: list[ShardedRival], epochs: int, seeds: int) -> Iterator[dict[str, object]]:
    """Every rival trains from every seed: the losses, and how far the weights are from the first rival's."""
    training, test = text.load()
    rank, workers = dist.get_rank(), dist.get_world_size()
    meshes = {rival: mesh_of(rival) for rival in rivals}
    for seed in range(seeds):
        references: dict[str, list[torch.Tensor]] = {}
        for rival in rivals:
            one = trainee(rival, meshes[rival], seed, TRAINING_RATE)
            sampler: DistributedSampler[TensorDataset] = DistributedSampler(training, workers, rank, seed=seed)
            loader = DataLoader(training, BATCH // workers, sampler=sampler, drop_last=True)
            for epoch in range(epochs):
                sampler.set_epoch(epoch)
                losses = []
                for batch in loader:
                    losses.append(one.step(*batch))
                    if epoch == 0 and len(losses) == 1:
                        apart_step = apart(one, references.setdefault("step", whole(one)))
                if rank == 0:
                    yield {"progress": f"seed {seed}, {rival.label}, epoch {epoch + 1} of {epochs}"}
            mean = torch.stack(losses).mean()
            dist.all_reduce(mean)
            inputs, classes = test.tensors
            with torch.no_grad():
                tested = cross_entropy(one.model(inputs[rank::workers]).float(), classes[rank::workers])
            dist.all_reduce(tested)
            yield {
                "rival": rival.label,
                "seed": seed,
                "loss": mean.item() / workers,
                "test_loss": tested.item() / workers,
                "apart_step": apart_step,
                "apart": apart(one, references.setdefault("end", whole(one))),
            }


def run(rivals: list[ShardedRival], steps: int, epochs: int, seeds: int) -> None:
    """What the command line asks for."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)
    asked = itertools.chain(
        steps_in_turn(rivals, steps) if steps else (), losses_in_turn(rivals, epochs, seeds) if epochs else ()
    )
    for line in asked:
        print(json.dumps(line), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rivals", required=True, help="labels, separated by commas")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    run(
        [ShardedRival.parse(label) for label in arguments.rivals.split(",")],
        arguments.steps,
        arguments.epochs,
        arguments.seeds,
    )
