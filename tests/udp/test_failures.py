"""Failures at sockets: nobody there, peers that vanish, strangers, taken ports. Nothing hangs, nothing lies."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from fanin.errors import AdmissionError
from fanin.protocol.events import (
    Departed,
    MembersChanged,
    PacketRefused,
    Ready,
    SwitchSilent,
    WorkerJoined,
    WorkerLeft,
    WorkersGone,
    WorkerSilent,
)
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import SWITCH_WORKER, Kind, Packet, Reason, parse
from tests.support.builders import reduction
from tests.support.engines import DEADLINE_S
from tests.support.native_engines import PLENTY, cluster, gradients, impatient, joined, native, serving, spec_of
from tests.support.services import refusing_port


def next_of(source: Any, kind: type) -> Any:
    """The next event of that type."""
    while not isinstance(event := source.next_event(DEADLINE_S), kind):
        assert event is not None, f"no {kind.__name__}"
    return event


def alone(spec: JobSpec, ports: tuple[int, ...], token: int, timeout_s: float = DEADLINE_S) -> Any:
    """Start one engine alone."""
    engine = native.WorkerEngine(spec, 0, token, "127.0.0.1", ports, timeout_s)
    engine.start()
    return engine


def echo_of(prober: socket.socket, switch: tuple[str, int]) -> Any:
    """The address that answers a PROBE from this socket."""
    prober.settimeout(DEADLINE_S)
    prober.sendto(Packet(kind=Kind.PROBE).to_bytes(), switch)
    answer, address = prober.recvfrom(2048)
    assert parse(answer).kind == Kind.ECHO
    return address


def test_a_switch_that_is_not_there_is_said_not_to_be() -> None:
    with refusing_port(socket.SOCK_DGRAM) as port:
        engine = alone(spec_of(1), (port,), 500, timeout_s=0.3)
        assert isinstance(engine.next_event(DEADLINE_S), SwitchSilent)
        assert engine.failed
        assert f"127.0.0.1:{port}" in engine.trouble
        assert "nobody listens" in engine.trouble
        engine.close()


@pytest.mark.parametrize("flows", [1, 2])
def test_a_switch_that_dies_ends_waiting_and_writing(flows: int) -> None:
    with cluster(impatient(spec_of(2)), flows=flows) as job:
        ticket = job.engines[0].submit(reduction(gradients(1, 5_000)[0]))
        job.server.close()
        assert not job.engines[0].wait(ticket, DEADLINE_S)
        assert isinstance(next_of(job.engines[0], SwitchSilent), SwitchSilent)
        assert job.engines[0].failed
        assert not job.engines[0].leave(0.1)


@pytest.mark.parametrize("flows", [1, 2])
def test_a_worker_that_vanishes_is_told_to_the_others(flows: int) -> None:
    with cluster(impatient(spec_of(3)), flows=flows) as job:
        tickets = [
            engine.submit(reduction(array)) for engine, array in zip(job.engines[:2], gradients(2, 5_000), strict=True)
        ]
        job.engines[2].close()
        assert next_of(job.server, WorkerSilent).worker == 2
        for engine, ticket in zip(job.engines[:2], tickets, strict=True):
            assert not engine.wait(ticket, DEADLINE_S)
            assert next_of(engine, WorkersGone).lost == 0b100
        assert job.server.members(3)[1] == 0b100


def test_workers_join_and_leave_once_however_many_flows_there_are() -> None:
    with cluster(spec_of(2), flows=3) as job:
        assert {next_of(job.server, WorkerJoined).worker for _ in range(2)} == {0, 1}
        assert all(engine.leave(DEADLINE_S) for engine in job.engines)
        assert all(next_of(engine, Departed).confirmed for engine in job.engines)
        assert {next_of(job.server, WorkerLeft).worker for _ in range(2)} == {0, 1}
        assert job.server.members(3) == (0b11, 0, 0b11)
        assert job.server.next_event(0.0) is None


@pytest.mark.parametrize(
    ("change", "token", "reason"),
    [
        ({}, 501, Reason.TOKEN),
        ({"generation": 9}, 500, Reason.GENERATION),
        ({"job": 4}, 500, Reason.UNKNOWN_JOB),
    ],
)
def test_who_has_no_business_here_is_refused_with_the_reason(
    change: dict[str, Any], token: int, reason: Reason
) -> None:
    with serving() as server:
        server.admit(spec_of(1))
        engine = alone(dataclasses.replace(spec_of(1), **change), server.ports, token)
        assert engine.next_event(DEADLINE_S) == PacketRefused(reason)
        engine.close()


def test_strangers_are_counted_and_disturb_nobody() -> None:
    with cluster(spec_of(2)) as job:
        forged = Packet(kind=Kind.CONTRIBUTION, job=3, worker=0, generation=1003, words=np.ones(256, np.uint32))
        for number in range(1500):  # more than the switch remembers, each from a port of its own
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
                stranger.sendto((b"", b"x" * 2000, forged.to_bytes())[number % 3], ("127.0.0.1", job.server.ports[0]))
            if number % 100 == 0:
                job.run([np.ones(500, np.int32), np.ones(500, np.int32)])
        arrays = gradients(2, 10_000)
        expected = arrays[0] + arrays[1]
        job.run(arrays)
        np.testing.assert_allclose(arrays[0], expected, atol=1e-5)
        counters = job.server.counters()
        assert counters["dropped_stranger"] > 0
        assert counters["dropped_bad_magic"] > 0


def test_a_stranger_that_floods_is_dropped_unread_and_the_job_goes_on() -> None:
    with cluster(spec_of(2)) as job, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        forged = Packet(kind=Kind.CONTRIBUTION, job=3, worker=0, generation=1003).to_bytes()
        stranger.connect(("127.0.0.1", job.server.ports[0]))
        for _ in range(100):
            for _ in range(2000):
                with contextlib.suppress(BlockingIOError):
                    stranger.send(forged, socket.MSG_DONTWAIT)
            job.run([np.ones(500, np.int32), np.ones(500, np.int32)])
            counters = job.server.counters()
            if counters["dropped_flood"] > 2000:
                break
        assert counters["dropped_flood"] > 2000
        assert counters["dropped_stranger"] > 0, "what is within its allowance is looked at"
        job.server.admit(spec_of(1, job=4))
        newcomer = alone(spec_of(1, job=4), job.server.ports, 500)
        assert newcomer.next_event(DEADLINE_S) == Ready(), "who comes during a flood is still heard"
        newcomer.close()


def test_a_switch_on_every_address_answers_from_the_one_that_was_asked() -> None:
    with cluster(spec_of(2), listen="0.0.0.0", host="127.0.0.3") as job:
        job.run(gradients(2, 10_000))


def test_a_stranger_is_answered_from_the_address_that_it_asked_last() -> None:
    with serving(host="0.0.0.0") as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as prober:
        for asked in ("127.0.0.2", "127.0.0.3"):
            assert echo_of(prober, (asked, server.ports[0])) == (asked, server.ports[0])


def test_whoever_asks_while_a_member_gets_its_socket_is_answered_from_the_address_that_it_asked() -> None:
    """The new socket takes what strangers send from its bind to its connect: a worker's HELLO may be there."""
    ready = threading.Event()
    with serving(host="0.0.0.0") as server:
        switch = ("127.0.0.3", server.ports[0])

        def ask() -> set[Any]:
            ready.set()
            answers = set()
            for _ in range(500):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as prober:
                    answers.add(echo_of(prober, switch))
            return answers

        with ThreadPoolExecutor() as threads:
            asking = [threads.submit(ask) for _ in range(4)]
            ready.wait()
            while not all(answers.done() for answers in asking):
                spec = spec_of(8, slots=4)
                server.admit(spec)
                with joined(server, spec, host=switch[0]):
                    pass
                server.remove(spec.job)
            assert set().union(*(answers.result() for answers in asking)) == {switch}


