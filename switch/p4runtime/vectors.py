"""Golden vectors of the P4 program, for other test runners: updates written, frames in, and frames expected out.

Rules
-----
* A history is a list of steps: updates that a controller writes, or a frame into a port with the frames that must come
  out, in this order at each port. Worker w is behind port w + 1. Nothing of it depends on time.
* The expected frames are those of the compiled program in the Python interpreter, which the conformance suite
  (tests/p4) compares with the twin.
* Histories are independent: each begins with the program loaded anew.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fanin import files
from fanin.errors import ConfigurationError
from fanin.formats.frames import Endpoint, Frame, mac_of
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import Flag, Kind, Packet
from fanin.switch.p4.program_file import read_program
from fanin.switch.p4runtime.controller.job_control import JobControl, Placement
from fanin.switch.p4runtime.controller.links import LocalLink
from fanin.switch.p4runtime.controller.vocabulary import Vocabulary
from fanin.switch.p4runtime.opening import BUILD, Artefacts, emulated_device

PROGRAM = "v1model-64"
WORKERS = 3
WORDS = 64
SLOTS = 4
SEED = 2718
RANDOM_STEPS = 120
FORMAT = 1
"""Version of the format of vectors.json."""
SWITCH = Endpoint(mac_of(0x0A00_00FE), 0x0A00_00FE, 4919)


class _Noted(LocalLink):
    """A device in this process that records the updates written to it."""

    def __init__(self, steps: list[dict[str, Any]]) -> None:
        files = BUILD / f"{PROGRAM}.json.gz", BUILD / f"{PROGRAM}.p4info.txtpb"
        self.out: list[tuple[int, bytes]] = []
        self._steps = steps
        super().__init__(
            emulated_device(Artefacts.read(*files), native=False), lambda port, data: self.out.append((port, data))
        )

    def write(self, updates: Sequence[Any]) -> None:
        """Write as LocalLink does, and record the updates as a step."""
        super().write(updates)
        self._steps.append({"write": [update.SerializeToString().hex() for update in updates]})

    def send(self, packet: Any) -> None:
        """Drop the packet: the controller's packets to workers are no part of a history."""


class _History:
    """A job on the program, and the recorded steps so far."""

    def __init__(self, *, staleness: int, quorum: int, generation: int) -> None:
        self.steps: list[dict[str, Any]] = []
        self._link = _Noted(self.steps)
        self._generation = generation
        control = JobControl(self._link, Vocabulary(self._link.p4info()), Placement((SWITCH,)))
        control.serve()
        tokens = tuple(range(1, WORKERS + 1))
        control.admit(
            JobSpec(
                job=1, generation=generation, workers=WORKERS, quorum=quorum, staleness=staleness, slots=SLOTS,
                words_per_packet=WORDS, tokens=tokens,
            )
        )  # fmt: skip
        for worker in range(WORKERS):
            hello = self._packet(Kind.HELLO, worker, words=np.array([0, tokens[worker]], np.uint32))
            self._link.receive(worker + 1, self._frame(worker, hello))
            control.receive(self._link.next_packet(0), 0.0)

    def _packet(self, kind: Kind, worker: int, **more: Any) -> Packet:
        return Packet(kind=kind, job=1, worker=worker, generation=self._generation, **more)

    def _frame(self, worker: int, packet: Packet, *, udp_port: int = 5000) -> bytes:
        address = 0x0A00_0001 + worker
        return Frame(Endpoint(mac_of(address), address, udp_port), SWITCH, packet.to_bytes()).to_bytes()

    def exchange(self, worker: int, packet: Packet, *, udp_port: int = 5000) -> None:
        """Record a step: a worker's packet, and the frames that it causes."""
        frame = self._frame(worker, packet, udp_port=udp_port)
        self._link.out.clear()
        self._link.receive(worker + 1, frame)
        expected = [[port, data.hex()] for port, data in self._link.out]
        self.steps.append({"port": worker + 1, "frame": frame.hex(), "expect": expected})

    def contribute(
        self, worker: int, slot: int, base: int, seed: int, *, signature: int = 5, count: int = WORDS
    ) -> None:
        """Record a contribution of words drawn by `seed`."""
        words = np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint32)
        self.exchange(
            worker, self._packet(Kind.CONTRIBUTION, worker, slot=slot, base=base, signature=signature, words=words)
        )


