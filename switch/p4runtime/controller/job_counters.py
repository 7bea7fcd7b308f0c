"""Counters of the pipeline, by the names that the software switch uses.

Each job has a row of every counter, and one of drops by reason; row 0 counts packets that belong to no job. The
pipeline does not count the packets that the controller itself sends and refuses: they are added here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fanin.protocol.wire import Reason
from fanin.switch.machine.tally import DROPS
from fanin.switch.p4runtime.controller.links import Link
from fanin.switch.p4runtime.controller.placed_job import PlacedJob
from fanin.switch.p4runtime.controller.vocabulary import Vocabulary

REASONS = 32
"""Number of drop counters of one job (p4/v1model/tally.p4)."""
TALLY = ("contributions", "passes", "duplicates", "rounds", "answers", "notices")


def reset_counters(words: Vocabulary, row: int) -> list[Any]:
    """Updates that set all counters of a row to 0."""
    updates = [words.counter(name, row, reset=True) for name in _names(words)]
    return updates + [words.counter("drops", row * REASONS + reason, reset=True) for reason in DROPS]


def read_counters(link: Link, words: Vocabulary, rows: Sequence[int], jobs: Iterable[PlacedJob]) -> dict[str, int]:
    """Counts summed over these rows, plus the packets that the controller itself sent and refused for `jobs`."""
    names = _names(words)
    wanted = [words.counter(name, row) for row in rows for name in names]
    cells = link.read(wanted)
    drops = [row * REASONS + reason for row in rows for reason in DROPS]
    dropped = link.read([words.counter("drops", index) for index in drops])
    numbers = {words.counter(name, None).counter_entry.counter_id: name for name in names}
    counts = dict.fromkeys(("packets_in", "bytes_in", "packets_out", *TALLY), 0)
    for cell in cells:
        entry = cell.counter_entry
        name = numbers[entry.counter_id]
        counts[{"packets": "packets_in", "sent": "packets_out"}.get(name, name)] += entry.data.packet_count
        if name == "packets":
            counts["bytes_in"] += entry.data.byte_count
    totals: dict[Reason, int] = dict.fromkeys(DROPS, 0)
    for cell in dropped:
        number = cell.counter_entry.index.index % REASONS
        if number in Reason._value2member_map_ and Reason(number) in totals:
            totals[Reason(number)] += cell.counter_entry.data.packet_count
    for job in jobs:
        counts["packets_out"] += job.sent
        for reason, count in job.refused.items():
            totals[reason] += count
    return counts | {f"dropped_{reason.name.lower()}": count for reason, count in totals.items()}


def _names(words: Vocabulary) -> tuple[str, ...]:
    return ("packets", *TALLY, *(("sent",) if words.has_counter("sent") else ()))
