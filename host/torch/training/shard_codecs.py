"""FSDP2's weights and gradients through codecs: `shard_codecs(model, gradients="8/8", weights="8")`.

The gather of every parameter group is shard_gather.py's, its reduction shard_reduce.py's; this is what a user holds.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from fanin.errors import CollectiveMismatchError, ConfigurationError
from fanin.host.codecs import make, make_weights
from fanin.host.codecs.codec import Place, levels
from fanin.host.codecs.lanes_codec import Lanes
from fanin.host.codecs.weight_codec import WeightCodec
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.training.saved_state import REMEDY, checked, mapping, tensors
from fanin.host.torch.training.shard_gather import ShardGather
from fanin.host.torch.training.shard_groups import ShardGroup, groups_of
from fanin.host.torch.training.shard_reduce import Chosen, Late, ShardReduce
from fanin.numerics.reduction import EXACT, WIDE_SUMS

WHOSE = "the state of a ShardCodecs"


@dataclass(slots=True)
class ShardRow:
    """The row of `ShardCodecs.statement` for one parameter group: of its last step, and of this rank alone."""

    group: str
    """Name of the group's module."""
    elements: int
    """Number of elements of the whole parameters."""
    weights: str
    gradients: str
    """The codecs; "" for none."""
    gathers: int
    """Number of gathers in that step: one in forward, one in backward, as FSDP2 asks for them."""
    weight_bytes: int
    """Bytes that this rank contributed to these gathers."""
    plain_weight_bytes: int
    """Bytes of these gathers without a codec, in the element type that FSDP2 gathers."""
    gradient_bytes: int
    """Bytes of the words contributed to the reduction, and to the replicas' all-reduce, without headers."""
    plain_gradient_bytes: int
    """Bytes of the same contributions in float32."""
    weight_nmse: float
    """Share of this rank's weights that encoding lost."""
    gradient_nmse: float
    """Share of this rank's contribution, residual included, that encoding lost; 0 without residual. Of 16,384 elements
    and more, by one block in 16."""
    residual_norm: float
    encode_ms: float
    decode_ms: float
    """Time of decoding weights in the step."""
    waited_ms: float
    """Time of waiting for gathers and reductions that were not done when their results were needed."""


