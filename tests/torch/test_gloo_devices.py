"""All groups of a process share gloo's devices, each of which has a thread and a port."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch._C import _distributed_c10d as c10d

from fanin.host.torch.gloo.gloo_devices import SharedDevices
from fanin.host.torch.meeting.reachable import GLOO_INTERFACES


def test_groups_share_devices_for_as_long_as_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GLOO_INTERFACES, raising=False)
    shared = SharedDevices()
    first = shared.open()
    assert shared.open() is first
    monkeypatch.setenv(GLOO_INTERFACES, "lo")
    of_loopback = shared.open()
    assert of_loopback is not first
    assert shared.open() is of_loopback
    group = first.group(c10d.HashStore(), 0, 1, timedelta(seconds=7))
    assert group.options._timeout == timedelta(seconds=7)
    assert list(first.groups) == [group]
    shared.forget()
    assert shared.open() is not of_loopback
