"""Other load on the hosts in the conclusions of `fanin advise`."""

from __future__ import annotations

from collections.abc import Sequence

from fanin.advice.forecasts import Network

QUIET = 0.5
"""Least idle share of a host's processors with which predictions hold."""


def load_notes(network: Network, hosts: Sequence[str]) -> list[str]:
    """Lines for people; none where all hosts are quiet. `hosts`: names, by host.

    Predictions give the ranks what was idle before. Processes that run beside ranks leave them a fair share, which may
    be many times that.
    """
    busy = {name: 1.0 - idle for name, idle in zip(hosts, network.idle, strict=False) if idle < QUIET}
    if not busy:
        return []
    told = ", ".join(f"{name} ({share:.0%})" for name, share in busy.items())
    return [
        f"other processes kept processors busy: {told}; predictions leave them that much, and may be several times too "
        "long. Go by measured times, or ask again on quiet hosts"
    ]