@pytest.mark.usefixtures("ipv6_loopback")
def test_ipv6_works_like_ipv4() -> None:
    arrays = gradients(2, 30_000)
    with cluster(spec_of(2, words=4064, codes=4), listen="::1", host="::1") as job:
        job.run(arrays)
    again = gradients(2, 30_000)
    with cluster(spec_of(2, words=4064, codes=4)) as job:
        job.run(again)
    assert arrays[0].tobytes() == again[0].tobytes()


def test_two_switches_cannot_share_a_port() -> None:
    with serving() as server, pytest.raises(OSError, match=f"127.0.0.1:{server.ports[0]}"):
        native.SwitchServer("127.0.0.1", server.ports[0], 1, PLENTY)


def test_a_job_that_does_not_fit_is_refused_on_every_flow() -> None:
    server = native.SwitchServer("127.0.0.1", 0, 2, 100_000)
    with pytest.raises(AdmissionError):
        server.admit(spec_of(2, words=4064, codes=4))
    assert server.jobs() == []
    with pytest.raises(KeyError):
        server.members(3)
    server.close()


def test_a_removed_job_makes_room_and_its_workers_are_refused() -> None:
    with cluster(spec_of(2)) as job:
        job.server.remove(3)
        assert next_of(job.engines[0], PacketRefused).reason is Reason.UNKNOWN_JOB
        spec = dataclasses.replace(spec_of(2), generation=77)
        job.server.admit(spec)
        with joined(job.server, spec) as engines:
            assert all(engine.leave(DEADLINE_S) for engine in engines)


