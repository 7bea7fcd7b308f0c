"""The `fanin` command as a new user meets it: help, completion, refusals, and what it says when an extra is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup
from typer.testing import CliRunner

from fanin.cli import COMMANDS as COMMAND_LINES
from fanin.cli import GROUPS, app, extras
from fanin.cli import run as call
from fanin.cli.epilogs import EXAMPLES, STATUS
from tests.support.repository import project

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
import json, os, signal, tempfile
import fanin.cli, typer._adapters, rich.console
for line in sys.stdin:
    folder, arguments = json.loads(line)
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if not child:
            os.chdir(folder)
            for number, file in ((1, output), (2, errors)):
                os.dup2(file.fileno(), number)
            sys.argv = ["fanin", *arguments]
            status = 1
            try:
                fanin.cli.main()
            except SystemExit as end:
                status = end.code or 0
                sys.stdout.flush()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = []
        for file in (output, errors):
            file.seek(0)
            said.append(file.read())
    print(json.dumps([status, *said]), flush=True)
"""
"""`fanin` where some modules are not installed, in a fork for each line that asks for one."""
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


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    status: int
    output: str
    errors: str


Bare = Callable[..., Ended]


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """The process whose forks have no module of any extra."""
    command = [sys.executable, "-c", WITHOUT, ",".join(EVERY_EXTRA)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.fixture
def bare(server: subprocess.Popen[str], tmp_path: Path) -> Bare:
    """`fanin` without any extra, in a folder of its own."""

    def run(*arguments: str) -> Ended:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps([str(tmp_path), arguments]) + "\n")
        server.stdin.flush()
        return Ended(*json.loads(server.stdout.readline()))

    return run


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
def test_a_command_whose_extra_is_missing_names_it(
    bare: Bare, tmp_path: Path, arguments: list[str], extra: str
) -> None:
    done = bare(*arguments)
    assert done.status == 2
    assert done.errors.startswith("fanin: ")
    assert f"pip install 'fanin[{extra}]'" in done.errors
    assert "Traceback" not in done.errors
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["p4", "bmv2"])
def test_an_emulated_p4_switch_names_its_extra_before_anything_starts(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fanin.emulation.network.commands.require_privileges", lambda: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "p4" else object())
    monkeypatch.delattr(subprocess, "Popen")
    assert call(["emulate", "--workers", "2", "--target", target, "--", "true"]) == 2
    assert capsys.readouterr().err == f"fanin: --target {target} needs p4. Remedy: pip install 'fanin[p4]'\n"


def test_namespaces_without_root_are_refused_as_what_nobody_has_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert call(["emulate", "--", "true"]) == 2
    assert "network namespaces need root" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["bench", "watching"], ["switch", "--metrics", ":0"]], ids=" ".join)
