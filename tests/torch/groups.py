"""Process groups whose ranks are threads of this process, as torchft has them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count

from torch._C import _distributed_c10d as c10d

from fanin.host.torch import FaninProcessGroup
from fanin.options import Options
from tests.support.processes import DEADLINE_S, on_every

SIZE = 3
LONG = timedelta(seconds=2 * DEADLINE_S)
_names = count()

Groups = list[FaninProcessGroup]


def on_every_rank(act: Callable[[int], object], ranks: range = range(SIZE)) -> list[object]:
    """Results of each rank's thread."""
    return on_every(act, ranks)


def make_groups(options: Options | None) -> Groups:
    store = c10d.HashStore()
    name = f"g{next(_names)}"

    def make(rank: int) -> FaninProcessGroup:
        return FaninProcessGroup(c10d.PrefixStore(name, store), rank, SIZE, LONG, group_name=name, options=options)

    return on_every(make, range(SIZE))


@contextlib.contextmanager
def groups_of(options: Options | None) -> Iterator[Groups]:
    groups = make_groups(options)
    try:
        yield groups
    finally:
        for group in groups:
            group.shutdown()
