"""FSDP2's reduce-scatter of one parameter group through lanes or a codec, with error feedback, and HSDP's all-reduce.

Rules
-----
* A reduce-scatter adds what the group still owes to its input, and keeps what the lanes cut off. The residual is of all
  elements, one float32 each, at every rank. It is of all trained parameters: where some of them got no gradient, the
  others are reduced without it, since nothing tells which elements are whose; where others are trained than before, it
  begins anew.
* With replicas the sum over them goes through the same lanes, with a residual of the shard's size in the same steps: it
  is torch's call, so the shard itself says how it is summed (`set_lanes`).
* A codec that chooses elements (`Chosen`) sums the unsharded gradients of all ranks, of which each keeps its shard; so
  all ranks receive the whole sum, as in an all-reduce. Its stages follow each other before the call returns. HSDP's
  all-reduce has the lanes of the replicas' group, and gradients of which a part is missing those of the shards' group.
* Where nothing but the optimizer reads the result (`ShardGroup.may_be_late`), the call returns at once. At most
  MAX_LATE of the model's reductions are under way then, each of which holds its unsharded input; all of them are waited
  for before `backward` returns. In any other case a call waits, for those before it as well.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Variable
from torch.distributed import ReduceOp
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from fanin.errors import ConfigurationError, UnsupportedError
from fanin.host.codecs.agreed_blocks import AgreedBlocks
from fanin.host.codecs.codec import Place
from fanin.host.codecs.lanes_codec import Lanes
from fanin.host.codecs.random_coordinates import RandomCoordinates
from fanin.host.codecs.sketched import Sketched
from fanin.host.codecs.weight_codec import Loss
from fanin.host.torch.collectives.process_group import FaninProcessGroup
from fanin.host.torch.collectives.routing import QUANTIZED, SUM_ROUTES, factor_of
from fanin.host.torch.handles.call import set_lanes
from fanin.host.torch.handles.work import FaninWork
from fanin.host.torch.training.codec_buckets import Bucket
from fanin.host.torch.training.codec_flight import CodecFlight, finish
from fanin.host.torch.training.codec_sums import contributed_bytes
from fanin.host.torch.training.shard_gather import ShardGather
from fanin.host.torch.training.shard_groups import ShardGroup

MAX_LATE = 2
"""Reductions that are under way while backward goes on: one that travels, and one that waits for its turn."""

Chosen = Sketched | RandomCoordinates | AgreedBlocks
"""Codecs that choose elements whatever parameters they are of: a group's gradients have no shapes any more."""

SAMPLE_ELEMENTS, SAMPLED_OF = 1024, 16
"""Sample of a reduction's loss: blocks of so many elements, one in so many."""


class Late:
    """The reductions of a model that are under way, oldest first."""

    def __init__(self) -> None:
        self._flights: deque[ShardFlight] = deque()

    def add(self, flight: ShardFlight) -> None:
        """Add a reduction; called in backward only."""
        while len(self._flights) >= MAX_LATE:
            self._flights.popleft().finish()
        self._flights.append(flight)
        # One for each: a callback of a backward pass that ends in an error is never called.
        Variable._execution_engine.queue_callback(flight.finish)

    def finish(self) -> None:
        """Wait for all reductions under way; raises the error of the first that failed, and forgets the others."""
        flights, self._flights = self._flights, deque()
        for each in flights:
            each.finish()


class ShardFlight:
    """One reduction under way."""

    def __init__(
        self,
        work: FaninWork,
        reduce: ShardReduce,
        residual: torch.Tensor | None,
        energy: torch.Tensor | None,
        step: int,
    ) -> None:
        """`energy`: of the contribution's sample in this step."""
        self._work: FaninWork | None = work
        self._reduce, self._residual, self._energy, self._step = reduce, residual, energy, step

    def finish(self) -> None:
        """Wait for the reduction, unless it was waited for before."""
        if self._work is None:
            return
        started = time.perf_counter()
        self._work.wait()
        self._work = None  # and with it the unsharded gradients
        self._reduce.waited_s += time.perf_counter() - started
        if self._energy is not None and self._residual is not None:
            self._reduce.sampled = self._energy, _squares(_sampled(self._residual, self._step))


