"""A worker for tests, run as a program: joins a job, then reduces without end; its last line says what ended it."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

import numpy as np

from fanin.errors import FaninError
from fanin.host.session.session import Session
from fanin.numerics.reduction import Element, Reduction
from fanin.options import Options, SwitchAddress

COUNT = 20_000
HELD_S = 2


def main(facts: dict[str, Any]) -> None:
    """Join and reduce until an error comes, and print it."""
    options = Options(connect_timeout_s=10.0, **facts["engine"])
    try:
        with Session.join(
            options=options,
            switch=SwitchAddress.parse(facts["switch"]),
            job_name=facts["job"],
            rank=facts["rank"],
            size=facts["size"],
        ) as session:
            print(json.dumps({"joined": session.description}), flush=True)
            if facts["habit"] == "forks" and os.fork() == 0:
                sys.stdin.read()  # until the test lets go of the other end
                os._exit(0)
            values, result = np.ones(COUNT, np.float32), np.zeros(COUNT, np.float32)
            while True:
                request = Reduction(
                    source=values.ctypes.data,
                    destination=result.ctypes.data,
                    count=COUNT,
                    element=Element.FLOAT32,
                    owner=(values, result),
                )
                session.wait(session.submit(request))
                assert (result == session.size).all()
                if facts["habit"] == "holds the interpreter":
                    ctypes.PyDLL(None).sleep(HELD_S)  # unlike CDLL, with the interpreter's lock
                    facts["habit"] = ""
    except FaninError as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}), flush=True)


main(json.loads(sys.argv[1]))
