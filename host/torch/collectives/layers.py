"""Collectives under torch's transforms and modes, and of tensors whose class has `__torch_dispatch__`.

torch's own groups call operators (c10d::allreduce_, ...), and torch's dispatcher takes off one layer after the other:
functionalization, torch.func's grad and jvp, make_fx, fake tensors, tensor subclasses. A group written in Python is
called before all of that, with tensors whose elements are in other tensors.

Rules
-----
* A call goes through the operator while a transform or a mode is active, or where a tensor has a Python class with
  `__torch_dispatch__`. All other calls, nearly all, pay for two questions to torch.
* Beneath every layer, at the dispatch key BackendSelect, is a kernel of ours: it calls the group's method again with
  the tensors that are left. Under a layer that never calls the kernel, such as a fake mode, nothing is carried out.
* The first such call registers the kernels, which stay. Collectives of other backends pass through them to torch's.
* torch's own refusals (vmap has no rule for collectives, DTensor none for in-place ones) become UnsupportedErrors.
* A graph that make_fx recorded cannot be run: its nodes do not wait for results, over any backend. The kernel refuses
  it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from fanin.errors import FaninError, UnsupportedError
from fanin.host.torch.handles.host_tensor import ORDINARY, modes_active, transform

_c10d: Any = c10d
"""`c10d` as Any, for names that torch's type stubs lack or declare otherwise."""
_BOTTOM = torch._C.DispatchKey.BackendSelect
"""The lowest dispatch key above those of devices."""
_UNKNOWN_TIMEOUT_MS = -1
"""Timeout argument of an operator, which nobody reads: the group's method is given the caller's options."""

Arguments = Callable[..., tuple[Any, ...]]


class _Operator:
    """The arguments that torch's C++ passes to one operator."""

    def __init__(self, name: str, tensors: int, arguments: Arguments = lambda *rest: (), *, tail: int = 2) -> None:
        """`name`: of the collective, in errors. `tensors`: how many leading arguments hold tensors; the group follows.

        `arguments`: makes those between the group and the last `tail` ones (asyncOp and timeout) of the method's.
        """
        self.name, self.tensors, self.arguments, self.tail = name, tensors, arguments, tail


_OPERATORS: dict[str, _Operator] = {
    "allreduce_": _Operator("all_reduce", 1, lambda opts, *_: (_boxed(opts), None)),
    "allreduce_coalesced_": _Operator("all_reduce_coalesced", 1, lambda opts: (_boxed(opts),)),
    "reduce_": _Operator("reduce", 1, lambda opts, *_: (_boxed(opts), _root(opts), 0)),
    "broadcast_": _Operator("broadcast", 1, lambda opts, *_: (_root(opts), 0)),
    "allgather_": _Operator("all_gather", 2),
    "_allgather_base_": _Operator("all_gather_into_tensor", 2),
    "allgather_coalesced_": _Operator("all_gather_coalesced", 2, tail=1),
    "allgather_into_tensor_coalesced_": _Operator("all_gather_into_tensor_coalesced", 2, tail=1),
    "gather_": _Operator("gather", 2, lambda opts, *_: (_root(opts),)),
    "scatter_": _Operator("scatter", 2, lambda opts, *_: (_root(opts),)),
    "reduce_scatter_": _Operator("reduce_scatter", 2, lambda opts, *_: (_boxed(opts),)),
    "_reduce_scatter_base_": _Operator("reduce_scatter_tensor", 2, lambda opts: (_boxed(opts),)),
    "reduce_scatter_tensor_coalesced_": _Operator(
        "reduce_scatter_tensor_coalesced", 2, lambda opts: (_boxed(opts),)
    ),
    "alltoall_": _Operator("all_to_all", 2),
    "alltoall_base_": _Operator("all_to_all_single", 2, lambda sent, kept, *_: (list(sent), list(kept))),
    "send": _Operator("send", 1, lambda peer, tag: (peer, tag), tail=0),
    "recv_": _Operator("recv", 1, lambda peer, tag: (peer, tag), tail=0),
    "recv_any_source_": _Operator("recv", 1, lambda tag: (tag,), tail=0),
}  # fmt: skip


class _Call(threading.local):
    """The collective that this thread has handed to the dispatcher."""

    operator: str = ""
    method: Callable[..., Any] | None = None
    """The group's method that carries out the collective."""
    rest: tuple[Any, ...] = ()
    """The method's arguments after the tensors."""
    work: Any = None
    """The work that the method has returned, once the kernel has called it."""
    at_bottom: bool = False
    """Whether the kernel is calling the method now."""


_CALL = _Call()


def layered(given: Any) -> bool:
    """Whether a collective of these tensors (one, a list, or lists of lists) must go through the dispatcher."""
    if modes_active() or transform() is not None:
        return not _CALL.at_bottom
    for each in (given,) if isinstance(given, torch.Tensor) else given:
        if type(each) not in ORDINARY and _has_own_class(each):
            return not _CALL.at_bottom
    return False


def _has_own_class(given: Any) -> bool:
    if not isinstance(given, torch.Tensor):
        return any(type(each) not in ORDINARY and _has_own_class(each) for each in given or ())
    # The group itself waits for a functional collective's result.
    return not isinstance(given, AsyncCollectiveTensor) and _dispatches(given)


def _dispatches(tensor: torch.Tensor) -> bool:
    return bool(torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python))


