"""The output of `fanin emulate`: the scenario at the beginning, links while it runs, a line per worker at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from rich.filesize import decimal
from rich.text import Text

from fanin.emulation.figures import FigureTable
from fanin.emulation.network.scenario import Scenario
from fanin.records.record import LinkSample, RunRecord

COLOURS = {"finished": "green", "failed": "red", "interrupted": "yellow"}
ITSELF = "itself"
"""Shown where a worker waited for its own rank: its own contribution was the last to arrive at the switch."""


def description(scenario: Scenario) -> str:
    """Describe the cluster: links, topology, and everything that differs from the defaults."""
    parts = [f"links {scenario.rate}, delay {scenario.delay}, loss {scenario.loss}, MTU {scenario.mtu}"]
    topology = scenario.topology
    parts += [f"{topology.hosts} hosts of {topology.ranks_per_host} ranks"] if topology.ranks_per_host > 1 else []
    parts += [f"{scenario.racks} racks"] if scenario.racks > 1 else []
    parts += [f"{scenario.cards} network cards each"] if scenario.cards > 1 else []
    parts += [f"{scenario.tcp_flows} TCP flows"] if scenario.tcp_flows else []
    parts += [f"worker {rank} {factor:g}x slower" for rank, factor in scenario.slowdowns.items()]
    where = f"switch {scenario.target}, {topology.switch_at.in_words}"
    return "; ".join([*parts, where, *scenario.faults])


def links_now(time_s: float, links: Mapping[str, Sequence[LinkSample]]) -> FigureTable | Text:
    """Table of the links' current rates; before the first packet one line, since workers take seconds to import."""
    if not any(sample.up_bytes for samples in links.values() for sample in samples[-1:]):
        return Text(f"{time_s:.0f} s: workers start")
    return links_table(time_s, links)


def links_table(time_s: float, links: Mapping[str, Sequence[LinkSample]]) -> FigureTable:
    """A table of the links' rates at this moment."""
    table = FigureTable(f"{time_s:.0f} s", ("link", "up", "down", "sent", "dropped"))
    for name, samples in links.items():
        last = samples[-1]
        before = samples[-2] if len(samples) > 1 else LinkSample(time_s=0.0, up_bytes=0, down_bytes=0)
        span_s = max(last.time_s - before.time_s, 1e-9)
        up, down = ((last.up_bytes - before.up_bytes) / span_s, (last.down_bytes - before.down_bytes) / span_s)
        table.add(
            name, f"{up * 8e-6:.0f} Mbit/s", f"{down * 8e-6:.0f} Mbit/s", decimal(last.up_bytes), f"{last.dropped:,}"
        )
    return table


def summary(record: RunRecord) -> FigureTable:
    """The final table: outcome of the run, and a line per worker."""
    title = Text.assemble((record.outcome, COLOURS[record.outcome]), f" after {record.duration_s:.1f} s")
    headings = ("worker", "computed", "quantized", "sent", "waited", "most for", "link up", "resent")
    table = FigureTable(title, headings)
    links = {link.name: link.samples[-1].up_bytes for link in record.links if link.samples}
    per_host = record.settings.get("ranks_per_host") or 1
    for_itself = False
    for worker in record.workers:
        spent: dict[str, float] = defaultdict(float)
        blamed: dict[int, float] = defaultdict(float)
        for span in worker.spans:
            spent[span.activity] += span.end_s - span.start_s
            for rank in span.waited_for[:1]:
                blamed[rank] += span.end_s - span.start_s
        most = max(blamed, key=lambda rank: blamed[rank]) if blamed else None
        for_itself |= most == worker.rank
        table.add(
            str(worker.rank),
            *(f"{spent[activity]:.2f} s" for activity in ("compute", "quantize", "send", "wait")),
            "" if most is None else ITSELF if most == worker.rank else f"worker {most}",
            decimal(links.get(f"worker {worker.rank}", links.get(f"host {worker.rank // int(per_host)}", 0))),
            f"{worker.counters.get('retransmissions', 0):,.0f}",
        )
    ends = [event.text for event in record.events if event.kind == "end"]
    errors = [record.error] if record.error and not any(record.error in end for end in ends) else []
    meaning = [f"{ITSELF}: the worker's own packets came last"] * for_itself
    table.caption = "\n".join([*meaning, *errors, *ends, *record.notes])
    return table
