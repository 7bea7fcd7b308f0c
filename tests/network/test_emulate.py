"""fanin emulate: commands run in their namespaces, are recorded, and leave nothing. Needs root."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from fanin.emulation.network import bmv2_switch, ownership
from fanin.emulation.network.emulate import emulate
from fanin.emulation.network.fault_runner import FaultRunner
from fanin.emulation.network.scenario import Scenario
from fanin.emulation.network.timelines import steps_in
from fanin.errors import ConfigurationError
from fanin.records.record import RunRecord
from tests.support.forks import fork_switches, fork_workers
from tests.support.repository import ROOT
from tests.support.thorough import thorough

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("namespaces")]

LIMIT_S = 60.0
TRAINING = str(Path(__file__).with_name("training_program.py"))
LARGE_SUMS = str(Path(__file__).with_name("large_sums.py"))
PROGRAM = str(ROOT / "tests/support/summing_rank.py")


class FromTheFirstSum(FaultRunner):
    """Counts a fault's seconds from worker 0's first sum, and not from the start of a machine that may be busy."""

    _first_s: float | None = None

    def run_due(self, time_s: float) -> None:
        """See the base class."""
        if self._first_s is None and steps_in(self._steps):
            self._first_s = time_s
        if self._first_s is not None:
            super().run_due(time_s - self._first_s)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fault finds workers that have not joined."""
    monkeypatch.setattr("fanin.emulation.network.emulate.FaultRunner", FromTheFirstSum)


