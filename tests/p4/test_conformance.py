"""The switch's contract, run over pairs: the twin beside each other target, every packet compared byte for byte.

The scenarios are those of tests/switch: one for every row of every table, written by hand. Here each runs against the
twin and a subject at once, and whatever the twin sends, to whom and in which order, the subject must send too.
Histories that hypothesis makes up follow. What a pipeline may do
differently (docs/protocol.md) is named in `DIFFERENT`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.errors import ConfigurationError
from fanin.events import SwitchEvent
from fanin.job import JobSpec
from fanin.switch.switch_machine import SwitchMachine
from fanin.wire import OFFSET_FLAGS, OFFSET_KIND, Flag, Kind, Packet, parse
from tests.switch import test_liveness, test_refusals, test_registration, test_rounds
from tests.switch.harness import MACHINES, Bench, Machine, MachineType, address, make_spec

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from tests.p4.emulated import P4Machine

BY_HEARTBEAT = "the controller sees HELLO and BYE only: a contribution is no sign of life to it"
NO_CHECKSUMS = "a pipeline computes no checksum over a payload: jobs that want them are refused"
COMPARED = ("contributions", "passes", "duplicates", "rounds")
"""Counters that every target has. Packets and bytes are counted at other places."""


class Pair:
    """The twin and a subject as one machine: it is the twin, as long as the subject does the same."""

    def __init__(self, twin: Machine, subject: Machine, allowed: Callable[[list[bytes]], list[bytes]]) -> None:
        self.twin, self.subject = twin, subject
        self._allowed = allowed

    def admit(self, spec: JobSpec) -> None:
        if spec.checksum and isinstance(self.subject, P4Machine):
            pytest.skip(NO_CHECKSUMS)
        if spec.survives_loss and isinstance(self.subject, P4Machine):
            pytest.skip("jobs that survive the loss of workers are refused")
        if spec.largest_staleness != spec.staleness and isinstance(self.subject, P4Machine):
            pytest.skip("rings whose depth is not S + 2 are refused")
        for each in (self.twin, self.subject):
            each.admit(spec)

    def remove(self, job: int) -> None:
        for each in (self.twin, self.subject):
            each.remove(job)

    def evict(self, job: int, worker: int, now: float) -> None:
        for each in (self.twin, self.subject):
            each.evict(job, worker, now)

    def set_quorum(self, job: int, quorum: int, now: float) -> None:
        for each in (self.twin, self.subject):
            each.set_quorum(job, quorum, now)

    def set_staleness(self, job: int, staleness: int, now: float) -> None:
        self.twin.set_staleness(job, staleness, now)
        try:
            self.subject.set_staleness(job, staleness, now)
        except ConfigurationError as refused:
            pytest.skip(str(refused))

    def admit_worker(self, job: int, worker: int, token: int) -> None:
        for each in (self.twin, self.subject):
            each.admit_worker(job, worker, token)

    def jobs(self) -> list[int]:
        return self.twin.jobs()

    def members(self, job: int) -> tuple[int, int, int]:
        assert self.subject.members(job) == self.twin.members(job)
        return self.twin.members(job)

    def counters(self) -> dict[str, int]:
        ours, theirs = self.twin.counters(), self.subject.counters()
        names = [name for name in ours if name in COMPARED or name.startswith("dropped_")]
        assert {name: theirs[name] for name in names} == {name: ours[name] for name in names}
        return ours

    def job_counters(self, job: int) -> dict[str, int]:
        return self.twin.job_counters(job)

    def receive_datagram(self, data: bytes, source: int, now: float) -> None:
        probe = len(data) > OFFSET_FLAGS and data[OFFSET_KIND] == Kind.PROBE
        if isinstance(self.subject, P4Machine) and probe and data[OFFSET_FLAGS] & Flag.CHECKSUM:
            pytest.skip(NO_CHECKSUMS)
        for each in (self.twin, self.subject):
            each.receive_datagram(data, source, now)

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]:
        expected, got = self.twin.datagrams_to_send(now), self.subject.datagrams_to_send(now)
        for destination in {to for _, to in [*expected, *got]}:
            wanted = self._allowed([data for data, to in expected if to == destination])
            assert [data.hex() for data, to in got if to == destination] == [data.hex() for data in wanted]
        return expected

    def next_timer(self) -> float | None:
        assert self.subject.next_timer() == self.twin.next_timer()
        return self.twin.next_timer()

    def handle_timer(self, now: float) -> None:
        for each in (self.twin, self.subject):
            each.handle_timer(now)

    def next_event(self) -> SwitchEvent | None:
        event = self.twin.next_event()
        assert self.subject.next_event() == event
        return event


def exactly(sent: list[bytes]) -> list[bytes]:
    return sent


def as_a_pipeline_may(sent: list[bytes]) -> list[bytes]:
    """The acknowledgement of a contribution that closes a round is bare: a pass reads one ring entry, and that is the
    round's."""
    if [data[3] for data in sent] != [Kind.RESULT, Kind.ANSWER]:
        return sent
    answer = parse(sent[1])
    bare = Packet(
        kind=Kind.ANSWER, job=answer.job, worker=answer.worker, flags=Flag.BARE, generation=answer.generation,
        slot=answer.slot, base=answer.base, bitmap=answer.bitmap,
    )  # fmt: skip
    return [sent[0], bare.to_bytes()]