class ShardCodecs:
    """The result of `shard_codecs`: the codecs of a model's parameter groups, their residuals and their costs."""

    def __init__(
        self,
        groups: list[ShardGroup],
        gradients: Lanes | Chosen | None,
        weights: WeightCodec | None,
        keep_codes: bool,
    ) -> None:
        self.gradients = gradients
        self.weights = weights
        self._keep_codes = keep_codes
        self._groups = groups
        late = Late()
        self._gathers = [ShardGather(each, weights, keep_codes) for each in groups]
        self._reduces = [
            ShardReduce(each, gradients, gather, late) for each, gather in zip(groups, self._gathers, strict=True)
        ]
        self._before = {id(each): each.counters() for each in self._fanin_groups()}

    def statement(self) -> list[ShardRow]:
        """A row for each parameter group, in the order of the model's modules."""
        return [
            ShardRow(
                group=group.name,
                elements=group.elements,
                weights="" if self.weights is None else str(self.weights),
                gradients="" if self.gradients is None else str(self.gradients),
                gathers=gather.gathers,
                weight_bytes=gather.payload_bytes,
                plain_weight_bytes=gather.plain_bytes,
                gradient_bytes=reduce.payload_bytes,
                plain_gradient_bytes=reduce.plain_bytes,
                weight_nmse=gather.loss.nmse,
                gradient_nmse=reduce.loss.nmse,
                residual_norm=reduce.residual_norm,
                encode_ms=gather.encode_s * 1e3,
                decode_ms=gather.decode_s * 1e3,
                waited_ms=(gather.waited_s + reduce.waited_s) * 1e3,
            )
            for group, gather, reduce in self._parts()
        ]

    def traffic(self) -> dict[str, float]:
        """The counters of all process groups that the model communicates over, since `shard_codecs`: their sums.

        `engine.bytes_out` is what this rank's engines sent, headers and what was sent again included; `gloo.bytes` are
        the tensors' bytes of what goes by gloo. Other traffic of these groups counts, too.
        """
        total: dict[str, float] = {}
        for each in self._fanin_groups():
            before = self._before[id(each)]
            for name, value in each.counters().items():
                total[name] = total.get(name, 0) + value - before.get(name, 0)
        return total

    def residual_norm(self) -> float:
        """Euclidean norm of all that this rank still owes."""
        return math.hypot(*(each.residual_norm for each in self._reduces))

    def state_dict(self) -> dict[str, Any]:
        """Everything that a restart needs, of this rank alone: the steps, and what is owed. Tensors are not copied."""
        groups = {
            group.name: {
                "shapes": group.shapes,
                "step": gather.step,
                "owed": reduce.owed,
                "owed_by_replicas": reduce.owed_by_replicas,
                "encoder": reduce.encoder_state,
            }
            for group, gather, reduce in self._parts()
        }
        return {"gradients": str(self.gradients), "weights": str(self.weights), "groups": groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken, by the same rank of as many ranks.

        Raises ConfigurationError, and loads nothing, where the state is of other codecs, of another model, or not what
        `state_dict` returned.
        """
        mapping(state, WHOSE)
        missing = [name for name in ("gradients", "weights", "groups") if name not in state]
        if missing:
            raise ConfigurationError(f"the state has no {' and no '.join(missing)}: it is not a ShardCodecs'. {REMEDY}")
        for name, own in (("gradients", self.gradients), ("weights", self.weights)):
            if state[name] != str(own):
                raise ConfigurationError(
                    f"the state is of {name} {state[name]!r}, not of {str(own)!r}. Remedy: the codecs of the state"
                )
        own_shapes = {group.name: group.shapes for group in self._groups}
        saved_groups = mapping(state["groups"], f"'groups' of {WHOSE}")
        theirs = {name: mapping(each, f"{name!r} of {WHOSE}").get("shapes") for name, each in saved_groups.items()}
        if own_shapes != theirs:
            raise ConfigurationError(
                "the state is of a model whose parameter groups have other names or shapes. Remedy: the model and the "
                "sharding that it was taken with"
            )
        for group in self._groups:
            saved = state["groups"][group.name]
            if not isinstance(saved.get("step"), int) or not {"owed", "owed_by_replicas"} <= saved.keys():
                raise ConfigurationError(f"{group.name!r}: the state has no step, or nothing of what is owed. {REMEDY}")
            whose = f"{group.name!r} of {WHOSE}"
            for name in ("owed", "owed_by_replicas"):
                if saved[name] is not None:
                    checked(saved[name], torch.Tensor, f"{name!r} of {whose}")
            if saved.get("encoder") is not None:
                tensors(saved, "encoder", whose)
            owed = saved["owed"]
            if owed is not None and owed.numel() != group.trained_elements:
                raise ConfigurationError(
                    f"{group.name!r}: the state owes {owed.numel()} elements, and {group.trained_elements} are "
                    f"trained on {group.shards.size()} ranks. Remedy: as many ranks, and the same parameters frozen"
                )
        for group, _, reduce in self._parts():
            if not reduce.fits(state["groups"][group.name].get("encoder")):
                raise ConfigurationError(
                    f"{group.name!r}: the codec's state is of another number of elements than the "
                    f"{group.trained_elements} that are trained on {group.shards.size()} ranks. Remedy: as many ranks, "
                    "and the same parameters frozen"
                )
        for group, gather, reduce in self._parts():
            saved = state["groups"][group.name]
            gather.step = saved["step"]
            reduce.take_up(_copied(saved["owed"]), _copied(saved["owed_by_replicas"]))
            encoder = saved.get("encoder")
            reduce.take_up_encoder(encoder and {name: each.detach().clone() for name, each in encoder.items()})

    def remove(self) -> None:
        """Give torch's own moves back to the model; what is still owed is forgotten."""
        for each in self._groups:
            each.reset()

    def _attach(self) -> None:
        for group, gather, reduce in self._parts():
            group.module.set_custom_all_gather(gather)
            group.module.set_custom_reduce_scatter(reduce)

    def _agree(self) -> None:
        """Raise CollectiveMismatchError, on every rank, where one has other codecs or another model."""
        shapes = [(group.name, group.shapes) for group in self._groups]
        text = f"gradients={self.gradients} and weights={self.weights}{' (kept)' if self._keep_codes else ''}"
        own = zlib.crc32(f"{text} {shapes}".encode())
        if self._largest(own, -own) != (own, -own):
            raise CollectiveMismatchError(
                f"rank {dist.get_rank()} has {text} for a model of {len(shapes)} parameter groups, and another "
                "rank something else. Remedy: the same codecs, seed and model on every rank"
            )

    def _check_lanes(self, lanes: Lanes) -> None:
        """Raise ConfigurationError, on every rank, where a switch cannot add these lanes for all ranks of a group."""
        groups = self._fanin_groups()
        for group in groups:
            levels(lanes.bits, group.size())
        if lanes.bits not in WIDE_SUMS:
            return
        lacking = [each.describe() for each in groups if self._lacks_accumulators(each)]
        if self._largest(int(bool(lacking))) != (0,):
            raise ConfigurationError(
                f"gradients = {str(lanes)!r}: the switch of this job adds packed lanes only "
                f"({lacking[0] if lacking else 'of a group that other ranks are in'}): it is a pipeline, or its memory "
                "is held by other groups and jobs (fanin stats). Remedy: destroy groups that are no longer used, a "
                "software switch with more memory, or gradients='16'"
            )

    @staticmethod
    def _lacks_accumulators(group: FaninProcessGroup) -> bool:
        return group.session is not None and not group.session.spec.accumulators

    def _largest(self, *values: int) -> tuple[int, ...]:
        """The largest of each value over all ranks of the model: over shards, then replicas, so all raise alike."""
        found = torch.tensor(values, device="cpu")
        for each in self._fanin_groups():
            each.all_reduce_lanes(found, lanes=EXACT, operator=dist.ReduceOp.MAX).wait()
        return tuple(found.tolist())

    def _parts(self) -> Iterator[tuple[ShardGroup, ShardGather, ShardReduce]]:
        return zip(self._groups, self._gathers, self._reduces, strict=True)

    def _fanin_groups(self) -> list[FaninProcessGroup]:
        """The fanin groups of the model, each once, shards' before replicas', in the order of the model's groups."""
        found = [each.shards for each in self._groups]
        found += [each.replicas for each in self._groups if each.replicas is not None]
        return list({id(each): each for each in found}.values())


def shard_codecs(
    model: nn.Module, *, gradients: str | None = "8/8", weights: str | int | None = "8", keep_codes: bool = False
) -> ShardCodecs:
    """Gather a model's weights and reduce its gradients in fewer bits. Every rank calls it, after `fully_shard`.

    `weights`: bits of the all-gathers, 8, 6 or 4, or "shifted:4:bucket=256:seed=1" (docs/codecs.md); None: exact.
    `gradients`: lanes of the reduce-scatters, and of HSDP's all-reduces: "8/8", "4/8", "16", or
    "lanes:4/8:feedback=False", which keeps no residual (float32, as large as the unsharded model, at every rank); None:
    the lanes of the process group. "sketched:4:share=0.2", "agreed_blocks:8" or "random_coordinates:8" choose elements
    of a group's gradients, with a residual; all ranks get the whole sum then, of which each keeps its shard, and
    nothing of it is hidden behind computation. With None for both, only the overlap is gained (docs/torch.md).
    `keep_codes`: hold the codes of a forward pass until the reduction, so that backward gathers nothing: with 8 bits a
    byte per weight of the whole model at every rank, a quarter of what reshard_after_forward=False takes.

    Raises ConfigurationError for a model that is not of fully_shard, a process group that is not fanin's, an unknown
    codec, and where the moves are replaced already; UnsupportedError for parameters that no codec takes;
    CollectiveMismatchError where ranks have unlike codecs or models.
    """
    groups = groups_of(model)
    for each in groups:
        if each.custom is not None:
            remedy = "call remove() of what it returned before" if each.custom.startswith("Shard") else "remove it"
            raise ConfigurationError(
                f"{each.name!r} has moves of its own already ({each.custom}): shard_codecs is called once for a model. "
                f"Remedy: {remedy}"
            )
    if keep_codes and weights is None:
        raise ConfigurationError(
            "keep_codes=True without codes: weights are gathered exactly. Remedy: weights='8', or "
            "fully_shard(..., reshard_after_forward=False), which keeps the weights themselves"
        )
    codec = None if gradients is None else _codec(str(gradients))
    made = ShardCodecs(groups, codec, None if weights is None else make_weights(str(weights)), keep_codes)
    made._agree()
    if isinstance(codec, Lanes):
        made._check_lanes(codec)
    elif codec is not None:
        for each in groups:
            codec.encoder(Place(each.shards.rank(), each.shards.size(), ()))  # refuses what it cannot carry
    made._attach()
    return made


def _codec(text: str) -> Lanes | Chosen:
    """The codec of gradients from its text: "4/8", "lanes:4/8:feedback=False" or "sketched:4:share=0.2"."""
    codec = make(f"lanes:{text}" if text[:1].isdigit() else text)
    if isinstance(codec, Chosen):
        return codec
    if not isinstance(codec, Lanes):
        raise ConfigurationError(
            f"gradients = {text!r}: a reduce-scatter goes through lanes alone ('8/8', '4/8', '16', "
            "'lanes:4/8:feedback=False'), or through a codec that chooses elements (sketched, agreed_blocks, "
            "random_coordinates), since the gradients of a group have no shapes any more",
            "gradients",
        )
    if codec.stochastic:
        raise ConfigurationError(
            f"gradients = {text!r}: a reduce-scatter has one stage, and stochastic rounding takes two. Remedy: leave "
            "stochastic out; with a residual the mean over steps is exact without it"
        )
    return codec


def _copied(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().to(dtype=torch.float32, copy=True).contiguous()
