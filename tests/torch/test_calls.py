"""The reading of torch's arguments into a call, and lanes that travel with a tensor."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import ConfigurationError
from fanin.host.torch import set_lanes
from fanin.host.torch.collectives.reading import read_call
from fanin.host.torch.handles.call import Call
from tests.torch.groups import SIZE, groups_of, on_every_rank

DEFAULT_S = 7.0
X = torch.ones(3)


def options_of(kind: Any, **fields: object) -> Any:
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def read(opts: Any, **given: Any) -> Call:
    return read_call("reduce", X, [X], opts, DEFAULT_S, **given)


def test_options_objects_say_operator_root_timeout_and_whether_the_caller_waits() -> None:
    asked = options_of(c10d.ReduceOptions, reduceOp=dist.ReduceOp.MAX, rootRank=2, timeout=timedelta(seconds=3))
    call = read(asked, waits=True)
    assert (call.op == dist.ReduceOp.MAX, call.root, call.timeout_s, call.waits) == (True, 2, 3.0, False)
    asked.asyncOp = False
    assert read(asked, waits=True).waits
    assert not read(asked, waits=False).waits, "as between the begin and the end of coalescing"
    unset = options_of(c10d.AllreduceOptions, asyncOp=False)
    assert read(unset).timeout_s == DEFAULT_S
    assert type(read(unset).op) is dist.ReduceOp


@pytest.mark.parametrize(
    ("opts", "given", "wanted"),
    [
        (None, {}, ("SUM", 0, DEFAULT_S)),
        (dist.ReduceOp.MIN, {}, ("MIN", 0, DEFAULT_S)),
        (dist.ReduceOp(dist.ReduceOp.AVG), {"timeout": timedelta(seconds=2)}, ("AVG", 0, 2.0)),
        (1, {}, ("SUM", 1, DEFAULT_S)),
        (0, {"root": 2}, ("SUM", 2, DEFAULT_S)),
        (timedelta(seconds=5), {}, ("SUM", 0, 5.0)),
    ],
)
def test_bare_arguments_mean_the_same(opts: Any, given: dict[str, Any], wanted: tuple[str, int, float]) -> None:
    call = read(opts, **given)
    assert (call.op.op.name, call.root, call.timeout_s) == wanted
    assert not call.waits


def test_a_call_with_other_fields_leaves_the_first_as_it_was() -> None:
    call = read(None)
    other = call.but(lanes=8, collective="all_reduce")
    assert (call.lanes, call.collective) == (None, "reduce")
    assert (other.lanes, other.collective, other.source) == (8, "all_reduce", X)


def test_lanes_that_are_set_for_a_tensor_are_those_of_its_all_reduces_and_of_no_others() -> None:
    count = 20_000
    with groups_of(None) as groups:

        def act(rank: int) -> None:
            given = torch.randn(count, generator=torch.Generator().manual_seed(rank))
            marked, asked, plain, exact = (given.clone() for _ in range(4))
            owed, beside = torch.zeros(count), torch.zeros(count)
            set_lanes(marked, 8, owed)
            other = given.clone()
            groups[rank].allreduce([other]).wait()  # before it, unlike an all-reduce that is called next
            groups[rank].allreduce([marked]).wait()
            groups[rank].all_reduce_lanes(asked, lanes=8, residual=beside).wait()
            assert torch.equal(marked, asked)
            assert torch.equal(owed, beside)
            assert bool(owed.any())
            set_lanes(marked, None)
            marked.copy_(given)
            groups[rank].allreduce([marked]).wait()
            groups[rank].allreduce([plain]).wait()
            assert torch.equal(marked, plain)
            assert torch.equal(other, plain)
            assert not torch.equal(plain, asked)
            groups[rank].all_reduce_lanes(exact, lanes=0).wait()
            assert torch.allclose(plain, exact, atol=1e-3)

        on_every_rank(act, range(SIZE))


def test_lanes_in_words_that_mean_none_are_refused_when_they_are_set() -> None:
    with pytest.raises(ConfigurationError, match="lanes = '5/8'"):
        set_lanes(torch.ones(3), "5/8")