def paired(name: str) -> MachineType:
    """The machine type of a subject beside the twin."""
    if name == "p4":
        return lambda memory_bytes: Pair(SwitchMachine(memory_bytes), P4Machine(memory_bytes), as_a_pipeline_may)
    native = MACHINES["native"]
    if native is None:
        pytest.skip("the native extension is not built")
    return lambda memory_bytes: Pair(SwitchMachine(memory_bytes), native(memory_bytes), exactly)


@pytest.fixture(params=["native", "p4"])
def machine_type(request: pytest.FixtureRequest) -> MachineType:
    name: str = request.param
    return paired(name)


DIFFERENT = {
    "test_longer_than_any_datagram": "no frame carries so many bytes",
    "test_a_checksum_is_answered_with_one_even_where_none_is_demanded": NO_CHECKSUMS,
    "test_the_timer_runs_from_the_oldest_sign_of_life": BY_HEARTBEAT,
    "test_a_silent_worker_is_an_event_and_everybody_is_told": BY_HEARTBEAT,
    "test_several_that_fall_silent_at_once_are_one_notice": BY_HEARTBEAT,
    "test_a_lost_worker_is_not_evicted_and_stays_lost": BY_HEARTBEAT,
    "test_those_who_left_or_were_evicted_are_not_missed": BY_HEARTBEAT,
    "test_evicting_a_lost_worker_takes_it_off_the_list": BY_HEARTBEAT,
    "test_even_a_refused_contribution_is_a_sign_of_life": BY_HEARTBEAT,
}
"""Scenarios of tests/switch that say nothing of a pipeline, and why."""
SCENARIOS: tuple[ModuleType, ...] = (test_rounds, test_refusals, test_registration, test_liveness)
TAKEN = {name: each for module in SCENARIOS for name, each in vars(module).items() if name.startswith("test_")}
globals().update({name: each for name, each in TAKEN.items() if name not in DIFFERENT})


def test_what_is_left_out_is_there_to_be_left_out() -> None:
    assert DIFFERENT.keys() <= TAKEN.keys()
    assert len(TAKEN) > 60


Step = tuple[str, int, int, int, int]


@pytest.mark.parametrize("name", ["native", "p4"])
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
def test_made_up_histories(name: str, staleness: int, quorum: int, steps: list[Step]) -> None:
    """Three workers that keep no rule at all: bases around the open round, replays, departures, strangers."""
    spec = make_spec(workers=3, quorum=quorum, staleness=staleness, words=64)
    bench = Bench(paired(name), spec)
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
