"""The switch's reply to the sender of a packet, or to a forged source: never more bytes than came, but for news.

The exceptions are those of docs/protocol.md (*Refusing*): a NOTICE may be eight bytes longer than what it answers, and
results and news of the membership go to everybody who is registered, whoever brought them about.
"""

from __future__ import annotations

from random import Random

import pytest

from fanin.protocol.wire import HEADER_BYTES, MAX_RUN, OFFSET_FLAGS, Flag, Kind, LaneField, Reason, parse
from tests.support.bench import MACHINES, Bench, MachineType, address, make_spec
from tests.switch import histories

NOTICE_EXCESS_BYTES = 8
NEWS = (Reason.WORKER_LOST, Reason.WORKER_LEFT, Reason.WORKER_JOINED)
FULL = tuple(range(48))
"""Words of the longest packet."""


def to_everybody(data: bytes) -> bool:
    packet = parse(data)
    return packet.kind is Kind.RESULT or (packet.kind is Kind.NOTICE and packet.contributors in NEWS)


class Scales(histories.Pair):
    """Weighs what goes in and what comes out, datagram by datagram."""

    weighed = 0

    def deliver(self, data: bytes, source: int) -> None:
        self.compare()
        super().deliver(data, source)
        sent = self.twin.datagrams_to_send(self.now)
        assert self.native.datagrams_to_send(self.now) == sent
        answers = [(out, destination) for out, destination in sent if not to_everybody(out)]
        assert all(destination == source for _, destination in answers), "only who asked is answered"
        spent = len(data) + (NOTICE_EXCESS_BYTES if any(parse(out).kind is Kind.NOTICE for out, _ in answers) else 0)
        assert sum(len(out) for out, _ in answers) <= spent
        multicasts = {out for out, _ in sent if to_everybody(out)}
        rounds = MAX_RUN if len(data) > OFFSET_FLAGS and data[OFFSET_FLAGS] & Flag.RUN else 1
        assert len(multicasts) <= 2 * rounds, "a pass closes at most one round, whole and bare, and changes little else"
        self.weighed += bool(answers)
        for out, destination in sent:
            self._observe(parse(out), destination)


@pytest.mark.skipif(MACHINES["native"] is None, reason="the native extension is not built")
@pytest.mark.parametrize("seed", range(40))
def test_no_packet_of_any_history_brings_its_sender_more_than_it_spent(seed: int) -> None:
    random = Random(seed)
    scales = Scales(histories.random_spec(random))
    if scales.spec.accumulators and seed % 4:
        scales.lanes = LaneField(*random.choice(histories.WIDTHS))
    for step in random.choices(list(histories.STEPS), list(histories.STEPS.values()), k=120):
        step(scales, random)
    assert scales.weighed


def closed_round(machine_type: MachineType) -> Bench:
    """Round 0 of slot 0 has closed, with a result of the longest packet."""
    bench = Bench(machine_type, make_spec(words=48))
    bench.passes(1, 0)
    bench.gives(0, 0, FULL, codes=(9,))
    return bench


def test_a_pass_for_an_answered_base_is_acknowledged_in_its_own_length(machine_type: MachineType) -> None:
    bench = closed_round(machine_type)
    ((answer, destination),) = bench.passes(1, 0)
    assert (answer.kind, answer.flags, destination) == (Kind.ANSWER, Flag.BARE, address(1))
    assert (answer.base, answer.bitmap) == (0, 0b11)
    assert len(answer.to_bytes()) == HEADER_BYTES
    assert bench.counter("answers") == 1


def test_a_contribution_as_long_as_the_result_is_answered_with_it_and_changes_nothing(
    machine_type: MachineType,
) -> None:
    """So does one that passed ask for the result: its zeros are a duplicate."""
    bench = closed_round(machine_type)
    ((answer, _),) = bench.gives(1, 0, [0] * 48, codes=(0,))
    assert (answer.kind, answer.flags, answer.contributors) == (Kind.ANSWER, Flag(0), 1)
    assert answer.words.tolist() == list(FULL)
    assert bench.counter("duplicates") == 1


@pytest.mark.parametrize("words", [0, 1, 47])
def test_a_shorter_contribution_is_answered_without_the_result(machine_type: MachineType, words: int) -> None:
    bench = closed_round(machine_type)
    ((answer, _),) = bench.gives(0, 0, [0] * words, codes=(0,))
    assert Flag.BARE in answer.flags
    assert not len(answer.words)


def test_a_late_pass_is_acknowledged_in_its_own_length(machine_type: MachineType) -> None:
    bench = Bench(machine_type, make_spec(quorum=1, staleness=1, words=48, checksum=True))
    bench.gives(0, 0, FULL, codes=(9,))
    ((answer, _),) = bench.passes(1, 0, late=True)
    assert (answer.flags, answer.bitmap) == (Flag.BARE | Flag.CHECKSUM, 0b11)
    assert bench.counter("passes") == 1
