"""A rank of `fanin.benchmarks.planted_faults`, without torch: computes and sums until its parent ends it.

Arguments: a folder, in which a file `slow-RANK` makes the rank compute twice as long; the switches, separated by
commas; the job's name.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import numpy as np

from fanin.host.session.joining import JoinTerms
from fanin.host.session.joining_shards import join_shards
from fanin.host.session.session import Session
from fanin.host.session.shards import ShardedSession
from fanin.numerics.reduction import Element, Reduction
from fanin.options import Options, SwitchAddress

COMPUTE_S = 0.03
ELEMENTS = 250_000


def main(folder: Path, switches: list[SwitchAddress], job: str) -> None:
    """Compute and sum for ever, as training does."""
    options = Options.from_environment(os.environ, connect_timeout_s=20.0)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    values = np.ones(ELEMENTS, np.float32)
    result = np.zeros_like(values)
    with contextlib.closing(_joined(options, switches, job, rank, size)) as session:
        while True:
            time.sleep(COMPUTE_S * (2 if (folder / f"slow-{rank}").exists() else 1))
            request = Reduction(
                source=values.ctypes.data, destination=result.ctypes.data, count=values.size, element=Element.FLOAT32,
                owner=(values, result),
            )  # fmt: skip
            session.wait(session.submit(request))


def _joined(
    options: Options, switches: list[SwitchAddress], job: str, rank: int, size: int
) -> Session | ShardedSession:
    terms = JoinTerms(options=options, switch=switches[0], job_name=job, rank=rank, size=size)
    return Session.join(terms) if len(switches) == 1 else join_shards(terms, switches, frozenset())


if __name__ == "__main__":
    main(Path(sys.argv[1]), [SwitchAddress.parse(each) for each in sys.argv[2].split(",")], sys.argv[3])
