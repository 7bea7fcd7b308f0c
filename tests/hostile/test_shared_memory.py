"""Clients of the same user that write what they like into shared memory, and register as they like.

The switch and other jobs go on, with right sums; the job whose memory it is may fail. These run under the sanitizers.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from fanin.errors import AdmissionError
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import Kind, Packet, parse
from fanin.switch.server.server import make_server
from tests.hostile.segment import (
    ATTACHED_AT,
    DOWNLINK_READ_AT,
    DOWNLINK_WRITTEN_AT,
    ELSEWHERE,
    IMAGE_PAGES_AT,
    LINE_BYTES,
    PAGE_BYTES,
    RING_PAGES_AT,
    SWITCH_SLEEPS_AT,
    UPLINK_READ_AT,
    UPLINK_WRITTEN_AT,
    WORKERS_AT,
    Segment,
)
from tests.support.builders import reduction
from tests.support.engines import DEADLINE_S, Engines
from tests.support.native_engines import PLENTY, gradients, joined, native, serving, spec_of

LOOPBACK = "127.0.0.1"
NEVER = (1 << 64) - 1
WAITING_BYTES = 32
"""Per slot: what the switch keeps of contributions that it has not added up yet."""


@contextmanager
def sharing(server: Any, spec: JobSpec) -> Iterator[Engines]:
    """A job whose workers share the server's memory."""
    server.admit(spec)
    with joined(server, spec, shared_memory=server.shared_memory(spec.job)) as engines:
        assert all(engine.shares_memory for engine in engines)
        yield Engines(spec, server, engines)


def right_sums(job: Engines, seed: int, count: int = 3000) -> None:
    """One sum of random integers, which must be exact."""
    arrays = [
        np.random.default_rng((seed, rank)).integers(-99, 99, count, np.int32) for rank in range(len(job.engines))
    ]
    expected = np.sum(arrays, axis=0)
    job.run(arrays)
    for array in arrays:
        np.testing.assert_array_equal(array, expected)


# --- the segment itself ---


def test_a_segment_cannot_change_its_size() -> None:
    with serving() as server:
        server.admit(spec_of(2))
        with Segment(server.shared_memory(3)[0]) as segment:
            for size in (0, PAGE_BYTES, 1 << 30):
                with pytest.raises(PermissionError):
                    os.ftruncate(segment.descriptor, size)
            with pytest.raises(PermissionError):
                fcntl.fcntl(segment.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL])
def test_a_worker_uses_only_memory_that_is_sealed(seals: int) -> None:
    with serving() as server:
        spec = spec_of(2)
        server.admit(spec)
        with Segment(server.shared_memory(3)[0]) as segment, copied(segment, seals) as path:
            assert maps(server, spec, path) == (seals & fcntl.F_SEAL_SEAL != 0)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (WORKERS_AT, 1),
        (WORKERS_AT, 3),
        (WORKERS_AT, 1 << 31),
        (RING_PAGES_AT, 0),
        (RING_PAGES_AT, 0xFFFFFFFF),
        (IMAGE_PAGES_AT, 0xFFFFFFFF),
        (0, 7),
    ],
)
def test_a_worker_uses_only_memory_whose_facts_agree(at: int, value: int) -> None:
    with serving() as server:
        spec = spec_of(2)
        server.admit(spec)
        with Segment(server.shared_memory(3)[0]) as segment:
            segment.put(at, value, "I")
            assert not maps(server, spec, server.shared_memory(3)[0])


def test_what_is_shown_of_a_token_depends_on_every_bit_of_it_and_on_its_place() -> None:
    token = 0x0123_4567_89AB_CDEF
    tokens = (token, token, token ^ 1, token ^ 1 << 63)
    with serving() as server:
        server.admit(dataclasses.replace(spec_of(4), tokens=tokens))
        with Segment(server.shared_memory(3)[0]) as segment:
            shown = {segment.number(segment.of_worker(worker, 0)) for worker in range(4)}
            assert len(shown) == 4
            assert not shown & set(tokens)


