"""`python -m fanin.emulation.network.stats_sampler URL SECONDS`: prints a switch's statistics as JSON lines.

    {"time": CLOCK_MONOTONIC, "counters": {...}, "last_arrivals": {"0": n, ...}}

It prints no line while the switch does not answer, and ends when its standard output is closed.
"""

from __future__ import annotations

import json
import sys
import time

from fanin.errors import FaninError
from fanin.host.session.control import ask
from fanin.key_file import operator_credentials
from fanin.options import SwitchAddress
from fanin.protocol import control
from fanin.protocol.seal import OPEN

LAST_ARRIVALS = "last_arrivals_"
ASK_TIMEOUT_S = 1.0


def sample(address: SwitchAddress) -> dict[str, object] | None:
    """Ask a switch for one sample; None without an answer. Only an operator is told the last arrivals."""
    try:
        credentials = operator_credentials(None) or OPEN
        answer = ask(address, control.Ask(), timeout_s=ASK_TIMEOUT_S, credentials=credentials, otherwise_open=True)
    except FaninError:
        return None
    if not isinstance(answer, control.Stats):
        return None
    counters: dict[str, int] = {}
    for data in answer.data:
        for name, count in data.counters.items():
            counters[name] = counters.get(name, 0) + count
    last: dict[str, int] = {}
    for job in answer.jobs:
        for name, count in job.counters.items():
            if name.startswith(LAST_ARRIVALS):
                rank = name.removeprefix(LAST_ARRIVALS)
                last[rank] = last.get(rank, 0) + count
    return {"time": time.monotonic(), "counters": counters, "last_arrivals": last}


def main() -> None:
    """Print samples until nobody reads them."""
    address, interval_s = SwitchAddress.parse(sys.argv[1]), float(sys.argv[2])
    while True:
        found = sample(address)
        if found is not None:
            print(json.dumps(found), flush=True)
        time.sleep(interval_s)


if __name__ == "__main__":
    main()
