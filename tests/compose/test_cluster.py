"""docker-compose.yml on a real engine: it trains, and whatever breaks is survived or reported by name.

`tools/compose_check.sh` provides the engine and the image, and runs these tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from fanin.records.record import RunRecord
from tests.compose import compose_project
from tests.compose.compose_project import USER, ComposeProject, run

FAULTS = "drop=1%,dup=0.5%,reorder=1%@seed=7"
ENDLESS = "--task digits --epochs 100000"
"""More than any test waits for."""

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(bool(compose_project.missing()), reason=compose_project.missing()),
]


def read_until(lines: Iterator[str], text: str) -> str:
    """The first line with `text`."""
    for line in lines:
        if text in line:
            return line
    raise AssertionError(f"the job ended without saying {text!r}")


def test_the_image_runs_as_an_ordinary_user() -> None:
    assert run("docker", "run", "--rm", "fanin:local", "id", "-u") != "0\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, RunRecord, str]:
    """Output, record and page of a job of three workers over faulty links, from a mounted folder."""
    folder = compose_project.results_folder(tmp_path_factory)
    with ComposeProject(
        TRAIN="--task digits --epochs 2", FANIN_FAULTS=FAULTS, RESULTS=str(folder), RUN_AS=USER
    ) as made:
        done = made.run_to_end("--exit-code-from", "job", "--scale", "worker=3")
        assert done.returncode == 0, done.stdout + done.stderr
    page = (folder / "fanin-report.html").read_text()
    return done.stdout, RunRecord.read(folder / "fanin-record.json"), page


def test_as_many_workers_as_asked_for_train_and_the_status_is_the_jobs(trained: tuple[str, RunRecord, str]) -> None:
    said, record, _ = trained
    assert "job: 3 workers" in said
    assert "the job succeeded" in said
    assert (record.kind, record.outcome, len(record.workers)) == ("compose", "finished", 3)


def test_a_jobs_record_and_report_have_its_workers_time_lines(trained: tuple[str, RunRecord, str]) -> None:
    _, record, page = trained
    for worker in record.workers:
        assert {span.activity for span in worker.spans} >= {"compute", "wait"}
        assert any(span.waited_for for span in worker.spans)
    assert [progress.epoch for progress in record.progress] == [1, 2]
    keys = re.findall(r'<section id="([^"]+)"', page)
    assert {"accuracy", "links", "timeline", "waited-for", "retransmissions"} <= set(keys)


def test_faults_are_injected_as_in_an_emulated_network(trained: tuple[str, RunRecord, str]) -> None:
    _, record, _ = trained
    assert record.settings["faults"] == FAULTS
    assert all(worker.counters["retransmissions"] > 0 for worker in record.workers)


def test_a_worker_that_a_fault_kills_fails_the_job() -> None:
    with ComposeProject(TRAIN="--task digits --fault kill=worker:1@step:3", WORKERS="2") as made:
        done = made.run_to_end("--exit-code-from", "job", "--scale", "worker=2")
        assert done.returncode == 1, done.stdout + done.stderr
        failures = re.findall(r"job: rank (\d) .*failed: (.*)", done.stdout)
        assert ("1", "ended by SIGKILL") in failures
        assert any(rank == "0" and "WorkerLostError" in said for rank, said in failures)


def test_workers_of_two_racks_train_through_a_tree_of_switches(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = compose_project.results_folder(tmp_path_factory)
    settings = {"TRAIN": "--task digits --epochs 1", "WORKERS": "4", "RESULTS": str(folder), "RUN_AS": USER}
    with ComposeProject(COMPOSE_PROFILES="racks", **settings) as made:
        done = made.run_to_end("--exit-code-from", "job-racks", "job-racks", "worker-rack-1", "worker-rack-2")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "job: 4 workers" in done.stdout
        assert "the job succeeded" in done.stdout
    leaves = RunRecord.read(folder / "fanin-record.json").switches
    assert {leaf.name for leaf in leaves} == {"udp://leaf-1:4919", "udp://leaf-2:4919"}
    for leaf in leaves:
        assert leaf.samples[-1].counters["rounds"] > 0


def test_hosts_with_links_of_their_own_train_through_the_shards_that_they_start(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = compose_project.results_folder(tmp_path_factory)
    settings = {"TRAIN": "--task digits --epochs 1", "RATE_2": "50mbit", "RESULTS": str(folder), "RUN_AS": USER}
    with ComposeProject(COMPOSE_PROFILES="hosts", **settings) as made:
        done = made.run_to_end("--exit-code-from", "job-hosts", "job-hosts", *(f"host-{n}" for n in range(1, 5)))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "job: 4 workers" in done.stdout
        assert "the job succeeded" in done.stdout
    record = RunRecord.read(folder / "fanin-record.json")
    assert record.settings["switch"] == "hosts"
    assert not record.switches, "ranks started them, and nobody else may ask them"


def test_a_benchmark_prints_its_table_and_leaves_its_files(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = compose_project.results_folder(tmp_path_factory)
    with ComposeProject(RESULTS=str(folder), RUN_AS=USER) as made:
        said = made.run_service("bench", "--workers", "2", "--bytes", "65536", "--lanes", "32,8")
        assert "all-reduce of 65,536 bytes of float32, 2 workers" in said
    rows = json.loads((folder / "allreduce.json").read_text())
    assert [(row["backend"], row["lanes"]) for row in rows] == [("fanin", 32), ("fanin", 8), ("gloo", 32)]
    assert len(RunRecord.read(folder / "allreduce-record.json").rows) == 3
    assert "All-reduce of 64 KiB" in (folder / "allreduce.html").read_text()


def test_datagrams_can_be_replaced_by_zeromq() -> None:
    services = ("job-zmq", "worker-zmq")
    with ComposeProject(TRAIN="--task digits --epochs 1", COMPOSE_PROFILES="zmq", WORKERS="2") as cluster:
        done = cluster.run_to_end("--exit-code-from", "job-zmq", "--scale", "worker-zmq=2", *services)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "the job succeeded" in done.stdout


def test_the_compiled_p4_program_trains_with_its_controller_in_a_container_of_its_own() -> None:
    services = ("controller", "job-p4", "worker-p4")
    with ComposeProject(TRAIN="--task digits --epochs 1", COMPOSE_PROFILES="p4", WORKERS="2") as cluster:
        done = cluster.run_to_end("--exit-code-from", "job-p4", "--scale", "worker-p4=2", *services)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "the job succeeded" in done.stdout
        assert "P4 program" in done.stdout


def test_a_killed_worker_is_reported_by_name() -> None:
    with ComposeProject(TRAIN=ENDLESS) as cluster:
        cluster.start(workers=3)
        lines = cluster.follow_job()
        read_until(lines, "epoch   1")
        name = cluster.members()[1]
        run("docker", "kill", name)
        assert f"rank 1 ({name}, " in read_until(lines, "is lost: gone")
        read_until(lines, "the job failed")
        assert cluster.job_status() == 1
        for rank in (0, 2):
            assert any(f"rank {rank} (" in line and "WorkerLostError" in line for line in cluster.lines), cluster.lines
            assert "rank 1" in cluster.logs(cluster.members()[rank]).rpartition("WorkerLostError")[2]


def test_a_restarted_switch_is_reported_by_every_worker() -> None:
    with ComposeProject(TRAIN=ENDLESS) as cluster:
        cluster.start(workers=2)
        lines = cluster.follow_job()
        read_until(lines, "epoch   1")
        run("docker", "restart", "--time", "1", cluster.container("switch"))
        read_until(lines, "the job failed")
        assert cluster.job_status() == 1
        for rank in (0, 1):
            assert any(f"rank {rank} (" in line and "SwitchLostError" in line for line in cluster.lines)


def test_a_restarted_switch_is_survived_with_the_fallback_to_gloo() -> None:
    with ComposeProject(TRAIN="--task digits --epochs 60", FANIN_FALLBACK="gloo") as cluster:
        cluster.start(workers=2)
        lines = cluster.follow_job()
        read_until(lines, "epoch   1")
        run("docker", "restart", "--time", "1", cluster.container("switch"))
        read_until(lines, "the job succeeded")
        assert cluster.job_status() == 0
        assert any("gloo" in cluster.logs(name) for name in cluster.members().values())


def test_a_short_cut_is_survived_and_a_long_one_reported_by_name() -> None:
    """The liveness timeout is far longer than the polls by which the short cut is known to have stopped rounds."""
    with ComposeProject(TRAIN=ENDLESS, LIVENESS_TIMEOUT="30") as cluster:
        cluster.start(workers=2)
        lines = cluster.follow_job()
        read_until(lines, "epoch   1")
        name = cluster.members()[1]
        with cluster.cut_off(name):
            cluster.wait_for_standstill()
        still = cluster.rounds()
        read_until(lines, "epoch")
        read_until(lines, "epoch")
        assert cluster.rounds() > still
        with cluster.cut_off(name):
            assert f"rank 1 ({name}, " in read_until(lines, "is lost: silent")
            read_until(lines, "the job failed")
        assert cluster.job_status() == 1
        assert any("rank 0 (" in line and "WorkerLostError" in line for line in cluster.lines), cluster.lines