@contextmanager
def copied(segment: Segment, seals: int) -> Iterator[str]:
    descriptor = os.memfd_create("fanin", os.MFD_ALLOW_SEALING)
    try:
        os.write(descriptor, segment.memory.tobytes())
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


def maps(server: Any, spec: JobSpec, path: str) -> bool:
    engine = native.WorkerEngine(spec, 1, spec.tokens[1], LOOPBACK, server.ports, shared_memory=[path])
    with closing(engine):
        return bool(engine.shares_memory)


# --- what is written into it ---


def scribble(segment: Segment, dice: np.random.Generator) -> None:
    """Random bytes, words that look like positions and lengths, zeros and ones: here and there, or everywhere."""
    control = PAGE_BYTES * (segment.workers + 1)
    kind = dice.integers(7)
    if kind == 0:
        segment.memory[:] = dice.bytes(1)[0]
    elif kind == 1:
        segment.memory[:control] = np.frombuffer(dice.bytes(control), np.uint8)
    elif kind == 2:
        values = [0, 1, 63, 64, 65, 0xFFFFFFFF, NEVER, 1 << 32, segment.ring_bytes]
        for at in dice.integers(0, segment.memory.size // 8, 64) * 8:
            segment.put(int(at), values[dice.integers(len(values))])
    elif kind == 3:
        for worker in range(segment.workers):
            for at in (
                UPLINK_WRITTEN_AT,
                UPLINK_READ_AT,
                DOWNLINK_READ_AT,
                DOWNLINK_WRITTEN_AT - PAGE_BYTES * (worker + 1),
            ):
                where = segment.of_worker(worker, at)
                segment.put(where, segment.number(where) + int(dice.integers(-4096, 4096)) & NEVER)
    elif kind == 4:
        images = segment.images()
        images[:] = np.frombuffer(dice.bytes(images.size), np.uint8)
    else:
        for ring in range(segment.workers + 1):
            records = segment.uplink(ring).view(np.uint32).reshape(-1, LINE_BYTES // 4)
            records[:, :2] = dice.integers(0, 3000, (len(records), 2), np.uint32)
            if kind == 5:
                records[:, 0] |= ELSEWHERE
                records[:, 2] = dice.integers(0, 2 * segment.images().size, len(records), np.uint32)
                records[:, 3] = dice.integers(0, 2, len(records), np.uint32)


@pytest.mark.parametrize("seed", range(4))
def test_scribbling_over_a_jobs_memory_disturbs_no_other_job(seed: int) -> None:
    dice = np.random.default_rng(seed)
    victims, neighbours, elsewhere = (dataclasses.replace(spec_of(2, job=job)) for job in (3, 4, 5))
    with serving() as server, sharing(server, neighbours) as others:
        server.admit(elsewhere, share_memory=False)
        with (
            joined(server, elsewhere) as by_udp,
            sharing(server, victims) as job,
            Segment(server.shared_memory(3)[0]) as segment,
        ):
            for turn in range(25):
                arrays = gradients(2, 3000, turn)
                tickets = [engine.submit(reduction(array)) for engine, array in zip(job.engines, arrays, strict=True)]
                scribble(segment, dice)
                right_sums(others, turn)
                right_sums(Engines(elsewhere, server, by_udp), turn)
                for engine, ticket in zip(job.engines, tickets, strict=True):
                    engine.wait(ticket, 0.0)
        assert server.counters()["shared_memory_broken"] > 0
        server.remove(victims.job)
        right_sums(others, seed)


def spoil(at: Callable[[Segment], int], value: int) -> Callable[[Segment], None]:
    return lambda segment: segment.put(at(segment), value)


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(spoil(lambda of: of.of_worker(0, UPLINK_WRITTEN_AT), NEVER), id="an uplink's position"),
        pytest.param(spoil(lambda of: of.of_worker(0, UPLINK_READ_AT), NEVER), id="the switch's place in it"),
        pytest.param(spoil(lambda of: DOWNLINK_WRITTEN_AT, NEVER), id="the downlink's position"),
        pytest.param(spoil(lambda of: of.of_worker(0, DOWNLINK_READ_AT), NEVER), id="a worker's place in it"),
        pytest.param(lambda of: of.put(of.of_worker(0, ATTACHED_AT), 0, "I"), id="whether a worker takes part"),
        pytest.param(lambda of: of.put(SWITCH_SLEEPS_AT, 0, "I"), id="whether the switch sleeps"),
        pytest.param(lambda of: of.put(SWITCH_SLEEPS_AT, 99, "I"), id="whom it waits for"),
        pytest.param(lambda of: of.put(WORKERS_AT, 0xFFFFFFFF, "I"), id="the number of workers"),
        pytest.param(lambda of: of.put(RING_PAGES_AT, 0xFFFFFFFF, "I"), id="the rings' size"),
        pytest.param(lambda of: of.uplink(of.workers).fill(0), id="the downlink"),
        pytest.param(lambda of: of.images().fill(0), id="the images of results"),
    ],
)
def test_a_job_whose_memory_is_spoilt_goes_on_by_udp(harm: Callable[[Segment], None]) -> None:
    """Nothing of what decides where a process reads or writes is in that memory; what is lost is sent again."""
    with serving() as server, sharing(server, spec_of(2)) as job, Segment(server.shared_memory(3)[0]) as segment:
        for turn in range(4):
            right_sums(job, turn)
            harm(segment)
        right_sums(job, 4)
        right_sums(job, 5)


