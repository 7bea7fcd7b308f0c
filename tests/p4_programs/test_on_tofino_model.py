"""fanin's histories on Intel's Tofino model: by the driver and BfRt, and by the model's own harness.

FANIN_TOFINO_CONF and FANIN_TOFINO_P4INFO name what the compiler made of p4/tna for a Tofino (docs/deploy-p4.md). Where
the model is not on PATH, only what stands around it is tested: processes, files, and the packet test.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from fanin.emulation import tofino_model
from fanin.emulation.processes import free_port
from fanin.emulation.tofino_model import (
    BFRT_PORT,
    CPU_PORT,
    ModelOptions,
    deploy_command,
    driver_command,
    harness_command,
    launched,
    missing,
    model_command,
    play,
    port_file,
)
from fanin.errors import ConfigurationError, UnsupportedError
from fanin.protocol.job import JobSpec
from tests.p4_programs.model_histories import Lawful, ModelSides
from tests.p4_programs.recorded import Recorded
from tests.p4_programs.stf import PacketTest
from tests.p4_programs.subjects import write_job
from tests.support.bench import make_spec

CONFIGURATION = "tna-model-synchronous"
PACKETS = 60
COMPILED = tuple(os.environ.get(name) for name in ("FANIN_TOFINO_CONF", "FANIN_TOFINO_P4INFO"))
NEEDS_COMPILED = "needs FANIN_TOFINO_CONF and FANIN_TOFINO_P4INFO: what the compiler made of p4/tna"
SILENT = "import signal; signal.pause()"
SERVING = """
import socket, sys
server = socket.create_server(("127.0.0.1", {port}))
print("bf_switchd: server started", flush=True)
while True: server.accept()[0].close()
"""


def record(seed: int, packets: int) -> tuple[Recorded, JobSpec]:
    """A lawful history, played to the emulator beside the twin, and written down."""
    spec = make_spec(workers=3, quorum=3, staleness=0, words=8, slots=2)
    subject = Recorded(CONFIGURATION)
    ModelSides(subject, spec).play(Lawful(spec, Random(seed)), packets)
    return subject, spec


# --- on the model ---


@pytest.mark.skipif((why := missing()) is not None, reason=why or "")
def test_histories_conform_on_the_model_behind_its_driver(tmp_path: Path) -> None:
    if COMPILED[0] is None or COMPILED[1] is None:
        pytest.skip(NEEDS_COMPILED)
    options = ModelOptions(conf=Path(COMPILED[0]), install=Path(os.environ["SDE_INSTALL"]))
    assert play(options, Path(COMPILED[1]), tmp_path, ["--seeds", "1"]) == 0


@pytest.mark.skipif((without := missing(tofino_model.HARNESS)) is not None, reason=without or "")
def test_a_history_passes_in_the_models_own_harness_without_a_driver(tmp_path: Path) -> None:
    if COMPILED[0] is None:
        pytest.skip(NEEDS_COMPILED)
    (tmp_path / "history.stf").write_text("\n".join(record(1, PACKETS)[0].lines) + "\n")
    command = harness_command(Path(COMPILED[0]), tmp_path / "history.stf", tmp_path / "observed")
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


# --- around it ---


@pytest.mark.parametrize("seed", range(2))
def test_a_recorded_history_says_what_the_program_does(seed: int) -> None:
    subject, _ = record(seed, PACKETS)
    text = "\n".join(subject.lines)
    again = _carried_out(text)
    assert again.frames == text.count("packet ")
    assert again.differences() == []
    kinds = {line.split()[0] for line in subject.lines}
    assert kinds == {"add", "mc_mgrp_create", "mc_node_create", "mc_node_associate", "packet", "expect"}


def test_a_recorded_history_with_another_bit_is_found_out() -> None:
    subject, _ = record(1, PACKETS)
    at = max(number for number, line in enumerate(subject.lines) if line.startswith("expect"))
    digit = subject.lines[at][-2]
    subject.lines[at] = subject.lines[at][:-2] + f"{int(digit, 16) ^ 1:x}$"
    assert len(_carried_out("\n".join(subject.lines)).differences()) == 1


def _carried_out(text: str) -> PacketTest:
    fresh = Recorded(CONFIGURATION)
    names = {
        name: list(fresh.parameters(name)) for table in fresh.switch.program.tables.values() for name in table.actions
    }
    test = PacketTest(fresh.switch, names)
    test.run(text)
    return test


def test_a_packet_test_has_no_line_that_modifies() -> None:
    subject, spec = record(0, 1)
    with pytest.raises(AssertionError, match="cannot modify"):
        write_job(subject, spec)


def test_the_model_is_told_of_the_program_the_ports_and_the_chip(tmp_path: Path) -> None:
    options = ModelOptions(conf=tmp_path / "fanin.conf", install=tmp_path)
    words = model_command(options, tmp_path / "ports.json")
    assert words[words.index("--chip-type") + 1] == "2"
    assert words[words.index("--p4-target-config") + 1] == str(tmp_path / "fanin.conf")
    assert json.loads(port_file(options.ports))["PortToVeth"] == [
        {"device_port": 0, "veth1": 0, "veth2": 1},
        {"device_port": CPU_PORT, "veth1": 250, "veth2": 251},
    ]
    assert "--skip-p4" in driver_command(options)
    deploys = deploy_command(options, tmp_path / "info", tmp_path / "plan")
    assert deploys[deploys.index("--bfrt") + 1] == f"127.0.0.1:{BFRT_PORT}"
    assert deploys[deploys.index("--cpu-interface") + 1] == "veth251"
    with pytest.raises(ConfigurationError, match="tofino9"):
        ModelOptions(conf=tmp_path, install=tmp_path, chip="tofino9").check()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for executables in the place of the model's and the driver's, first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def executable(folder: Path, name: str, source: str) -> None:
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{source}\n")
    path.chmod(0o755)


def options_for(folder: Path, port: int, **more: float) -> ModelOptions:
    return ModelOptions(conf=folder / "c.conf", install=folder, bfrt_port=port, **more)  # type: ignore[arg-type]


def test_model_and_driver_run_until_the_end_and_not_longer(install: Path, tmp_path: Path) -> None:
    pids = tmp_path / "pid"
    executable(install, "tofino-model", f"import os; open({str(pids)!r}, 'w').write(str(os.getpid()))\n{SILENT}")
    port = free_port()
    executable(install, "bf_switchd", SERVING.format(port=port))
    with launched(options_for(tmp_path, port), tmp_path):
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        assert "PortToVeth" in (tmp_path / "ports.json").read_text()
    assert "server started" in (tmp_path / "driver.log").read_text()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pids.read_text()), 0)


@pytest.mark.parametrize("ends", ["model", "driver"])
def test_one_that_ends_is_named_with_what_it_said(ends: str, install: Path, tmp_path: Path) -> None:
    names = {"model": "tofino-model", "driver": "bf_switchd"}
    for each, binary in names.items():
        executable(install, binary, "print('no huge pages'); raise SystemExit(3)" if each == ends else SILENT)
    said = rf"the {ends} ended \(3\); it says: no huge pages"
    with pytest.raises(UnsupportedError, match=said), launched(options_for(tmp_path, free_port()), tmp_path):
        raise AssertionError("entered")


def test_a_driver_that_never_serves_is_given_up(install: Path, tmp_path: Path) -> None:
    for binary in ("tofino-model", "bf_switchd"):
        executable(install, binary, SILENT)
    options = options_for(tmp_path, free_port(), start_timeout_s=0.0)
    said = r"not served at 127.0.0.1:\d+ after 0 s; it says nothing"
    with pytest.raises(UnsupportedError, match=said), launched(options, tmp_path):
        raise AssertionError("entered")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, install: Path) -> None:
    monkeypatch.setenv("PATH", str(install))
    assert missing() == f"needs tofino-model of {tofino_model.PACKAGE} on PATH"
    for binary in ("tofino-model", "bf_switchd"):
        executable(install, binary, "")
    assert missing() == "needs ip, for veth pairs"
    for binary in ("ip", "ethtool"):
        executable(install, binary, "")
    monkeypatch.delenv("SDE_INSTALL", raising=False)
    assert "SDE_INSTALL" in (missing() or "")
    assert missing(tofino_model.HARNESS) == f"needs simple_test_harness of {tofino_model.PACKAGE} on PATH"
