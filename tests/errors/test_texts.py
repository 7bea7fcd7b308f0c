"""Every text with which the product makes an error ends with a remedy; in a rank's session it names the rank, too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanin import errors

ROOT = Path(__file__).parents[2]
KINDS = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, errors.FaninError)}
PLACES = ("host", "fanin", "switch", "benchmarks", "emulation", "examples")
BROUGHT = re.compile(
    r"\{(?:[a-z_.]*in_words\(error\)|[a-z_]*hint(?:\(.*?\))?|[a-z_.]*of_system\(error\)|(?:roll\.)?CHANGED|REMEDY|why"
    r"|(?:self\.)?_?(?:error|failure|cause|reason)|message\.error|(?:message|told|said)\['(?:error|text)'\]|each\.unusable"
    r"|self\._reason"
    r"|files\.of_port\(error\)|_refusal\(name, error\)|_none_found\(.*?\)|TEXT_FORM|comparison\.REMEDY|_silent\(\)"
    r"|difference\(.*?\))\}"
)
"""Parts of a text that bring a remedy: a whole error, or what its maker has made with one."""
NO_REMEDY = {
    (
        "host/torch/collectives/survived_losses.py",
        "{job} without ",
    ): "what the job survives: a record, which none meets",
    ("host/torch/collectives/two_levels.py", "{str()}"): "another error's text, whole",
    ("host/torch/handles/failures.py", "{error.missing} {text}"): "`_again` is given a text with its remedy",
    ("benchmarks/ranks.py", "{said}"): "`plugins.blamed` brings it",
    ("emulation/containers/worker.py", "{str()}text"): "an error of the service `job`, whole",
    ("fanin/cli/asking.py", "; "): "each of the errors has one",
    ("fanin/cli/stats.py", "; "): "the same",
    ("host/engines/engine.py", "{files.in_words(error) if"): "`told` has one, too",
    ("host/transports/zmq.py", "{self._address}: {text}"): "`_unreachable` is given a text with its remedy",
    ("host/torch/meeting/rendezvous.py", "; "): "each of the differences has a remedy",
}
"""Texts without one, by file and beginning or part, and why."""
NOT_TOLD = {
    "fanin/numerics/reduction.py": "checks of a Reduction, which our own code makes",
    "host/machine/operation.py": "the same, where it begins",
    "fanin/protocol/job.py": "checks of a JobSpec: the controller refuses the job with them, and a remedy of its own",
    "switch/machine/switch_machine.py": "the same of a job's memory and number",
    "switch/p4runtime/controller/allocation.py": "the same on a device",
    "switch/p4runtime/controller/capacity.py": "the same of what the program takes",
    "switch/p4runtime/controller/job_control.py": "the same of a running job's staleness",
    "switch/controller/leaf.py": "the same of the flows of a leaf",
    "switch/p4/": "what a compiled program has that is not taken: `Artefacts` and the P4Runtime server tell it",
    "emulation/simulator/shard_member.py": "failures of simulated members, which the simulation judges",
    "emulation/simulator/shards.py": "the same",
    "emulation/simulator/leaf_host.py": "the same of simulated switches",
    "emulation/simulator/switch_host.py": "what a simulation never asks of a simulated switch",
}
"""Files and folders whose errors no user meets as they are, and why."""
NO_RANK = {
    "host/session/path.py": "ControlClient puts the rank before it",
    "host/session/threads.py": "no rank is known where a thread is started",
    "host/session/embedded.py": "`_told` is given who starts the switch",
    "host/session/shards.py": "a number of shards is the program's, before there is a session",
    "host/session/joining_shards.py": "`who` is given",
    "host/session/session.py": "a secret is missing on all ranks",
    "host/session/joining.py": "the text is made with `_who`",
    "host/session/control.py": "`_before` is the rank that asks, where one does",
}
"""Files of sessions whose texts may lack the word `rank`, and why."""


def made(source: str) -> Iterator[tuple[int, str, ast.Call]]:
    """Line, text and call of every error that is made in a source. Expressions of a text are shown in braces."""
    tree = ast.parse(source)
    constants = {
        target.id: _text(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for function in ast.walk(tree):
        if not isinstance(function, ast.Module | ast.FunctionDef):
            continue
        local = dict(constants)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                local[name] = local.get(name, "") + _text(node.value)
        inner = {
            id(each)
            for child in ast.walk(function)
            if child is not function and isinstance(child, ast.FunctionDef)
            for each in ast.walk(child)
        }
        for node in ast.walk(function):
            if id(node) in inner or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in KINDS:
                texts = [
                    local.get(each.id, f"{{{each.id}}}") if isinstance(each, ast.Name) else _text(each)
                    for each in node.args
                ]
                yield node.lineno, " ".join(texts), node


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    if isinstance(node, ast.Call | ast.IfExp | ast.BoolOp | ast.BinOp):
        called = f"{{{node.func.id}()}}" if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
        parts = [_text(each) for each in ast.walk(node) if isinstance(each, ast.Constant | ast.JoinedStr)]
        return called + " ".join(parts) or f"{{{ast.unparse(node)}}}"
    return f"{{{ast.unparse(node)}}}"


def without_remedy(source: str) -> list[tuple[int, str]]:
    """Line and text of errors that are made without a remedy."""
    return [
        (line, text)
        for line, text, call in made(source)
        if "Remedy: " not in text and not BROUGHT.search(text) and not _corrects(call)
    ]


def _corrects(call: ast.Call) -> bool:
    """Whether a ConfigurationError says what to correct."""
    return getattr(call.func, "id", "") == "ConfigurationError" and len(call.args) + len(call.keywords) > 1


def sources(place: str) -> list[Path]:
    path = ROOT / place
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


@pytest.mark.parametrize("place", PLACES)
def test_every_error_is_made_with_a_remedy(place: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {text}"
        for path in sources(place)
        for line, text in without_remedy(path.read_text(encoding="utf-8"))
        if not str(path.relative_to(ROOT)).startswith(tuple(NOT_TOLD))
        and not any(str(path.relative_to(ROOT)) == file and part in text for file, part in NO_REMEDY)
    ]
    assert found == []


@pytest.mark.parametrize(
    "body",
    [
        "raise ConfigurationError(f'{x} is bad')",
        "text = 'bad'\n    raise FaninError(text)",
        "return SwitchLostError(where, f'switch {where} is lost')",
    ],
)
def test_a_text_without_a_remedy_is_found(body: str) -> None:
    source = f"def f(where, x):\n    {body}\n"
    assert len(without_remedy(source)) == 1
    assert not without_remedy(source.replace("bad", "bad. Remedy: go").replace("lost'", "lost. Remedy: go'"))


def test_every_error_of_a_session_names_the_rank() -> None:
    found = [
        f"{name}:{line} {text}"
        for path in sources("host/session")
        if (name := str(path.relative_to(ROOT))) not in NO_RANK
        for line, text, _ in made(path.read_text(encoding="utf-8"))
        if not re.search(r"\brank\b|\{'; '\.join\(parts\)|\{(self\.)?_?who|\{[a-z_.]*in_words", text)
    ]
    assert found == []