@pytest.mark.parametrize(
    ("length", "behind_images"),
    [(100, 0), (100, -99), (100, 1 << 40), (100, NEVER), (35, -100), (0, -100), (65_508, -65_508), (0x7FFFFFFF, -200)],
)
def test_what_is_referred_to_is_read_nowhere_but_among_the_images(length: int, behind_images: int) -> None:
    rig = native.CarrierRig(native.carriers()[1], spec_of(2))
    rig.join(0)
    with Segment(rig.offer) as segment:
        for ring, written_at in ((0, segment.of_worker(0, UPLINK_WRITTEN_AT)), (segment.workers, DOWNLINK_WRITTEN_AT)):
            written = segment.number(written_at)
            record = segment.uplink(ring)[written % segment.ring_bytes :][:LINE_BYTES]
            record[:8].view(np.uint32)[:] = length | ELSEWHERE, 0xFFFFFFFF
            record[8:16].view(np.uint64)[0] = segment.images().size + behind_images & NEVER
            segment.put(written_at, written + LINE_BYTES)
    assert rig.at_switch() == []
    assert rig.at_worker(0) == []
    assert not rig.works(0)
    assert rig.worker_counters(0)["shared_memory_broken"] == rig.switch_counters()["shared_memory_broken"] == 1


def test_a_result_that_another_has_taken_the_place_of_is_passed_over() -> None:
    rig = native.CarrierRig(native.carriers()[1], spec_of(2))
    rig.join(0)
    with Segment(rig.offer) as segment:
        images = segment.images()
        images[64:164] = np.arange(100, dtype=np.uint8)
        for first in (0, 7):
            written = segment.number(DOWNLINK_WRITTEN_AT)
            record = segment.uplink(segment.workers)[written % segment.ring_bytes :][:LINE_BYTES]
            record[:8].view(np.uint32)[:] = 100 | ELSEWHERE, 1
            record[8:16].view(np.uint64)[0] = 64
            record[16:52] = np.arange(first, first + 36, dtype=np.uint8)
            segment.put(DOWNLINK_WRITTEN_AT, written + LINE_BYTES)
        assert rig.at_worker(0) == [bytes(range(100))]
        assert rig.works(0)


# --- rings and sockets ---


def hello(spec: JobSpec, worker: int = 0) -> bytes:
    token = spec.tokens[worker]
    words = np.array([token >> 32, token & 0xFFFFFFFF], np.uint32)
    return Packet(kind=Kind.HELLO, job=spec.job, generation=spec.generation, worker=worker, words=words).to_bytes()


