"""The latest collectives of a process, and torch's analyzer over the files of all ranks."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install 'fanin[torch]'")

from torch._C import _distributed_c10d as c10d  # noqa: E402
from torch.distributed.flight_recorder import fr_trace  # noqa: E402

from fanin.errors import ArgumentError, CollectiveTimeoutError, ConfigurationError  # noqa: E402
from fanin.host.torch import dump_flight_recorder  # noqa: E402
from fanin.host.torch.collectives.flight_recorder import ANALYZER_NAMES, FORMAT, LISTS, ring_for  # noqa: E402
from fanin.host.torch.collectives.profiler_ranges import NAMES  # noqa: E402
from fanin.options import Options  # noqa: E402
from tests.torch.groups import SIZE, Groups, groups_of, on_every_rank  # noqa: E402
from tests.torch.rank_checks import play  # noqa: E402

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    with groups_of(Options(flight_recorder=str(tmp_path / "rank_"))) as made:
        yield made


def dumped(folder: Path, rank: int = 0) -> dict[str, Any]:
    """The trace in the file of a rank."""
    found: dict[str, Any] = pickle.loads((folder / f"rank_{rank}").read_bytes())
    return found


def analyzed(folder: Path, caplog: pytest.LogCaptureFixture) -> str:
    """The report of torch's analyzer on the files of a folder."""
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="Flight Recorder"):
        fr_trace.main([str(folder)])
    return caplog.text


def test_the_analyzer_names_the_collective_that_a_rank_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    play("a_rank_does_not_call", environment={"FANIN_FLIGHT_RECORDER": str(tmp_path / "rank_")})
    left_out = dumped(tmp_path, 1)["entries"][-1]["collective_seq_id"] + 1
    first = next(each for each in dumped(tmp_path)["entries"] if each["collective_seq_id"] == left_out)
    assert (first["state"], first["input_sizes"]) == ("started", [[1000]])
    assert any(frame["name"] == "a_rank_does_not_call" for frame in first["frames"])
    said = analyzed(tmp_path, caplog)
    assert f"Not all ranks joining collective, sequence number: {left_out}" in said
    assert "missing ranks: {1}" in said
    assert "a_rank_does_not_call at " in said


