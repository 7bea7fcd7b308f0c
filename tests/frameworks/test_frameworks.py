"""The rows of docs/frameworks.md: each framework's own package trains over fanin to gloo's losses."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fanin.emulation.processes import free_port
from tests.support.launching import environment
from tests.support.repository import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(900)]
PROGRAM = Path(__file__).with_name("framework_rank.py")
TIMEOUT_S = 400
"""Time for two ranks; DeepSpeed compiles an operator at its first start."""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
WORKING = {
    "lightning_ddp": "lightning",
    "lightning_fsdp2": "lightning",
    "accelerate": "accelerate",
    "trainer": "transformers",
    "deepspeed_zero": "deepspeed",
    "composer": "composer",
}
"""Programs of framework_rank.py, and the package that each needs."""


def trained(name: str, backend: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Two ranks of that framework."""
    starts_itself = name.startswith("lightning")
    command = [sys.executable] if starts_itself else [*TORCHRUN, f"--master-port={free_port()}"]
    given = {"MASTER_PORT": str(free_port())} if starts_itself else {}
    return subprocess.run(
        [*command, str(PROGRAM), name, backend],
        env=environment(ACCELERATE_USE_CPU="true", DS_ACCELERATOR="cpu", **given),
        cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", WORKING)
def test_it_trains_over_fanin_to_the_losses_over_gloo(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(WORKING[name]) is None:
        where = "mosaicml, apart from others" if name == "composer" else "'fanin[frameworks]'"
        pytest.skip(f"{WORKING[name]} is not installed: pip install {where}")
    found = {}
    for backend in ("gloo", "fanin"):
        done = trained(name, backend, tmp_path)
        line = re.search(r"^RESULT (.*)$", done.stdout, re.MULTILINE)
        assert line, done.stdout[-2000:] + done.stderr[-4000:]
        found[backend] = json.loads(line[1])
        assert found[backend]["backend"] == backend
    assert len(found["gloo"]["losses"]) >= 4
    assert found["fanin"]["losses"] == pytest.approx(found["gloo"]["losses"], rel=1e-5)


def test_accelerate_takes_no_other_backend_by_its_argument(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed: pip install 'fanin[frameworks]'")
    done = trained("accelerate_by_argument", "fanin", tmp_path)
    assert "Your assigned backend fanin is not available" in done.stderr


def test_the_trainer_of_torchtitan_takes_cuda_where_there_is_no_accelerator() -> None:
    """So on the CPU it ends before it makes a group, whatever the backend."""
    if importlib.util.find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed: pip install torchtitan")
    asks = (
        "import torch; from torchtitan.tools.utils import device_type as t; print(torch.accelerator.is_available(), t)"
    )
    done = subprocess.run([sys.executable, "-c", asks], env=environment(), capture_output=True, text=True, check=False)
    there, device = done.stdout.split()
    if there == "True":
        pytest.skip("an accelerator is here")
    assert device == "cuda"


def test_the_page_has_a_row_for_each_program_here() -> None:
    page = (ROOT / "docs" / "frameworks.md").read_text()
    assert set(re.findall(r"`framework_rank\.py ([a-z0-9_]+)`", page)) == {*WORKING, "accelerate_by_argument"}
