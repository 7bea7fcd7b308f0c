"""The record of a run: written and read back, and read strictly."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from fanin.errors import ConfigurationError
from fanin.records.record import (
    VERSION,
    LinkRecord,
    LinkSample,
    Row,
    RunRecord,
    Span,
    WorkerRecord,
    parse,
)


def record() -> RunRecord:
    """One with something in every kind of field."""
    span = Span(activity="wait", start_s=0.5, end_s=0.75, step=3, bytes=4096, waited_for=(1, 0))
    row = Row(
        backend="fanin",
        lanes=8,
        workers=8,
        bytes=1 << 20,
        rate_bit_s=1e8,
        measures="allreduce",
        median_s=0.3,
        fastest_s=0.2,
        slowest_s=0.4,
        samples=11,
        ideal_s=0.1,
        ratio_to_gloo=None,
        max_error=0.25,
    )
    link = LinkRecord(name="worker 0", rate_bit_s=None, samples=(LinkSample(time_s=0, up_bytes=5, down_bytes=6),))
    return RunRecord(
        version=VERSION,
        kind="emulate",
        title="a run",
        command="fanin emulate",
        started="2026-11-21T12:00:00Z",
        duration_s=1.5,
        outcome="finished",
        settings={"workers": 8, "rate": "1gbit", "loss": 0.001, "seed": None, "checksum": True},
        workers=(WorkerRecord(rank=0, place="namespace w0", outcome="finished", spans=(span,), counters={"gaps": 2}),),
        links=(link,),
        rows=(row,),
    )


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    record().write(path)
    assert RunRecord.read(path) == record()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("version",), VERSION + 1, "version"),
        (("duration_s",), "long", "duration_s"),
        (("surprise",), 1, "surprise"),
        (("workers", 0, "spans", 0, "activity"), "sleep", r"workers\[0\].spans\[0\].activity"),
        (("settings", "workers"), [8], "settings.workers"),
        (("rows", 0, "samples"), 1.5, r"rows\[0\].samples"),
    ],
)
def test_a_field_that_is_wrong_is_named(path: tuple[str | int, ...], value: object, said: str) -> None:
    body = json.loads(json.dumps(dataclasses.asdict(record())))
    inner = body
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ConfigurationError, match=said):
        parse(body)


def test_a_missing_field_is_named() -> None:
    body = json.loads(json.dumps(dataclasses.asdict(record())))
    del body["title"]
    with pytest.raises(ConfigurationError, match="title"):
        parse(body)
