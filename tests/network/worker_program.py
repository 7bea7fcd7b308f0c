"""A worker that joins the switch of its environment and sums 100,000 integers so often. No torch: it starts quickly."""

from __future__ import annotations

import json
import os
import sys

import numpy as np

from fanin.host.session.session import Session
from fanin.numerics.reduction import Element, Reduction
from fanin.options import Options, SwitchAddress

COUNT = 100_000


def main() -> None:
    """Report, as a loss, by how much the sums were wrong."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    options = Options.from_environment(os.environ)
    assert options.switch is not None
    worst = 0.0
    with Session.join(
        options=options, switch=SwitchAddress.parse(options.switch), job_name="sums", rank=rank, size=size
    ) as session:
        for step in range(int(sys.argv[1])):
            values = np.full(COUNT, rank + 1 + step, np.int32)
            address = values.ctypes.data
            reduction = Reduction(
                source=address,
                destination=address,
                count=COUNT,
                element=Element.INT32,
                signature=step + 1,
                owner=values,
            )
            session.wait(session.submit(reduction), 60.0)
            worst = max(worst, float(np.abs(values - (size * (size + 1) // 2 + size * step)).max()))
    print(json.dumps({"loss": worst}))


if __name__ == "__main__":
    main()
