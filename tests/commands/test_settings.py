"""Options from the fields of records: bounds, texts and help stand beside the field (fanin/settings.py)."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
import typer.main
from typer.testing import CliRunner

from fanin.advice import advice_plan
from fanin.benchmarks.rivals import Rival, check_rivals
from fanin.cli import app, run
from fanin.cli.bench import BENCHMARKS
from fanin.cli.fields import described, docstrings, with_options
from fanin.emulation.network.scenario import Scenario
from fanin.emulation.network.units import Rate, Rates, rate_bit_s, rate_text
from fanin.errors import ConfigurationError
from fanin.examples import demo
from fanin.options import Options, Rounds
from fanin.settings import (
    Bounds,
    Lanes,
    Named,
    Numbers,
    OneOf,
    Words,
    check_bounds,
    fields_of,
    settings_of,
    words_of,
)
from fanin.switch.service.service import ServiceOptions


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A record with a field of each kind."""

    workers: Annotated[int, Bounds(2, 32)] = 4
    """Number of ranks,
    in all."""
    sizes: Annotated[Numbers, Named("bytes"), Bounds(4)] = (4096,)
    """Bytes of the whole tensor."""
    lanes: Lanes = (32, "4/8")
    """Lane widths to be measured."""
    device: Annotated[str, OneOf("cpu", "cuda")] = "cpu"
    """Device of all of the tensors."""
    which: Annotated[Words, OneOf("reduce", "broadcast")] = ()
    """Collectives to be measured in turn."""
    rate_bit_s: Annotated[Rate, Named("rate")] = 1e8
    """Rate of every link, each way."""
    rates: Rates = ()
    """Rates of links, one after another."""

    def __post_init__(self) -> None:
        check_bounds(self)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"workers": 1}, "workers = 1; must be in 2..32"),
        ({"sizes": (4096, 2)}, "bytes = 4096,2; must be at least 4"),
        ({"device": "tpu"}, "device = 'tpu'; must be one of cpu, cuda"),
        ({"which": ("reduce", "gather")}, "which = 'reduce,gather'; must be some of reduce, broadcast"),
    ],
)
def test_an_illegal_field_is_named_with_its_value_and_bounds(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Plan(**wrong)
    assert refused.value.text == said
    assert str(refused.value) == f"{said}. Remedy: correct {said.partition(' ')[0]}"


@pytest.mark.parametrize(
    ("command", "kind", "field"),
    [
        ("advise --bytes", advice_plan.Plan, "bytes"),
        ("demo --workers", demo.Plan, "workers"),
        ("demo --epochs", demo.Plan, "epochs"),
        ("demo --seed", demo.Plan, "seed"),
        ("switch --flows", ServiceOptions, "flows"),
        ("switch --flows", Options, "flows"),
        ("switch --source-share", ServiceOptions, "source_share"),
        ("switch --liveness-timeout", ServiceOptions, "liveness_timeout_s"),
        ("switch --liveness-timeout", Options, "liveness_timeout_s"),
        ("tune udp://127.0.0.1:1 job --quorum", Rounds, "quorum"),
        ("tune udp://127.0.0.1:1 job --staleness", Rounds, "staleness"),
    ],
)
def test_a_command_refuses_what_its_record_refuses_with_the_same_numbers(
    command: str, kind: type, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = next(each for each in settings_of(kind) if each.field == field)
    assert setting.bounds is not None
    for bound, further in ((setting.bounds.least, -1), (setting.bounds.most, 1)):
        if bound is None:
            continue
        with pytest.raises(ConfigurationError, match="must be") as refused:
            setting.check(bound + further)
        *words, option = command.split()
        assert run([*words, f"{option}={bound + further}"]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert refused.value.text.partition("; ")[2] in said


@pytest.mark.parametrize(
    ("command", "kind", "options"),
    [
        ("advise", advice_plan.Plan, "--switch --lanes --bytes --measure"),
        ("demo", demo.Plan, "--workers --lanes --task --epochs --seed --backend"),
        ("tune", Rounds, "--quorum --staleness"),
        ("switch", ServiceOptions, "--flows --native --source-share --liveness-timeout --shared-memory"),
        ("controller", ServiceOptions, "--liveness-timeout"),
        ("p4 deploy", ServiceOptions, "--liveness-timeout"),
    ],
)
def test_help_and_bounds_of_a_command_are_those_of_its_record(command: str, kind: type, options: str) -> None:
    found: Any = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]
    by_option = {each.opts[0]: each for each in found.params}
    for setting in settings_of(kind):
        option = f"--{setting.option.removesuffix('-s')}"
        if option not in options.split():
            continue
        shown = by_option[option]
        assert shown.help.startswith(docstrings(kind)[setting.field])
        if setting.bounds is not None:
            in_words = str(setting.bounds) in shown.help.lower()
            assert in_words or (shown.min, shown.max) == (setting.bounds.least, setting.bounds.most)


@pytest.mark.parametrize(
    ("command", "kind", "options"),
    [
        ("advise", advice_plan.Plan, "--switch --lanes --bytes --measure"),
        ("demo", demo.Plan, "--workers --lanes --task --epochs --seed --backend"),
        ("switch", ServiceOptions, "--native --liveness-timeout --shared-memory"),
        ("controller", ServiceOptions, "--liveness-timeout"),
        ("p4 deploy", ServiceOptions, "--liveness-timeout"),
    ],
)
def test_defaults_of_a_command_are_those_of_its_record(command: str, kind: type, options: str) -> None:
    found: Any = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]
    by_option = {each.opts[0]: each for each in found.params}
    fields = {f"--{setting.option.removesuffix('-s')}": setting for setting in settings_of(kind)}
    for option in options.split():
        setting = fields[option]
        written = setting.default if setting.text is None else setting.written(setting.default)
        assert by_option[option].default == written


def test_a_default_of_a_command_itself_goes_before_the_records() -> None:
    def call(*, workers: Annotated[int, typer.Option()] = 8, lanes: Annotated[str, typer.Option()]) -> None:
        print(workers, fields_of(Plan, {"lanes": lanes}))

    alone = typer.Typer()
    alone.command()(described(Plan, "workers", "lanes")(call))
    assert CliRunner().invoke(alone, []).output == "8 {'lanes': (32, '4/8')}\n"


def test_a_record_passes_through_a_command_line() -> None:
    plan = Plan(workers=8, sizes=(4, 8), lanes=("8/8", 16), which=("reduce",), rate_bit_s=None, rates=(1e9, 2.5e6))
    words = words_of(plan)
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert (options["--bytes"], options["--rate"]) == ("4,8", "none")
    assert options["--rates"] == "1gbit,2.5mbit"
    texts: dict[str, Any] = {"workers": 8, "sizes": "4,8", "lanes": "8/8,16", "which": "reduce"}
    assert Plan(**fields_of(Plan, {**texts, "rate_bit_s": "none", "rates": "1gbit,2.5mbit"})) == plan


@pytest.mark.parametrize("rate", [None, 1.0, 4e6, 1e8, 2.5e9])
def test_rates_are_read_back_from_their_texts(rate: float | None) -> None:
    assert rate_bit_s(rate_text(rate)) == rate


def test_docstrings_of_fields_are_the_help() -> None:
    assert docstrings(Plan)["workers"] == "Number of ranks, in all."
    alone = typer.Typer()
    alone.command()(with_options(Plan, lambda make, typed: print(make().sizes, sorted(typed)), "Does nothing."))
    done = CliRunner().invoke(alone, ["--bytes", "8,16", "--workers", "4"])
    assert done.output == "(8, 16) ['sizes', 'workers']\n"
    text = " ".join(CliRunner().invoke(alone, ["--help"], env={"COLUMNS": "120"}).output.split())
    assert "2<=x<=32" in text
    assert "Bytes of the whole tensor." in text


RECORDS = [importlib.import_module(f"fanin.benchmarks.{name}").Plan for name in BENCHMARKS]


@pytest.mark.parametrize("kind", [Options, Rounds, ServiceOptions, advice_plan.Plan, demo.Plan, Scenario, *RECORDS])
def test_bounds_stand_in_the_metadata_of_a_field_and_not_in_its_text(kind: type) -> None:
    texts = docstrings(kind)
    bounded = [setting.field for setting in settings_of(kind) if setting.bounds is not None]
    assert [field for field in bounded if re.search(r"\d\.\.[\d.]", texts.get(field, ""))] == []


@pytest.mark.parametrize("name", [*BENCHMARKS, "advise", "emulate"])
def test_help_is_whole_at_80_columns(name: str) -> None:
    command = ["bench", name, "--help"] if name in BENCHMARKS else [name, "--help"]
    done = CliRunner().invoke(app, command, env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert done.exit_code == 0
    assert "…" not in done.output


@pytest.mark.processes
def test_modules_of_commands_import_neither_numpy_nor_torch() -> None:
    program = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    program += "print(*{'numpy', 'torch'} & set(sys.modules))"
    modules = [f"fanin.benchmarks.{name}" for name in BENCHMARKS]
    done = subprocess.run([sys.executable, "-c", program, *modules], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_rival_of_another_package_is_its_module_and_its_backend() -> None:
    assert Rival.parse("torch.distributed:gloo") == Rival("torch.distributed:gloo")
    assert Rival.parse("torch.distributed:gloo").label == "torch.distributed:gloo"
    check_rivals([], ("gloo", "json:anything"))
    for wrong in ("nothing.of.the.kind:gloo", "json:", "nccl"):
        with pytest.raises(ConfigurationError, match="MODULE:BACKEND"):
            check_rivals([], (wrong,))
