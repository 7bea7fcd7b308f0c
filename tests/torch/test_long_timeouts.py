"""Timeouts that gloo and torch's stores cannot count: they are as good as none."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import ConfigurationError
from fanin.host.torch import FaninProcessGroup
from fanin.host.torch.collectives.reading import read_call
from fanin.host.torch.handles.timeouts import LONGEST, of_group
from fanin.options import Options
from tests.support.processes import on_every

SIZE = 2
TOO_LONG = timedelta(days=100_000)
_names = count()


@pytest.mark.parametrize("as_members", [False, True], ids=["world", "group"])
def test_a_group_whose_timeout_is_too_long_to_count_takes_every_way(as_members: bool) -> None:
    """The switch, gloo, messages between ranks, and waits that are given such a timeout, too."""
    store: Any = c10d.HashStore()  # torch's stubs lack `timeout`
    store.set_timeout(TOO_LONG)  # as init_process_group does
    name = f"long{next(_names)}"

    def act(rank: int) -> list[float]:
        group = FaninProcessGroup(
            c10d.PrefixStore(name, store), rank, SIZE, TOO_LONG, group_name=name, options=Options(),
            global_ranks=range(SIZE) if as_members else (),
        )  # fmt: skip
        try:
            total, product, message = torch.ones(5000), torch.full((3,), 2.0, dtype=torch.float64), torch.zeros(1)
            group.allreduce([total]).wait(TOO_LONG)
            group.allreduce([product], dist.ReduceOp.PRODUCT).wait(TOO_LONG)
            group.set_timeout(TOO_LONG)
            group.barrier().wait()
            if rank == 0:
                group.send([torch.ones(1)], 1, 7).wait(TOO_LONG)
            else:
                group.recv_anysource([message], 7).wait(TOO_LONG)
            return [float(total[0]), float(product[0]), float(message)]
        finally:
            group.shutdown()

    assert on_every(act, range(SIZE)) == [[2.0, 4.0, 0.0], [2.0, 4.0, 1.0]]
    assert store.timeout == LONGEST


def test_a_collective_is_given_the_longest_timeout_in_place_of_one_above_it() -> None:
    opts = c10d.AllreduceOptions()
    opts.timeout = TOO_LONG
    ones = torch.ones(1)
    assert read_call("all_reduce", ones, [ones], opts, 7.0).timeout_s == LONGEST.total_seconds()
    assert read_call("all_reduce", ones, [ones], TOO_LONG, 7.0).timeout_s == LONGEST.total_seconds()


def test_a_timeout_that_can_be_counted_stays_and_so_does_its_stores() -> None:
    store: Any = c10d.HashStore()  # torch's stubs lack `timeout`
    store.set_timeout(timedelta(days=3))
    assert of_group(timedelta(days=2), 0, store) == timedelta(days=2)
    assert store.timeout == timedelta(days=3)


def test_a_timeout_below_zero_as_torch_makes_of_a_longer_one_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"^rank 1: the group's timeout is -60 s; .*Remedy: correct timeout$"):
        of_group(timedelta(seconds=-60), 1, c10d.HashStore())
