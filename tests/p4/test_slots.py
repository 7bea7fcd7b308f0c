"""Slots of a job, decoded from the registers of the compiled program, against what was sent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")
pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[p4]'")

from fanin import cli
from fanin.errors import ConfigurationError
from fanin.formats.frames import Endpoint, Frame, mac_of
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import Kind, Packet
from fanin.switch.p4runtime.controller.job_control import JobControl, Placement
from fanin.switch.p4runtime.controller.links import LocalLink
from fanin.switch.p4runtime.controller.slots import SlotReader, read_jobs
from fanin.switch.p4runtime.controller.vocabulary import Vocabulary
from fanin.switch.p4runtime.opening import BUILD, Artefacts, emulated_device
from fanin.switch.p4runtime.server.server import GrpcServer, Service

SWITCH = Endpoint(mac_of(0x0A00_00FE), 0x0A00_00FE, 4919)
WORDS = 103
"""64 + 32 + 4 + 2 + 1: whole and partial blocks."""


class Bench:
    """A job of three workers on the compiled program, and what was sent to it."""

    def __init__(self, *, staleness: int = 0) -> None:
        files = BUILD / "v1model-256.json.gz", BUILD / "v1model-256.p4info.txtpb"
        self.device = emulated_device(Artefacts.read(*files))
        self.link = LocalLink(self.device, lambda port, data: None)
        words = Vocabulary(self.link.p4info())
        control = JobControl(self.link, words, Placement((SWITCH,)))
        control.serve()
        self.spec = JobSpec(
            job=5, generation=7, workers=3, quorum=3 if not staleness else 2, staleness=staleness, slots=4,
            words_per_packet=104, tokens=(1, 2, 3),
        )  # fmt: skip
        control.admit(self.spec)
        for worker in range(3):
            token = np.array([0, self.spec.tokens[worker]], np.uint32)
            self.send(worker, Packet(kind=Kind.HELLO, job=5, worker=worker, generation=7, words=token))
            control.receive(self.link.next_packet(0), 0.0)
        (self.job,) = read_jobs(self, words)

    def read(self, entities: Sequence[Any]) -> list[Any]:
        return self.link.read(entities)

    def cells(self, register_id: int, indices: Sequence[int]) -> list[int]:
        info = next(each for each in self.link.p4info().registers if each.preamble.id == register_id)
        assert self.device.switch is not None
        cells = self.device.switch.program.registers[info.preamble.name].cells
        return [cells[index] for index in indices]

    def send(self, worker: int, packet: Packet) -> None:
        address = 0x0A00_0001 + worker
        end = Endpoint(mac_of(address), address, 5000)
        self.link.receive(1 + worker, Frame(end, SWITCH, packet.to_bytes()).to_bytes())

    def contribute(self, worker: int, slot: int, base: int, words: Any) -> None:
        self.send(
            worker,
            Packet(
                kind=Kind.CONTRIBUTION, job=5, worker=worker, generation=7, slot=slot, base=base, signature=0xAB,
                words=words,
            ),
        )  # fmt: skip

    @property
    def reader(self) -> SlotReader:
        return SlotReader(self, self.link.p4info())


def words_of(worker: int) -> Any:
    return np.arange(WORDS, dtype=np.uint32) * np.uint32(worker + 1)


def test_a_round_that_is_open_shows_who_contributed_and_the_sums_so_far() -> None:
    bench = Bench()
    for worker in range(3):
        bench.contribute(worker, 1, 0, words_of(worker))
    bench.contribute(2, 1, 1, words_of(2))
    bench.contribute(0, 1, 1, words_of(0))
    untouched, slot = bench.reader.read(bench.job, [0, 1], sums=True)
    assert untouched.fresh
    assert untouched.ring == ()
    assert (slot.open_round, slot.count, slot.floor) == (1, 2, 1)
    assert [(entry.base, entry.workers) for entry in slot.ring] == [(0, (0, 1, 2)), (1, (0, 2))]
    assert (slot.signature, slot.contributors, slot.words, slot.codes) == (0xAB, 2, WORDS, 0)
    assert slot.sums == tuple(int(word) for word in words_of(2) + words_of(0))


def test_the_slots_of_a_job_that_is_gone_read_as_empty() -> None:
    bench = Bench()
    bench.contribute(0, 0, 0, words_of(0))
    facts = {**bench.job.facts, "generation": 8}
    (slot,) = bench.reader.read(type(bench.job)(5, facts), [0], sums=True)
    assert slot.fresh
    assert (slot.open_round, slot.count, slot.floor, slot.ring, slot.sums) == (0, 0, 0, (), None)


def test_another_program_than_v1models_is_refused() -> None:
    files = BUILD / "tna-model.json.gz", BUILD / "tna-model.p4info.txtpb"
    device = emulated_device(Artefacts.read(*files))
    with pytest.raises(ConfigurationError, match="reads p4/v1model only"):
        SlotReader(Bench(), LocalLink(device, lambda port, data: None).p4info())


def test_the_command_reads_a_device_over_p4runtime(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(staleness=1)
    bench.contribute(1, 2, 0, words_of(1))
    server = GrpcServer(Service(bench.device, 3, lambda port, data: None), "127.0.0.1", 0)
    try:
        address = [f"--p4runtime=127.0.0.1:{server.port}", "--device-id=3"]
        assert cli.run(["p4", "slots", *address]) == 0
        text = capsys.readouterr().out
        assert "job 5: generation 7, 3 workers, live 0x7, quorum 2, S 1" in text
        assert "slot 2: round 0 holds 1 contributions, floor 0; 103 words" in text
        assert "    base 0: workers 1\n" in text
        assert "slot 0" not in text
        assert cli.run(["p4", "slots", *address, "--slot=2", "--words", "--json"]) == 0
        (job,) = json.loads(capsys.readouterr().out)["jobs"]
        assert job["held"][0]["sums"] == [int(word) for word in words_of(1)]
        assert cli.run(["p4", "slots", *address, "--job=4"]) == 1
        assert "no job 4; it has: 5" in capsys.readouterr().err
        assert cli.run(["p4", "slots", *address, "--slot=4"]) == 2
        assert "job 5 has slots 0..3" in capsys.readouterr().err
    finally:
        server.close()