class ShardReduce(ReduceScatter):
    """The `ReduceScatter` of one group. `codec` None: the lanes of the group's options."""

    def __init__(self, group: ShardGroup, codec: Lanes | Chosen | None, gather: ShardGather, late: Late) -> None:
        self._group = group
        self._codec = codec if isinstance(codec, Lanes) else None
        self._chosen = None if isinstance(codec, Lanes) else codec
        self._bucket: Bucket | None = None
        """Encoder and residual of a codec that chooses; None before the first step, or with lanes."""
        self._taken_up: dict[str, torch.Tensor] | None = None
        """State of the encoder, for the first step after it was loaded."""
        self._gather = gather
        self._late = late
        self.owed: torch.Tensor | None = None
        """Residual of this rank: float32, one per element of the reduce-scatter's input; None: nothing is owed."""
        self.owed_by_replicas: torch.Tensor | None = None
        """Residual of this rank's part in the sum over replicas: float32, one per element of the shard."""
        self._trained: tuple[int, ...] | None = None
        """The parameters that both residuals are of (ShardGroup.trained); None: before a step, or after a load."""
        self.payload_bytes = self.plain_bytes = 0
        """Bytes of the last step: words of contributions, and the same in float32."""
        self.sampled: tuple[torch.Tensor, torch.Tensor] | None = None
        """Squared norms of a sample's contribution and loss, another one in each step, where the elements lie: whoever
        reads them on a GPU waits for it."""
        self.waited_s = 0.0

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Fresh memory, as torch's own."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        """Start the reduce-scatter; its result is there when this returns, or when `backward` does."""
        if input_tensor.dtype not in QUANTIZED and (self._codec or self._chosen) is not None:
            raise UnsupportedError(
                f"{self._group.name!r}: gradients are reduced as {input_tensor.dtype}; codecs are for float32, "
                "bfloat16 and float16. Remedy: MixedPrecisionPolicy(reduce_dtype=torch.float32), or gradients=None"
            )
        if not isinstance(group, FaninProcessGroup):
            raise ConfigurationError(
                f"{self._group.name!r}: the group of its reductions (set_separate_reduce_scatter_group) is not "
                "fanin's. Remedy: init_process_group('fanin'), or no separate group"
            )
        op = op if type(op) is ReduceOp else ReduceOp(op)
        self._gather.reduced()
        if self._chosen is not None and input_tensor.numel() == self._group.trained_elements:
            self._choose(self._chosen, output_tensor, input_tensor, group, op)
            return None
        lanes = None if self._codec is None else self._codec.bits
        residual = self._residual(input_tensor, group)
        factor = factor_of(op)
        step = self._gather.step
        energy = None
        if residual is not None:
            energy = _squares(_sampled(input_tensor, step), factor, _sampled(residual, step))
        self.plain_bytes = 4 * input_tensor.numel()
        self.payload_bytes = _payload(group, input_tensor, lanes)
        self.waited_s = 0.0
        work = group.reduce_scatter_lanes(output_tensor, input_tensor, op=op, lanes=lanes, residual=residual)
        flight = ShardFlight(work, self, residual, energy, step)
        if self._group.may_be_late(output_tensor, op):
            self._late.add(flight)
            return None
        self._late.finish()
        flight.finish()
        if self._group.all_reduces and lanes is not None:
            self._narrow_replicas(output_tensor, lanes, feedback=residual is not None)
        return None

    def _choose(
        self, codec: Chosen, shard: torch.Tensor, gradients: torch.Tensor, group: FaninProcessGroup, op: ReduceOp
    ) -> None:
        """Sum the gradients through a codec, and keep this rank's shard."""
        self._late.finish()
        count, trained = gradients.numel(), self._group.trained
        if self._bucket is None or self._bucket.place.count != count or self._trained not in (None, trained):
            self._bucket = self._encoders(codec, count)
            if self._taken_up is not None:
                self._bucket.load(self._taken_up)
            self._taken_up = None
        self._trained = trained
        flat = gradients.detach().reshape(-1)
        flights = [CodecFlight(group, self._gather.step, piece, flat) for piece in self._bucket.pieces]
        for each in flights:
            each.start(None)
        started = time.perf_counter()
        finish(flights)
        self.waited_s = time.perf_counter() - started
        # Codecs give means; torch asks for means, sums, or sums times a factor.
        factor = 1.0 if op == ReduceOp(ReduceOp.AVG) else factor_of(op) * group.size()
        own = flat.view(group.size(), -1)[group.rank()]
        shard.view(-1).copy_(own * factor)
        self.plain_bytes = 4 * count
        self.payload_bytes = sum(each.payload_bytes for each in self._bucket.pieces)

    def _encoders(self, codec: Chosen, count: int) -> Bucket:
        """Encoders that owe nothing, for all gradients of the group in one line."""
        shards = self._group.shards
        return Bucket(codec, Place(shards.rank(), shards.size(), ((count,),), self._group.number), ())

    def fits(self, state: dict[str, torch.Tensor] | None) -> bool:
        """Whether an encoder's state is of as many elements as are trained here."""
        if state is None or self._chosen is None:
            return True
        fresh = self._encoders(self._chosen, self._group.trained_elements).state()
        return {name: each.shape for name, each in fresh.items()} == {name: each.shape for name, each in state.items()}

    @property
    def encoder_state(self) -> dict[str, torch.Tensor] | None:
        """State of the encoder of a codec that chooses, before its first step the loaded one; None without either."""
        return self._taken_up if self._bucket is None else self._bucket.state()

    def take_up_encoder(self, state: dict[str, torch.Tensor] | None) -> None:
        """Go on with the encoder's state in the next step."""
        self._bucket, self._taken_up = None, state

    def take_up(self, owed: torch.Tensor | None, owed_by_replicas: torch.Tensor | None) -> None:
        """Go on with what was owed when a state was taken."""
        self.owed, self.owed_by_replicas, self._trained = owed, owed_by_replicas, None

    def _narrow_replicas(self, shard: torch.Tensor, lanes: int, *, feedback: bool) -> None:
        replicas = self._group.replicas
        assert replicas is not None
        if feedback:
            known = self.owed_by_replicas
            if known is None or len(known) != shard.numel():
                known = torch.zeros(shard.numel(), dtype=torch.float32, device="cpu")
            self.owed_by_replicas = known = known.to(replicas.residual_device(shard, lanes))
            set_lanes(shard, lanes, known)
        else:
            set_lanes(shard, lanes)
        self.plain_bytes += 4 * shard.numel()
        self.payload_bytes += _payload(replicas, shard, lanes)

    def _residual(self, gradients: torch.Tensor, group: FaninProcessGroup) -> torch.Tensor | None:
        elements = gradients.numel()
        if self._codec is None or not self._codec.feedback or elements != self._group.trained_elements:
            return None
        trained = self._group.trained
        if self._trained is not None and self._trained != trained:
            self.owed = self.owed_by_replicas = None
        self._trained = trained
        if self.owed is None or len(self.owed) != elements:
            self.owed = torch.zeros(elements, dtype=torch.float32, device="cpu")
        self.owed = self.owed.to(group.residual_device(gradients, self._codec.bits))
        return self.owed

    @property
    def residual_norm(self) -> float:
        """Euclidean norm of what this rank still owes."""
        if self._bucket is not None:
            return self._bucket.residual_norm
        owed = (self.owed, self.owed_by_replicas)
        return math.sqrt(sum(_finite(_squares(each)) for each in owed if each is not None))

    @property
    def loss(self) -> Loss:
        """Loss of the last step's lanes, in the sample; of a codec that chooses, of all elements."""
        if self._bucket is not None:
            encoders = self._bucket.encoders
            return Loss(sum(each.energy for each in encoders), sum(each.lost for each in encoders))
        return Loss() if self.sampled is None else Loss(*map(_finite, self.sampled))


