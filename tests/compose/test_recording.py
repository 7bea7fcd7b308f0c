"""The record of a job of containers: out of what its members say, and of what switches count."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from fanin.emulation.containers.job import show
from fanin.emulation.containers.recording import PAGE_FILE, RECORD_FILE, Recorder, grown, settings_of
from fanin.emulation.containers.roster import Roster
from fanin.records.record import RunRecord


def test_a_counter_that_fell_began_anew() -> None:
    assert grown([5, 8, 2, 3]) == [0, 3, 5, 6]
    assert grown([]) == []


def test_options_are_settings_and_secrets_are_not() -> None:
    environment = {
        "FANIN_LANES": "8",
        "FANIN_FAULTS": "",
        "FANIN_JOB": "job",
        "FANIN_CURVE_SERVER_KEY": "k" * 40,
        "HOME": "/",
    }
    assert settings_of(environment) == {"FANIN_LANES": "8"}


def a_job(recorder: Recorder) -> Roster:
    """Two members, of whom the first has trained for a step and the second failed."""
    roster = Roster(2)
    for name in ("a", "b"):
        member = roster.join(name, f"10.0.0.{len(roster.members)}", 0.0)
        recorder.joined(member, {"type": "join", "command": "train", "settings": {"FANIN_LANES": "8"}})
    roster.close_if_complete(0.0)
    first, second = roster.members
    recorder.begin(roster.members)
    now = time.monotonic()
    recorder.reported(first, {"event": "epoch", "epoch": 1, "loss": 0.5, "accuracy": 0.75, "steps": 10})
    recorder.reported(first, {"event": "end", "replica": "abc"})
    reduction = {"kind": "reduction", "submitted": now + 1.0, "done": now + 2.0, "bytes": 8, "step": 0}
    recorder.timeline(first, [{"kind": "start", "time": now}, {**reduction, "packing_s": 0.25, "sending_s": 0.25}])
    recorder.timeline(first, [{"kind": "end", "time": now + 2.5, "counters": {"retransmissions": 3}}])
    roster.ended(first, 0, "", 1.0)
    roster.ended(second, 1, "ValueError: no\nand more", 1.0)
    recorder.happened("rank 1 failed")
    return roster


@pytest.mark.parametrize("switch", ["hosts", "rank0", "udp://a:1,udp://b:1"])
def test_switches_that_only_their_ranks_may_ask_are_not_asked(
    switch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(Recorder, "_watch", lambda self, url, path: asked.append(url))
    with Recorder(tmp_path) as recorder:
        roster = Roster(1)
        recorder.joined(roster.join("a", "10.0.0.1", 0.0), {"type": "join", "settings": {"FANIN_SWITCH": switch}})
        recorder.begin(roster.members)
    assert not asked


def test_what_programs_print_and_write_costs_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures that are no numbers, lines of a time line that are none, and a page that cannot be drawn."""
    with Recorder(tmp_path) as recorder:
        roster = Roster(1)
        (member,) = [roster.join("a", "10.0.0.1", 0.0)]
        asked = {"FANIN_FAULTS": "kill=worker:0@step:99;kill=worker:0@step:1"}
        recorder.joined(member, {"type": "join", "command": "train", "settings": asked})
        roster.close_if_complete(0.0)
        recorder.begin(roster.members)
        for said in ({"epoch": float("nan")}, {"loss": float("inf"), "epoch": 1}, {"step_s": 10**400}, {"loss": "low"}):
            recorder.reported(member, said)
            show(member, {"event": "epoch", **said})
        now = time.monotonic()
        strange: list[dict[str, Any]] = [
            {"kind": "end"},
            {"kind": ["start"]},
            {"kind": "step", "time": "now", "step": 1},
            {"time": now},
        ]
        recorder.timeline(member, [*strange, {"kind": "start", "time": now}, {"kind": "step", "time": now, "step": 1}])
        roster.ended(member, 0, "", 1.0)
        monkeypatch.setattr("fanin.emulation.report.page.plots_of", lambda record: 1 / 0)
        said_last = recorder.write(roster.members, "finished", "")
    assert said_last[0] == f"record: {tmp_path / RECORD_FILE}"
    assert "ZeroDivisionError" in said_last[1]
    record = RunRecord.read(tmp_path / RECORD_FILE)
    assert [(each.epoch, each.loss) for each in record.progress] == [(1, None)]
    assert record.notes[1:] == (
        "rank 0 printed epoch nan: plots leave it out",
        "rank 0 printed loss inf: plots leave it out",
        "rank 0 printed step_s a number too large: plots leave it out",
        "fault that never fired: kill=worker:0@step:99 (rank 0 ended without it)",
    )
    assert [event.text for event in record.events] == ["kill=worker:0@step:1"]
    assert "job: epoch   1  loss inf" in capsys.readouterr().out


def test_a_record_has_what_members_said(tmp_path: Path) -> None:
    with Recorder(tmp_path) as recorder:
        said = recorder.write(a_job(recorder).members, "failed", "rank 1 failed")
    assert said == [f"record: {tmp_path / RECORD_FILE}", f"report: {tmp_path / PAGE_FILE}"]
    record = RunRecord.read(tmp_path / RECORD_FILE)
    assert (record.kind, record.outcome, record.command) == ("compose", "failed", "train")
    assert record.settings == {"workers": 2, "lanes": "8"}
    first, second = record.workers
    assert [span.activity for span in first.spans] == ["compute", "quantize", "send", "wait", "compute"]
    assert first.counters == {"retransmissions": 3.0}
    assert (first.outcome, second.outcome) == ("finished", "ValueError: no")
    assert second.spans == ()
    assert [(progress.epoch, progress.accuracy) for progress in record.progress] == [(1, 0.75)]
    assert [event.text for event in record.events] == ["rank 1 failed"]


def test_a_folder_that_cannot_be_written_is_said_and_is_no_failure_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Recorder(tmp_path / "nowhere") as recorder:
        (said,) = recorder.write(a_job(recorder).members, "finished", "")
    assert said.startswith(f"no report: the record {tmp_path / 'nowhere' / RECORD_FILE} cannot be written")
    assert "Remedy" in said


@pytest.mark.parametrize("outcome", ["finished", "interrupted"])
def test_every_outcome_has_a_page(tmp_path: Path, outcome: str) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.write(a_job(recorder).members, "finished" if outcome == "finished" else "interrupted", "")
    assert outcome in (tmp_path / PAGE_FILE).read_text()
