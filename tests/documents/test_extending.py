"""The examples of docs/extending.md, built and run as they are printed there."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest

from fanin import schemes
from fanin.emulation.simulator import scenario
from fanin.host.codecs import words
from fanin.host.session import path
from fanin.host.stale import policies
from fanin.numerics.reduction import Element
from fanin.options import Options, Rounds
from fanin.protocol import control, job
from fanin.switch.controller import job_shape
from fanin.transports.path_mtu import LARGEST_MTU
from tests.codecs.word_sums import by_hand, expect_shards_to_be_the_whole
from tests.support import cluster
from tests.support.repository import ROOT

PAGE = (ROOT / "docs/extending.md").read_text()


def blocks(section: str, language: str) -> list[str]:
    """The code blocks of a section of the page."""
    found = re.search(rf"^## {section}$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, section
    return re.findall(rf"^```{language}\n(.*?)^```$", found[1], re.MULTILINE | re.DOTALL)


def run(section: str) -> dict[str, Any]:
    """Run the Python of a section, block after block, as a file that holds it would; return its names."""
    module = sys.modules["worked"] = types.ModuleType("worked")
    try:
        for text in blocks(section, "python"):
            exec(text, module.__dict__)
    finally:
        del sys.modules["worked"]
    return module.__dict__


def test_a_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    known = dict(policies.POLICIES)
    monkeypatch.setattr(policies, "POLICIES", known)
    run("A policy")
    assert [*known][-1] == "strict"


def test_a_target() -> None:
    assert run("A target")["report"].contributions > 0


def test_a_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    made = run("A codec")["FixedStep"]
    known = dict(words.table())
    monkeypatch.setattr(words, "table", lambda: known | {"fixed_step": made})
    words.codec_class.cache_clear()
    try:
        pair = [np.linspace(-1, 1, 700, dtype=np.float32) * rank for rank in (1, 2)]
        expect_shards_to_be_the_whole(Element.FLOAT32, 100, pair)
        spec = cluster.job(workers=3)
        for size in (1.0, 1e5):  # the second is clipped
            inputs = [np.linspace(-size, size, 300, dtype=np.float32) * rank for rank in range(1, 4)]
            expected = by_hand(spec, Element.FLOAT32, 100, inputs)
            for result in cluster.Cluster.joined("twin", spec=spec).all_reduce(inputs, lanes=100):
                assert np.array_equal(result, expected)
                assert size > 1 or np.abs(result - sum(inputs)).max() <= 3 * 2**-17 + 1e-6
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
from fanin.host.session.joining import spec_of
from fanin.protocol.control import Refused
from fanin.shared_options import SHARED
from tests.support.controllers import World, join

world = World()
admitted = world.run(*(join(rank, priority=3) for rank in range(2)))
assert world.controller.stats(0.0).jobs[0].priority == 3
assert spec_of(admitted).priority == 3
exec(sys.argv[2], {"__name__": "worked"})
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
    from fanin.host.torch.handles import call
    from tests.support.services import a_service, address_of
    from tests.torch.groups import SIZE, groups_of, on_every_rank

    monkeypatch.setattr(call, "NUMBERS", dict(call.NUMBERS))
    names = run("A collective")
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
    monkeypatch.setitem(schemes.SCHEMES, "unix", schemes.SCHEMES["udp"])  # removed in the end
    address = run("A carrier")["address"]
    facts = path.discover(address.scheme, path.Reached("127.0.0.1", LARGEST_MTU), address.port)
    assert not path.exposed(facts, address.scheme, curve=False)
