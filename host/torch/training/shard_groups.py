"""FSDP2's parameter groups as `shard_codecs` needs them: names, process groups, and what lies where in a gather.

All that is read of torch's private parts is read here (torch 2.11 to 2.13: `_fully_shard/_fsdp_param_group.py`).

Rules
-----
* A group is what FSDP2 gathers and reduces together: the parameters of one `fully_shard` call.
* A gather's input is every parameter's local shard, padded to the same size on every rank, one after the other. Where
  their element types differ, FSDP2 gathers bytes.
* Parameters of two and more dimensions in float32, bfloat16 and float16 are quantized. Norms and biases are few bytes
  and travel exactly, as does every other element type.
* A tensor that says itself what is gathered of it (`fsdp_pre_all_gather`: float8 of torchao) travels as it says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed import ReduceOp
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, HSDPMeshInfo, TrainingState
from torch.nn.parallel import DistributedDataParallel

from fanin.errors import ConfigurationError, UnsupportedError
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.collectives.routing import QUANTIZED

MIN_DIMENSIONS = 2
"""Parameters of fewer dimensions travel exactly."""
NO_BACKWARD = -1
"""Number of the backward pass that torch reports where none runs in this thread."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One parameter's part of a rank's gather."""

    start_byte: int
    count: int
    dtype: torch.dtype
    quantized: bool

    @property
    def bytes(self) -> slice:
        """The segment's range of bytes."""
        return slice(self.start_byte, self.start_byte + self.count * self.dtype.itemsize)