def _in_order() -> _History:
    """Rounds of all slots close in turn; repetitions are answered; strangers and other shapes change nothing."""
    made = _History(staleness=0, quorum=WORKERS, generation=11)
    for base in range(3):
        for slot in range(SLOTS):
            for worker in range(WORKERS):
                made.contribute(worker, slot, base, seed=base * 100 + slot * 10 + worker)
    made.contribute(1, 0, 2, seed=1)  # a duplicate of a closed round
    made.contribute(1, 0, 0, seed=1)  # ancient
    made.contribute(0, 1, 3, seed=2)
    made.contribute(1, 1, 3, seed=2, signature=6)  # another reduction: a mismatch
    made.contribute(1, 1, 3, seed=2, count=8)  # another length
    made.exchange(2, made._packet(Kind.CONTRIBUTION, 2, slot=1, base=3, signature=5), udp_port=5001)  # a stranger
    made.exchange(2, made._packet(Kind.PROBE, 2, slot=77))
    return made


def _stale() -> _History:
    """K of N with S = 1: passes, late contributions, and results while somebody is behind."""
    made = _History(staleness=1, quorum=2, generation=12)
    for base in range(4):
        made.contribute(0, 0, base, seed=base)
        made.contribute(1, 0, base, seed=base + 50)
        if base:
            made.contribute(2, 0, base - 1, seed=base + 90)
    made.exchange(2, made._packet(Kind.CONTRIBUTION, 2, slot=0, base=3, signature=5, flags=Flag.PASS))
    return made


def _random() -> _History:
    """Three workers that keep no rule: bases around the open round, repetitions, lengths, signatures."""
    made, draw, seen = _History(staleness=1, quorum=2, generation=13), random.Random(SEED), [0] * SLOTS
    for step in range(RANDOM_STEPS):
        slot = draw.randrange(SLOTS)
        base = max(0, seen[slot] + draw.choice((-2, -1, 0, 0, 0, 0, 1)))
        made.contribute(
            draw.randrange(WORKERS), slot, base, seed=step, signature=draw.choice((5, 5, 5, 5, 6)),
            count=draw.choice((WORDS, WORDS, 8, 0)),
        )  # fmt: skip
        if made.steps[-1]["expect"]:
            seen[slot] = max(seen[slot], base + 1)
    return made


HISTORIES = {"in_order": _in_order, "stale": _stale, "random": _random}


def vectors() -> dict[str, Any]:
    """All histories, in the format of vectors.json."""
    return {
        "format": FORMAT,
        "program": f"{PROGRAM}.json",
        "p4info": f"{PROGRAM}.p4info.txtpb",
        "ports": list(range(1, WORKERS + 1)),
        "histories": {name: make().steps for name, make in HISTORIES.items()},
    }


def export(folder: Path) -> list[Path]:
    """Write the vectors, their program and the PTF test; ConfigurationError if that is not possible."""
    program, p4info = f"{PROGRAM}.json", f"{PROGRAM}.p4info.txtpb"
    names = {program: read_program(BUILD / f"{program}.gz"), p4info: (BUILD / p4info).read_bytes()}
    names["vectors.json"] = json.dumps(vectors(), indent=1).encode()
    names["fanin_vectors.py"] = PTF_TEST.encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in names.items():
            files.put(folder / name, data)
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"{folder}: {said}. Remedy: name a folder that can be written") from None
    return [folder / name for name in names]


