"""`fanin bench cost`: processor time per call and host, over namespaces. Needs root."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from fanin.benchmarks.cost import Plan, bench
from fanin.benchmarks.harness import Output
from fanin.extension import native_extension

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("namespaces")]


def test_every_rival_has_its_processor_time_beside_gloos(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if native_extension(None) is None:
        pytest.skip("needs the native extension")
    plan = Plan(hosts=(2,), mtus=(1500,), bytes=1 << 16, lanes=(8,), untagged=(8,), samples=1, calls=2)
    rows = bench(plan, Output(json=tmp_path / "rows.json", console=Console(quiet=True)))
    assert [row.rival for row in rows] == ["gloo", "fanin-8", "fanin-8-open"]
    assert rows[0].of_gloo == 1
    for row in rows:
        assert row.processor_s == pytest.approx(row.user_s + row.system_s)
        assert row.bytes_per_core_s == pytest.approx(plan.bytes / row.processor_s)
        assert row.link_bit_s_per_core > 0
    assert len(json.loads((tmp_path / "rows.json").read_text())) == len(rows)
