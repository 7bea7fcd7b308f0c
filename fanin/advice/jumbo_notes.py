"""Jumbo frames in the conclusions of `fanin advise`: whether they pass, and the time that they would save."""

from __future__ import annotations

from collections.abc import Sequence

from fanin.advice.forecasts import Choice, Network, Profile, step_s, with_mtu
from fanin.processor_prices import JUMBO_MTU

WORTH_IT = 1.02
"""Least gain that is worth a change of the network."""


def jumbo_notes(network: Network, hosts: Sequence[str], choice: Choice, profile: Profile) -> list[str]:
    """Lines for people; none on one host, or where packets of JUMBO_MTU bytes pass. `hosts`: names, by host."""
    if network.hosts < 2 or network.mtu >= JUMBO_MTU:
        return []
    now_s, then_s = (step_s(each, choice, profile) for each in (network, with_mtu(network, JUMBO_MTU)))
    do_not_pass = f"packets of {JUMBO_MTU:,} bytes do not pass between all hosts"
    if now_s < WORTH_IT * then_s:
        return [f"{do_not_pass}; they would gain less than {WORTH_IT - 1:.0%}"]
    short = [name for name, mtu in zip(hosts, network.interface_mtus, strict=False) if mtu < JUMBO_MTU]
    remedy = (
        f"where cards and switches can: MTU {JUMBO_MTU} at the interfaces of {', '.join(short)}, and at every switch "
        "between the hosts"
        if short
        else "the hosts' interfaces take them, a switch between the hosts does not"
    )
    return [
        f"{do_not_pass}; with them, {choice.in_words} is predicted to take {then_s * 1e3:,.1f} ms instead of "
        f"{now_s * 1e3:,.1f}, {now_s / then_s:.2f} times as fast ({remedy})"
    ]
