"""The printed output of `fanin advise`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from fanin.advice.advising import Advice
from fanin.emulation.figures import FigureTable, milliseconds


def _span(values: Sequence[float], form: str) -> str:
    """The least and the largest value, or one of them where they look alike."""
    return " to ".join(dict.fromkeys(format(each, form) for each in (min(values), max(values))))


def report(advice: Advice, console: Console) -> None:
    """Print the advice for people."""
    network = advice.network
    mbit = [f"{rate / 1e6:,.0f}" for rate in network.rates]
    console.print(
        f"{network.size} ranks on {network.hosts} hosts; links of {', '.join(dict.fromkeys(mbit))} Mbit/s; round trip "
        f"{network.round_trip_s * 1e6:,.0f} us; "
        f"ECN marks {'pass' if advice.ecn else 'do not pass'}; packets of {network.mtu:,} bytes pass"
        if network.hosts > 1
        else f"{network.size} ranks on one host"
    )  # fmt: skip
    idle, speeds = network.idle or (1.0,), network.core_speeds or (1.0,)
    console.print(
        f"cores per host: {_span(network.cores, '.3g')}, idle for {_span(idle, '.0%')} of the time, "
        f"{_span(speeds, '.2g')} times as fast as those of docs/advise.md"
    )
    for rack, rate in zip(network.racks, network.uplinks, strict=True):
        console.print(
            f"  behind one uplink of {rate / 1e6:,.0f} Mbit/s: {', '.join(advice.hosts[host] for host in rack)}"
        )
    sums = len(advice.profile.buckets)
    what = (
        f"a step of {sums} sums, {advice.profile.bytes:,} bytes"
        if sums > 1
        else f"a sum of {advice.profile.bytes:,} bytes"
    )
    headings = ("", "predicted ms", "bound by", "measured ms", "gloo's, beside it", "gloo / ours")
    table = FigureTable(what, headings, left=("bound by",))
    for each in advice.found:
        gain = "" if each.gain is None else f"{each.gain:.2f}"
        predicted, measured, gloos = map(milliseconds, (each.predicted_s, each.measured_s, each.gloo_s))
        table.add(each.choice.in_words, predicted, each.bound or "", measured, gloos, gain)
    console.print(table)
    for note in advice.notes:
        console.print(note)
    if advice.best is None:
        console.print("stay with gloo: nothing that was looked at is 5 % faster")
        return
    best_gain, how = advice.best.gain, "measured"
    if best_gain is None:
        gloo_s = next(each.predicted_s for each in advice.found if not each.choice.place)
        best_gain, how = gloo_s / advice.best.predicted_s, "predicted"
    console.print(f"recommended: {advice.best.choice.in_words}; {how}: {best_gain:.2f} times as fast as gloo")
    console.print("  on every rank: " + " ".join(f"{variable}={text}" for variable, text in advice.settings.items()))
    for name, rack_name in zip(advice.hosts, advice.racks, strict=False):
        console.print(f"  on {name}: FANIN_RACK={rack_name}")
    if advice.best.choice.lanes != 32:
        console.print("  narrow lanes round gradients: see docs/numerics.md, and compare a run's accuracy")
