"""Traces of real and simulated jobs: what viewers ask of the format, and figures that are the counters'."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fanin.cli import run
from fanin.emulation.simulator.links import Link
from fanin.emulation.simulator.scenario import JobPlan, Scenario, load
from fanin.emulation.simulator.simulation import Simulation
from fanin.emulation.tracing import Trace, replay_of_simulation, trace_of_files, trace_of_simulation
from fanin.emulation.tracing.clocks import RankTimes, align
from fanin.emulation.tracing.simulated import TraceRecorder
from fanin.errors import ConfigurationError

FUZZ_US = 1e-6
SVG = "{http://www.w3.org/2000/svg}"
SUMS = 12


def lines_of(rank: int, ahead_s: float = 0.0, drift: float = 0.0, host: str = "here") -> list[dict[str, Any]]:
    """A rank whose clock is ahead, in a job whose rank 1 begins each sum 20 ms after rank 0. Two sums overlap."""

    def at(time_s: float) -> float:
        return time_s * (1 + drift) + ahead_s

    lines: list[dict[str, Any]] = [
        {"kind": "start", "time": at(100.0), "rank": rank, "restart": 0, "job": "world", "size": 2, "host": host,
         "clock": host, "unix_s": 1_000_000.0}
    ]  # fmt: skip
    for ticket in range(1, SUMS + 1):
        begun_s = 100.5 + ticket - 0.5 * (ticket == SUMS) + 0.02 * rank
        lines.append(
            {"kind": "reduction", "submitted": at(begun_s), "done": at(100.52 + ticket + 0.6), "bytes": 4096 * ticket,
             "packing_s": 0.01, "sending_s": 0.02, "decoding_s": 0.005, "step": ticket - 1, "ticket": ticket}
        )  # fmt: skip
        lines.append({"kind": "step", "time": at(100.52 + ticket + 0.8), "step": ticket})
    counters = {"packing_us": 10_000 * SUMS, "socket_send_us": 20_000 * SUMS, "decoding_us": 5_000 * SUMS}
    lines.append({"kind": "end", "time": at(120.0), "counters": counters})
    return lines


def written(folder: Path, rank: int, lines: list[dict[str, Any]]) -> Path:
    path = folder / f"timeline-{rank}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def slices(trace: Trace, kind: str | None = None) -> list[dict[str, Any]]:
    return [event for event in trace.events if event["ph"] == "X" and kind in (None, event["cat"])]


def check_format(trace: Trace) -> None:
    """Each event has its fields, names come first, time goes on, and the slices of a track nest."""
    text = json.dumps({"traceEvents": trace.events}, allow_nan=False)
    events = json.loads(text)["traceEvents"]
    phases = [event["ph"] for event in events]
    assert phases == sorted(phases, key=lambda phase: phase != "M")
    timed = [event for event in events if event["ph"] != "M"]
    assert all({"pid", "tid", "ts", "name", "cat"} <= event.keys() for event in timed)
    assert all(before["ts"] <= after["ts"] for before, after in itertools.pairwise(timed))
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in timed} <= named
    assert {event["pid"] for event in timed} <= {event["pid"] for event in events if event["name"] == "process_name"}
    open_until: dict[tuple[int, int], list[float]] = defaultdict(list)
    for event in timed:
        if event["ph"] != "X":
            assert event["ph"] == "i"
            assert event["s"] == "t"
            continue
        stack = open_until[event["pid"], event["tid"]]
        while stack and stack[-1] <= event["ts"] + FUZZ_US:
            stack.pop()
        end = event["ts"] + event["dur"]
        assert event["dur"] >= 0
        assert not stack or end <= stack[-1] + 0.002, f"{event} overlaps the one before"
        stack.append(end)


def test_a_real_job_nests_and_its_figures_are_the_counters(tmp_path: Path) -> None:
    paths = [written(tmp_path, rank, lines_of(rank)) for rank in range(2)]
    trace = trace_of_files(paths)
    check_format(trace)
    for rank in range(2):
        own = [event for event in slices(trace) if event["pid"] == rank + 1]
        sums = [event for event in own if event["cat"] == "sum"]
        assert [event["args"]["ticket"] for event in sums] == [*range(1, SUMS - 1), *range(SUMS - 1, SUMS + 1)]
        assert sum(event["args"]["bytes"] for event in sums) == 4096 * SUMS * (SUMS + 1) // 2
        for name, counted, each_us in (
            ("quantize", "packing_s", 1e4), ("send", "sending_s", 2e4), ("decode", "decoding_s", 5e3),
        ):  # fmt: skip
            assert sum(event["args"][counted] for event in sums) == pytest.approx(each_us * SUMS * 1e-6)
            assert sum(event["dur"] for event in own if event["cat"] == name) == pytest.approx(each_us * SUMS)
        parts = [event for event in own if event["cat"] in ("quantize", "send", "wait", "decode")]
        assert sum(event["dur"] for event in parts) == pytest.approx(sum(event["dur"] for event in sums), abs=1)
        assert [event["args"]["step"] for event in own if event["cat"] == "step"] == list(range(1, SUMS + 1))


def test_meetings_have_tracks_beneath_the_sums_and_a_note(tmp_path: Path) -> None:
    """Two fragments travel at once, so they need two tracks."""
    met = [
        {"kind": "meeting", "number": number, "fragment": number, "launched": 101.5 + number,
         "submitted": 101.6 + number, "awaited": 103.0 + number, "landed": 103.1 + number}
        for number in range(2)
    ]  # fmt: skip
    lines = lines_of(0)
    trace = trace_of_files([written(tmp_path, 0, [*lines[:-1], *met, lines[-1]]), written(tmp_path, 1, lines_of(1))])
    check_format(trace)
    found = slices(trace, "meeting")
    assert [(each["pid"], each["name"], each["dur"]) for each in found] == [
        (1, "meeting 0", pytest.approx(1.6e6)),
        (1, "meeting 1", pytest.approx(1.6e6)),
    ]
    assert len({each["tid"] for each in found}) == 2
    assert min(each["tid"] for each in found) > max(each["tid"] for each in slices(trace, "sum"))
    assert [each["args"]["exposed_s"] for each in found] == [pytest.approx(0.2)] * 2
    assert sum(each["dur"] for each in slices(trace, "waits")) == pytest.approx(0.2e6)
    notes = trace.facts["notes"]
    assert isinstance(notes, list)
    assert notes[-1].startswith("meetings: 2, of whose ")


def test_clocks_of_two_machines_are_aligned_by_the_sums_of_both(tmp_path: Path) -> None:
    paths = [written(tmp_path, 0, lines_of(0)), written(tmp_path, 1, lines_of(1, ahead_s=5000.0, host="there"))]
    trace = trace_of_files(paths)
    ends: dict[int, dict[int, float]] = defaultdict(dict)
    for event in slices(trace, "sum"):
        ends[event["args"]["ticket"]][event["pid"]] = event["ts"] + event["dur"]
    assert all(abs(both[1] - both[2]) < 1 for both in ends.values())
    clocks = trace.facts["clocks"]
    assert isinstance(clocks, dict)
    assert "aligned by 12 sums" in clocks["rank 1"]
    assert clocks["rank 0"] == "the reference"


def test_a_clock_that_runs_faster_stays_aligned_over_a_long_job() -> None:
    drift, count = 50e-6, 300
    sums = {("world", ticket): (10.0 * ticket, 10.0 * ticket + 0.001) for ticket in range(1, count + 1)}
    faster = {each: (begun * (1 + drift) + 7.0, done * (1 + drift) + 7.0) for each, (begun, done) in sums.items()}
    ranks = {
        0: RankTimes(clock="a", started_s=0.0, unix_s=None, sums=sums),
        1: RankTimes(clock="b", started_s=7.0, unix_s=None, sums=faster),
    }
    found = align(ranks)[1]
    assert found.drift == pytest.approx(drift, rel=0.01)
    assert all(found.to_reference(faster[each][1]) == pytest.approx(sums[each][1], abs=1e-4) for each in sums)


def test_one_boot_id_with_times_that_cannot_be_is_aligned_by_sums(tmp_path: Path) -> None:
    paths = [written(tmp_path, 0, lines_of(0)), written(tmp_path, 1, lines_of(1, ahead_s=-7.0))]
    clocks = trace_of_files(paths).facts["clocks"]
    assert isinstance(clocks, dict)
    assert clocks["rank 1"].startswith("-7.000000 s")


def test_files_of_two_jobs_or_of_one_rank_are_refused(tmp_path: Path) -> None:
    first = written(tmp_path, 0, lines_of(0))
    other = lines_of(1)
    other[0]["job"] = "another"
    with pytest.raises(ConfigurationError, match=r"of job 'world'.*of 'another'"):
        trace_of_files([first, written(tmp_path, 1, other)])
    with pytest.raises(ConfigurationError, match="both of rank 0"):
        trace_of_files([first, written(tmp_path, 2, lines_of(0))])
    both = tmp_path / "both.jsonl"
    both.write_text(first.read_text() + written(tmp_path, 1, lines_of(1)).read_text())
    with pytest.raises(
        ConfigurationError, match=r"both\.jsonl holds lines of ranks 0, 1,.*Remedy: %r in FANIN_TIMELINE"
    ):
        trace_of_files([both])
    with pytest.raises(
        ConfigurationError, match=r"none cannot be read: No such file or directory\. Remedy: name [^:]*$"
    ):
        trace_of_files([tmp_path / "none"])
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        trace_of_files([tmp_path])


def test_the_command_replaces_no_file_that_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = written(tmp_path, 0, lines_of(0))
    before = first.read_bytes()
    linked = tmp_path / "link.json"
    linked.symlink_to(first)
    for out in (first, linked):
        for command in (["trace", str(first), "--out", str(out)], ["report", str(first), "--html", str(out)]):
            assert run(command) == 2
            assert "the command reads it" in capsys.readouterr().err
    assert first.read_bytes() == before
    assert run(["trace", "--scenario", "calm", "--step", "1", "--out", "one", "--replay", "./one"]) == 2
    assert "Remedy: name two files" in capsys.readouterr().err


def test_spoiled_lines_missing_ranks_and_several_runs_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, 0, lines_of(0))
    whole = path.read_text()
    path.write_text(whole.replace('"kind": "reduction"', "full disk", 2) + whole + '{"kind": "st')
    assert run(["trace", str(path), "--out", str(tmp_path / "trace.json")]) == 0
    said = capsys.readouterr().out
    assert "no file of rank 1" in said
    assert "rank 0: lines of its file that are spoiled, and left out: 2" in said
    assert "rank 0: its file holds 2 runs" in said


def test_every_packet_and_round_of_a_simulated_run_is_in_its_trace() -> None:
    simulation = Simulation(load("calm"), 1, kind="native")
    recorder = TraceRecorder(simulation)
    report = simulation.run()
    counters = simulation.switch.machine.counters()
    trace = recorder.trace(None)
    check_format(trace)
    moments = [event for event in trace.events if event["ph"] == "i"]
    assert len(slices(trace, "packet")) + len(moments) == report.packets
    arrived = [event for event in slices(trace, "packet") if event["args"]["to"] == "switch"]
    assert len(arrived) == counters["packets_in"]
    plan = simulation.scenario.jobs[0]
    of_switch = [event for event in slices(trace, "round") if event["pid"] == 1]
    assert len(of_switch) == counters["rounds"] >= plan.chunks * plan.steps
    assert all(sorted(event["args"]["order of ranks"]) == [0, 1] for event in of_switch)
    steps = slices(trace, "step")
    assert len(steps) == plan.steps * plan.workers
    for event in (each for each in slices(trace, "round") if each["pid"] != 1):
        around = [step for step in steps if step["pid"] == event["pid"] and step["ts"] <= event["ts"]]
        assert around[-1]["ts"] + around[-1]["dur"] >= event["ts"] + event["dur"] - FUZZ_US


LOSSY = Scenario(link=Link(loss=0.2, duplicate=0.1), noise_s=5.0, jobs=(JobPlan(steps=3),))
TREE = Scenario(leaves=2, jobs=(JobPlan(workers=4, tree=True, steps=2),))
STALE = Scenario(jobs=(JobPlan(workers=3, quorum=2, staleness=1, steps=6, think_s=0.01, slow=(1.0, 1.0, 5.0)),))


@pytest.mark.parametrize("scenario", [LOSSY, TREE, STALE], ids=["lossy", "tree", "stale"])
def test_traces_of_lossy_links_trees_and_stale_rounds_nest(scenario: Scenario) -> None:
    trace = trace_of_simulation(scenario, 1)
    check_format(trace)
    names = [event["name"] for event in trace.events if event["ph"] == "i"]
    assert any(name.startswith("never came: contribution") for name in names) == (scenario is LOSSY)
    assert any(name.startswith("copy or damaged") for name in names) == (scenario is LOSSY)


def test_one_step_is_what_happened_while_it_went_on() -> None:
    whole, one = trace_of_simulation(load("calm"), 1), trace_of_simulation(load("calm"), 1, step=2)
    assert {event["args"]["step"] for event in slices(one, "step")} == {2}
    assert 0 < len(slices(one, "packet")) < len(slices(whole, "packet"))
    with pytest.raises(ConfigurationError, match=r"--step 99.*a step of 0 to 4"):
        trace_of_simulation(load("calm"), 1, step=99)


def test_a_replay_has_every_packet_of_its_step_and_no_script() -> None:
    whole = trace_of_simulation(LOSSY, 1, step=1)
    text = replay_of_simulation(LOSSY, 1, step=1)
    root = ElementTree.fromstring(text)
    shapes = [each for each in root if each.find(f"{SVG}title") is not None and each.tag != f"{SVG}title"]
    packets = [event for event in whole.events if event.get("cat") == "packet"]
    assert len(shapes) == len(packets)
    assert sum(each.tag == f"{SVG}path" for each in shapes) == sum(event["ph"] == "i" for event in packets) > 0
    assert "<script" not in text
    for each in root.iter():
        times = [float(word) for word in each.get("keyTimes", "0;1").split(";")]
        assert (times[0], times[-1]) == (0.0, 1.0)
        assert times == sorted(times)


def test_the_command_writes_a_trace_and_says_how_clocks_were_aligned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [written(tmp_path, rank, lines_of(rank)) for rank in range(2)]
    out = tmp_path / "trace.json"
    assert run(["trace", *map(str, paths), "--out", str(out)]) == 0
    assert "rank 1: the reference's machine: one clock" in capsys.readouterr().out
    assert json.loads(out.read_text())["displayTimeUnit"] == "ms"
    assert run(["trace"]) == 2
