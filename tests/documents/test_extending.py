"""The examples of docs/extending.md, built and run as they are printed there."""

from __future__ import annotations

import contextlib
import re
import select
import socket
import subprocess
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
from fanin.options import Options, Rounds, SwitchAddress
from fanin.protocol import control, job
from fanin.switch.controller import job_shape
from fanin.transports import transport
from fanin.transports.peer_numbers import AddressBook
from fanin.transports.waker import Waker
from tests.support import cluster, engines
from tests.support.repository import ROOT

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


WITH_FACT = """
import importlib.abc, importlib.machinery, sys

class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "fanin.protocol.job":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        spec.loader = Loader(name, spec.origin)
        return spec

class Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, name):
        agreed, begun, fields = self.get_source(name).partition("    __slots__ = ()\\n")
        assert "class Agreed:" in agreed and "class Asked" not in agreed
        return compile(agreed + begun + sys.argv[1] + fields, self.path, "exec")

sys.meta_path.insert(0, Finder())
from fanin.emulation.simulator import scenario, simulation
from fanin.host.session import joining
from fanin.protocol.control import Refused
from fanin.shared_options import SHARED
from fanin.switch.machine import switch_machine
from tests.support.controllers import World, join

world = World()
admitted = world.run(*(join(rank, priority=3) for rank in range(2)))
assert world.controller.stats(0.0).jobs[0].priority == 3
exec(sys.argv[2], vars(scenario) | vars(simulation) | vars(joining) | vars(switch_machine) | {"admitted": admitted})
world = World()
world.say("one", join(0, priority=3))
told = world.say("another", join(1))
assert isinstance(told, Refused) and "asks for priority 0, rank 0 for 3" in told.reason, told
assert "priority" in SHARED
"""
"""A process with one more field in `Agreed`: the module of that class is imported by all others."""


def test_a_fact_of_a_job() -> None:
    field, use = blocks("A fact of a job", "python")
    subprocess.run([sys.executable, "-c", WITH_FACT, field, use], cwd=ROOT, check=True)


def test_the_classes_of_facts_are_inherited_by_the_records_that_the_page_names() -> None:
    messages: list[type] = [control.Join, control.Admitted, control.Placed, control.JobReport, control.Tuned]
    records = [Options, Rounds, *messages, job.JobSpec, job_shape.JobShape, scenario.JobPlan]
    for kind in (job.Agreed, job.Asked, job.AskedRounds, job.JobRounds, job.Shape):
        row = re.search(rf"^\| `{kind.__name__}` \|.*\| (.*) \|$", PAGE, re.MULTILINE)
        assert row, kind
        assert set(re.findall(r"`(\w+)`", row[1])) == {each.__name__ for each in records if issubclass(each, kind)}


def test_native_code_reads_every_fact_of_its_record_and_each_is_one_of_ours() -> None:
    source = (ROOT / "native/wire/job.hpp").read_text()
    record = source[source.index("struct JobSpec {") : source.index("std::uint32_t place(")]
    fields = set(re.findall(r"^  [\w:<>]+ (\w+)(?: = [\w.]+)?;", record, re.MULTILINE))
    read = re.findall(r'JobFact\{"(\w+)", &JobSpec::(\w+)\}', source)
    assert [name for name, field in read if name != field] == []
    assert {name for name, _ in read} == fields - {"data_key"}
    assert [name for name in fields if not hasattr(job.JobSpec, name)] == []


def test_a_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'fanin[torch]'")
    from fanin.host.torch.collectives import reduce_collectives
    from fanin.host.torch.handles import call
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
