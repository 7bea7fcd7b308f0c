"""The `fanin` command as a new user meets it: help, completion, refusals, and what it says when an extra is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup
from typer.testing import CliRunner

from fanin.cli import COMMANDS as COMMAND_LINES
from fanin.cli import GROUPS, app, extras
from fanin.cli.epilogs import EXAMPLES, STATUS
from tests.house.repository import project

FANIN = [sys.executable, "-m", "fanin"]
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder
hidden = set(sys.argv.pop(1).split(","))
class Hide(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.partition(".")[0] in hidden else found(name, package)
sys.meta_path.insert(0, Hide())
from fanin.cli import main
main()
"""
"""`fanin` where some modules are not installed."""
IMPORTED = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
from fanin.cli import main
main()
"""
"""`fanin`, whose last line on standard error are the names of the modules that it has imported."""
ONE_LINERS = COMMAND_LINES | GROUPS
EVERY_EXTRA = sorted({module for modules in extras.MODULES.values() for module in modules})


def commands(group: Any) -> dict[str, Any]:
    """Every command by its name, those of groups too; with its group's where the name is taken."""
    found: dict[str, Any] = {
        name: command for name, command in group.commands.items() if not isinstance(command, TyperGroup)
    }
    for name, inner in group.commands.items():
        if isinstance(inner, TyperGroup):
            found |= {f"{name} {own}" if own in found else own: each for own, each in commands(inner).items()}
    return found


