"""The table of a result (host/machine/result_rows.py): each row decides something, and what both machines do then."""

from __future__ import annotations

from functools import partial

import numpy as np

from fanin.host.machine.result_rows import ROWS, Fact, deed_for
from fanin.protocol.events import Ready, WorkerEvent, WorkersGone
from fanin.protocol.wire import Flag, Kind, Packet, parse
from tests.support.builders import moved, to_worker
from tests.support.cluster import job, reduction, worker_machine
from tests.support.network import SWITCH, Worker

SPEC = job(workers=3)
ALL = 0b111
packet = partial(to_worker, SPEC)


def joined(kind: str) -> Worker:
    """A worker that was welcomed at time 0."""
    machine = worker_machine(kind, SPEC, 0)
    machine.datagrams_to_send(0.0)
    machine.receive_datagram(packet(Kind.WELCOME, pad=True), SWITCH, 0.0)
    assert machine.next_event() == Ready()
    return machine


def sent(machine: Worker, now: float) -> list[Packet]:
    return [parse(data) for data, _ in machine.datagrams_to_send(now)]


def test_every_row_decides_for_some_packet() -> None:
    deciding = set()
    for facts in map(Fact, range(1 << len(Fact))):
        row = next(row for row in ROWS if facts & row.has == row.has and not facts & row.lacks)
        assert deed_for(facts) is row.deed
        deciding.add(row.title)
    assert deciding == {row.title for row in ROWS}


# R-RESULT-6, R-RESULT-7
def test_a_bare_answer_to_what_is_known_to_be_accepted_has_nothing_sent_again(kind: str) -> None:
    """R-RESULT-7 has the contribution sent again at once, R-RESULT-6 not a second time."""
    machine = joined(kind)
    machine.submit(reduction(np.ones(10, np.int32), signature=9))
    assert [each.kind for each in sent(machine, 0.0)] == [Kind.CONTRIBUTION]
    bare = packet(Kind.ANSWER, flags=Flag.BARE, bitmap=ALL)
    machine.receive_datagram(bare, SWITCH, 0.001)
    assert [each.kind for each in sent(machine, 0.001)] == [Kind.CONTRIBUTION]
    machine.receive_datagram(bare, SWITCH, 0.002)
    assert sent(machine, 0.002) == []
    assert machine.counters()["duplicates"] == 1


# R-RESULT-10
def test_a_round_of_owned_elements_without_a_worker_fails_those_that_wait_for_it(kind: str) -> None:
    """The controller has evicted worker 1, whose bytes these may be."""
    machine = joined(kind)
    output = np.zeros(8, np.uint8)
    machine.submit(moved(output[:0], 0, 8, output, 0))
    (contribution,) = sent(machine, 0.0)
    result = packet(
        Kind.RESULT, worker=0xFF, words=(1, 2), signature=contribution.signature, bitmap=0b101, contributors=1
    )
    machine.receive_datagram(result, SWITCH, 0.001)
    events: list[WorkerEvent] = list(iter(machine.next_event, None))
    assert events == [WorkersGone(0b010, 0)]
    assert (output == 0).all()
