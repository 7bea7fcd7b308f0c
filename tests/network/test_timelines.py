"""Time lines of workers, from what they wrote and what the switch counted."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from fanin.emulation.network.timelines import Arrivals, counters_in, read_lines, spans, steps_in, waited_for


def reduction(submitted: float, done: float, packing_s: float = 0.0, sending_s: float = 0.0) -> dict[str, object]:
    """A line of a worker's file."""
    return {
        "kind": "reduction",
        "submitted": submitted,
        "done": done,
        "bytes": 100,
        "packing_s": packing_s,
        "sending_s": sending_s,
        "step": 1,
    }


START = {"kind": "start", "time": 10.0, "rank": 0, "restart": 0}


def test_a_time_line_has_no_gap_and_no_overlap() -> None:
    lines = [START, reduction(11.0, 12.0, 0.1, 0.2), reduction(11.5, 13.0, 0.1, 0.2), reduction(14.0, 15.0)]
    found = spans([*lines, {"kind": "end", "time": 16.0, "counters": {"gaps": 1}}], 10.0, [])
    assert [span.activity for span in found] == ["compute", "quantize", "send", "wait", "compute", "wait", "compute"]
    assert found[0].start_s == 0.0
    assert found[-1].end_s == pytest.approx(6.0)
    for before, after in itertools.pairwise(found):
        assert after.start_s == pytest.approx(before.end_s)
    assert found[1].end_s - found[1].start_s == pytest.approx(0.2)
    assert found[3].bytes == 200


def test_processor_time_beyond_the_stretch_leaves_no_wait() -> None:
    found = spans([START, reduction(10.0, 11.0, packing_s=3.0, sending_s=1.0)], 10.0, [])
    assert [span.activity for span in found] == ["quantize", "send"]
    assert found[-1].end_s == pytest.approx(1.0)


def test_who_came_last_in_between_is_who_was_waited_for() -> None:
    arrivals = [Arrivals(1.0, {0: 10, 1: 10}), Arrivals(2.0, {0: 12, 1: 90, 2: 5}), Arrivals(3.0, {0: 99, 1: 90, 2: 5})]
    assert waited_for(arrivals, 1.2, 1.9) == (1, 2, 0)
    assert waited_for(arrivals, 2.1, 2.2) == (0,)
    assert waited_for(arrivals, 3.5, 4.0) == ()


def test_a_worker_that_was_killed_leaves_what_it_had_written(tmp_path: Path) -> None:
    path = tmp_path / "timeline-0.jsonl"
    path.write_text('{"kind": "start", "time": 1.0}\n{"kind": "step", "time": 2.0, "step": 1}\n{"kind": "st')
    assert steps_in(path) == 1
    assert counters_in(read_lines(path)) == {}
    assert [span.activity for span in spans(read_lines(path), 1.0, [])] == ["compute"]
    assert read_lines(tmp_path / "none") == []