def newcomer(job: Any, worker: int, token: int) -> Any:
    """A new process in the place of a worker that is gone and evicted, welcomed."""
    job.server.admit_worker(job.spec.job, worker, token)
    tokens = [token if rank == worker else old for rank, old in enumerate(job.spec.tokens)]
    spec = dataclasses.replace(job.spec, tokens=tuple(tokens))
    engine = native.WorkerEngine(spec, worker, token, "127.0.0.1", job.server.ports, newcomer=True)
    engine.start()
    next_of(engine, Ready)
    return engine


@pytest.mark.parametrize("flows", [1, 2])
def test_a_worker_that_is_evicted_leaves_no_socket_at_the_switch(flows: int) -> None:
    with cluster(dataclasses.replace(spec_of(3), on_worker_loss="continue"), flows=flows) as job:
        open_files = []
        for token in range(600, 605):
            job.engines.pop().close()
            job.server.evict(3, 2)
            job.engines.append(newcomer(job, 2, token))
            open_files.append(len(os.listdir("/proc/self/fd")))
        assert len(set(open_files)) == 1, "as many with each newcomer as with the first"


@pytest.mark.parametrize("flows", [1, 2])
def test_what_was_reported_of_a_worker_is_not_taken_for_news_of_who_follows_it(flows: int) -> None:
    with cluster(dataclasses.replace(impatient(spec_of(2)), on_worker_loss="continue"), flows=flows) as job:
        assert {next_of(job.server, WorkerJoined).worker for _ in range(2)} == {0, 1}
        job.engines.pop().close()
        assert select.select([job.server.event_fileno], [], [], DEADLINE_S)[0], "its silence, which nobody reads"
        job.server.evict(3, 1)
        job.engines.append(newcomer(job, 1, 600))
        assert job.server.next_event(DEADLINE_S) == WorkerJoined(3, 1)
        assert job.server.next_event(0.0) is None