def test_a_command_that_wants_metrics_names_their_extra_before_it_starts_anything(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delattr(subprocess, "Popen")
    assert call(arguments) == 2
    assert capsys.readouterr().err == "fanin: metrics need prometheus_client. Remedy: pip install 'fanin[metrics]'\n"


@pytest.mark.processes
@pytest.mark.parametrize(
    "arguments", [["--version"], ["--help"], ["simulate", "--python"], ["simulate"], ["doctor"]], ids=" ".join
)
def test_the_rest_works_without_any_extra(bare: Bare, arguments: list[str]) -> None:
    done = bare(*arguments)
    assert done.status == 0, done.output + done.errors


@pytest.mark.processes
def test_a_shared_link_is_measured_without_torch(bare: Bare) -> None:
    done = bare("bench", "network", "--shared-link", "--rate", "none")
    assert "a link without a rate is not shared" in done.errors


def test_every_extra_of_the_project_is_known_by_its_modules() -> None:
    assert set(extras.MODULES) == set(project()["project"]["optional-dependencies"]) - {"dev"}
    assert extras.remedy("torch.distributed") == "pip install 'fanin[torch]'"
    assert extras.remedy("json") is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--fault", "drop=2"], "0..1"),
        (["demo", "--fault", "down=link:1@5s+2s"], "fanin emulate --fault"),
        (["demo", "--workers", "2", "--fault", "kill=worker:2@step:1"], "there is no worker 2: workers are 0..1"),
        (["demo", "--backend", "nccl"], "backend = 'nccl'; must be one of fanin, gloo"),
        (["demo", "--backend", "gloo", "--fault", "drop=1%"], "--fault with --backend gloo, which knows none"),
        (["demo", "--fault"], "Remedy: `fanin demo --help`"),
        (["bench", "network", "--samples"], "Remedy: `fanin bench network --help`"),
        (["p4", "run", "--port"], "Remedy: `fanin p4 run --help`"),
        (["demo", "--json", "nowhere/demo.json"], "there is no folder"),
        (["demo", "--html", "."], "it is a folder"),
        (["demo", "--json", "o", "--record", "./o"], "two outputs would be written there"),
        (["demo", "--record", "fanin-report.html"], "two outputs would be written there"),
        (["bench", "allreduce", "--json", "o", "--html", "o"], "two outputs would be written there"),
        (["bench", "codecs", "--train", "--json", "o", "--runs", "o"], "two outputs would be written there"),
        (["bench", "staleness", "--json", "o.png", "--plot", "o.png"], "two outputs would be written there"),
        (["trace", "--scenario", "calm", "--step", "1", "--out", "o", "--replay", "o"], "two outputs would be written"),
        (["bench", "allreduce", "--lanes", "5"], "lanes"),
        (["bench", "allreduce", "--bytes", "6"], "multiple of 4"),
        (["bench", "codecs", "--codecs", "rotated:7"], "lanes = '7'"),
        (["bench", "codecs", "--codecs", "lanes:8,halves"], "codec 'halves': there is no 'halves'"),
        (["bench", "codecs", "--codecs", "lanes:8,rotatd:8,rotated"], "codec 'rotatd:8': there is no 'rotatd'"),
        (["bench", "codecs", "--train", "--codecs", "lanes:8,junk,x"], "codec 'junk': there is no 'junk'"),
        (["bench", "codecs", "--codecs", "by_layer:8:rules=dims<2=>lanes,32;*=>low_rnk,16"], "low_rnk"),
        (["bench", "codecs", "--values", "digits"], "digits@50"),
        (["bench", "codecs", "--html", "page.html"], "--train"),
        (["bench", "network", "--shared-link", "--html", "page.html", "--lanes", "8"], "--lanes, --html: not with"),
        (["bench", "network", "--shared-link", "--samples", "11"], "--samples: not with --shared-link"),
        (["bench", "network", "--shared-link", "--bytes", "4096,8192"], "expected one number with --shared-link"),
        (["bench", "network", "--shared-link", "--seconds", "1"], "seconds = 1.0; must be in 2.0..3600.0"),
        (["bench", "network", "--shared-link", "--bytes", "262145"], "bytes = 262145; must be a multiple of 4"),
        (["bench", "federated", "--clients", "0", "--simulated", "0"], "nobody trains"),
        (["simulate", "--search", "0"], "--search"),
        (["simulate", "--canary", "0"], "--canary"),
        (["simulate", "--search", "10", "--events"], "--events: not with --search"),
        (["simulate", "--shards", "--canary", "1", "--scenario", "churn"], "--scenario: not with --canary"),
        (["simulate", "--scale", "--search", "1", "--pcap", "x"], "--search, --pcap: not with --scale"),
        (["simulate", "--scale", "--seed", "3", "--python"], "--seed, --python: not with --scale"),
        (["simulate", "--scale", "--processes", "2"], "--processes: not with --scale"),
        (["simulate", "--canary", "1", "--native"], "--native: not with --canary"),
        (["simulate", "--cards", "--search", "1"], "--cards: not without --shards"),
        (["simulate", "--shards", "--cards", "--canary", "1"], "--canary: not with --cards"),
        (["simulate", "--processes", "2"], "--processes: not without --search"),
        (["bench", "codecs", "--train", "--rates", "1gbit,10kbit"], "rate 10kbit; must be in 100kbit..100gbit"),
        (["emulate", "--clean", "--workers", "3"], "--workers: not with --clean"),
        (
            ["controller", "--p4runtime", "a:1", "--switch-address", "10.0.0.1:1", "--parent-port", "2"],
            "--parent-port: not without --parent",
        ),
        (["trace", "a.jsonl", "--seed", "1", "--python"], "--seed, --python: not without --scenario"),
        (["trace", "a.jsonl", "--step", "1"], "--step: not without --scenario"),
        (["gallery", "--quick"], "--quick: not without --only or --all"),
        (["advise", "--via", "ssh", "--master", "a"], "--via, --master: not without --hosts"),
        (["advise", "--bytes", "4096", "--", "true"], "--bytes: not with a command"),
        (["demo", "--backend", "gloo", "--lanes", "8"], "--lanes: not with --backend gloo"),
        (["switch", "--tls-ca", "a"], "--tls-ca: not without --p4runtime"),
        (["switch", "--device-id", "1"], "--device-id: not without --p4runtime"),
        (["p4", "trace", "00", "--p4runtime", "a:1", "--p4info", "x"], "--p4info: not without --program"),
        (["p4", "trace", "00", "--program", "x", "--device-id", "1"], "--device-id: not without --p4runtime"),
        (["bench", "codecs", "--codecs", ""], "--codecs '' names nothing"),
        (["bench", "codecs", "--batch", "8"], "--batch: no effect without --train"),
        (["bench", "codecs", "--train", "--bytes", "8192"], "--bytes: no effect with --train"),
        (["bench", "network", "--jobs", "2"], "--jobs: no effect without --shared-link"),
        (["bench", "network", "--bytes", ""], "--bytes '' names nothing"),
        (["bench", "collectives", "--switch-at", "own"], "--switch-at: no effect without links"),
        (["bench", "sharded", "--seeds", "2"], "--seeds: no effect without --epochs"),
        (["bench", "codecs", "--train", "--workers", "3"], "must divide the batch"),
        (["report", "nothing.json"], "nothing.json"),
        (["report", "nothing.json", "--names", "a,b"], "--names 'a,b' is for two runs"),
        (["report", "nothing.json", "--against", "other.json", "--names", "a,b,c"], "expected two different names"),
        (["report", "nothing.json", "--against", "other.json", "--names", "a,a"], "expected two different names"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_is_illegal_is_refused_in_one_line_before_anything_starts(
    tmp_path: Path,
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr(subprocess, "Popen")
    assert call(arguments) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("fanin: ")
    assert said in errors
    assert errors.count("\n") == 1


INTERRUPTS = """
import os, signal, sys
from importlib.abc import MetaPathFinder
wanted = sys.argv.pop(1)
class Interrupt(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from fanin.__main__ import main
main()
"""


@pytest.mark.processes
@pytest.mark.parametrize("module", ["fanin.options", "fanin.cli", "typer", "fanin.cli.simulate", "numpy"])
def test_ctrl_c_ends_with_a_line_whatever_is_being_imported(module: str) -> None:
    """Nothing but the interpreter's own start comes before: `import fanin` does not import `fanin.options` either."""
    words = [sys.executable, "-c", INTERRUPTS, module, "simulate", "--seed", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "fanin: interrupted\n")
