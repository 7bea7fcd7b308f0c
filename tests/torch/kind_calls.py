"""Every collective with tensors of every kind: how each kind is made, and how each collective is called with it.

A kind is a function of (call, tensors): it makes tensors of its kind from dense ones, calls, and returns what is in
them afterwards. A call takes the tensors as one list, outputs first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.debug import CommDebugMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

SIZE = 2
"""Ranks of the groups that these are called in."""

Tensors = list[torch.Tensor]
Call = Callable[[Any], object]
Kind = Callable[[Call, Tensors], Sequence[torch.Tensor]]

# --- collectives ---


@dataclass(frozen=True)
class Collective:
    """One collective, between two ranks."""

    counts: tuple[int, ...]
    """Elements of its tensors, outputs first."""
    start: Callable[[Any, Tensors, int], Any]
    """(group, tensors, rank): starts it and returns its work."""
    operator: str
    """torch's own name for it, which modes and graphs are told."""
    root_first: bool = False
    """Whether rank 0 may be refused alone, so that rank 1 calls only once it was not."""
    written: Callable[[int], bool] = lambda rank: True
    """Whether what a rank's tensors hold afterwards is defined."""


def at_root(rank: int, tensors: Tensors) -> Tensors | None:
    return tensors if rank == 0 else None


def group_of(group: Any) -> Any:
    return dist.group.WORLD if group is None else group


