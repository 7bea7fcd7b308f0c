"""Notes on a run that come from the time lines of its workers."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fanin.emulation.network.fault_runner import END_OF
from fanin.emulation.network.observations import Observations
from fanin.emulation.network.scenario import Scenario
from fanin.records.record import Event

FAULT = "down=link:1@3s+2s"
SUM = {"kind": "reduction", "bytes": 4, "packing_s": 0.0, "sending_s": 0.0, "step": 1}


@pytest.mark.parametrize(
    ("sums", "note"),
    [
        ([(4.0, 4.5), (9.0, 9.5)], None),
        ([(1.0, 4.0)], None),
        ([(6.0, 9.0)], "it was over before the first sum; @step:40 counts from the training's beginning"),
        ([(1.0, 2.0)], "it began after the last sum"),
        ([], None),
    ],
)
def test_a_fault_of_a_link_that_met_no_sum_is_named(
    tmp_path: Path, sums: list[tuple[float, float]], note: str | None
) -> None:
    seen = Observations(Scenario(workers=2, faults=(FAULT,)), ["train"])
    seen.begin()
    origin_s = time.monotonic() - seen.now_s()
    for time_s, text in ((3.0, FAULT), (5.0, END_OF + FAULT)):
        seen.happened(Event(time_s=time_s, kind="fault", text=text))
    lines = [SUM | {"submitted": origin_s + begun_s, "done": origin_s + done_s} for begun_s, done_s in sums]
    (tmp_path / "timeline-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    seen.read_files(tmp_path, tmp_path)
    assert [each for each in seen.record().notes if "met nothing" in each] == (
        [] if note is None else [f"fault that met nothing: {FAULT} ({note})"]
    )
