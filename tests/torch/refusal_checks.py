"""Calls that must be refused, or do nothing, over fanin and gloo alike. Run by rank_main.py; see test_refusals.py."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from fanin.errors import ArgumentError, ConfigurationError, UnsupportedError
from fanin.host.torch import counters
from fanin.options import Options

Case = Callable[[Any, int, int], Any]
MAX = dist.ReduceOp.MAX


def full(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype)


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, device="meta")


def at_root(rank: int, tensors: list[torch.Tensor]) -> list[torch.Tensor] | None:
    return tensors if rank == 0 else None


REFUSED: dict[str, Case] = {
    "scatter 0.75 into integers": lambda g, r, n: g.reduce_scatter_tensor(full(4).int(), 0.75 * full(4 * n)),
    "scatter 200s into bytes": lambda g, r, n: g.reduce_scatter_tensor(
        full(4, dtype=torch.uint8), full(4 * n, dtype=torch.int32)
    ),
    "scatter into complex": lambda g, r, n: g.reduce_scatter_tensor(full(4, dtype=torch.complex64), full(4 * n)),
    "scatter into too much": lambda g, r, n: g.reduce_scatter_tensor(full(5), full(4 * n)),
    "scatter a list into another type": lambda g, r, n: g.reduce_scatter(full(4).int(), [full(4)] * n),
    "scatter a list of two types": lambda g, r, n: g.reduce_scatter(full(4), [full(4)] * (n - 1) + [full(4).int()]),
    "scatter a list that is too long": lambda g, r, n: g.reduce_scatter(full(4), [full(4)] * (n + 1)),
    "scatter a list that is too short": lambda g, r, n: g.reduce_scatter(full(4), [full(4)] * (n - 1)),
    "scatter a list of another size": lambda g, r, n: g.reduce_scatter(full(5), [full(4)] * n),
    "scatter a list partly without memory": lambda g, r, n: g.reduce_scatter(full(4), [full(4)] * (n - 1) + [meta(4)]),
    "gather into another type": lambda g, r, n: g.all_gather_into_tensor(full(4 * n).int(), full(4)),
    "gather into too much": lambda g, r, n: g.all_gather_into_tensor(full(4 * n + 1), full(4)),
    "gather a list of another type": lambda g, r, n: g.all_gather([full(4).int() for _ in range(n)], full(4)),
    "gather a list of another size": lambda g, r, n: g.all_gather([full(5) for _ in range(n)], full(4)),
    "gather a list that is too long": lambda g, r, n: g.all_gather([full(4) for _ in range(n + 1)], full(4)),
    "gather a list partly without memory": lambda g, r, n: g.all_gather([full(4)] * (n - 1) + [meta(4)], full(4)),
    "reduce to nobody": lambda g, r, n: g.reduce(full(4), 99),
    "reduce to a negative rank": lambda g, r, n: g.reduce(full(4), -1),
    "broadcast from nobody": lambda g, r, n: g.broadcast(full(4), 99),
    "gather to nobody": lambda g, r, n: g.gather(full(4), None, 99),
    "scatter from nobody": lambda g, r, n: g.scatter(full(4), None, 99),
    "bits of floats": lambda g, r, n: g.all_reduce(full(4), dist.ReduceOp.BAND),
    "several, some without memory": lambda g, r, n: g.all_reduce_coalesced([full(4), meta(4)]),
}
NOTHING: dict[str, Case] = {
    "all_reduce": lambda g, r, n: g.all_reduce(meta(4)),
    "maximum": lambda g, r, n: g.all_reduce(meta(4), MAX),
    "reduce": lambda g, r, n: g.reduce(meta(4), 0),
    "broadcast": lambda g, r, n: g.broadcast(meta(4), 0),
    "all_gather": lambda g, r, n: g.all_gather([meta(4) for _ in range(n)], meta(4)),
    "all_gather_into_tensor": lambda g, r, n: g.all_gather_into_tensor(meta(4 * n), meta(4)),
    "reduce_scatter": lambda g, r, n: g.reduce_scatter(meta(4), [meta(4) for _ in range(n)]),
    "reduce_scatter_tensor": lambda g, r, n: g.reduce_scatter_tensor(meta(4), meta(4 * n)),
    "only the output": lambda g, r, n: g.reduce_scatter_tensor(meta(4), full(4 * n)),
    "gather": lambda g, r, n: g.gather(meta(4), at_root(r, [meta(4) for _ in range(n)]), 0),
    "scatter": lambda g, r, n: g.scatter(meta(4), at_root(r, [meta(4) for _ in range(n)]), 0),
    "all_to_all_single": lambda g, r, n: g.all_to_all_single(meta(4 * n), meta(4 * n)),
    "all_to_all": lambda g, r, n: g.all_to_all([meta(4) for _ in range(n)], [meta(4) for _ in range(n)]),
    "send": lambda g, r, n: g.send(meta(4), (r + 1) % n),
}
IMAGINED: dict[str, Case] = {
    "all_reduce": lambda g, r, n: g.all_reduce(full(4)),
    "broadcast": lambda g, r, n: g.broadcast(full(4), 0),
    "all_gather": lambda g, r, n: g.all_gather([full(4) for _ in range(n)], full(4)),
    "reduce_scatter_tensor": lambda g, r, n: g.reduce_scatter_tensor(full(4), full(4 * n)),
    "all_to_all_single": lambda g, r, n: g.all_to_all_single(full(4 * n), full(4 * n)),
}
EMPTY: dict[str, Case] = {
    "all_reduce": lambda g, r, n: g.all_reduce(full(0)),
    "reduce_scatter_tensor": lambda g, r, n: g.reduce_scatter_tensor(full(0), full(0)),
    "all_gather": lambda g, r, n: g.all_gather([full(0) for _ in range(n)], full(0)),
    "broadcast": lambda g, r, n: g.broadcast(full(0), 0),
    "gather": lambda g, r, n: g.gather(full(0), at_root(r, [full(0) for _ in range(n)]), 0),
    "all_to_all_single": lambda g, r, n: g.all_to_all_single(full(0), full(0)),
}


class Collectives:
    """torch.distributed's collectives over one group."""

    def __init__(self, group: Any) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *arguments: getattr(dist, name)(*arguments, group=self._group)