class ShardGroup:
    """One parameter group of FSDP2, and the fanin groups that it communicates over."""

    def __init__(self, module: FSDPModule, own: Any, name: str, number: int) -> None:
        """Raises ConfigurationError or UnsupportedError, which names the group, where codecs cannot serve it."""
        self.module = module
        self.name = name
        self.number = number
        """Counts the model's groups; the same on every rank."""
        self._own = own
        if not isinstance(own.mesh_info, FSDPMeshInfo):
            raise ConfigurationError(
                f"{name!r} is replicated, not sharded (its mesh has no dimension for shards). Remedy: "
                "DistributedDataParallel with codec_hook"
            )
        self.shards = _fanin(own.mesh_info.shard_process_group, name, "shards")
        self.replicas: FaninProcessGroup | None = None
        """The process group of HSDP's other dimension."""
        if isinstance(own.mesh_info, HSDPMeshInfo) and own.mesh_info.replicate_process_group.size() > 1:
            self.replicas = _fanin(own.mesh_info.replicate_process_group, name, "replicas")
        if self.replicas is not None and self.shards.size() == 1:
            raise ConfigurationError(
                f"{name!r}: every rank holds the whole of it (shards of one rank, {self.replicas.size()} replicas), so "
                "nothing is gathered. Remedy: DistributedDataParallel with codec_hook"
            )
        for each in own.fsdp_params:
            if each.sharded_param.requires_grad and each.sharded_param.dtype not in QUANTIZED:
                raise UnsupportedError(
                    f"{name!r}: {each._module_info.param_name!r} is {each.sharded_param.dtype}; codecs are for "
                    "float32, bfloat16 and float16. Remedy: fully_shard by itself what has another type, and "
                    "shard_codecs for the modules beside it"
                )
        self._layouts: dict[tuple[int, torch.dtype], list[Segment]] = {}
        self._supposed: dict[Any, int] = {}
        """Bytes of a rank's part, by parameter, of gathers of the parameters' own (`confirm`)."""

    @property
    def shapes(self) -> list[list[int]]:
        """Shapes of all whole parameters."""
        return [list(each._orig_size) for each in self._own.fsdp_params]

    @property
    def elements(self) -> int:
        """Number of elements of all whole parameters."""
        return sum(each._orig_size.numel() for each in self._own.fsdp_params)

    @property
    def custom(self) -> str | None:
        """Name of the object that already replaces torch's own moves, or None."""
        for found, default in (
            (self._own._all_gather_comm, DefaultAllGather),
            (self._own._reduce_scatter_comm, DefaultReduceScatter),
        ):
            if type(found) is not default:
                return type(found).__name__
        return None

    def reset(self) -> None:
        """Give torch's own moves back to the module."""
        self.module.set_custom_all_gather(DefaultAllGather())
        self.module.set_custom_reduce_scatter(DefaultReduceScatter())

    @property
    def in_backward(self) -> bool:
        """Whether the gather that is asked for now is backward's, or a prefetch for it."""
        return bool(self._own._training_state == TrainingState.PRE_BACKWARD)

    @property
    def gathers_again(self) -> bool:
        """Whether backward will gather over the same ranks what the forward pass that runs now gathers."""
        own = self._own
        return bool(
            own._training_state
            == TrainingState.FORWARD  # whether gradients are on is not known here: FSDP2 turns them off
            and own.unshard_in_backward
            and own._reshard_after_forward
            and not own._use_post_forward_mesh
        )

    def is_secondary(self, group: Any) -> bool:
        """Whether a gather over `group` is of the shards that `reshard_after_forward=int` has made."""
        return bool(group.group_name != self.shards.group_name)

    def layout(self, elements: int, dtype: torch.dtype) -> list[Segment]:
        """The segments of a rank's part of a gather, in its order."""
        known = self._layouts.get((elements, dtype))
        if known is not None:
            return known
        own_bytes = self._supposed = self._bytes_of_own_gathers(elements * dtype.itemsize)
        segments, at = [], 0
        for each in self._own.fsdp_params:
            if each in own_bytes:
                segments.append(Segment(at, own_bytes[each], torch.uint8, quantized=False))
                at += own_bytes[each]
                continue
            count, own = each._sharded_param_data.numel(), each.param_dtype or each.orig_dtype
            quantized = own in QUANTIZED and len(each._orig_size) >= MIN_DIMENSIONS
            segments.append(Segment(at, count, own, quantized))
            at += count * own.itemsize
        if at != elements * dtype.itemsize:
            raise UnsupportedError(
                f"{self.name!r}: FSDP2 gathers {elements * dtype.itemsize} bytes of this rank, and its parameters have "
                f"{at}. Remedy: weights=None, and report it with the version of torch ({torch.__version__})"
            )
        self._layouts[elements, dtype] = segments
        return segments

    def _bytes_of_own_gathers(self, gathered: int) -> dict[Any, int]:
        """Bytes of a rank's part that are of parameters with a `fsdp_pre_all_gather`, by parameter.

        Torch keeps the sizes of what these gave, and says their element types only behind the gather (`confirm`); all
        of a group are supposed to have the same size.
        """
        sizes = {
            each: sum(size.numel() for size in each._extensions_data.all_gather_input_sizes)
            for each in self._own.fsdp_params
            if hasattr(each._sharded_local_tensor, "fsdp_pre_all_gather")
        }
        if not sizes:
            return {}
        plain = [each for each in self._own.fsdp_params if each not in sizes]
        rest = gathered - sum(e._sharded_param_data.numel() * (e.param_dtype or e.orig_dtype).itemsize for e in plain)
        total = sum(sizes.values())
        if rest < 0 or rest % max(total, 1):
            raise _unlike_types(self.name, list(sizes), f"{total} elements in {rest} bytes")
        return {each: count * (rest // max(total, 1)) for each, count in sizes.items()}

    def confirm(self) -> None:
        """Compare what the layout supposes of own gathers with what torch says of the gather that it waits for.

        Raises UnsupportedError where they are of unlike types whose bytes only add up to those of one.
        """
        gathered = getattr(self._own, "_all_gather_result", None)
        if not self._supposed or gathered is None:
            return
        types, counts = gathered.param_all_gather_input_dtypes, gathered.param_all_gather_input_numels
        for each, own_types, own_counts in zip(self._own.fsdp_params, types, counts, strict=True):
            bytes_of = sum(count * dtype.itemsize for dtype, count in zip(own_types, own_counts, strict=True))
            if self._supposed.get(each, bytes_of) != bytes_of:
                name = each._module_info.param_name
                raise _unlike_types(self.name, list(self._supposed), f"{bytes_of} bytes for {name!r}")
        self._supposed = {}

    @property
    def trained(self) -> tuple[int, ...]:
        """Places of the trained parameters in the group: a residual's elements belong to these."""
        return tuple(place for place, each in enumerate(self._own.fsdp_params) if each.sharded_param.requires_grad)

    @property
    def trained_elements(self) -> int:
        """Elements of a reduce-scatter of all parameters that are trained, padding included."""
        trained = [self._own.fsdp_params[place] for place in self.trained]
        return int(sum(each._sharded_param_data.numel() for each in trained) * self.shards.size())

    @property
    def all_reduces(self) -> bool:
        """Whether the replicas' all-reduce follows a reduce-scatter now."""
        return self.replicas is not None and bool(self._own.all_reduce_grads)

    def may_be_late(self, reduced: torch.Tensor, op: Any) -> bool:
        """Whether nothing but the optimizer reads the result of a reduce-scatter.

        FSDP2 then only makes views of it; in any other case (another element type of the gradient, division, sums over
        replicas or over micro-batches, offloading, hooks) it computes with the result as soon as the call returns.
        A pipeline's schedule reduces after its backward passes, and no end of one waits for what is late then.
        """
        own = self._own
        return bool(
            torch._C._current_graph_task_id() != NO_BACKWARD
            and self.replicas is None
            and reduced.device.type == "cpu"
            and own._all_reduce_hook is None
            and op.op != ReduceOp.SUM  # what comes as a plain sum is divided afterwards
            and all(
                each.sharded_param.grad is None
                and reduced.dtype == getattr(each, "sharded_grad_dtype", each.orig_dtype)  # the first since torch 2.15
                and not each.offload_to_cpu
                and not getattr(each.sharded_param, "_post_accumulate_grad_hooks", None)
                for each in own.fsdp_params
            )
        )


def groups_of(model: nn.Module) -> list[ShardGroup]:
    """The parameter groups of a model, in the order of its modules; ConfigurationError where there are none."""
    if isinstance(model, DistributedDataParallel):
        raise ConfigurationError(
            "shard_codecs is for models of fully_shard (FSDP2), not for DistributedDataParallel. Remedy: codec_hook"
        )
    if isinstance(model, FullyShardedDataParallel):
        raise ConfigurationError(
            "shard_codecs is for models of fully_shard (FSDP2), not for FullyShardedDataParallel (FSDP1). Remedy: "
            "fully_shard(module) in its place"
        )
    if not isinstance(model, nn.Module):
        raise ConfigurationError(
            f"shard_codecs takes the module that fully_shard was given, not a {type(model).__name__}"
            ". Remedy: pass that module"
        )
    found: list[ShardGroup] = []
    known: set[int] = set()
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        own = _groups_of_state(module._get_fsdp_state())
        name = name or "(root)"
        if len(own) > 1:
            raise UnsupportedError(
                f"{name!r} has {len(own)} parameter groups over unlike meshes (shard_placement_fn), for which torch "
                "takes no custom moves. Remedy: fully_shard those parameters' modules by themselves"
            )
        for each in own:
            if id(each) not in known:
                known.add(id(each))
                found.append(ShardGroup(module, each, name, len(found)))
    if not found:
        raise ConfigurationError(
            f"{type(model).__name__} has no module that is sharded. Remedy: fully_shard(model) before "
            "shard_codecs(model)"
        )
    return found


def _unlike_types(name: str, parameters: list[Any], found: str) -> UnsupportedError:
    kinds = sorted({type(each._sharded_local_tensor).__name__ for each in parameters})
    return UnsupportedError(
        f"{name!r}: {', '.join(kinds)} bring all-gathers of their own (fsdp_pre_all_gather) of {found}, so of unlike "
        "types. Remedy: weights=None, or fully_shard them by themselves"
    )


def _fanin(group: Any, name: str, what: str) -> FaninProcessGroup:
    if not isinstance(group, FaninProcessGroup):
        backend = getattr(group, "name", lambda: type(group).__name__)()
        raise ConfigurationError(
            f"{name!r}: the group of its {what} has backend {backend!r}, and shard_codecs needs 'fanin'. Remedy: "
            "init_process_group('fanin') and init_device_mesh(...) after it; over another backend use "
            "MixedPrecisionPolicy for fewer bytes"
        )
    if group.options.on_worker_loss == "continue":
        raise ConfigurationError(
            "codecs are for jobs that end with the first rank that is lost (on_worker_loss='raise'): the shards of a "
            "lost rank are lost with it. Remedy: leave out on_worker_loss='continue'"
        )
    return group


def _groups_of_state(state: Any) -> list[Any]:
    """Groups that a module's `fully_shard` has made; before torch 2.12 that was one group, or none."""
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]
