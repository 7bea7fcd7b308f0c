"""The switch's contract, run over pairs: the twin beside each other target, every packet compared byte for byte.

The scenarios are those of tests/switch: one for every row of every table, written by hand. Here each runs against the
twin and a subject at once (tests/p4/conformance.py); histories that hypothesis makes up follow, and whole jobs of
worker machines at the end. Scenarios that say nothing of a pipeline are named in `DIFFERENT` there, with the reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.emulation.bmv2_process import missing
from fanin.protocol.wire import Kind
from tests.support.bench import Bench, MachineType, address, make_spec
from tests.switch import test_leaf, test_liveness, test_refusals, test_registration, test_rounds

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from tests.p4.conformance import DIFFERENT, Subjects

SERVED = [pytest.mark.processes, pytest.mark.thorough]
"""Marks of the case behind P4Runtime: each history has a device of its own, which takes long to program."""
NO_BMV2 = pytest.mark.skipif(missing() is not None, reason=f"bmv2: {missing()}")
NAMES = [
    "native",
    "p4",
    pytest.param("served", marks=pytest.mark.processes),
    pytest.param("bmv2", marks=[pytest.mark.processes, NO_BMV2]),
]


@pytest.fixture(scope="session")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subjects]:
    with contextlib.ExitStack() as stack:
        yield Subjects(stack, tmp_path_factory.mktemp("subjects"))


@pytest.fixture(params=NAMES)
def machine_type(request: pytest.FixtureRequest, subjects: Subjects) -> MachineType:
    return subjects.paired(request.param)


SCENARIOS: tuple[ModuleType, ...] = (test_rounds, test_refusals, test_registration, test_liveness, test_leaf)
TAKEN = {
    name: each
    for module in SCENARIOS
    for name, each in vars(module).items()
    if name.startswith("test_") and "machine_type" in inspect.signature(each).parameters
}
globals().update({name: each for name, each in TAKEN.items() if name not in DIFFERENT})


def test_what_is_left_out_is_there_to_be_left_out() -> None:
    assert DIFFERENT.keys() <= TAKEN.keys()
    assert len(TAKEN) > 60


Step = tuple[str, int, int, int, int]


@pytest.mark.parametrize("name", ["native", "p4", pytest.param("served", marks=SERVED), NAMES[-1]])
@settings(max_examples=25, deadline=None)
@given(
    staleness=st.integers(0, 2),
    quorum=st.integers(1, 3),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["words", "words", "words", "pass", "hello", "bye", "stranger", "other", "quorum"]),
            st.integers(0, 2),
            st.integers(0, 1),
            st.integers(-3, 2),
            st.integers(0, 0xFFFFFFFF),
        ),
        max_size=40,
    ),
)
def test_made_up_histories(subjects: Subjects, name: str, staleness: int, quorum: int, steps: list[Step]) -> None:
    """Three workers that keep no rule at all: bases around the open round, replays, departures, strangers."""
    spec = make_spec(workers=3, quorum=quorum, staleness=staleness, words=64)
    bench = Bench(subjects.paired(name), spec)
    closed = [0, 0]
    for kind, worker, slot, offset, word in steps:
        base = max(0, closed[slot] + offset)
        count = 1 + word % 64
        packet = bench.packet(
            Kind.CONTRIBUTION,
            worker,
            slot=slot,
            base=base,
            signature=word % 2,
            codes=(word & 0xFFFF,),
            words=[word] * count,
        )
        if kind == "pass":
            sent = bench.passes(worker, base, slot=slot)
        elif kind == "hello":
            sent = bench.say(bench.hello(worker, padded=False, slot=word % 9), address(worker))
        elif kind == "bye":
            sent = bench.say(bench.bye(worker), address(worker))
        elif kind == "stranger":
            sent = bench.say(packet, address(worker) + 50)
        elif kind == "other":
            sent = bench.say(dataclasses.replace(packet, generation=word), address(worker))
        elif kind == "quorum":
            bench.machine.set_quorum(1, 1 + word % 3, 0.0)
            sent = bench.sent()
        else:
            sent = bench.say(packet, address(worker))
        for result, _ in sent:
            if result.kind is Kind.RESULT:
                closed[result.slot] = max(closed[result.slot], result.base + 1)
    bench.machine.counters()
    bench.machine.members(1)
