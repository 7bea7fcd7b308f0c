"""The twin and another switch as one machine: whatever the twin sends, and to whom, the other must send too.

The subjects beside the twin:

| name    | is                                                                                              |
|---------|-------------------------------------------------------------------------------------------------|
| native  | the native machine                                                                              |
| p4      | the compiled program in the emulator, with the controller, in this process and in virtual time  |
| served  | `fanin switch --target p4 --p4runtime`: another process, over UDP and P4Runtime                 |
| tofino  | as p4, with the controls of the Tofino program that can be a leaf (tests/p4/test_tofino_leaf.py)   |
| bmv2    | BMv2's simple_switch_grpc: another process, over veth pairs and P4Runtime                       |

What a pipeline may do differently (docs/protocol.md) is `as_a_pipeline_may`; what it refuses is skipped, and the reason
said.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fanin.protocol.events import SwitchEvent
from fanin.protocol.job import JobSpec, Uplink
from fanin.protocol.wire import (
    OFFSET_FLAGS,
    OFFSET_KIND,
    Flag,
    Kind,
    parse,
)
from fanin.switch.machine.switch_machine import SwitchMachine
from tests.p4.emulated import ControlledMachine, P4Machine
from tests.p4.remote import RemoteDevice, RemoteMachine, on_bmv2, served
from tests.p4.tofino import LEAF, tofino
from tests.p4_programs.sides import as_short_as, bare
from tests.support.bench import MACHINES, Machine, MachineType
from tests.support.leaf import PARENT

NO_ECHO = "what a PROBE carries is not parsed, so a checksum in it is neither verified nor answered with another"
ORDERS = "a pipeline gives what goes up no orders, and nobody there would read the parent's receipts"
BY_HEARTBEAT = "the controller sees HELLO and BYE only: a contribution is no sign of life to it"
DIFFERENT = {
    "test_longer_than_any_datagram": "no frame carries so many bytes",
    "test_the_timer_runs_from_the_oldest_sign_of_life": BY_HEARTBEAT,
    "test_a_silent_worker_is_an_event_and_everybody_is_told": BY_HEARTBEAT,
    "test_several_that_fall_silent_at_once_are_one_notice": BY_HEARTBEAT,
    "test_a_lost_worker_is_not_evicted_and_stays_lost": BY_HEARTBEAT,
    "test_those_who_left_or_were_evicted_are_not_missed": BY_HEARTBEAT,
    "test_evicting_a_lost_worker_takes_it_off_the_list": BY_HEARTBEAT,
    "test_even_a_refused_contribution_is_a_sign_of_life": BY_HEARTBEAT,
    "test_what_went_up_less_than_a_round_trip_ago_does_not_go_up_again": "a pipeline keeps no times: it sends every "
    "repetition up, and gives no receipts",
    "test_who_completes_a_round_with_a_mark_is_told_of_it_too": "a pipeline gives no receipts, and a worker without "
    "them sends nothing that can be marked",
    "test_a_worker_that_asks_again_has_the_leaf_ask_again": ORDERS,
    "test_what_the_parent_says_is_lost_goes_up_again_at_once": ORDERS,
    "test_a_result_that_was_lost_on_its_way_to_the_leaf_is_asked_for_at_once": ORDERS,
    "test_rounds_wait_at_the_leaf_for_room_in_its_window_the_lowest_apart": "a pipeline has no window to its parent",
    "test_an_evicted_workers_round_goes_up_without_it_and_only_once": "a slot is poked as often as its ring is deep, "
    "and each poke sends a complete round up again, which the parent takes for the repetition that it is",
    "test_a_branch_that_says_more_contributors_than_a_tree_has_is_dropped": "what a branch says is taken as it is",
}
"""Scenarios of tests/switch that say nothing of a pipeline, and why."""
COMPARED = ("contributions", "passes", "duplicates", "rounds")
"""Counters that every target has. Packets and bytes are counted at other places."""

Sent = tuple[bytes, int]
"""A datagram, and the address that it goes to."""


def without_receipts(sent: list[Sent]) -> list[Sent]:
    """Pipelines give none (docs/protocol.md)."""
    return [(data, to) for data, to in sent if data[OFFSET_KIND] != Kind.RECEIPT]


def as_a_pipeline_ascends(sent: list[Sent]) -> list[Sent]:
    """The packets that a pipeline sends up have no order, since nobody there would read the parent's receipts, and no
    signature where all of its workers pass: a round's is that of the first that does not.
    """

    def up(data: bytes) -> bytes:
        packet = parse(data)
        signature = 0 if packet.flags & Flag.PASS else packet.signature
        return replace(packet, bitmap=0, signature=signature).to_bytes()

    return [(up(data) if to == PARENT and data[OFFSET_KIND] == Kind.CONTRIBUTION else data, to) for data, to in sent]


class Pair:
    """The twin and a subject as one machine: it is the twin, as long as the subject does the same."""

    def __init__(
        self,
        twin: Machine,
        subject: Machine,
        allowed: Callable[[list[Sent], bool], list[Sent]],
        order: Callable[[list[str]], list[str]] = list,
    ) -> None:
        """`allowed`: what the twin sends, and whether that closed a round, as the subject may send it; `order`: sorted,
        where copies overtake each other."""
        self.twin, self.subject = twin, subject
        self._allowed, self._order = allowed, order
        self._rounds = 0
        self._ascents: set[bytes] = set()
        """Packets that the twin has sent up."""

    def admit(self, spec: JobSpec) -> None:
        if spec.survives_loss and isinstance(self.subject, ControlledMachine):
            pytest.skip("jobs that survive the loss of workers are refused")
        for each in (self.twin, self.subject):
            each.admit(spec)

    def admit_leaf(self, spec: JobSpec, uplink: Uplink) -> None:
        for each in (self.twin, self.subject):
            each.admit_leaf(spec, uplink)  # type: ignore[attr-defined]  # both can be leaves

    def remove(self, job: int) -> None:
        for each in (self.twin, self.subject):
            each.remove(job)

    def evict(self, job: int, worker: int, now: float) -> None:
        for each in (self.twin, self.subject):
            each.evict(job, worker, now)

    def suspect(self, job: int, worker: int, now: float) -> None:
        for each in (self.twin, self.subject):
            each.suspect(job, worker, now)

    def suspect_parent(self, job: int, now: float) -> None:
        for each in (self.twin, self.subject):
            each.suspect_parent(job, now)

    def set_quorum(self, job: int, quorum: int, now: float) -> None:
        for each in (self.twin, self.subject):
            each.set_quorum(job, quorum, now)

    def set_staleness(self, job: int, staleness: int, now: float) -> None:
        for each in (self.twin, self.subject):
            each.set_staleness(job, staleness, now)

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

    def member_counters(self, job: int) -> list[dict[str, int]]:
        return self.twin.member_counters(job)

    def receive_datagram(self, data: bytes, source: int, now: float) -> None:
        probe = len(data) > OFFSET_FLAGS and data[OFFSET_KIND] == Kind.PROBE
        if isinstance(self.subject, ControlledMachine) and probe and data[OFFSET_FLAGS] & Flag.CHECKSUM:
            pytest.skip(NO_ECHO)
        if len(data) > OFFSET_KIND and data[OFFSET_KIND] == Kind.RECEIPT:
            return  # a pipeline does not know the kind
        for each in (self.twin, self.subject):
            each.receive_datagram(data, source, now)

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]:
        expected, got = (without_receipts(each.datagrams_to_send(now)) for each in (self.twin, self.subject))
        if isinstance(self.subject, ControlledMachine):
            expected, got = as_a_pipeline_ascends(expected), as_a_pipeline_ascends(got)
        self._ascents.update(data for data, to in expected if to == PARENT)
        if isinstance(self.subject, ControlledMachine) and not any(to == PARENT for _, to in expected):
            # A pipeline keeps no times: it sends up again what the twin says is under way.
            got = [(data, to) for data, to in got if to != PARENT or data not in self._ascents]
        rounds = self.twin.counters()["rounds"]
        wanted = self._allowed(expected, rounds != self._rounds)
        self._rounds = rounds
        for destination in {to for _, to in [*wanted, *got]}:
            twins = [data for data, to in wanted if to == destination]
            subjects = as_short_as(twins, [data for data, to in got if to == destination])
            found = self._order([data.hex() for data in subjects])
            sought = self._order([data.hex() for data in twins])
            assert found == sought, f"to {destination}: {found}, the twin {sought}"  # no rewriting in this module
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


def exactly(sent: list[Sent], closing: bool) -> list[Sent]:
    return sent


def as_a_pipeline_may(sent: list[Sent], closing: bool) -> list[Sent]:
    """The acknowledgement of a contribution that closes a round is bare: a pass reads one ring entry, and that is the
    round's."""
    if not closing:
        return sent
    return [(bare(data) if data[OFFSET_KIND] == Kind.ANSWER else data, to) for data, to in sent]