def members_told(flow: socket.socket, worker: tuple[str, int], spec: JobSpec, change: int, members: int) -> None:
    """Tell of a change of membership on one flow as a switch does."""
    notice = Packet(
        kind=Kind.NOTICE,
        job=spec.job,
        worker=SWITCH_WORKER,
        generation=spec.generation,
        signature=change,
        bitmap=members,
        contributors=Reason.WORKER_LOST,
        words=np.zeros(2, np.uint32),
    )
    flow.sendto(notice.to_bytes(), worker)


def test_a_loss_that_flows_see_before_and_after_a_newcomer_is_told_as_one() -> None:
    spec = dataclasses.replace(spec_of(3), on_worker_loss="continue")
    with contextlib.ExitStack() as opened:
        flows = [opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(4)]
        for flow in flows:
            flow.settimeout(DEADLINE_S)
            flow.bind(("127.0.0.1", 0))
        engine = alone(spec, tuple(flow.getsockname()[1] for flow in flows), 500)
        opened.callback(engine.close)
        at = []
        for flow in flows:
            hello, worker = flow.recvfrom(1 << 16)
            at.append(worker)
            welcome = parse(hello).reply(Kind.WELCOME, bitmap=0b111, words=np.zeros_like(parse(hello).words))
            flow.sendto(welcome.to_bytes(), worker)
        assert engine.next_event(DEADLINE_S) == Ready()
        members_told(flows[0], at[0], spec, 1, 0b011)
        assert engine.next_event(DEADLINE_S) == MembersChanged(1, 0b011, gone=0b100, come=0, base=0)
        members_told(flows[0], at[0], spec, 2, 0b111)
        assert engine.next_event(DEADLINE_S) == MembersChanged(2, 0b111, gone=0, come=0b100, base=0)
        for change, members in ((1, 0b011), (2, 0b001), (3, 0b101)):
            members_told(flows[1], at[1], spec, change, members)
        assert engine.next_event(DEADLINE_S) == MembersChanged(3, 0b101, gone=0b010, come=0, base=0)


def test_nobody_spins_while_nothing_happens() -> None:
    with cluster(spec_of(4), flows=2) as job:
        job.run(gradients(4, 1000))
        for engine in job.engines:
            while engine.next_event(0) is not None:
                pass
        before = time.process_time()
        assert job.engines[0].next_event(1.0) is None
        assert time.process_time() - before < 0.5  # a single spinning thread would take a second


def sockets() -> set[int]:
    """Descriptors of this process that are sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists them
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.add(int(name))
    return found


def test_nobody_spins_after_a_failure_while_a_copy_of_the_socket_is_open_as_in_a_forked_child() -> None:
    with contextlib.ExitStack() as opened:
        switch = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        switch.settimeout(DEADLINE_S)
        switch.bind(("127.0.0.1", 0))
        before = sockets()
        engine = alone(spec_of(2), (switch.getsockname()[1],), 500)
        opened.callback(engine.close)
        (its_socket,) = sockets() - before
        opened.callback(os.close, os.dup(its_socket))
        hello, worker = switch.recvfrom(1 << 16)
        refusal = parse(hello).reply(Kind.NOTICE, contributors=Reason.TOKEN, words=np.zeros(2, np.uint32))
        switch.sendto(refusal.to_bytes(), worker)
        assert engine.next_event(DEADLINE_S) == PacketRefused(Reason.TOKEN)
        switch.sendto(b"nobody reads this", worker)
        began_s = time.process_time()
        assert engine.next_event(1.0) is None
        assert time.process_time() - began_s < 0.5


def test_closing_twice_and_asking_afterwards_is_harmless() -> None:
    with cluster(spec_of(1)) as job:
        engine = job.engines[0]
        ticket = engine.submit(reduction(np.ones(10, np.float32)))
        assert engine.wait(ticket, DEADLINE_S)
        for _ in range(2):
            engine.close()
            job.server.close()
        assert engine.done(ticket)
        assert engine.wait(ticket, 0.0)
        assert engine.next_event(0.0) is None
        assert engine.counters()["results"] > 0
