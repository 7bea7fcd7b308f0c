"""How a user's command becomes one of a cluster."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fanin.emulation.network.launch import require_program, torchrun_command
from fanin.emulation.network.topology import Topology
from fanin.errors import ConfigurationError
from fanin.modules import running

FABRIC: Any = SimpleNamespace(topology=Topology(workers=4), name="abcd")


def test_a_script_becomes_a_node_of_torchrun() -> None:
    command = torchrun_command(["python", "train.py", "--epochs", "3"], FABRIC, 2, 0)
    assert command[:4] == running("torch.distributed.run")
    assert command[-3:] == ["train.py", "--epochs", "3"]
    assert command[command.index("--node-rank") + 1] == "2"
    assert command[command.index("--nnodes") + 1] == "4"
    assert command[command.index("--master-addr") + 1] == "10.77.0.101"


def test_an_interpreter_that_is_named_in_full_is_used() -> None:
    assert torchrun_command(["/opt/python3", "-m", "train"], FABRIC, 0, 0)[0] == "/opt/python3"


def test_nodes_that_may_be_restarted_meet_at_the_first_one() -> None:
    first, last = (torchrun_command(["python", "train.py"], FABRIC, rank, 2) for rank in (0, 3))
    assert "is_host=1" in first
    assert "is_host=0" in last
    assert first[first.index("--max-restarts") + 1] == "2"
    assert last[last.index("--local-addr") + 1] == "10.77.0.104"


@pytest.mark.parametrize("command", [["sh", "-c", "true"], ["python", "-c", "pass"], ["./train"], ["torchrun", "x.py"]])
def test_any_other_command_is_left_alone(command: list[str]) -> None:
    assert torchrun_command(command, FABRIC, 1, 0) == command


@pytest.mark.parametrize(
    "program",
    [
        ["-u", "train.py", "-c"],
        ["-W", "error", "-X", "dev", "-m", "train"],
        ["-Wonce", "train.py"],
        ["-uW", "error", "train.py"],
        ["-um", "train"],
        ["--check-hash-based-pycs", "never", "train.py"],
    ],
)
def test_options_of_the_interpreter_stay_with_it(program: list[str]) -> None:
    command = torchrun_command(["python", *program], FABRIC, 1, 0)
    assert command[:4] == running("torch.distributed.run")
    assert command[-len(program) - 2 :] == ["--no-python", sys.executable, *program]


@pytest.mark.parametrize("program", [["-uc", "pass"], ["-u", "-c", "pass"], ["-V"], ["-"], ["-W"], []])
def test_an_interpreter_without_a_program_is_left_alone(program: list[str]) -> None:
    assert torchrun_command(["python", *program], FABRIC, 1, 0) == ["python", *program]


def test_no_command_is_an_error_that_shows_how() -> None:
    with pytest.raises(ConfigurationError, match="fanin emulate -- python"):
        torchrun_command([], FABRIC, 0, 0)


@pytest.mark.parametrize(
    "command",
    [
        ["python", "no-such.py"],
        ["python3", "-u", "-X", "dev", "no-such.py", "--epochs", "3"],
        ["./no-such"],
        ["no-such-command"],
        ["/no/such/python", "-m", "train"],
    ],
)
def test_a_program_that_is_not_there_is_refused(command: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"no (command )?(\./|/)?no.such.*Remedy: correct"):
        require_program(command)


@pytest.mark.parametrize(
    "command",
    [
        ["python", __file__],
        ["python", "-u", __file__, "no-such.py"],
        ["python", str(Path(__file__).parent)],  # a folder with a __main__.py runs, and one without says so itself
        ["python", "-m", "no_such"],
        ["python", "-um", "no_such"],
        ["python", "-mno_such"],
        ["python", "-c", "no-such.py"],
        ["python"],
        ["true"],
        [sys.executable, "-c", "pass"],
        [],
    ],
)
def test_a_program_that_may_be_there_is_tried(command: list[str]) -> None:
    require_program(command)
