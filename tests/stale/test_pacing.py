"""Posts of ranks about their pace while a job runs (host/torch/training/pacing.py)."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from fanin.host.stale.bound import DynamicBound


def test_a_clock_that_is_set_while_a_job_runs_changes_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    c10d = pytest.importorskip("torch._C._distributed_c10d")
    from fanin.host.torch.training import pacing

    clock = SimpleNamespace(of_day_s=1e9, running_s=100.0)
    fake = SimpleNamespace(time=lambda: clock.of_day_s, monotonic=lambda: clock.running_s)
    monkeypatch.setattr(pacing, "time", fake)
    store = c10d.HashStore()
    session = SimpleNamespace(rank=1, size=2, job_name="j", members=(0, 1))
    paced = pacing.Pacing(store, session, DynamicBound())  # type: ignore[arg-type]
    for set_by_s in (0.0, -3600.0, 7200.0):
        clock.of_day_s += 0.5 + set_by_s
        clock.running_s += 0.5
        paced.stepped()
        assert json.loads(store.get("fanin/pace/j/1")) == [
            pytest.approx(clock.running_s - 100.0),
            pytest.approx(0.5),
            0.0,
        ]


def test_training_goes_on_where_the_store_has_ended(caplog: pytest.LogCaptureFixture) -> None:
    """It is served by a rank that may have left."""
    c10d = pytest.importorskip("torch._C._distributed_c10d")
    from fanin.host.torch.training import pacing

    server = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = c10d.TCPStore("127.0.0.1", server.port, is_master=False)
    session = SimpleNamespace(rank=1, size=2, job_name="j", members=(0, 1))
    paced = pacing.Pacing(store, session, DynamicBound())  # type: ignore[arg-type]
    paced.stepped()
    del server
    for _ in range(3):
        paced.stepped()
    assert caplog.text.count("does not answer any more") == 1