def test_full_rings_do_not_keep_the_switch_from_its_sockets() -> None:
    """Everything lies there before the switch begins: a full ring, and a HELLO that makes what is in the ring count."""
    spec = spec_of(1, words=2048, slots=96)
    server = native.SwitchServer(LOOPBACK, 0, 1, PLENTY)
    with closing(server), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        server.admit(spec)
        with Segment(server.shared_memory(spec.job)[0]) as segment:
            records = segment.uplink(0).view(np.uint32).reshape(-1, LINE_BYTES // 4)
            records[:, :2] = 1  # datagrams of one byte, which are too short for anything
            segment.put(segment.of_worker(0, UPLINK_WRITTEN_AT), segment.ring_bytes)
            client.sendto(hello(spec), (LOOPBACK, server.ports[0]))
            server.start()
            while server.counters()["shared_memory_in"] < len(records):
                pass
        taken = server.counters()["dropped_too_short"]
    assert len(records) > 10_000
    assert taken >= len(records) - SHARED_TURN


SHARED_TURN = 256
"""Number of datagrams from rings before the sockets have their turn, as in native/io/switch_flow.hpp."""


# --- who is in several jobs ---


@pytest.mark.parametrize("kind", ["native with shared memory", "native", "twin"])
@pytest.mark.parametrize("ends_first", [3, 4])
def test_a_socket_in_two_jobs_outlives_either_of_them(kind: str, ends_first: int) -> None:
    """The switch keeps what it knows of a socket by job."""
    specs = {job: spec_of(1, job=job, words=8) for job in (3, 4)}
    server = make_server("udp", LOOPBACK, 0, flows=1, memory_bytes=PLENTY, native=kind != "twin")
    with closing(server), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.connect((LOOPBACK, server.ports[0]))
        client.settimeout(DEADLINE_S)
        for spec in specs.values():
            server.admit(spec)
            if kind == "native with shared memory" and spec.job == ends_first:
                with Segment(server.shared_memory(spec.job)[0]) as segment:
                    segment.put(segment.of_worker(0, ATTACHED_AT), 1, "I")
        for job in (ends_first, 7 - ends_first, ends_first, 7 - ends_first):
            client.send(hello(specs[job]))
            while server.members(job)[0] == 0:
                pass
        server.remove(ends_first)
        left = specs[7 - ends_first]
        for base in range(3):
            words = np.arange(8, dtype=np.uint32) + base
            client.send(
                Packet(
                    kind=Kind.CONTRIBUTION,
                    job=left.job,
                    generation=left.generation,
                    worker=0,
                    slot=0,
                    base=base,
                    signature=9,
                    words=words,
                ).to_bytes()
            )
            while (result := parse(client.recv(2048))).kind != Kind.RESULT:
                pass
            assert result.base == base
            np.testing.assert_array_equal(result.words, words)


# --- whose memory it is ---


def test_rings_count_as_the_jobs_memory_and_are_given_back() -> None:
    spec = spec_of(2)
    with serving() as server:
        server.admit(spec)
        held, wanted = server.ring_bytes(spec.job)
        with Segment(server.shared_memory(spec.job)[0]) as segment:
            assert held == wanted == segment.memory.size + spec.slots * WAITING_BYTES
    room = native.SwitchServer(LOOPBACK, 0, 1, spec.pool_bytes + wanted)
    with closing(room):
        for _ in range(3):
            room.admit(spec)
            with pytest.raises(AdmissionError, match=f"needs {spec.pool_bytes} bytes of switch memory and 0 of"):
                room.admit(spec_of(2, job=4))
            room.remove(spec.job)


@pytest.mark.parametrize("flows", [1, 2])
def test_a_job_whose_rings_do_not_fit_goes_by_udp(flows: int) -> None:
    spec = spec_of(2)
    server = native.SwitchServer(LOOPBACK, 0, flows, flows * (2 * spec.pool_bytes))
    with closing(server):
        server.start()
        server.admit(spec)
        held, wanted = server.ring_bytes(spec.job)
        assert held == 0
        assert wanted > flows * spec.pool_bytes
        assert server.shared_memory(spec.job) == ()
        server.admit(spec_of(2, job=4))
        with joined(server, spec) as engines:
            right_sums(Engines(spec, server, engines), 1)