def outcome(case: Case, group: Any, rank: int, size: int) -> str:
    """Whether a call was refused."""
    try:
        case(Collectives(group), rank, size)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        return f"refused: {error}"
    return "done"


def calls() -> dict[str, int | float]:
    """Counters of collectives, the engine's aside."""
    return {name: count for name, count in counters().items() if not name.startswith("engine.")}


def works(size: int) -> None:
    """The group is as it was."""
    tensor = full(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 3


def check_what_gloo_refuses_is_refused_before_anything_is_sent(rank: int, size: int) -> None:
    gloo = dist.new_group(backend="gloo")
    for name, case in REFUSED.items():
        before = calls()
        own = outcome(case, dist.group.WORLD, rank, size)
        assert own.startswith("refused"), f"{name}: {own}"
        assert calls() == before, f"{name}: something was sent"
        assert outcome(case, gloo, rank, size).startswith("refused"), f"{name}: gloo takes it"
        works(size)


def check_a_rank_that_alone_is_refused_may_go_on(rank: int, size: int) -> None:
    for name, case in REFUSED.items():
        if rank == size - 1:
            assert outcome(case, dist.group.WORLD, rank, size).startswith("refused"), name
        works(size)


def check_tensors_without_memory_are_left_alone_as_gloo_does(rank: int, size: int) -> None:
    gloo = dist.new_group(backend="gloo")
    for name, case in NOTHING.items():
        assert [outcome(case, group, rank, size) for group in (dist.group.WORLD, gloo)] == ["done"] * 2, name
    with FakeTensorMode():
        for name, case in IMAGINED.items():
            assert [outcome(case, group, rank, size) for group in (dist.group.WORLD, gloo)] == ["done"] * 2, name
    work = dist.all_reduce(meta(4), async_op=True)
    assert work is not None
    assert work.wait()
    works(size)


def check_tensors_without_elements_pass(rank: int, size: int) -> None:
    gloo = dist.new_group(backend="gloo")
    for name, case in EMPTY.items():
        assert [outcome(case, group, rank, size) for group in (dist.group.WORLD, gloo)] == ["done"] * 2, name
    works(size)


def overlapping(count: int) -> torch.Tensor:
    """Two rows, the second of which begins one element after the first."""
    return torch.ones(count).as_strided((2, count // 2), (1, 1))


def check_outputs_whose_elements_share_memory_are_refused(rank: int, size: int) -> None:
    calls: tuple[Callable[[torch.Tensor], object], ...]
    for count in (4, 5000):
        calls = (
            lambda t: dist.all_reduce(t),
            lambda t: dist.broadcast(t, 0),
            lambda t: dist.reduce(t, 0),
            lambda t: dist.reduce_scatter_tensor(t, full(t.numel() * size)),
            lambda t: dist.all_gather_into_tensor(t, full(t.numel() // size)),
            lambda t: dist.all_to_all_single(t, full(t.numel())),
            lambda t: dist.recv(t, 1 - rank),
        )
        for call in calls:
            for tensor in (full(1).expand(count), overlapping(count), full(2, 1).expand(2, count // 2)):
                with pytest.raises(ArgumentError, match="share memory"):
                    call(tensor)
    works(size)


def check_lists_of_outputs_that_share_memory_are_refused(rank: int, size: int) -> None:
    group: Any = dist.group.WORLD
    whole = full(4 * size + 4)
    before = calls()
    for outputs in (
        [whole[:4]] * size,
        [whole[3 * each :][:4] for each in range(size)],
        [whole[:8].view(4, 2)[:, 1]] * size,
        [whole[2 * each :][::2][:3] for each in range(size)],
    ):
        part = torch.ones_like(outputs[0])
        into: tuple[Callable[[Any, torch.Tensor], object], ...] = (
            lambda to, part: dist.all_gather(to, part),
            lambda to, part: dist.all_to_all(to, [part] * size),
            lambda to, part: dist.all_reduce_coalesced(to),
            lambda to, part: group.reduce_scatter_tensor_coalesced(to, [part.repeat(size)] * size),
            lambda to, part: group.allgather_coalesced([[each] for each in to], [part]),
        )
        for call in into:
            with pytest.raises(ArgumentError, match="outputs share memory"):
                call(outputs, part)
        if rank == 0:
            with pytest.raises(ArgumentError, match="outputs share memory"):
                dist.gather(part, outputs, 0)
    assert calls() == before
    columns = list(full(4, size).unbind(1))  # which lie between each other's elements
    dist.all_gather(columns, full(4) * rank)
    assert [column.tolist() for column in columns] == [[float(each)] * 4 for each in range(size)]
    works(size)


def check_inputs_that_lie_in_outputs_are_read_before_they_are_written(rank: int, size: int) -> None:
    for count in (4, 40_000):
        both = torch.arange(size * count) + 1000 * rank
        part = both[count // 2 :][:count]  # in the midst of what is written
        expected = torch.cat([torch.arange(count // 2, count // 2 + count) + 1000 * each for each in range(size)])
        dist.all_gather_into_tensor(both, part)
        assert both.tolist() == expected.tolist()
        rows = torch.arange(size * count) + 1000 * rank
        expected = torch.cat([torch.arange(rank * count, (rank + 1) * count) + 1000 * each for each in range(size)])
        dist.all_to_all_single(rows, rows)
        assert rows.tolist() == expected.tolist()


ILL_DIVIDED: dict[str, Case] = {
    "negative": lambda g, r, n: g.all_to_all_single(full(4), full(4), [-1, 5], [-1, 5]),
    "negative input alone": lambda g, r, n: g.all_to_all_single(full(4), full(4), [2, 2], [-1, 5]),
    "too few": lambda g, r, n: g.all_to_all_single(full(4), full(4), [2, 1], [2, 2]),
    "too many": lambda g, r, n: g.all_to_all_single(full(4), full(4), [2, 2], [2, 3]),
    "for another number of ranks": lambda g, r, n: g.all_to_all_single(full(4), full(4), [2, 1, 1], [2, 1, 1]),
    "no equal parts": lambda g, r, n: g.all_to_all_single(full(3), full(3)),
    "rows of unlike shape": lambda g, r, n: g.all_to_all_single(full(4, 2), full(4, 3)),
    "rows of unlike shape with sizes": lambda g, r, n: g.all_to_all_single(
        full(2, 2), full(2, 3), [2 * (r != 0), 2 * (r == 0)], [2 * (r != 0), 2 * (r == 0)]
    ),
    "another part for itself": lambda g, r, n: g.all_to_all_single(full(4), full(4), [3, 1], [1, 3]),
    "lists, another part for itself": lambda g, r, n: g.all_to_all([full(3)] * n, [full(2)] * n),
}


def check_rows_that_are_ill_divided_are_refused_and_nobody_waits(rank: int, size: int) -> None:
    for name, case in ILL_DIVIDED.items():
        if rank == size - 1:  # the others are in the right collective meanwhile
            before = calls()
            with pytest.raises(ArgumentError):
                case(Collectives(dist.group.WORLD), rank, size)
            assert calls() == before, f"{name}: something was sent"
        output = torch.zeros(2 * size)
        dist.all_to_all_single(output, full(2 * size), [2] * size, [2] * size)
        assert output.tolist() == [1.0] * 2 * size, name
    works(size)


def freed(count: int) -> torch.Tensor:
    tensor = full(count)
    tensor.untyped_storage().resize_(0)
    return tensor


def check_a_residual_that_was_freed_is_refused(rank: int, size: int) -> None:
    group: Any = dist.group.WORLD
    shrunk = full(5000)
    strided = shrunk[::2]
    shrunk.untyped_storage().resize_(400)
    for residual in (freed(5000), shrunk):
        with pytest.raises(ArgumentError, match="residual"):
            group.all_reduce_lanes(full(5000), lanes=8, residual=residual)
    for tensor in (freed(5000), shrunk, strided):
        with pytest.raises(ArgumentError, match=r"freed or shrunk"):
            group.all_reduce_lanes(tensor, lanes=8)
        with pytest.raises(ArgumentError, match=r"freed or shrunk"):
            dist.all_reduce(tensor)
    works(size)


def check_only_sums_take_sparse_tensors(rank: int, size: int) -> None:
    def sparse(dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([1, 0, 2 + rank, 0]).to(dtype).to_sparse()

    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.uint8):
        for op, divisor in ((dist.ReduceOp.SUM, 1), (dist.ReduceOp.AVG, size)):
            tensor = sparse(dtype)
            dist.all_reduce(tensor, op)
            wanted = torch.tensor([size, 0, 2 * size + size * (size - 1) // 2, 0]).div(divisor).to(dtype)
            assert tensor.dtype is dtype
            assert torch.equal(tensor.to_dense(), wanted), (dtype, op)
    before = calls()
    with pytest.raises(UnsupportedError, match=r"MAX of a sparse tensor of int64"):
        dist.all_reduce(sparse(torch.int64), MAX)
    with pytest.raises(UnsupportedError, match=r"SUM of a sparse tensor of bool"):
        dist.all_reduce(sparse(torch.bool))
    for call in (
        lambda t: dist.broadcast(t, 0),
        lambda t: dist.reduce(t, 0),
        lambda t: dist.all_gather([full(4)] * size, t),
        lambda t: dist.send(t, 1 - rank),
    ):
        with pytest.raises(UnsupportedError, match=r"layout torch.sparse_coo"):
            call(sparse(torch.float32))
    assert calls() == before
    works(size)


def check_tensors_that_wrap_others_are_refused(rank: int, size: int) -> None:
    mesh = init_device_mesh("cpu", (size,))
    before = calls()
    for count in (4, 5000):
        wrapped = DTensor.from_local(full(count), mesh, [Shard(0)])
        for call in (
            lambda t: dist.all_reduce(t),
            lambda t: dist.all_reduce(t, MAX),
            lambda t: dist.broadcast(t, 0),
            lambda t: dist.all_gather([full(t.numel()) for _ in range(size)], t),
            lambda t: dist.reduce_scatter_tensor(full(t.numel() // size), t),
            lambda t: dist.all_to_all_single(full(t.numel()), t),
            lambda t: dist.send(t, (rank + 1) % size),
        ):
            with pytest.raises(UnsupportedError, match=r"a DTensor, which has no memory.*to_local\(\)"):
                call(wrapped)
    assert calls() == before
    works(size)


def check_a_residual_that_an_engine_would_write_beyond_is_refused(rank: int, size: int) -> None:
    group: Any = dist.group.WORLD
    before = calls()
    for tensor, residual in (
        (full(5000), full(4999)),
        (full(5000), full(5001)),
        (full(5000), full(5000, dtype=torch.float64)),
        (full(5000), full(5000, dtype=torch.float16)),
        (full(5000), full(5000, 2)[:, 0]),
        (full(5000, dtype=torch.complex64), full(5000)),  # two numbers for each
        (full(5000), meta(5000)),
    ):
        with pytest.raises(ArgumentError, match="residual"):
            group.all_reduce_lanes(tensor, lanes=8, residual=residual)
    with pytest.raises(ArgumentError, match="residual"):
        group.reduce_scatter_lanes(full(5000), full(5000 * size), lanes=8, residual=full(5000))
    assert calls() == before
    works(size)


def check_strided_outputs_are_written(rank: int, size: int) -> None:
    wide = torch.zeros(4, 2)
    dist.reduce_scatter_tensor(wide[:, 1], full(4 * size))
    assert wide.tolist() == [[0.0, float(size)]] * 4


def check_pairs_are_all_looked_at_before_the_first_is_sent(rank: int, size: int) -> None:
    group: Any = dist.group.WORLD
    before = calls()
    for outputs, inputs in (
        ([full(2), full(2).int()], [full(2 * size), full(2 * size)]),
        ([full(2), full(3)], [full(2 * size), full(2 * size)]),
        ([full(2)], [full(2 * size), full(2 * size)]),
    ):
        with pytest.raises(ArgumentError):
            group.reduce_scatter_tensor_coalesced(outputs, inputs)
        with pytest.raises(ArgumentError):
            group.allgather_into_tensor_coalesced(inputs, outputs)
    assert calls() == before
    works(size)


def check_ranks_with_other_options_are_named_on_all(rank: int, size: int) -> None:
    cases: tuple[tuple[str, Any, Any], ...] = (
        ("exact_elements", 10, None),
        ("codec", None, "rotated:8"),
        ("fallback", "gloo", "raise"),
        ("fallback", "raise", "gloo"),
        ("on_worker_loss", "continue", "raise"),
        ("on_worker_loss", "raise", "continue"),
        ("lanes", 32, 16),
        ("ordered_futures", True, False),
        ("switch", None, "udp://127.0.0.1:1"),
        ("rack", "left", None),
    )
    for name, first, other in cases:
        said = re.escape(f"was given {name}={other!r} (rank 0: {first!r}). Remedy: the same on ")
        with pytest.raises(ConfigurationError, match=f"rank [1-9] {said}.*FANIN_{name.upper()}"):
            dist.new_group(backend="fanin", pg_options=Options(**{name: other if rank else first}))
    works(size)


def check_ranks_with_other_secrets_are_named_on_all(rank: int, size: int) -> None:
    one, another = "a secret of sixteen", "quite another secret"
    for first, other, said in ((None, one, "a secret.*none"), (one, None, "no secret.*one"), (one, another, "another")):
        with pytest.raises(ConfigurationError, match=f"rank [1-9] was given {said}.*FANIN_SECRET") as refused:
            dist.new_group(backend="fanin", pg_options=Options(secret=other if rank else first))
        assert one not in str(refused.value)
        assert another not in str(refused.value)
    works(size)


def check_tensors_for_another_backend_of_the_group_are_refused(rank: int, size: int) -> None:
    group = dist.new_group(backend="cpu:fanin,cuda:nccl")
    with FakeTensorMode():
        elsewhere = torch.empty(4, device="cuda")
    before = calls()
    for call in (lambda: dist.all_reduce(elsewhere, group=group), lambda: dist.send(elsewhere, 1 - rank, group=group)):
        with pytest.raises(ArgumentError, match=r"no nccl beside it.*new_group\(backend='nccl'\)"):
            call()
    assert calls() == before
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [size] * 3
    works(size)
