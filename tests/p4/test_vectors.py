"""The golden vectors for other people's test runners: what they hold, and that a device which is given them agrees."""

from __future__ import annotations

import ast
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")
pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[p4]'")

from p4.v1 import p4runtime_pb2

from fanin import cli
from fanin.extension import native_extension
from fanin.formats.frames import read_frame
from fanin.protocol.wire import Kind, parse
from fanin.switch.p4runtime.opening import Artefacts, emulated_device
from fanin.switch.p4runtime.vectors import HISTORIES, vectors


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    return vectors()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    assert cli.run(["p4", "vectors", str(folder)]) == 0
    return folder


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("name", HISTORIES)
def test_a_device_that_is_given_a_history_sends_what_it_says(folder: Path, name: str, native: bool) -> None:
    """The history is played as the PTF test plays it: out of the files alone."""
    if native and native_extension(None) is None:
        pytest.skip("needs the native extension")
    read = json.loads((folder / "vectors.json").read_text())
    device = emulated_device(Artefacts.read(folder / read["program"], folder / read["p4info"]), native)
    assert device.switch is not None
    for number, step in enumerate(read["histories"][name]):
        if "write" in step:
            for update in step["write"]:
                device.write(p4runtime_pb2.Update.FromString(bytes.fromhex(update)))
            continue
        sent = device.switch.process(step["port"], bytes.fromhex(step["frame"]), 0.0)
        assert [[port, data.hex()] for port, data in sent] == step["expect"], f"step {number}"


def test_the_histories_hold_every_kind_of_answer(made: dict[str, Any]) -> None:
    kinds: Counter[Kind] = Counter()
    for steps in made["histories"].values():
        for step in steps:
            for port, data in step.get("expect", ()):
                assert port in made["ports"]
                frame = read_frame(bytes.fromhex(data))
                assert frame is not None
                kinds[parse(frame.payload).kind] += 1
    assert kinds.keys() >= {Kind.RESULT, Kind.ANSWER, Kind.NOTICE, Kind.ECHO}
    assert kinds[Kind.RESULT] > 50


def test_the_vectors_are_the_same_each_time(made: dict[str, Any]) -> None:
    assert vectors() == made


def test_the_exported_test_is_a_ptf_test_of_every_history(folder: Path) -> None:
    tree = ast.parse((folder / "fanin_vectors.py").read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    tests = [name for name, node in classes.items() if any(ast.unparse(base) == "BaseTest" for base in node.bases)]
    assert len(tests) == len(HISTORIES)
    assert "History" not in tests, "it is no test by itself"


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert cli.run(["p4", "vectors", str(tmp_path / "file")]) == 2
    assert "Remedy: name a folder that can be written" in capsys.readouterr().err