def imagined(tensor: torch.Tensor) -> bool:
    """Whether no message is sent for it."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return tensor.is_meta or isinstance(tensor, FakeTensor) or mode is not None


def send(group: Any, tensors: Tensors, rank: int) -> Any:
    """To the other rank, which has a plain tensor for it."""
    work = dist.isend(tensors[0], 1 - rank, group=group)
    if not imagined(tensors[0]):
        with torch._C._DisableFuncTorch(), torch._C._DisableTorchDispatch():
            dist.recv(torch.empty(tensors[0].shape, dtype=tensors[0].dtype, device="cpu"), 1 - rank, group=group)
    return work


def recv(group: Any, tensors: Tensors, rank: int) -> Any:
    """From the other rank, which sends a plain tensor."""
    work = dist.irecv(tensors[0], 1 - rank, group=group)
    if not imagined(tensors[0]):
        with torch._C._DisableFuncTorch(), torch._C._DisableTorchDispatch():
            dist.send(torch.full(tensors[0].shape, 7, dtype=tensors[0].dtype, device="cpu"), 1 - rank, group=group)
    return work


COLLECTIVES: dict[str, Collective] = {
    "all_reduce": Collective((4,), lambda g, x, r: dist.all_reduce(x[0], group=g), "allreduce_"),
    "all_reduce (async)": Collective((4,), lambda g, x, r: dist.all_reduce(x[0], group=g, async_op=True), "allreduce_"),
    "all_reduce (large)": Collective((5000,), lambda g, x, r: dist.all_reduce(x[0], group=g), "allreduce_"),
    "all_reduce (MAX)": Collective(
        (4,), lambda g, x, r: dist.all_reduce(x[0], dist.ReduceOp.MAX, group=g, async_op=True), "allreduce_"
    ),
    "all_reduce_coalesced": Collective(
        (4, 8), lambda g, x, r: dist.all_reduce_coalesced(x, group=g), "allreduce_coalesced_"
    ),
    "reduce": Collective(
        (4,), lambda g, x, r: dist.reduce(x[0], 0, group=g, async_op=True), "reduce_", written=lambda rank: rank == 0
    ),
    "broadcast": Collective((4,), lambda g, x, r: dist.broadcast(x[0], 0, group=g, async_op=True), "broadcast_"),
    "all_gather": Collective(
        (4, 4, 4), lambda g, x, r: dist.all_gather(x[:2], x[2], group=g, async_op=True), "allgather_"
    ),
    "all_gather_into_tensor": Collective(
        (8, 4), lambda g, x, r: dist.all_gather_into_tensor(x[0], x[1], group=g, async_op=True), "_allgather_base_"
    ),
    "all_gather_coalesced": Collective(
        (4, 4, 4), lambda g, x, r: group_of(g).allgather_coalesced([x[:1], x[1:2]], x[2:]), "allgather_coalesced_"
    ),
    "all_gather_into_tensor_coalesced": Collective(
        (8, 4),
        lambda g, x, r: group_of(g).allgather_into_tensor_coalesced(x[:1], x[1:]),
        "allgather_into_tensor_coalesced_",
    ),
    "reduce_scatter": Collective(
        (4, 4, 4), lambda g, x, r: dist.reduce_scatter(x[0], x[1:], group=g, async_op=True), "reduce_scatter_"
    ),
    "reduce_scatter_tensor": Collective(
        (4, 8), lambda g, x, r: dist.reduce_scatter_tensor(x[0], x[1], group=g, async_op=True), "_reduce_scatter_base_"
    ),
    "reduce_scatter_tensor_coalesced": Collective(
        (4, 8),
        lambda g, x, r: group_of(g).reduce_scatter_tensor_coalesced(x[:1], x[1:]),
        "reduce_scatter_tensor_coalesced_",
    ),
    "gather": Collective(
        (4, 4, 4),
        lambda g, x, r: dist.gather(x[2], at_root(r, x[:2]), 0, group=g, async_op=True),
        "gather_",
        root_first=True,
    ),
    "scatter": Collective(
        (4, 4, 4),
        lambda g, x, r: dist.scatter(x[0], at_root(r, x[1:]), 0, group=g, async_op=True),
        "scatter_",
        root_first=True,
    ),
    "all_to_all": Collective(
        (4, 4, 4, 4), lambda g, x, r: dist.all_to_all(x[:2], x[2:], group=g, async_op=True), "alltoall_"
    ),
    "all_to_all_single": Collective(
        (8, 8), lambda g, x, r: dist.all_to_all_single(x[0], x[1], group=g, async_op=True), "alltoall_base_"
    ),
    "send": Collective((4,), send, "send"),
    "recv": Collective((4,), recv, "recv_"),
}

_calls = itertools.count()


class Caller:
    """Calls collectives over one group, alike on both ranks: neither waits for one that was refused."""

    def __init__(self, group: Any, rank: int, store: Any) -> None:
        self._group, self._rank, self._store = group, rank, store
        self._plain: dict[str, Tensors] = {}
        for name, collective in COLLECTIVES.items():
            self._plain[name] = given(collective, rank)
            self.call(collective)(self._plain[name])

    def plain_results(self, collective: str) -> Tensors:
        """The values of plain tensors after a collective."""
        return [tensor.clone() for tensor in self._plain[collective]]

    def call(self, collective: Collective) -> Call:
        """The function that a kind is given."""
        key = f"kinds/{next(_calls)}"

        def run(tensors: Tensors) -> None:
            if collective.root_first and self._rank and self._store.get(key) == b"refused":
                raise RefusedAtRootError
            try:
                work = collective.start(self._group, tensors, self._rank)
            except BaseException:
                if collective.root_first and not self._rank:
                    self._store.set(key, b"refused")
                raise
            if collective.root_first and not self._rank:
                self._store.set(key, b"begun")
            if work is not None:
                work.wait()

        return run


class RefusedAtRootError(Exception):
    """Rank 0 was refused, and so this one does not call."""


# --- kinds ---


def of(make: Callable[[torch.Tensor], torch.Tensor], read: Callable[[Any], torch.Tensor] = torch.Tensor.detach) -> Kind:
    """Tensors that `make` makes, of which `read` is what they hold."""

    def kind(call: Call, tensors: Tensors) -> Sequence[torch.Tensor]:
        made = [make(tensor) for tensor in tensors]
        call(made)
        return [read(each) for each in made]

    return kind


def within(transform: Callable[[Callable[..., Any], Tensors], Sequence[torch.Tensor]]) -> Kind:
    """Copies of the tensors that are made, and used, in a function under one of torch.func's transforms."""

    def kind(call: Call, tensors: Tensors) -> Sequence[torch.Tensor]:
        def function(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            copies = [tensor * 1 for tensor in given]
            call(copies)
            return tuple(copies)

        return transform(function, tensors)

    return kind


def _grad(function: Callable[..., Any], tensors: Tensors) -> Sequence[torch.Tensor]:
    def loss(*given: torch.Tensor) -> tuple[torch.Tensor, Any]:
        results = function(*given)
        return torch.stack([each.sum() for each in results]).sum(), results

    gradients, results = torch.func.grad(loss, argnums=tuple(range(len(tensors))), has_aux=True)(*tensors)
    assert all(bool((gradient == 1).all()) for gradient in gradients), "collectives have no derivative"
    return list(results)


def _jvp(function: Callable[..., Any], tensors: Tensors) -> Sequence[torch.Tensor]:
    tangents = tuple(torch.ones_like(tensor) for tensor in tensors)
    told: tuple[Any, ...] = torch.func.jvp(function, tuple(tensors), tangents)
    return list(told[0])


def _vmap(function: Callable[..., Any], tensors: Tensors) -> Sequence[torch.Tensor]:
    return [each[0] for each in torch.func.vmap(function)(*(torch.stack([each, each]) for each in tensors))]


def _outside_of_grad(call: Call, tensors: Tensors) -> Sequence[torch.Tensor]:
    copies = [tensor.clone() for tensor in tensors]

    def function(x: torch.Tensor) -> torch.Tensor:
        call(copies)
        return x.sum()

    torch.func.grad(function)(torch.ones(2))
    return copies


def _functional_mode(call: Call, tensors: Tensors) -> Sequence[torch.Tensor]:
    with FunctionalTensorMode():
        wrapped = [FunctionalTensor.to_functional(tensor.clone()) for tensor in tensors]
        call(wrapped)
        return [torch._from_functional_tensor(each.elem).clone() for each in wrapped]


def recorded(call: Call, tensors: Tensors, names: list[str]) -> Sequence[torch.Tensor]:
    """Under make_fx; `names` gets the operators that were recorded."""
    results: Tensors = []

    def function(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        copies = [tensor * 1 for tensor in given]
        call(copies)
        results.extend(copies)
        return tuple(copies)

    graph = make_fx(function)(*tensors).graph
    names.extend(str(node.target) for node in graph.nodes if str(node.target).startswith("c10d"))
    return results


def counted(call: Call, tensors: Tensors, names: list[str]) -> Sequence[torch.Tensor]:
    """Under CommDebugMode; `names` gets the operators that were counted."""
    copies = [tensor.clone() for tensor in tensors]
    with CommDebugMode() as mode:
        call(copies)
    names.extend(f"{operator}.default" for operator in mode.get_comm_counts())
    return copies


def _in(mode: Callable[[], Any]) -> Kind:
    """Tensors from before a mode."""

    def kind(call: Call, tensors: Tensors) -> Sequence[torch.Tensor]:
        copies = [tensor.clone() for tensor in tensors]
        with mode():
            call(copies)
        return copies

    return kind


def _fake(call: Call, tensors: Tensors) -> Sequence[torch.Tensor]:
    with FakeTensorMode() as mode:
        imagined = [mode.from_tensor(tensor) for tensor in tensors]
        call(imagined)
    return tensors


def _fake_outside(call: Call, tensors: Tensors) -> Sequence[torch.Tensor]:
    mode = FakeTensorMode()
    call([mode.from_tensor(tensor) for tensor in tensors])
    return tensors


def _inference(call: Call, tensors: Tensors) -> Sequence[torch.Tensor]:
    with torch.inference_mode():
        copies = [tensor.clone() for tensor in tensors]
    call(copies)
    return copies


def _dtensors(call: Call, tensors: Tensors) -> Sequence[torch.Tensor]:
    mesh = init_device_mesh("cpu", (SIZE,))
    wrapped = [DTensor.from_local(tensor.clone(), mesh, [Replicate()]) for tensor in tensors]
    call(wrapped)
    return [each.to_local() for each in wrapped]


def _unawaited(call: Call, tensors: Tensors) -> Sequence[torch.Tensor]:
    own = dist.get_rank()
    under_way = []
    for tensor in tensors:  # sent to oneself
        parts = [len(tensor) if rank == own else 0 for rank in range(SIZE)]
        under_way.append(functional.all_to_all_single(tensor, parts, parts, group_of(None)))
    call(under_way)
    return [each * 1 for each in under_way]


class Subclass(torch.Tensor):
    """One that has its own elements."""


class Wrapper(torch.Tensor):
    """One whose elements are in another tensor, with which its operators work."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        made: Any = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.held = inner
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        args, kwargs = pytree.tree_map_only(Wrapper, lambda each: each.held, (args, kwargs or {}))
        return func(*args, **kwargs)


def _freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(0)
    return tensor


def _every_other(tensor: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros(len(tensor), 2, dtype=tensor.dtype)
    wide[:, 0] = tensor
    return wide[:, 0]


def _complex(tensor: torch.Tensor) -> torch.Tensor:
    return torch.complex(tensor, torch.zeros_like(tensor))


def _real(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().real


def _values(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_dense().reshape(-1)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to(torch.float32).reshape(-1)


KINDS: dict[str, Kind] = {
    "plain": of(torch.clone),
    "offset in a storage": of(lambda t: torch.cat([torch.zeros(1), t])[1:]),
    "strided": of(_every_other),
    "transposed": of(lambda t: t.view(2, -1).t().contiguous().t(), lambda t: t.reshape(-1)),
    "channels_last": of(
        lambda t: t.view(1, 2, 1, -1).contiguous(memory_format=torch.channels_last), lambda t: t.reshape(-1)
    ),
    "0-dim": of(lambda t: t[0].clone(), lambda t: t.view(1)),
    "zero elements": of(lambda t: torch.empty(0)),
    "on shared memory": of(lambda t: t.clone().share_memory_()),
    "expanded": of(lambda t: torch.ones(1).expand(t.shape)),
    "overlapping (as_strided)": of(lambda t: torch.ones(len(t)).as_strided((2, len(t) // 2), (1, 1))),
    "parameter": of(lambda t: nn.Parameter(t.clone())),
    "buffer": of(lambda t: nn.Buffer(t.clone())),
    "requires grad": of(lambda t: t.clone().requires_grad_()),
    "result of operations that require grad": of(lambda t: t.clone().requires_grad_() * 1),
    "made in inference mode": _inference,
    "bool": of(lambda t: t > 2, _same),
    "int64": of(lambda t: t.long(), _same),
    "int16": of(lambda t: t.short(), _same),
    "uint16": of(lambda t: t.to(torch.uint16), _same),
    "float16": of(lambda t: t.half(), _same),
    "float64": of(lambda t: t.double(), _same),
    "float8": of(lambda t: t.to(torch.float8_e4m3fn), _same),
    "complex": of(_complex, _real),
    "conjugated view": of(lambda t: _complex(t).conj(), _real),
    "negated view": of(lambda t: torch.complex(t, -t).conj().imag, lambda t: t.detach().resolve_neg()),
    "zero tensor": of(lambda t: torch._efficientzerotensor(t.shape)),
    "sparse COO": of(torch.Tensor.to_sparse, _values),
    "sparse COO of int64": of(lambda t: t.long().to_sparse(), lambda t: _values(t).float()),
    "sparse CSR": of(lambda t: t.view(1, -1).to_sparse_csr(), _values),
    "MKL-DNN": of(lambda t: t.to_mkldnn(), _values),
    "quantized": of(lambda t: torch.quantize_per_tensor(t, 1.0, 0, torch.qint32), torch.Tensor.dequantize),
    "nested": of(lambda t: torch.nested.nested_tensor([t]), lambda t: t.values()),
    "nested, jagged": of(lambda t: torch.nested.nested_tensor([t], layout=torch.jagged), lambda t: t.values()),
    "storage freed": of(_freed, lambda t: torch.empty(0)),
    "meta": of(lambda t: t.to("meta"), lambda t: torch.empty(0)),
    "fake": _fake,
    "fake, outside of its mode": _fake_outside,
    "plain, in a FakeTensorMode": _in(lambda: FakeTensorMode(allow_non_fake_inputs=True)),
    "plain, with meta as default device": _in(lambda: torch.device("meta")),
    "in torch.func.functionalize": within(lambda function, tensors: torch.func.functionalize(function)(*tensors)),
    "in torch.func.grad": within(_grad),
    "in torch.func.jvp": within(_jvp),
    "in torch.func.vmap": within(_vmap),
    "plain, in torch.func.grad": _outside_of_grad,
    "in a FunctionalTensorMode": _functional_mode,
    "in make_fx": lambda call, tensors: recorded(call, tensors, []),
    "in a CommDebugMode": lambda call, tensors: counted(call, tensors, []),
    "subclass": of(lambda t: t.clone().as_subclass(Subclass), lambda t: t.as_subclass(torch.Tensor)),
    "subclass that wraps another tensor": of(lambda t: Wrapper(t.clone()), lambda t: t.held),
    "DTensor": _dtensors,
    "unawaited AsyncCollectiveTensor": _unawaited,
}


def given(collective: Collective, rank: int) -> Tensors:
    """The tensors that a rank brings."""
    return [
        (torch.arange(count) % 4 + 10 * rank + 20 * place + 1).to(torch.float32)
        for place, count in enumerate(collective.counts)
    ]
