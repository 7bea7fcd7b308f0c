"""Errors when ranks die or stop, the switch dies or is not there, and ranks call different things.

Every wait here is bounded by what docs/errors.md promises: 10 s until every survivor has raised, and 5 s when there is
no switch. The numbers are limits of the product, not measurements.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.processes import a_switch, has_ended, until
from tests.torch.rank_checks import LOADED_MACHINE_S, PROMISED_S, play, running

WORLDS, WAITS = 4, "waits"
"""The same as in tests/torch/failure_ranks.py; that imports torch, which takes seconds here."""

pytestmark = [pytest.mark.processes, pytest.mark.slow]
NO_SWITCH = "udp://127.0.0.1:9"
"""Nothing listens at the discard port."""


def ended(pid: int, within_s: float) -> bool:
    """Whether a process ends in time."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return has_ended(watched, within_s)
    finally:
        os.close(watched)


def test_every_survivor_of_a_killed_rank_raises_in_time_and_names_it() -> None:
    for seen in (play("rank_killed", silent=(1,))[rank] for rank in (0, 2)):
        assert seen["error"] == "WorkerLostError"
        assert seen["ranks"] == [1]
        assert "Connection closed by peer" in seen["text"]
        assert seen["seconds"] < PROMISED_S + 1  # the victim lives for a while first


