"""A controller takes over what an earlier one left on the device; whole jobs over it are in test_end_to_end.py."""

from __future__ import annotations

import pytest

from fanin.protocol.wire import Kind
from tests.support.bench import Bench, address, make_spec

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from fanin.switch.p4runtime.controller.adoption import adopt
from fanin.switch.p4runtime.controller.job_control import JobControl, Placement
from fanin.switch.p4runtime.controller.vocabulary import Vocabulary
from tests.p4.emulated import SWITCH, P4Machine


def test_who_left_before_is_known_to_be_gone_and_still_reached_where_it_was() -> None:
    machine = P4Machine(1 << 24)
    bench = Bench(lambda memory_bytes: machine, make_spec(workers=3, quorum=1, staleness=1))
    for worker, base in ((0, 0), (0, 1), (2, 0)):
        bench.gives(worker, base)
    bench.say(bench.bye(1), address(1))
    words = Vocabulary(machine.link.p4info())
    machine.control = JobControl(machine.link, words, Placement((SWITCH,)))
    assert adopt(machine.control, machine.link, words, liveness_timeout_s=5.0, now=0.0) == [bench.spec.job]
    assert machine.members(bench.spec.job) == (0b111, 0, 0b010)
    bench.say(bench.bye(2), address(2))
    sent = bench.gives(1, 0)
    assert [(packet.kind, packet.base, to) for packet, to in sent] == [(Kind.RESULT, 1, 100), (Kind.ANSWER, 0, 101)]
