"""docker-compose.yml on a real engine: it trains, and whatever breaks is survived or reported by name.

`tools/compose_check.sh` provides the engine and the image, and runs these tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compose import cluster
from tests.compose.cluster import Cluster, run

ENDLESS = "--task digits --epochs 100000"
"""More than any test waits for."""

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.skipif(bool(cluster.missing()), reason=cluster.missing()),
]


def read_until(lines: Iterator[str], text: str) -> str:
    """The first line with `text`."""
    for line in lines:
        if text in line:
            return line
    raise AssertionError(f"the job ended without saying {text!r}")


def test_the_image_runs_as_an_ordinary_user() -> None:
    assert run("docker", "run", "--rm", "fanin:local", "id", "-u") != "0\n"


def test_as_many_workers_as_asked_for_train_and_the_status_is_the_jobs() -> None:
    with Cluster(TRAIN="--task digits --epochs 2") as cluster:
        done = cluster.run_to_end("--exit-code-from", "job", "--scale", "worker=3")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "job: 3 workers" in done.stdout
        assert "the job succeeded" in done.stdout


def test_a_program_that_fails_fails_the_job() -> None:
    with Cluster(TRAIN="--task nonsense") as cluster:
        done = cluster.run_to_end("--exit-code-from", "job", "--scale", "worker=2")
        assert done.returncode == 1, done.stdout + done.stderr
        assert "nonsense" in done.stdout


def test_datagrams_can_be_replaced_by_zeromq() -> None:
    services = ("job-zmq", "worker-zmq")
    with Cluster(TRAIN="--task digits --epochs 1", COMPOSE_PROFILES="zmq") as cluster:
        done = cluster.run_to_end("--exit-code-from", "job-zmq", "--scale", "worker-zmq=2", *services)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "the job succeeded" in done.stdout


def test_the_compiled_p4_program_trains_with_its_controller_in_a_container_of_its_own() -> None:
    services = ("controller", "job-p4", "worker-p4")
    with Cluster(TRAIN="--task digits --epochs 1", COMPOSE_PROFILES="p4") as cluster:
        done = cluster.run_to_end("--exit-code-from", "job-p4", "--scale", "worker-p4=2", *services)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "the job succeeded" in done.stdout
        assert "P4 program" in done.stdout


def test_a_killed_worker_is_reported_by_name() -> None:
    with Cluster(TRAIN=ENDLESS) as cluster:
        cluster.start(workers=3)
        lines = cluster.follow_job()
        read_until(lines, "epoch   1")
        name = cluster.members()[1]
        run("docker", "kill", name)
        assert f"rank 1 ({name}, " in read_until(lines, "is lost: gone")
        read_until(lines, "the job failed")
        assert cluster.job_status() == 1
        for rank in (0, 2):
            assert any(f"rank {rank} (" in line and "WorkerLostError" in line for line in cluster.lines)
            assert "rank 1" in cluster.logs(cluster.members()[rank]).rpartition("WorkerLostError")[2]


def test_a_restarted_switch_is_reported_by_every_worker() -> None:
    with Cluster(TRAIN=ENDLESS) as cluster:
        cluster.start(workers=2)
        lines = cluster.follow_job()
        read_until(lines, "epoch   1")
        run("docker", "restart", "--time", "1", cluster.container("switch"))
        read_until(lines, "the job failed")
        assert cluster.job_status() == 1
        for rank in (0, 1):
            assert any(f"rank {rank} (" in line and "SwitchLostError" in line for line in cluster.lines)


def test_a_restarted_switch_is_survived_with_the_fallback_to_gloo() -> None:
    with Cluster(TRAIN="--task digits --epochs 60", FANIN_FALLBACK="gloo") as cluster:
        cluster.start(workers=2)
        lines = cluster.follow_job()
        read_until(lines, "epoch   1")
        run("docker", "restart", "--time", "1", cluster.container("switch"))
        read_until(lines, "the job succeeded")
        assert cluster.job_status() == 0
        assert any("gloo" in cluster.logs(name) for name in cluster.members().values())


def test_a_short_cut_is_survived_and_a_long_one_reported_by_name() -> None:
    with Cluster(TRAIN=ENDLESS) as cluster:
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
        assert any("rank 0 (" in line and "WorkerLostError" in line for line in cluster.lines)
