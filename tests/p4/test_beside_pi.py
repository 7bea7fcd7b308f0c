"""The same requests, one by one, to our P4Runtime server and to BMv2's (p4lang/PI): codes, and what is read.

Differences are listed, with both answers; docs/p4-emulator.md says why. The order matters, since writes stay.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")
grpc = pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[p4]'")

from google.protobuf import text_format  # noqa: E402
from google.rpc import status_pb2  # noqa: E402
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc  # noqa: E402

from fanin.emulation.bmv2_process import launched, linked, missing  # noqa: E402
from fanin.switch.p4runtime.server.device import Device  # noqa: E402
from fanin.switch.p4runtime.server.p4info import read_p4info  # noqa: E402
from fanin.switch.p4runtime.server.server import GrpcServer, Service  # noqa: E402
from tests.p4.pi_cases import CASES, MARK, ONE, e, table  # noqa: E402
from tests.p4.router import CPU_PORT, P4INFO, document  # noqa: E402

DEVICE = 1
WAIT_S = 20.0


class Peer:
    """One server, and what it answers: names of codes, and the entities of a read as text."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.stub = p4runtime_pb2_grpc.P4RuntimeStub(self.channel)

    def code(self, call: Callable[[Any], Any], request: Any) -> str:
        """The code of a unary call."""
        try:
            call(request)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    def write(self, text: str, election_id: int | None = 5, atomicity: int = 0, device_id: int = DEVICE) -> str:
        """The code of each update, or the call's own alone."""
        request = p4runtime_pb2.WriteRequest(device_id=device_id, atomicity=atomicity)
        text_format.Parse(text, request)
        if election_id is not None:
            request.election_id.low = election_id
        call = self.stub.Write.future(request)
        details = [value for key, value in call.trailing_metadata() or () if key == "grpc-status-details-bin"]
        if not details:
            return str(call.code().name)
        codes = []
        for each in status_pb2.Status.FromString(details[0]).details:
            error = p4runtime_pb2.Error()
            assert each.Unpack(error)
            codes.append(next(one.name for one in grpc.StatusCode if one.value[0] == error.canonical_code))
        return " ".join(codes) or str(call.code().name)

    def read(self, text: str, device_id: int = DEVICE) -> str:
        """The code where it is refused; else what was read, in an order of its own."""
        request = p4runtime_pb2.ReadRequest(device_id=device_id)
        text_format.Parse(text, request)
        try:
            found = [entity for reply in self.stub.Read(request) for entity in reply.entities]
        except grpc.RpcError as error:
            return str(error.code().name)
        return "\n".join(sorted(text_format.MessageToString(each, as_one_line=True) for each in found))


class Stream:
    """The stream of one controller."""

    def __init__(self, peer: Peer, election_id: int, device_id: int = DEVICE) -> None:
        self.requests: queue.Queue[Any] = queue.Queue()
        self.call = peer.stub.StreamChannel(iter(self.requests.get, None), timeout=WAIT_S)
        self.replies = iter(self.call)
        self.advertise(election_id, device_id)

    def advertise(self, election_id: int, device_id: int = DEVICE) -> None:
        """Ask for the office."""
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id, request.arbitration.election_id.low = device_id, election_id
        self.requests.put(request)

    def told(self) -> tuple[str, int]:
        """The next answer about the office: its code, and who has it; or how the stream ended."""
        try:
            update = next(self.replies).arbitration
        except grpc.RpcError as error:
            return error.code().name, -1
        code = next(one.name for one in grpc.StatusCode if one.value[0] == update.status.code)
        return code, update.election_id.low

    def end(self) -> None:
        """End the controller's stream."""
        self.requests.put(None)
        self.call.cancel()


def pipeline(action: str = "VERIFY_AND_COMMIT", info: str = P4INFO, text: str | None = None, election: int = 5) -> Any:
    """Make a SetForwardingPipelineConfigRequest of these parts."""
    kinds = p4runtime_pb2.SetForwardingPipelineConfigRequest
    request = kinds(device_id=DEVICE, action=kinds.Action.Value(action))
    request.election_id.low = election
    request.config.p4info.CopyFrom(read_p4info(info))
    request.config.p4_device_config = (document() if text is None else text).encode()
    request.config.cookie.cookie = 99
    return request


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[tuple[Peer, Peer]]:
    """Ours and PI's, without a program."""
    if (reason := missing()) is not None:
        pytest.skip(reason)
    service = Service(Device(CPU_PORT, lambda limit: 0), DEVICE, lambda port, data: None)
    server = GrpcServer(service, "127.0.0.1", 0)
    with linked((1, 2)) as links, launched(tmp_path / "bmv2.log", links) as (address, _):
        made = Peer(f"127.0.0.1:{server.port}"), Peer(address)
        yield made
        for each in made:
            each.channel.close()
    server.close()


@pytest.fixture
def programmed(peers: tuple[Peer, Peer]) -> Iterator[tuple[Peer, Peer]]:
    """With the program, and a controller whose election id is 5."""
    streams = [Stream(each, 5) for each in peers]
    for peer, stream in zip(peers, streams, strict=True):
        assert stream.told() == ("OK", 5)
        assert peer.code(peer.stub.SetForwardingPipelineConfig, pipeline()) == "OK"
    yield peers
    for stream in streams:
        stream.end()


