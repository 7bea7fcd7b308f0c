"""Members and the end of a job of containers: the roster in virtual time, and its two ends over real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
from subprocess import PIPE

import pytest

from fanin.emulation.containers.channel import MAX_LINE_BYTES, Channel, ChannelError
from fanin.emulation.containers.job import JobServer, wanted_workers
from fanin.emulation.containers.roster import (
    GRACE_S,
    MAX_MEMBERS,
    SETTLE_S,
    SILENCE_S,
    JobOutcome,
    Roster,
    TooLateError,
)
from fanin.emulation.containers.worker import job_address
from fanin.errors import ConfigurationError


def running(count: int) -> Roster:
    roster = Roster(count)
    for number in range(count):
        roster.join(f"worker_{number + 1}", f"10.0.0.{number}", 0.0)
    assert roster.close_if_complete(0.0)
    return roster


def test_ranks_are_the_order_of_arrival_whatever_the_names() -> None:
    roster = Roster()
    assert [roster.join(name, "10.0.0.1", 0.0).rank for name in ("c", "a", "b")] == [0, 1, 2]


def test_without_a_number_the_job_begins_when_nobody_has_come_for_a_while() -> None:
    roster = Roster()
    roster.join("a", "10.0.0.1", 0.0)
    assert not roster.close_if_complete(1000.0), "one worker has nobody to train with"
    roster.join("b", "10.0.0.2", 1000.0)
    assert not roster.close_if_complete(1000.0 + SETTLE_S - 0.01)
    assert roster.close_if_complete(1000.0 + SETTLE_S)
    assert not roster.close_if_complete(1000.0 + SETTLE_S), "it begins once"


def test_with_a_number_the_job_waits_for_exactly_that_many() -> None:
    roster = Roster(3)
    for name in ("a", "b"):
        roster.join(name, "10.0.0.1", 0.0)
    assert not roster.close_if_complete(1000.0)
    roster.join("c", "10.0.0.3", 1000.0)
    assert roster.close_if_complete(1000.0)


def test_who_comes_too_late_is_told_so_by_name() -> None:
    with pytest.raises(TooLateError, match="late_1 came too late: the job has its 2 workers"):
        running(2).join("late_1", "10.0.0.9", 1.0)


def test_who_goes_before_the_job_begins_leaves_no_gap() -> None:
    roster = Roster(2)
    first, second = (roster.join(name, "10.0.0.1", 0.0) for name in ("a", "b"))
    roster.withdraw(first)
    assert second.rank == 0
    assert roster.join("c", "10.0.0.3", 0.0).rank == 1


def test_the_job_succeeds_when_all_do_with_the_same_replica() -> None:
    roster = running(2)
    for member in roster.members:
        roster.report(member, {"event": "end", "replica": "abc"}, 1.0)
        assert roster.outcome(1.0) is None
        roster.ended(member, 0, "", 1.0)
    assert roster.outcome(1.0) == JobOutcome(0, ())


def test_replicas_that_differ_are_a_failure() -> None:
    roster = running(2)
    for member in roster.members:
        roster.report(member, {"event": "end", "replica": f"replica {member.rank}"}, 1.0)
        roster.ended(member, 0, "", 1.0)
    verdict = roster.outcome(1.0)
    assert verdict
    assert verdict.status == 1
    assert "different parameters" in verdict.lines[0]


def test_who_vanishes_is_named_first_and_survivors_may_still_speak() -> None:
    roster = running(3)
    roster.vanished(roster.members[1], 5.0)
    assert roster.outcome(5.0) is None
    roster.ended(roster.members[0], 1, "WorkerLostError: rank 1", 9.0)
    assert roster.outcome(5.0 + GRACE_S - 0.01) is None
    verdict = roster.outcome(5.0 + GRACE_S)
    assert verdict
    assert verdict.status == 1
    assert [line.split(":")[0] for line in verdict.lines] == [
        "rank 1 (worker_2, 10.0.0.1) is lost",
        "rank 0 (worker_1, 10.0.0.0) failed",
        f"rank 2 (worker_3, 10.0.0.2) neither ended nor said why {GRACE_S:g} s after the first failure",
    ]


def test_silence_is_a_loss_and_a_sign_of_life_is_not() -> None:
    roster = running(2)
    roster.heard(roster.members[0], SILENCE_S - 1)
    assert roster.handle_timer(SILENCE_S) == [roster.members[1]]
    assert roster.handle_timer(SILENCE_S) == [], "once"
    roster.ended(roster.members[1], 0, "", SILENCE_S + 1)
    roster.ended(roster.members[0], 0, "", SILENCE_S + 1)
    verdict = roster.outcome(SILENCE_S + 1)
    assert verdict, "who counted as lost stays lost, as for the switch"
    assert verdict.status == 1


@pytest.mark.parametrize("wanted", [0, MAX_MEMBERS + 1])
def test_illegal_numbers_of_workers_are_refused(wanted: int) -> None:
    with pytest.raises(ConfigurationError):
        Roster(wanted)


def test_the_environment_says_how_many_or_nothing() -> None:
    assert wanted_workers({}) is None
    assert wanted_workers({"WORKERS": ""}) is None
    assert wanted_workers({"WORKERS": "8"}) == 8
    with pytest.raises(ConfigurationError):
        wanted_workers({"WORKERS": "four"})


def test_a_job_has_an_address() -> None:
    assert job_address("job") == ("job", 4918)
    assert job_address("10.0.0.1:99") == ("10.0.0.1", 99)
    with pytest.raises(ConfigurationError):
        job_address("job:http")


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\n",
        b"[]\n",
        b'{"kind": 1}\n',
        b"x" * (MAX_LINE_BYTES + 1),
        b'{"type": "report"}\n',
        b'{"type": "ended", "status": "0", "cause": ""}\n',
        b'{"type": "join", "settings": []}\n',
    ],
)
def test_anything_but_messages_is_an_error_of_the_channel(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)

    def send() -> None:
        with contextlib.suppress(OSError):  # it is hung up on in the middle of a long line
            theirs.sendall(data)
            theirs.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(ChannelError):
            read_to_end(channel)
    finally:
        channel.close()
        sender.join()
        theirs.close()


def test_who_joins_and_resets_its_connection_costs_the_job_nothing() -> None:
    server = JobServer(Roster(2), 0, "127.0.0.1")
    with contextlib.closing(server):
        with socket.create_connection(("127.0.0.1", server.port)) as stranger:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # `close` resets
            stranger.sendall(b'{"type": "join"}\n')
        for _ in ("accept", "join", "reset"):
            server._turn()
        assert (server._members, server.roster.members) == ({}, [])


def read_to_end(channel: Channel) -> None:
    while channel.receive() is not None:
        pass


def take_part(server: JobServer, programs: list[str]) -> tuple[JobOutcome, list[subprocess.CompletedProcess[str]]]:
    """Run a worker process per program against `server`; the verdict and what became of them."""
    verdicts: list[JobOutcome] = []
    serving = threading.Thread(target=lambda: verdicts.append(server.run()))
    serving.start()
    environment = {**os.environ, "FANIN_JOB": f"127.0.0.1:{server.port}"}
    command = [sys.executable, "-m", "fanin.emulation.containers.worker", sys.executable, "-c"]
    processes = [
        subprocess.Popen([*command, program], env=environment, stdout=PIPE, stderr=PIPE, text=True)
        for program in programs
    ]
    done = []
    for process in processes:
        output, log = process.communicate(timeout=100)
        done.append(subprocess.CompletedProcess(process.args, process.returncode, output, log))
    serving.join()
    server.close()
    return verdicts[0], done


@pytest.mark.processes
def test_programs_get_what_torchrun_would_set_and_their_records_reach_the_job(
    capsys: pytest.CaptureFixture[str],
) -> None:
    program = (
        "import json, os; assert os.environ['MASTER_ADDR'] == '127.0.0.1'; assert os.environ['LOCAL_RANK'] == '0';"
        "print(json.dumps({'event': 'epoch', 'epoch': 1, 'loss': 0.5, 'accuracy': 0.5, 'step_s': 1,"
        "'communication_s': 0})); print(json.dumps({'event': 'end', 'replica': os.environ['WORLD_SIZE']}))"
    )
    verdict, done = take_part(JobServer(Roster(2), 0, "127.0.0.1"), [program, program])
    assert verdict == JobOutcome(0, ())
    assert [process.returncode for process in done] == [0, 0]
    said = capsys.readouterr().out
    assert said.count("epoch   1  loss 0.5000  accuracy  50.0%") == 1, "only rank 0's"
    assert "the job succeeded" in said


@pytest.mark.processes
def test_one_failure_is_the_status_of_all_and_its_cause_is_told() -> None:
    failing = "import os, sys; sys.exit(0) if os.environ['RANK'] == '0' else 1 / 0"
    verdict, done = take_part(JobServer(Roster(2), 0, "127.0.0.1"), [failing, failing])
    assert verdict.status == 1
    assert "rank 1" in verdict.lines[0]
    assert "ZeroDivisionError" in verdict.lines[0]
    assert [process.returncode for process in done] == [1, 1]


@pytest.mark.processes
def test_a_worker_without_a_command_is_told_the_usage() -> None:
    command = [sys.executable, "-m", "fanin.emulation.containers.worker"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Usage" in done.stderr
