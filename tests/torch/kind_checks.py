"""Every kind of tensor in every collective, over fanin and gloo. Run by rank_main.py; see test_tensor_kinds.py."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C import _distributed_c10d as c10d
from torch.fx.experimental.proxy_tensor import make_fx

from fanin.errors import ArgumentError, UnsupportedError
from tests.torch.kind_calls import COLLECTIVES, KINDS, Caller, RefusedAtRootError, counted, given, recorded
from tests.torch.tensor_kinds import (
    ARGUMENT,
    NOTHING,
    OTHER,
    RAISES,
    RESULT,
    ROWS,
    TRIED_WITH,
    UNSUPPORTED,
    UNTRIED,
    Row,
)

MEMORYLESS = ("meta", "fake", "fake, outside of its mode", "plain, in a FakeTensorMode")


def outcome(kind: str, collective: str, caller: Caller, rank: int) -> tuple[str, str]:
    """One of tensor_kinds.py's outcomes, and what an error said."""
    called, tensors = COLLECTIVES[collective], given(COLLECTIVES[collective], rank)
    try:
        results = KINDS[kind](caller.call(called), tensors)
    except RefusedAtRootError:
        return "", ""
    except UnsupportedError as error:
        return UNSUPPORTED, str(error)
    except ArgumentError as error:
        return ARGUMENT, str(error)
    except Exception as error:
        return RAISES, repr(error)
    if kind in MEMORYLESS:
        unchanged = all(map(torch.equal, results, KINDS[kind](lambda _: None, given(called, rank))))
        return (NOTHING if unchanged else OTHER), ""
    expected = KINDS[kind](lambda _: None, caller.plain_results(collective))  # which may call collectives, too
    if not called.written(rank):
        return "", ""
    return (RESULT if same(results, expected) else OTHER), f"{results} for {expected}"


def same(results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    return all(a.shape == b.shape and torch.allclose(a, b) for a, b in zip(results, expected, strict=True))


def table(group: Any, rank: int, untried: set[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
    """Outcomes by kind and collective."""
    caller = Caller(group, rank, dist.distributed_c10d._get_default_store())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of kinds that it means to give up
        return {
            (kind, collective): outcome(kind, collective, caller, rank)
            for kind in KINDS
            for collective in COLLECTIVES
            if (kind, collective) not in untried
        }


def check_every_kind_of_tensor_in_every_collective(rank: int, size: int) -> None:
    told = table(None, rank, set())
    assert_as_in_the_table(told, Row.fanin_in)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 3


def assert_as_in_the_table(
    told: dict[tuple[str, str], tuple[str, str]], listed: Callable[[Row, str], str], *, one_sided: bool = False
) -> None:
    assert [row.kind for row in ROWS] == list(KINDS)
    wrong = []
    for row in ROWS:
        for collective in COLLECTIVES:
            wanted = listed(row, collective)
            found, said = told.get((row.kind, collective), ("", ""))
            # gloo may lose the elements of one rank alone, or raise at the root alone.
            if found not in ("", wanted) and not (wanted in (OTHER, RAISES) and found == RESULT and one_sided):
                wrong.append(f"{row.kind} in {collective}: {found} ({said}), not {wanted}")
    assert not wrong, "\n".join(wrong)


def check_modes_and_graphs_are_told_of_collectives_as_over_gloo(rank: int, size: int) -> None:
    caller = Caller(None, rank, dist.distributed_c10d._get_default_store())
    for name, collective in COLLECTIVES.items():
        for observe in (recorded, counted):
            told: list[str] = []
            results = observe(caller.call(collective), given(collective, rank), told)
            # CommDebugMode has no count of messages between two ranks, over gloo either.
            if observe is recorded or name not in ("send", "recv"):
                assert f"c10d.{collective.operator}.default" in told, f"{name}, {observe.__name__}: {told}"
            if collective.written(rank):
                assert same(results, caller.plain_results(name)), f"{name}, {observe.__name__}"


def check_a_graph_with_a_recorded_collective_is_refused(rank: int, size: int) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        dist.all_reduce(y)
        return y

    graph = make_fx(function)(torch.ones(4))
    graph.graph.eliminate_dead_code = lambda *_: False  # type: ignore[method-assign]
    with pytest.raises(UnsupportedError, match="functional collectives"):
        graph(torch.ones(4))


def check_a_work_that_was_begun_outside_of_a_transform_may_be_awaited_within(rank: int, size: int) -> None:
    outputs = [torch.zeros(4) for _ in range(size)]
    work = dist.all_gather(outputs, torch.full((4,), float(rank)), async_op=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        assert work is not None
        work.wait()
        return x.sum()

    torch.func.grad(function)(torch.ones(2))
    assert [output.tolist() for output in outputs] == [[float(each)] * 4 for each in range(size)]


def check_wait_tensor_waits_for_what_is_in_flight(rank: int, size: int) -> None:
    """One rank begins late, so that what does not wait is seen to be early."""
    store = dist.distributed_c10d._get_default_store()
    caller = Caller(None, rank, store)
    before = c10d._get_work_registry_size()
    for name, collective in COLLECTIVES.items():
        if name in ("all_reduce", "all_reduce (large)", "all_reduce_coalesced", "send", "recv"):
            continue  # which their callers have waited for
        tensors = given(collective, rank)
        if rank:
            store.wait([f"in flight/{name}"])
        with functional.allow_inflight_collective_as_graph_input_ctx():
            work = collective.start(None, tensors, rank)
            if rank == 0 or name != "gather":  # of which the others have no output
                assert c10d._get_work_registry_size() > before, name
        if not rank:
            assert not work.is_completed() or name in ("scatter",), name
            store.set(f"in flight/{name}", "begun")
        for tensor in tensors:
            torch.ops.c10d_functional.wait_tensor(tensor)
        if collective.written(rank):
            assert same(tensors, caller.plain_results(name)), name
        assert work.wait()
        assert c10d._get_work_registry_size() == before, name


def check_works_that_were_waited_for_leave_torchs_registry(rank: int, size: int) -> None:
    before = c10d._get_work_registry_size()
    whole = torch.ones(8)
    with functional.allow_inflight_collective_as_graph_input_ctx():
        first, second = (dist.all_reduce(part, async_op=True) for part in whole.split(4))  # of one storage
        assert first is not None
        assert second is not None
        first.wait()
        assert c10d._get_work_registry_size() > before  # the other one's
        torch.ops.c10d_functional.wait_tensor(whole)
        assert whole.tolist() == [float(size)] * 8
        assert c10d._get_work_registry_size() == before
        second.wait()
        dist.all_reduce(whole)  # done when it returns
        assert c10d._get_work_registry_size() == before
        third = dist.all_reduce(whole, async_op=True)
        assert third is not None
    third.get_future().wait()
    assert c10d._get_work_registry_size() == before
    work = dist.all_reduce(whole, async_op=True)
    assert work is not None
    assert c10d._get_work_registry_size() == before  # not asked for
    work.wait()


def check_gloo_makes_of_them_what_the_table_says(rank: int, size: int) -> None:
    if torch.__version__.split("+")[0] != TRIED_WITH or "FANIN_FALLBACK" in os.environ:  # which gloo does not see
        return
    untried = {(row.kind, each) for row in ROWS for each in COLLECTIVES if row.gloo_in(each) == UNTRIED}
    told = table(dist.new_group(backend="gloo"), rank, untried)
    assert_as_in_the_table(told, Row.gloo_in, one_sided=True)