@pytest.fixture(autouse=True)
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches are forks, but for those of tests that start the command itself, and so are workers that are plain."""
    fork_switches(monkeypatch)
    fork_workers(monkeypatch)


def run(scenario: Scenario, *command: str, tmp_path: Path) -> RunRecord:
    """A run without a terminal, read back from its file."""
    path = tmp_path / "run.json"
    emulate(scenario, command, record_file=path, logs=tmp_path, console=Console(file=io.StringIO()))
    return RunRecord.read(path)


def plain(*arguments: str) -> tuple[str, ...]:
    """The command line of a python program without torchrun, whose agents import torch a second time."""
    return ("env", sys.executable, *arguments)


def reductions(steps: int) -> tuple[str, ...]:
    """The command line of a worker that sums 100,000 integers so often over fanin, without torch."""
    facts = json.dumps({"steps": steps, "count": 100_000, "element": "int32"})
    return ("env", f"PYTHONPATH={os.pathsep.join(sys.path)}", sys.executable, "-c", _RUN, facts)


_RUN = f"import runpy, sys; sys.argv[0] = {PROGRAM!r}; runpy.run_path({PROGRAM!r}, run_name='__main__')"


def test_workers_sum_over_their_links_and_all_of_it_is_recorded(tmp_path: Path) -> None:
    record = run(Scenario(workers=2, rate="100mbit", mtu=1400), *reductions(4), tmp_path=tmp_path)
    assert record.outcome == "finished", record
    assert [worker.outcome for worker in record.workers] == ["finished", "finished"]
    assert {progress.loss for progress in record.progress} == {0.0}
    for link in record.links:
        assert link.samples[-1].up_bytes > 4 * 400_000
        assert link.samples[-1].down_bytes > 4 * 400_000
    assert record.settings["mtu"] == 1400


def test_delay_and_loss_on_the_way_change_no_result(tmp_path: Path) -> None:
    scenario = Scenario(workers=2, rate="100mbit", delay="500us", loss="0.5%", seed=5)
    record = run(scenario, *reductions(4), tmp_path=tmp_path)
    assert record.outcome == "finished", record
    assert sum(link.samples[-1].dropped for link in record.links) > 0


def test_a_link_that_is_down_for_two_seconds_is_survived(tmp_path: Path) -> None:
    scenario = Scenario(workers=2, rate="20mbit", faults=("down=link:1@1s+2s",))
    record = run(scenario, *reductions(30), tmp_path=tmp_path)
    assert record.outcome == "finished", record
    assert {progress.loss for progress in record.progress} == {0.0}
    assert [event.text for event in record.events] == ["down=link:1@1s+2s", "end of down=link:1@1s+2s"]


@pytest.mark.thorough
@pytest.mark.slow
def test_training_goes_on_after_a_worker_is_killed_at_a_step_and_restarted(tmp_path: Path) -> None:
    scenario = Scenario(workers=2, rate="100mbit", faults=("restart=worker:1@step:3",), restarts=1)
    record = run(scenario, sys.executable, TRAINING, "6", str(tmp_path), tmp_path=tmp_path)
    assert record.outcome == "finished", record
    assert len(record.progress) == 2, "both have ended, which they do only when they were started again"
    assert len({progress.loss for progress in record.progress}) == 1, "both replicas end with the same weights"


@pytest.mark.slow
def test_training_ends_with_the_promised_error_when_the_switch_dies_at_a_step(tmp_path: Path) -> None:
    scenario = Scenario(workers=2, rate="100mbit", faults=("kill=switch@step:3",))
    record = run(scenario, *plain(TRAINING, "100000"), tmp_path=tmp_path)
    assert record.outcome == "failed"
    assert all("SwitchLostError" in worker.outcome for worker in record.workers), record.workers


def test_a_worker_that_is_killed_is_named_by_the_others(tmp_path: Path) -> None:
    scenario = Scenario(workers=2, rate="20mbit", faults=("kill=worker:1@0.5s",))
    record = run(scenario, *reductions(1000), tmp_path=tmp_path)
    assert record.outcome == "failed"
    assert "WorkerLostError" in record.workers[0].outcome
    assert "rank 1" in record.workers[0].outcome or "1" in record.workers[0].outcome
    assert "SIGKILL" in record.workers[1].outcome


def test_a_switch_that_is_restarted_is_reported_as_lost(tmp_path: Path) -> None:
    scenario = Scenario(workers=2, rate="20mbit", faults=("restart=switch@0.5s",))
    record = run(scenario, *reductions(1000), tmp_path=tmp_path)
    assert record.outcome == "failed"
    assert all("SwitchLostError" in worker.outcome for worker in record.workers)


@pytest.mark.parametrize("target", ["native", "python"])
def test_racks_of_workers_get_one_switchs_sums(target: str, tmp_path: Path) -> None:
    scenario = Scenario(workers=4, racks=2, target=target, rate="100mbit")
    record = run(scenario, *reductions(3), tmp_path=tmp_path)
    assert record.outcome == "finished", record
    assert {progress.loss for progress in record.progress} == {0.0}
    assert {"rack 0", "rack 1"} < {link.name for link in record.links}


def test_ranks_that_share_hosts_sum_at_a_spare_one_beside_tcp(tmp_path: Path) -> None:
    scenario = Scenario(workers=4, ranks_per_host=2, switch_at="spare-only:1", rate="100mbit", tcp_flows=1)
    record = run(scenario, *reductions(3), tmp_path=tmp_path)
    assert record.outcome == "finished", record
    assert {progress.loss for progress in record.progress} == {0.0}
    carried = {link.name: link.samples[-1] for link in record.links}
    assert set(carried) == {"host 0", "host 1", "spare 0"}
    assert carried["spare 0"].up_bytes > 3 * 4 * 400_000, "results, to four ranks"
    assert any("1 TCP flow beside" in note for note in record.notes)


def test_one_of_two_ranks_on_a_host_can_be_killed(tmp_path: Path) -> None:
    scenario = Scenario(
        workers=2, ranks_per_host=2, switch_at="spare-only:1", rate="20mbit", faults=("kill=worker:1@0.5s",)
    )
    record = run(scenario, *reductions(1000), tmp_path=tmp_path)
    assert record.outcome == "failed"
    assert "SIGKILL" in record.workers[1].outcome
    assert "WorkerLostError" in record.workers[0].outcome


@pytest.mark.slow
def test_a_racks_uplink_carries_a_tensor_once_each_way(tmp_path: Path) -> None:
    scenario = Scenario(workers=4, switch_at="hosts", racks=2, rate="100mbit")
    record = run(scenario, *plain(LARGE_SUMS, "5"), tmp_path=tmp_path)
    assert record.outcome == "finished", record
    carried = {link.name: link.samples[-1] for link in record.links}
    for rack in ("rack 0", "rack 1"):
        for count in (carried[rack].up_bytes, carried[rack].down_bytes):
            assert 1.0 < count / (5 * 4_000_000) < 1.2, "headers and control beside the tensors"


@pytest.mark.slow
@pytest.mark.parametrize("place", [thorough("rank0"), "spare:1"])
def test_ranks_start_their_switches_themselves_and_sums_cross_the_links(place: str, tmp_path: Path) -> None:
    record = run(Scenario(workers=2, switch_at=place, rate="100mbit"), *plain(TRAINING, "20"), tmp_path=tmp_path)
    assert record.outcome == "finished", record
    assert len({progress.loss for progress in record.progress}) == 1, "both replicas end with the same weights"
    gradients = 20 * (64 * 8 + 8) * 4
    assert all(link.samples[-1].up_bytes > gradients / 2 for link in record.links), record.links


def require(target: str) -> None:
    """Skip where a P4 target cannot run."""
    pytest.importorskip("grpc", reason="grpcio is not installed (extra p4)")
    if target == "bmv2":
        try:
            bmv2_switch.require_tools()
        except ConfigurationError as error:
            pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["native", "bmv2"])
def test_workers_that_are_started_again_find_the_switch_that_was(target: str, tmp_path: Path) -> None:
    if target == "bmv2":
        require(target)
    scenario = Scenario(workers=2, target=target, rate="50mbit", faults=("restart=switch@step:3",), restarts=1)
    record = run(scenario, sys.executable, TRAINING, "6", str(tmp_path), tmp_path=tmp_path)
    assert record.outcome == "finished", record
    assert len(record.progress) == 2, "both have ended, which they do only when they were started again"
    assert len({progress.loss for progress in record.progress}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("target", ["p4", "bmv2"])
def test_the_compiled_program_sums_over_links(target: str, tmp_path: Path) -> None:
    require(target)
    record = run(Scenario(workers=2, target=target, rate="20mbit"), *reductions(1), tmp_path=tmp_path)
    assert record.outcome == "finished", record
    assert {progress.loss for progress in record.progress} == {0.0}


def test_what_comes_too_late_is_noted(tmp_path: Path) -> None:
    record = run(Scenario(workers=1, faults=("kill=worker:0@500s",)), "true", tmp_path=tmp_path)
    assert record.outcome == "finished"
    assert "kill=worker:0@500s" in record.notes[0]


def test_ctrl_c_ends_the_run_and_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fanin", "emulate", "--workers", "1", "--", "sh", "-c", "echo here; sleep 100"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    text = ""
    while "here" not in text:
        line = process.stdout.readline()
        assert line, "it ended by itself"
        text += line
    name = text.split("run ")[1].split(";")[0]
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=LIMIT_S)
    assert "interrupted" in said
    assert process.returncode == 130
    assert not list(ownership.NAMESPACES.glob(f"fanin-{name}-*"))
    assert name not in [run.name for run in ownership.runs()]