def state_of(pid: int) -> str:
    """The state of a process's first thread: R while it runs or could (proc_pid_stat(5))."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


BRIEF_SILENCE = {"FANIN_LIVENESS_TIMEOUT_S": "5"}


def test_a_stopped_rank_is_noticed_whatever_one_waits_for() -> None:
    said = play("rank_stopped", 4, silent=(1,), environment=BRIEF_SILENCE)
    for rank in (0, 2, 3):
        assert said[rank]["error"] == "WorkerLostError", said[rank]
        assert said[rank]["ranks"] == [1]
        assert said[rank]["seconds"] < PROMISED_S
        assert said[rank]["afterwards"]["error"] == "WorkerLostError"
        assert said[rank]["afterwards"]["seconds"] < LOADED_MACHINE_S, "it waits for nothing"


def test_a_stopped_rank_is_noticed_although_the_next_rank_has_ended() -> None:
    for seen in (play("neighbour_left", 4, silent=(1, 3), environment=BRIEF_SILENCE)[rank] for rank in (0, 2)):
        assert seen["error"] == "WorkerLostError"
        assert set(seen["ranks"]) <= {1, 3}
        assert seen["ranks"]
        assert seen["seconds"] < PROMISED_S


def test_every_rank_raises_in_time_when_the_switch_dies() -> None:
    for seen in play("switch_killed"):
        assert seen["error"] == "SwitchLostError", seen
        assert "udp://" in seen["text"]
        assert "or set FANIN_FALLBACK=gloo on every rank" in seen["text"]
        assert seen["seconds"] < PROMISED_S


@pytest.mark.parametrize("where", [{}, {"FANIN_HOST": "host-%r"}], ids=["one switch", "a shard per host"])
def test_training_goes_on_over_gloo_when_a_switch_dies_and_replicas_stay_identical(where: dict[str, str]) -> None:
    for rank, seen in enumerate(play("switch_killed_under_fallback", environment=where)):
        assert seen["identical"]
        assert seen["sums"] == [3.0 + 3 * index for index in range(5)]
        assert seen["part"] == [3.0 * (4 * rank + index) for index in range(4)]
        assert len(seen["warnings"]) == 1
        assert "gloo" in seen["warnings"][0]
        assert "udp://" in seen["warnings"][0]
        assert seen["recorded"][-1] == "started", "the sum that the switch's end has met"
        assert len(seen["recorded"]) < seen["called"]


def test_without_a_switch_joining_fails_in_time_and_names_address_and_remedy() -> None:
    for seen in play("no_switch", environment={"FANIN_SWITCH": NO_SWITCH}):
        assert seen["error"] == "SwitchUnreachableError"
        assert NO_SWITCH in seen["text"]
        assert "fanin" in seen["text"]
        assert seen["seconds"] < 5 + LOADED_MACHINE_S


def starts_on_gloo_and_says_so(address: str, reason: str) -> None:
    for seen in play("no_use_of_a_switch_under_fallback", environment={"FANIN_SWITCH": address}):
        assert seen["mean"] == 2.0
        assert seen["paths"] == ["gloo"]
        [warning] = seen["warnings"]
        assert f"the switch at {address} cannot be used" in warning
        assert reason in warning


def test_without_a_switch_the_fallback_starts_on_gloo_and_says_so() -> None:
    starts_on_gloo_and_says_so(NO_SWITCH, "no switch answers")


def test_at_a_switch_that_is_full_the_fallback_starts_on_gloo_and_says_so() -> None:
    with a_switch("native-udp", "--slots", "1") as switch:
        starts_on_gloo_and_says_so(str(switch.address), "bytes of switch memory needed")


@pytest.mark.parametrize("scenario", ["sizes_differ", "collectives_differ"])
def test_different_collectives_raise_on_every_rank(scenario: str) -> None:
    errors = [seen["error"] for seen in play(scenario)]
    assert "CollectiveMismatchError" in errors
    assert set(errors) <= {"CollectiveMismatchError", "WorkerLostError"}


def test_other_types_of_one_size_and_other_roots_raise_on_every_rank() -> None:
    said = [seen["cases"] for seen in play("types_and_roots_differ", 2)]
    for case in said[0]:
        errors = [cases[case]["error"] for cases in said]
        assert "CollectiveMismatchError" in errors, case
        assert set(errors) <= {"CollectiveMismatchError", "WorkerLostError"}, case


def test_a_collective_that_a_rank_does_not_call_times_out_everywhere_else() -> None:
    said = play("a_rank_does_not_call")
    for rank in (0, 2):
        for seen in (said[rank], said[rank]["gloo"]):
            assert seen["error"] == "CollectiveTimeoutError"
            assert "Timed out" in seen["text"]
            assert "timeout" in seen["text"]
        assert "Timed out" in said[rank]["future"]["text"]


@pytest.mark.parametrize("size", [2, 4])
def test_the_world_is_destroyed_and_made_again_on_the_same_port(size: int) -> None:
    for seen in play("worlds_one_after_another", size):
        assert seen["sums"] == [size * (size + 1) / 2] * WORLDS


def test_a_group_within_a_world_of_gloos_needs_no_world_of_ours_that_was_destroyed() -> None:
    for seen in play("a_world_of_gloos_after_one_of_ours"):
        assert seen == {"sum": 6.0, "counted": 1}


@pytest.mark.parametrize("hosts", [{}, {"FANIN_HOST": "host-%r"}], ids=["one host", "a shard on every host"])
def test_a_program_that_ends_without_destroying_its_group_leaves_nothing_behind(hosts: dict[str, str]) -> None:
    for seen in play("exit_without_destroy", environment=hosts, torn_down=range(3)):
        for pid in seen["children"]:
            assert ended(pid, within_s=PROMISED_S)


@pytest.mark.parametrize("scenario", ["trainings_alive", "trainings_alive_after_destroy"])
def test_a_program_that_ends_while_something_trains_is_not_aborted(scenario: str) -> None:
    for seen in play(scenario, 2, torn_down=range(2)):  # the exit code is 0
        assert seen["error"] == "ConfigurationError"
        assert not seen.get("threads")


def test_an_interrupt_ends_a_rank_that_waits() -> None:
    with running(["tests.torch.failure_ranks", "nobody_else_sums", "out%r.json"], 2) as job:
        waiting = job.processes[0]
        until(lambda: (job.folder / WAITS).exists() or waiting.poll() is not None)
        until(lambda: state_of(waiting.pid) != "R")
        waiting.send_signal(signal.SIGINT)
        assert job.wait(60.0, [0]) == [-signal.SIGINT], job.output(0)
        assert "KeyboardInterrupt" in job.output(0)
