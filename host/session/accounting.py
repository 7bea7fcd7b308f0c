"""A rank's account of its time, from the counters of an engine that keeps one, for the switch to show."""

from __future__ import annotations

import time
from collections.abc import Callable

from fanin.host.engines.engine import Engine
from fanin.host.session.failures import MemberNames
from fanin.protocol.control import Spending, Spent

COUNTED = {
    "communicating_us": "communicating_us",
    "quantizing_us": "packing_us",
    "sending_us": "socket_send_us",
    "decoding_us": "decoding_us",
}
"""Fields of Spending, each with the engine's counter that fills it."""


def accountant(engine: Engine, who: MemberNames, nonce: str) -> Callable[[], Spent | None]:
    """Return a function that tells how the rank has spent its time from now on, or None if the engine counts none."""
    began_s = time.monotonic()

    def account() -> Spent | None:
        age_us = int((time.monotonic() - began_s) * 1e6)
        counters = engine.counters()
        if not counters.keys() >= set(COUNTED.values()):
            return None
        counted = {name: int(counters[counter]) for name, counter in COUNTED.items()}
        return Spent(job=who.job_name, rank=who.rank, nonce=nonce, spending=Spending(age_us=age_us, **counted))

    return account