DIFFERENT = {
    "empty value": ("OUT_OF_RANGE", "OK"),
    "empty value deleted": ("NOT_FOUND", "OK"),
    "wide value": ("OUT_OF_RANGE", "INVALID_ARGUMENT"),
    "wide parameter": ("OUT_OF_RANGE", "INVALID_ARGUMENT"),
    "full": ("RESOURCE_EXHAUSTED", "UNKNOWN"),
    "negative priority": ("INVALID_ARGUMENT", "UNKNOWN"),
    "counter beyond": ("OUT_OF_RANGE", "UNKNOWN"),
    "register": ("OK", "UNIMPLEMENTED"),
    "session truncated": ("OK", "UNKNOWN"),
    "value set absent": ("INVALID_ARGUMENT", "UNIMPLEMENTED"),
    "no entity": ("INVALID_ARGUMENT", "UNKNOWN"),
    "read by priority": ("entities", "entities"),
    "read by action": ("nothing", "entities"),
    "read counter beyond": ("OUT_OF_RANGE", "UNKNOWN"),
    "read direct of all": ("entities", "UNIMPLEMENTED"),
    "read direct of none": ("entities", "INVALID_ARGUMENT"),
    "read register": ("entities", "UNIMPLEMENTED"),
    "read direct meters": ("nothing", "INVALID_ARGUMENT"),
    "read absent group": ("nothing", "NOT_FOUND"),
    "read sessions": ("entities", "entities"),
    "read engine": ("entities", "INVALID_ARGUMENT"),
    "read digests": ("nothing", "UNIMPLEMENTED"),
    "read value sets": ("nothing", "UNIMPLEMENTED"),
    "counters all": ("OK", "UNIMPLEMENTED"),
    "read absent session": ("nothing", "NOT_FOUND"),
    "read no entity": ("INVALID_ARGUMENT", "UNKNOWN"),
}


@pytest.mark.processes
def test_each_request_has_the_same_answer_but_for_those_listed(programmed: tuple[Peer, Peer]) -> None:
    found = {}
    for name, verb, text in CASES:
        ours, theirs = (getattr(peer, verb)(text) for peer in programmed)
        if ours != theirs:
            found[name] = _short(ours), _short(theirs)
    assert found == DIFFERENT


def _short(answer: str) -> str:
    """A code, or that something was read."""
    return answer if answer.isupper() else "entities" if answer else "nothing"


def office(peer: Peer) -> list[object]:
    """Replies to two controllers and to some clients without a role, before there is a program and with one."""
    said: list[object] = []
    set_pipeline, get = peer.stub.SetForwardingPipelineConfig, peer.stub.GetForwardingPipelineConfig
    asked = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=DEVICE)
    low = Stream(peer, 3)
    said += [
        "alone",
        low.told(),
        "no program",
        peer.code(get, asked),
        peer.write(MARKED, 3),
        peer.read(e("table_entry { }")),
    ]
    high = Stream(peer, 5)
    said += ["a higher one comes", high.told(), low.told()]
    said += ["the lower one programs", peer.code(set_pipeline, pipeline(election=3))]
    said += ["no controller's id", peer.code(set_pipeline, pipeline(election=9))]
    said += ["no action", peer.code(set_pipeline, pipeline("UNSPECIFIED"))]
    said += ["commit of nothing", peer.code(set_pipeline, pipeline("COMMIT"))]
    said += ["the higher one programs", peer.code(set_pipeline, pipeline())]
    said += ["read back", get(asked).config == pipeline().config]
    asked.response_type = p4runtime_pb2.GetForwardingPipelineConfigRequest.COOKIE_ONLY
    said += ["its cookie", get(asked).config.cookie.cookie]
    said += ["writes", peer.write(MARKED, 5), peer.write(MARKED, 3), peer.write(MARKED, 9), peer.write(MARKED, None)]
    said += ["atomic", peer.write(MARKED, 5, atomicity=1), peer.write(MARKED, 5, atomicity=2)]
    said += ["another device", peer.write(MARKED, 5, device_id=4), peer.read(e("table_entry { }"), device_id=4)]
    twin = Stream(peer, 5)
    said += ["the same id again", twin.told()]
    high.advertise(2)
    said += ["the higher one steps down", high.told(), low.told()]
    high.advertise(6)
    said += ["and comes back", high.told(), low.told()]
    high.end()
    said += ["and leaves", low.told(), peer.write(MARKED.replace("INSERT", "MODIFY"), 3)]
    low.end()
    return said


MARKED = table("INSERT", 1, ONE, MARK)


@pytest.mark.processes
def test_controllers_are_told_the_same(peers: tuple[Peer, Peer]) -> None:
    ours, theirs = map(office, peers)
    assert [pair for pair in zip(ours, theirs, strict=True) if pair[0] != pair[1]] == [
        ("OK", "FAILED_PRECONDITION"),  # the config before there is one
        ("FAILED_PRECONDITION", "UNKNOWN"),  # a commit of nothing
        ("NOT_FOUND", "PERMISSION_DENIED"),  # writes to another device
        ("NOT_FOUND", "FAILED_PRECONDITION"),  # reads from another device
    ]