def through(
    group: Any, operator: str, method: Callable[..., Any], tensors: tuple[Any, ...], rest: tuple[Any, ...]
) -> Any:
    """Call `method(*tensors, *rest)` of `group` beneath all layers; returns its work, or a layer's own.

    Raises what the method raises, and UnsupportedError where a layer refuses.
    """
    _register_kernels()
    kind = _OPERATORS[operator]
    opts = rest[2] if operator == "alltoall_base_" else rest[0]
    tail = (bool(getattr(opts, "asyncOp", True)), _UNKNOWN_TIMEOUT_MS)[: kind.tail]
    before = vars(_CALL).copy()
    _CALL.operator, _CALL.method, _CALL.rest, _CALL.work = operator, method, rest, None
    try:
        answer = getattr(torch.ops.c10d, operator).default(*tensors, group.boxed(), *kind.arguments(*rest), *tail)
        if _CALL.work is not None:
            return _CALL.work
        return c10d.Work.unbox(answer[-1] if isinstance(answer, tuple | list) else answer)
    except FaninError:
        raise
    except (RuntimeError, NotImplementedError, TypeError, AssertionError) as error:
        if (layer := _layer_of(tensors)) is None:  # the program's own mode has raised it
            raise
        said = str(error).partition("\n")[0]
        raise UnsupportedError(
            f"{kind.name}: {layer} does not take it: {type(error).__name__}: {said}. Remedy: call it outside that layer"
        ) from error
    finally:
        vars(_CALL).clear()
        vars(_CALL).update(before)


def devices_of(given: Any) -> set[str]:
    """Kinds of devices of all tensors in lists and tuples."""
    return {tensor.device.type for tensor in _flat(given)}


def _layer_of(tensors: Any) -> str | None:
    """The outermost of torch's layers, in words."""
    if (interpreter := transform()) is not None:
        return f"torch.func ({interpreter.key().name.lower()})"
    for tensor in _flat(tensors):
        if type(tensor) not in ORDINARY and _dispatches(tensor):
            remedy = "Remedy: the tensor inside it (of a DTensor to_local(), or redistribute() instead)"
            return f"a {type(tensor).__name__}, which has no memory of its own ({remedy}),"
    modes = (torch._C._get_dispatch_mode(key) for key in vars(torch._C._TorchDispatchModeKey).values() if _is_key(key))
    return next((type(mode).__name__ for mode in modes if mode is not None), None)


def _is_key(value: object) -> bool:
    return isinstance(value, torch._C._TorchDispatchModeKey)


def _flat(given: Any) -> Iterator[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        yield given
    elif given is not None:
        for each in given:
            yield from _flat(each)


# --- the kernels ---

_LIBRARY: torch.library.Library | None = None
_REGISTERING = threading.Lock()


def _register_kernels() -> None:
    global _LIBRARY
    with _REGISTERING:
        if _LIBRARY is None:
            library = torch.library.Library("c10d", "IMPL")
            for name in _OPERATORS:
                library.impl(name, functools.partial(_kernel, name), "BackendSelect", with_keyset=True)
            _LIBRARY = library


def _kernel(name: str, keys: Any, *arguments: Any) -> Any:
    """Carry out an operator beneath all layers: by the group's own method, or torch's operator for other backends."""
    operator = getattr(torch.ops.c10d, name).default
    tensors = _OPERATORS[name].tensors
    if c10d.ProcessGroup.unbox(arguments[tensors]).name() != "fanin":
        return operator.redispatch(keys.remove(_BOTTOM), *arguments)
    if _CALL.method is None or _CALL.operator != name:
        raise UnsupportedError(
            f"{_OPERATORS[name].name}: a recorded call of an operator that waits for nothing. Remedy: functional "
            "collectives (torch.distributed._functional_collectives), which graphs record together with their waits"
        )
    _CALL.at_bottom = True
    try:
        work = _CALL.work = _CALL.method(*map(_unwrapped, arguments[:tensors]), *_CALL.rest)
    finally:
        _CALL.at_bottom = False
    return work.boxed() if len(operator._schema.returns) == 1 else (arguments[0], work.boxed())


def _unwrapped(given: Any) -> Any:
    """Tensors without the wrappers of torch.func's grad and jvp, which torch leaves on those in lists of lists."""
    if not isinstance(given, torch.Tensor):
        return [_unwrapped(each) for each in given]
    while torch._C._functorch.is_gradtrackingtensor(given):
        given = torch._C._functorch.get_unwrapped(given)
    return given


# --- arguments as C++ holds them ---


def _root(opts: Any) -> int:
    return int(opts if isinstance(opts, int) else 0 if opts is None else opts.rootRank)


class _Boxing(TorchDispatchMode):
    """Catches the operator of an all-reduce by torch's C++, to get its reduction operator in C++'s form (`boxed`)."""

    boxed: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.boxed = args[2]
        return args[0], _c10d._create_work_from_future(torch.futures.Future()).boxed()


def _boxed(opts: Any) -> Any:
    """The ReduceOp of an options object, or a bare one, in the form in which torch's C++ passes it to operators."""
    options = c10d.AllreduceOptions()
    op = getattr(opts, "reduceOp", opts)
    options.reduceOp = op if type(op) is dist.ReduceOp else dist.ReduceOp(op)
    with torch._C._DisableFuncTorch(), _disable_current_modes():
        nothing = torch.empty(0, device="cpu")
        boxing = _Boxing()  # type: ignore[no-untyped-call]
        with boxing:
            _c10d.ProcessGroup(0, 1).allreduce([nothing], options)
    return boxing.boxed