PTF_TEST = '''\
"""fanin's golden vectors against a switch behind P4Runtime, for PTF. Made by `fanin p4 vectors`.

    ptf --test-dir FOLDER -i 1@veth1 -i 2@veth2 -i 3@veth3 --test-params "p4runtime='127.0.0.1:9559';device_id=0"

Every history loads the program anew, writes what a controller would, sends its frames, and verifies what comes out of
each port. More parameters: program='' and p4info='', files in the place of those beside this one (another build of the
same tables, with its own ids only if its names lead to the same); election_id=1; timeout_s=5.
"""

import itertools
import json
import os
import queue

import grpc
import ptf.testutils
from google.protobuf import text_format
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc
from ptf.base_tests import BaseTest

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, "vectors.json")) as file:
    VECTORS = json.load(file)
SILENCE_S = 0.05
"""How long nothing comes out of any port where nothing is to."""


def parameter(name, default):
    return ptf.testutils.test_param_get(name) or default


ELECTIONS = itertools.count(int(parameter("election_id", 1)))  # the stream of the test before may not be gone yet


class History:
    """Plays one history; subclasses name it."""

    name = None

    def setUp(self):
        BaseTest.setUp(self)
        self.dataplane = ptf.dataplane_instance
        self.dataplane.flush()
        self.device = int(parameter("device_id", 0))
        self.election = next(ELECTIONS)
        self.timeout = float(parameter("timeout_s", 5))
        self.channel = grpc.insecure_channel(parameter("p4runtime", "127.0.0.1:9559"))
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)
        self.requests = queue.Queue()
        first = p4runtime_pb2.StreamMessageRequest()
        first.arbitration.device_id, first.arbitration.election_id.low = self.device, self.election
        self.requests.put(first)
        self.stream = self.stub.StreamChannel(iter(self.requests.get, None))
        self.addCleanup(self.channel.close)
        self.addCleanup(self.stream.cancel)
        self.addCleanup(self.requests.put, None)
        status = next(iter(self.stream)).arbitration.status
        self.assertEqual(status.code, 0, "another controller is primary: " + status.message)
        load = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=self.device)
        load.election_id.low = self.election
        load.action = p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        with open(parameter("p4info", os.path.join(HERE, VECTORS["p4info"]))) as file:
            text_format.Parse(file.read(), load.config.p4info)
        with open(parameter("program", os.path.join(HERE, VECTORS["program"])), "rb") as file:
            load.config.p4_device_config = file.read()
        self.stub.SetForwardingPipelineConfig(load)
        self.inserted = []

    def tearDown(self):
        for update in reversed(self.inserted):
            update.type = p4runtime_pb2.Update.DELETE
            self.write([update])
        BaseTest.tearDown(self)

    def write(self, updates):
        request = p4runtime_pb2.WriteRequest(device_id=self.device, updates=updates)
        request.election_id.low = self.election
        self.stub.Write(request)

    def runTest(self):
        for number, step in enumerate(VECTORS["histories"][self.name]):
            if "write" in step:
                updates = [p4runtime_pb2.Update.FromString(bytes.fromhex(each)) for each in step["write"]]
                self.write(updates)
                self.inserted += [each for each in updates if each.type == p4runtime_pb2.Update.INSERT]
                continue
            ptf.testutils.send_packet(self, step["port"], bytes.fromhex(step["frame"]))
            said = "%s, step %d: " % (self.name, number)
            found = []
            for port, _ in step["expect"]:
                got = self.dataplane.poll(port_number=port, timeout=self.timeout)
                self.assertIsInstance(got, self.dataplane.PollSuccess, said + "nothing comes out of port %d" % port)
                found.append((port, bytes(got.packet).hex()))
            # In any order: nothing says in which a switch sends the copies of one multicast.
            self.assertEqual(sorted(found), sorted(map(tuple, step["expect"])), said + "other frames")
            if not found:  # the next frame comes by another port, perhaps, and must not overtake this one
                ptf.testutils.verify_no_other_packets(self, timeout=SILENCE_S)
        ptf.testutils.verify_no_other_packets(self)


'''
PTF_TEST += "\n\n".join(
    f'class {name.title().replace("_", "")}(History, BaseTest):\n    """{make.__doc__}"""\n\n    name = "{name}"\n'
    for name, make in HISTORIES.items()
)