def _sampled(x: torch.Tensor, step: int) -> torch.Tensor:
    """One of SAMPLED_OF blocks of x, another one in each step, for what only people read: a pass over all of the
    unsharded gradients, and one over the residual, would take as long as their words do."""
    x = x.detach().reshape(-1)
    blocks = x.numel() // (SAMPLED_OF * SAMPLE_ELEMENTS)
    if not blocks:
        return x
    return x[: blocks * SAMPLED_OF * SAMPLE_ELEMENTS].view(blocks, SAMPLED_OF, SAMPLE_ELEMENTS)[:, step % SAMPLED_OF]


def _squares(x: torch.Tensor, factor: float = 1.0, residual: torch.Tensor | None = None) -> torch.Tensor:
    """Squared norm of x * factor + residual, where the residual lies, shape ()."""
    values = x.to(torch.float32)
    if residual is not None:
        values = torch.add(residual, values.to(residual.device), alpha=factor)
    values = values.reshape(-1)
    return torch.dot(values, values)


def _finite(squares: torch.Tensor) -> float:
    """Value of the squared norm as a number; 0 if it is not finite."""
    total = float(squares)
    return total if total - total == 0 else 0.0


def _payload(group: FaninProcessGroup, tensor: torch.Tensor, lanes: int | None) -> int:
    element = SUM_ROUTES[tensor.dtype].element
    assert element is not None, "float32, bfloat16, float16 and float64 go through the switch"
    return contributed_bytes(group, element, tensor.numel(), group.options.lanes_number if lanes is None else lanes)
