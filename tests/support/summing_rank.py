"""A rank for tests, run as a program without torch: joins a job at a switch and sums, so often or without end.

`python summing_rank.py FACTS`: a JSON object with what the test wants; torchrun's variables and FANIN_* say the rest.

| fact | is | otherwise |
|---|---|---|
| `switch`, `rank`, `size` | as in JoinTerms | FANIN_SWITCH, RANK, WORLD_SIZE |
| `job` | its name | sums |
| `engine` | further options | none |
| `element`, `count` | of what is summed | float32, 20,000 |
| `steps` | how many sums; errors are raised | without end; the last line is the error |
| `habit` | `forks`, or `holds the interpreter` after the first sum | neither |

With FANIN_TIMELINE it writes down each sum that it has, as torch's ranks do with their steps.
The last line of a rank that has taken its steps is `{"loss": ...}`, by how much its sums were wrong.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import sys
import time
from typing import Any, TextIO

import numpy as np

from fanin.errors import FaninError
from fanin.host.session.joining import JoinTerms
from fanin.host.session.session import Session
from fanin.numerics.reduction import Element, Reduction
from fanin.options import Options, SwitchAddress

HELD_S = 2
LIMIT_S = 60.0


def main(facts: dict[str, Any]) -> None:
    """Join, and sum until the steps are done or an error comes."""
    steps, environment = facts.get("steps"), os.environ
    options = Options.from_environment(environment, connect_timeout_s=10.0, **facts.get("engine", {}))
    try:
        with Session.join(
            JoinTerms(
                options=options,
                switch=SwitchAddress.parse(facts.get("switch") or environment["FANIN_SWITCH"]),
                job_name=facts.get("job", "sums"),
                rank=int(facts["rank"] if "rank" in facts else environment["RANK"]),
                size=int(facts["size"] if "size" in facts else environment["WORLD_SIZE"]),
            )
        ) as session:
            print(json.dumps({"joined": session.description}), flush=True)
            if facts.get("habit") == "forks" and os.fork() == 0:
                sys.stdin.read()  # until the test lets go of the other end
                os._exit(0)
            worst = sums(session, steps, facts, options.timeline)
        print(json.dumps({"loss": worst}))
    except FaninError as error:
        if steps is not None:
            raise
        print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)


def sums(session: Session, steps: int | None, facts: dict[str, Any], timeline: str | None) -> float:
    """The largest error of any sum."""
    path = os.devnull if timeline is None else timeline.replace("%r", str(session.rank))
    with open(path, "a", encoding="utf-8", buffering=1) as lines:
        return summed(session, steps, facts, lines)


def summed(session: Session, steps: int | None, facts: dict[str, Any], lines: TextIO) -> float:
    """The same, with a line in a file for each sum."""
    element = Element[facts.get("element", "float32").upper()]
    dtype = np.int32 if element is Element.INT32 else np.float32
    size, worst = session.size, 0.0
    values = np.empty(facts.get("count", 20_000), dtype)
    result = np.zeros_like(values)
    for step in itertools.count() if steps is None else range(steps):
        # Integers differ by rank and step; floats are ones, as what other ranks of such a job contribute.
        values[:] = session.rank + 1 + step if element is Element.INT32 else 1
        request = Reduction(
            source=values.ctypes.data,
            destination=result.ctypes.data,
            count=values.size,
            element=element,
            owner=(values, result),
        )
        session.wait(session.submit(request), None if steps is None else LIMIT_S)
        expected = size * (size + 1) // 2 + size * step if element is Element.INT32 else size
        worst = max(worst, float(np.abs(result - expected).max()))
        assert worst == 0
        lines.write(json.dumps({"kind": "step", "time": time.monotonic(), "step": step + 1}) + "\n")
        if step == 0 and facts.get("habit") == "holds the interpreter":
            ctypes.PyDLL(None).sleep(HELD_S)  # unlike CDLL, with the interpreter's lock
    return worst


main(json.loads(sys.argv[1]))