def paths(group: Any, before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The words behind `fanin` for every command, those of groups last."""
    found = [(*before, name) for name, each in group.commands.items() if not isinstance(each, TyperGroup)]
    inner = [(name, each) for name, each in group.commands.items() if isinstance(each, TyperGroup)]
    return [*found, *(path for name, each in inner for path in paths(each, (*before, name)))]


COMMANDS = commands(typer.main.get_command(app))
PATHS = paths(typer.main.get_command(app))


def run(*arguments: str, folder: Path, hide: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    command = FANIN if hide is None else [sys.executable, "-c", WITHOUT, ",".join(hide)]
    return subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_ends_its_help_with_examples_that_it_understands(name: str) -> None:
    command = COMMANDS[name]
    assert EXAMPLES[name]
    options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    for example in EXAMPLES[name]:
        assert example in command.epilog
        ours = example.partition(" -- ")[0].split()
        assert name.split() == [word for word in ours if word in name.split()]
        assert {word for word in ours if word.startswith("--")} <= options
    assert STATUS in command.epilog


@pytest.mark.parametrize("name", ONE_LINERS)
def test_the_list_of_commands_has_the_first_line_of_each_ones_own_help(name: str) -> None:
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "500"}).output
    assert ONE_LINERS[name] in [line.strip() for line in shown.splitlines()]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "own"), [([], set()), (["--help"], set()), (["--version"], set()), (["stats", "--help"], {"stats"})]
)
def test_a_command_line_imports_the_modules_of_its_own_command_alone(arguments: list[str], own: set[str]) -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED, *arguments], capture_output=True, text=True, check=False)
    imported = set(json.loads(done.stderr.splitlines()[-1]))
    assert {f"fanin.cli.{name}" for name in ONE_LINERS} & imported == {f"fanin.cli.{name}" for name in own}
    assert not {"asyncio", "fanin._native", "numpy", "torch", "zmq"} & imported
    assert bool(own) == ("fanin.protocol.control" in imported), "messages, whose classes take long to make"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is(name: str) -> None:
    for parameter in COMMANDS[name].params:
        assert getattr(parameter, "hidden", False) or parameter.help, f"{name}: {parameter.name}"
        if parameter.help:
            assert parameter.help.endswith((".", ":")), f"{name}: {parameter.name}"


@pytest.mark.parametrize("name", COMMANDS)
def test_names_of_options_are_whole_at_80_columns(name: str) -> None:
    path = next(path for path in PATHS if path[-1] == name.split()[-1] and " ".join(path).endswith(name))
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"}).output
    assert max(map(len, shown.splitlines())) <= 80
    assert not [line for line in shown.splitlines() if "\N{HORIZONTAL ELLIPSIS}" in line]


@pytest.mark.processes
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str) -> None:
    asked = {
        "bash": {"COMP_WORDS": "fanin em", "COMP_CWORD": "1"},
        "zsh": {"_TYPER_COMPLETE_ARGS": "fanin em"},
        "fish": {"_TYPER_COMPLETE_ARGS": "fanin em", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    script = "import sys; sys.argv = ['fanin']; from fanin.cli import app; app(prog_name='fanin')"
    environment = {**os.environ, **asked, "_FANIN_COMPLETE": f"complete_{shell}"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert "emulate" in done.stdout, done.stderr
    assert "doctor" not in done.stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["demo"], "demo"),
        (["bench", "allreduce"], "torch"),
        (["bench", "codecs"], "demo"),
        (["bench", "network"], "torch"),
        (["bench", "fairness"], "torch"),
        (["bench", "staleness"], "demo"),
        (["switch", "--target", "p4"], "p4"),
        (["controller", "--p4runtime", "a:1", "--switch-address", "10.0.0.1:1"], "p4"),
        (["p4", "run"], "p4"),
        (["p4", "trace", "00"], "p4"),
        (["report", "record.json"], "plot"),
        (["gallery", "--only", "several_tasks"], "demo"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_a_command_whose_extra_is_missing_names_it(tmp_path: Path, arguments: list[str], extra: str) -> None:
    done = run(*arguments, folder=tmp_path, hide=EVERY_EXTRA)
    assert done.returncode == 2
    assert done.stderr.startswith("fanin: ")
    assert f"pip install 'fanin[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.processes
@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["simulate", "--python"], ["simulate"], ["doctor"]], ids=" ".join
)
def test_the_rest_works_without_any_extra(tmp_path: Path, arguments: list[str]) -> None:
    done = run(*arguments, folder=tmp_path, hide=EVERY_EXTRA)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.processes
def test_a_shared_link_is_measured_without_torch(tmp_path: Path) -> None:
    done = run("bench", "network", "--shared-link", "--rate", "none", folder=tmp_path, hide=EVERY_EXTRA)
    assert "a link without a rate is not shared" in done.stderr


def test_every_extra_of_the_project_is_known_by_its_modules() -> None:
    assert set(extras.MODULES) == set(project()["project"]["optional-dependencies"]) - {"dev"}
    assert extras.remedy("torch.distributed") == "pip install 'fanin[torch]'"
    assert extras.remedy("json") is None


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--fault", "drop=2"], "0..1"),
        (["demo", "--fault", "down=link:1@5s+2s"], "fanin emulate --fault"),
        (["demo", "--json", "nowhere/demo.json"], "there is no folder"),
        (["demo", "--html", "."], "it is a folder"),
        (["bench", "allreduce", "--lanes", "5"], "lanes"),
        (["bench", "allreduce", "--bytes", "6"], "multiple of 4"),
        (["bench", "codecs", "--codecs", "rotated:7"], "lanes = '7'"),
        (["bench", "codecs", "--values", "digits"], "digits@50"),
        (["bench", "codecs", "--html", "page.html"], "--train"),
        (["bench", "network", "--shared-link", "--html", "page.html", "--lanes", "8"], "--lanes, --html: not with"),
        (["bench", "network", "--shared-link", "--samples", "11"], "--samples: not with --shared-link"),
        (["bench", "network", "--shared-link", "--bytes", "4096,8192"], "expected one number with --shared-link"),
        (["bench", "codecs", "--train", "--workers", "3"], "must divide the batch"),
        (["report", "nothing.json"], "nothing.json"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_is_illegal_is_refused_in_one_line_before_anything_starts(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("fanin: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
