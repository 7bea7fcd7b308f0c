"""Sessions of ranks at several switches, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fanin.host.session.joining import JoinTerms
from fanin.host.session.joining_shards import join_shards
from fanin.host.session.shards import ShardedSession
from fanin.options import Options, SwitchAddress
from tests.support.processes import DEADLINE_S

Result = TypeVar("Result")
WORKERS = 3


def together(calls: Sequence[Callable[[], Result]]) -> list[Result]:
    """All of them at once, as ranks are."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [each.result(DEADLINE_S) for each in [pool.submit(call) for call in calls]]


def join_all(
    addresses: list[SwitchAddress], *, native: bool, workers: int = WORKERS, shared: bool = True
) -> list[ShardedSession]:
    options = Options(
        words_per_packet=64, slots=8, connect_timeout_s=DEADLINE_S, join_timeout_s=DEADLINE_S, native=native
    )
    local = frozenset(addresses) if shared else frozenset[SwitchAddress]()

    def join(rank: int) -> ShardedSession:
        terms = JoinTerms(options=options, switch=addresses[0], job_name="spread", rank=rank, size=workers)
        return join_shards(terms, addresses, local)

    return together([partial(join, rank) for rank in range(workers)])


def tensors(count: int, workers: int = WORKERS) -> list[npt.NDArray[np.float32]]:
    draw = np.random.default_rng(7)
    return [(draw.normal(size=count) * 10.0 ** (draw.integers(-3, 4))).astype(np.float32) for _ in range(workers)]