def paired(name: str) -> MachineType:
    """The machine type of a subject in this process beside the twin."""
    if name == "p4":
        return lambda memory_bytes: Pair(
            SwitchMachine(memory_bytes), P4Machine(memory_bytes, parent=PARENT), as_a_pipeline_may
        )
    if name == "tofino":
        return lambda memory_bytes: Pair(SwitchMachine(memory_bytes), tofino(LEAF, PARENT), as_a_pipeline_may)
    native = MACHINES["native"]
    if native is None:
        pytest.skip("the native extension is not built")
    return lambda memory_bytes: Pair(SwitchMachine(memory_bytes), native(memory_bytes), exactly)


class Subjects:
    """All of them; a process is started when it is first needed, and serves every scenario after that."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path) -> None:
        """`folder` is for logs."""
        self._stack, self._folder = stack, folder
        self._devices: dict[str, RemoteDevice] = {}

    def paired(self, name: str) -> MachineType:
        """The machine type of that subject beside the twin."""
        if name not in ("served", "bmv2"):
            return paired(name)
        if name not in self._devices:
            self._devices[name] = self._stack.enter_context(served() if name == "served" else on_bmv2(self._folder))
        device = self._devices[name]
        return lambda memory_bytes: Pair(
            SwitchMachine(memory_bytes), RemoteMachine(device, PARENT), as_a_pipeline_may, sorted
        )
