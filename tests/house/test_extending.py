"""The examples of docs/extending.md, built and run as they are printed there."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import sys
import types
from typing import Any

import numpy as np
import pytest

from fanin import schemes
from fanin.emulation.simulator import scenario, simulation
from fanin.host.codecs import words
from fanin.host.codecs.words import codec
from fanin.host.session import path
from fanin.host.stale import policies, rounds
from fanin.host.stale.account import Account
from fanin.host.stale.policies import policy
from fanin.host.stale.scale import ScaleEpochs
from fanin.options import SwitchAddress
from fanin.transports import transport
from fanin.transports.addresses import AddressBook
from fanin.transports.waker import Waker
from tests.house.repository import ROOT
from tests.support import cluster, engines

PAGE = (ROOT / "docs/extending.md").read_text()


def blocks(section: str, language: str) -> list[str]:
    """The code blocks of a section of the page."""
    found = re.search(rf"^## {section}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, section
    return re.findall(rf"^```{language}\n(.*?)^```$", found[1], re.MULTILINE | re.DOTALL)


def test_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    code, use, run = blocks("A policy", "python")
    known = dict(policies.POLICIES)
    monkeypatch.setattr(policies, "POLICIES", known)
    names: dict[str, Any] = vars(policy) | vars(policies) | vars(rounds) | vars(scenario) | vars(simulation)
    names |= {"ScaleEpochs": ScaleEpochs, "Account": Account}
    for text in (code, use, run):
        exec(text, names)
    assert [*known][-1] == "strict"


def test_a_target() -> None:
    (code,) = blocks("A target", "python")
    names: dict[str, Any] = {"__name__": "worked_target"}
    exec(code, names)
    assert names["report"].contributions > 0


def test_a_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    code, use = blocks("A codec", "python")
    names: dict[str, Any] = vars(codec) | {"np": np}
    exec(code, names)
    exec(use, names)
    known = dict(words.table())
    monkeypatch.setattr(words, "table", lambda: known | {"fixed_step": names["FixedStep"]})
    words.codec_class.cache_clear()
    try:  # in the engines
        there = cluster.Cluster.joined("twin", spec=cluster.job(workers=3))
        inputs = [np.linspace(-1, 1, 300, dtype=np.float32) * rank for rank in range(1, 4)]
        for result in there.all_reduce(inputs, lanes=100):
            assert np.abs(result - sum(inputs)).max() <= 3 * 2**-17 + 1e-6
    finally:
        words.codec_class.cache_clear()


def test_a_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'fanin[torch]'")
    from fanin.host.torch.collectives import reduce_collectives
    from fanin.host.torch.handles import call
    from fanin.options import Options
    from tests.support.services import a_service, address_of
    from tests.torch.groups import SIZE, groups_of, on_every_rank

    (code,) = blocks("A collective", "python")
    monkeypatch.setattr(call, "NUMBERS", dict(call.NUMBERS))
    names: dict[str, Any] = vars(call) | vars(reduce_collectives)
    exec(code, names)
    with a_service(schemes=("udp",), memory_bytes=64 << 20) as service:
        options = Options(switch=str(address_of(service)))
        with groups_of(options) as groups:

            def of_others(rank: int) -> list[int]:
                tensor = torch.arange(1000, dtype=torch.int32) * (rank + 1)
                group = groups[rank]
                made = names["WithSumOfOthers"](group._resources, group._counters, group._arguments)
                made.sum_of_others(call.Call("sum_of_others", tensor, [tensor], timeout_s=20.0, root=1)).wait()
                received: list[int] = tensor.tolist()
                return received

            results = on_every_rank(of_others)
            others = sum(rank + 1 for rank in range(SIZE) if rank != 1)
            assert results[1] == [others * element for element in range(1000)]
            assert results[0] == list(range(1000))
            assert all(group.counters()["switch.sum_of_others"] == 1 for group in groups)


def test_a_carrier(monkeypatch: pytest.MonkeyPatch) -> None:
    code, use = blocks("A carrier", "python")
    module = types.ModuleType("worked_carrier")
    module.__dict__.update(vars(transport) | vars(schemes) | {"AddressBook": AddressBook, "Waker": Waker})
    module.__dict__.update({"socket": socket, "select": select, "contextlib": contextlib, "__name__": module.__name__})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(schemes.SCHEMES, "unix", schemes.SCHEMES["udp"])  # removed in the end
    exec(code, module.__dict__)
    exec(use, vars(engines) | vars(path) | {"np": np, "SwitchAddress": SwitchAddress})