def test_all_kinds_of_collectives_are_read_by_the_analyzer_and_match(
    groups: Groups, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def act(rank: int) -> None:
        group, ones = groups[rank], torch.ones(6)
        parts = list(torch.ones(6).chunk(SIZE))
        works = [
            group.allreduce([ones.clone()]),
            group.allreduce_coalesced([torch.ones(2), torch.ones(3)]),
            group.reduce([ones.clone()], root=1),
            group.broadcast([ones.clone()], root=1),
            group.allgather([[torch.empty(6) for _ in range(SIZE)]], [ones]),
            group.allgather([[torch.empty(count + 1) for count in range(SIZE)]], [torch.ones(rank + 1)]),
            group._allgather_base(torch.empty(6 * SIZE), ones),
            group.reduce_scatter([torch.empty(2)], [parts]),
            group._reduce_scatter_base(torch.empty(2), torch.ones(6)),
            group.gather([[torch.empty(6) for _ in range(SIZE)]] if rank == 0 else [], [ones]),
            group.scatter([torch.empty(6)], [[ones] * SIZE] if rank == 0 else []),
            group.alltoall_base(torch.empty(6), torch.ones(6), [], []),
            group.barrier(),
        ]
        assert all(work.wait() for work in works)

    on_every_rank(act)
    for group in groups:
        dump_flight_recorder(group)
    states = {entry["profiling_name"]: entry["state"] for entry in dumped(tmp_path)["entries"]}
    assert set(states.values()) == {"completed"}
    assert len(states) == 13
    said = analyzed(tmp_path, caplog)
    assert "has errors" not in said
    assert "Not all ranks" not in said


def test_a_dump_says_what_is_under_way_and_what_was_refused(groups: Groups, tmp_path: Path) -> None:
    ring = groups[0].flight
    assert ring is not None
    work = groups[0].allreduce([torch.ones(5, dtype=torch.float16)])
    with pytest.raises(ArgumentError):
        groups[0]._allgather_base(torch.empty(7), torch.ones(5))
    path = dump_flight_recorder(groups[0], tmp_path / "elsewhere_0")
    trace = pickle.loads(path.read_bytes())
    under_way, refused = trace["entries"]
    assert (under_way["state"], under_way["input_dtypes"], under_way["input_sizes"]) == ("started", ["float16"], [[5]])
    assert under_way["time_discovered_completed_ns"] is None
    assert refused["state"] == "scheduled"
    assert trace["pg_status"]["0"]["last_completed_collective"] == "-1"
    on_every_rank(lambda rank: groups[rank].allreduce([torch.ones(5, dtype=torch.float16)]).wait(), range(1, SIZE))
    work.wait()
    assert ring.recorder.trace()["entries"][0]["state"] == "completed"


def test_a_collective_that_times_out_writes_the_file_and_its_group_goes_on(groups: Groups, tmp_path: Path) -> None:
    options = c10d.AllreduceOptions()
    options.timeout = timedelta(milliseconds=50)
    work = groups[0].allreduce([torch.ones(3)], options)
    with pytest.raises(CollectiveTimeoutError):
        work.wait()
    (entry,) = dumped(tmp_path)["entries"]
    assert (entry["state"], entry["timeout_ms"]) == ("started", 50)
    (tmp_path / "rank_0").unlink()
    with pytest.raises(CollectiveTimeoutError):  # the same one again: nothing was called since
        work.wait()
    assert not (tmp_path / "rank_0").exists()


def test_a_rank_that_did_nothing_wrong_leaves_its_file_at_the_end(tmp_path: Path) -> None:
    with groups_of(Options(flight_recorder=str(tmp_path / "rank_"))) as groups:
        on_every_rank(lambda rank: groups[rank].barrier().wait())
    assert [entry["profiling_name"] for entry in dumped(tmp_path, 2)["entries"]] == ["gloo:barrier"]


def test_rings_keep_the_latest_collectives_of_each_group(tmp_path: Path) -> None:
    few = {"TORCH_FR_BUFFER_SIZE": "3"}
    busy, idle = (ring_for(Options(flight_recorder=str(tmp_path / "rank_")), 0, (0, 1), few) for _ in range(2))
    assert busy is not None
    assert idle is not None
    assert busy.recorder is idle.recorder
    for ring, name in ((busy, "busy"), (idle, "idle")):
        ring.recorder.rename(ring, name, "undefined")
    idle.begin("barrier", True, (), 1.0)
    for _ in range(10):
        busy.begin("all_reduce", False, ([torch.ones(2)],), 1.0)
    entries = busy.recorder.trace()["entries"]
    assert [entry["record_id"] for entry in entries] == [0, 8, 9, 10]
    assert entries[-1]["collective_seq_id"] == 10


def test_the_size_of_a_recorder_that_is_off_matters_to_nobody() -> None:
    assert ring_for(Options(), 0, (0, 1), {"TORCH_FR_BUFFER_SIZE": "many"}) is None


def test_nothing_is_recorded_unless_asked_for(tmp_path: Path) -> None:
    assert ring_for(Options(), 0, (0, 1), {}) is None
    assert ring_for(Options(flight_recorder=str(tmp_path / "rank_")), 0, (0, 1), {"TORCH_FR_BUFFER_SIZE": "0"}) is None
    with pytest.raises(ConfigurationError, match="no collectives are recorded"):
        dump_flight_recorder()


@pytest.mark.parametrize(
    ("prefix", "environment"), [("/nowhere/rank_", {}), ("rank_", {"TORCH_FR_BUFFER_SIZE": "many"})]
)
def test_a_recorder_that_cannot_be_is_refused(
    prefix: str, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"FANIN_FLIGHT_RECORDER|TORCH_FR_BUFFER_SIZE"):
        ring_for(Options(flight_recorder=prefix), 0, (0, 1), environment)


def test_every_name_is_one_that_the_analyzer_knows() -> None:
    from torch.distributed.flight_recorder.components.types import COLLECTIVES, P2P

    names = {ANALYZER_NAMES.get(name, name) for name in NAMES.values()} | set(LISTS.values())
    assert names <= COLLECTIVES | P2P
    assert pickle.loads(c10d._dump_fr_trace())["version"] == FORMAT  # type: ignore[attr-defined]
