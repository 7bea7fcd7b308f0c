"""A P4Runtime client as small as a test needs: load a program, write entries and groups by name, exchange packets.

Independent of fanin's own controller on purpose, so that what it programs into BMv2 is what the tests say.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

import grpc
from google.rpc import status_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from fanin.switch.p4.program_file import read_program
from fanin.switch.p4runtime.server.p4info import read_p4info

DEVICE = 1
ELECTION = p4runtime_pb2.Uint128(low=1)
REPLY_TIMEOUT_S = 10.0


class Client:
    """The primary controller of one switch, for as long as the context lasts."""

    def __init__(self, address: str, info: Path) -> None:
        self.info = read_p4info(info.read_text(encoding="utf-8"))
        self._channel = grpc.insecure_channel(address)
        self._stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self._requests: queue.Queue[p4runtime_pb2.StreamMessageRequest | None] = queue.Queue()
        self._packets: queue.Queue[p4runtime_pb2.PacketIn] = queue.Queue()
        self._ready = threading.Event()
        self._stream = self._stub.StreamChannel(self._outgoing())
        threading.Thread(target=self._read, daemon=True).start()
        arbitration = p4runtime_pb2.MasterArbitrationUpdate(device_id=DEVICE, election_id=ELECTION)
        self._requests.put(p4runtime_pb2.StreamMessageRequest(arbitration=arbitration))
        assert self._ready.wait(REPLY_TIMEOUT_S), "the switch does not answer to arbitration"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._requests.put(None)
        self._stream.cancel()
        self._channel.close()

    def load(self, program: Path) -> None:
        """SetForwardingPipelineConfig with a BMv2 JSON file."""
        config = p4runtime_pb2.ForwardingPipelineConfig(
            p4info=self.info,
            p4_device_config=read_program(program),
            cookie=p4runtime_pb2.ForwardingPipelineConfig.Cookie(),
        )
        verify_and_commit = p4runtime_pb2.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
        self._stub.SetForwardingPipelineConfig(
            p4runtime_pb2.SetForwardingPipelineConfigRequest(
                device_id=DEVICE, election_id=ELECTION, action=verify_and_commit, config=config
            )
        )

    def entry(self, table: str, key: Sequence[int], action: str, data: Sequence[int], *, modify: bool = False) -> None:
        """Insert or modify an entry of exact matches; key and data in the order in which the program declares them."""
        facts = next(each for each in self.info.tables if each.preamble.name == table)
        called = next(each for each in self.info.actions if each.preamble.name == action)
        entry = p4runtime_pb2.TableEntry(table_id=facts.preamble.id)
        for field, value in zip(facts.match_fields, key, strict=True):
            match = entry.match.add(field_id=field.id)
            match.exact.value = _bytes(value)
        entry.action.action.action_id = called.preamble.id
        for parameter, value in zip(called.params, data, strict=True):
            entry.action.action.params.add(param_id=parameter.id, value=_bytes(value))
        self._write("MODIFY" if modify else "INSERT", p4runtime_pb2.Entity(table_entry=entry))

    def group(self, number: int, replicas: Sequence[tuple[int, int]]) -> None:
        """A multicast group of (port, instance)."""
        group = p4runtime_pb2.MulticastGroupEntry(multicast_group_id=number)
        for port, instance in replicas:
            group.replicas.add(egress_port=port, instance=instance)
        entry = p4runtime_pb2.PacketReplicationEngineEntry(multicast_group_entry=group)
        self._write("INSERT", p4runtime_pb2.Entity(packet_replication_engine_entry=entry))

    def counter(self, name: str, index: int) -> int:
        """Packets of one cell of a counter."""
        facts = next(each for each in self.info.counters if each.preamble.name == name)
        asked = p4runtime_pb2.CounterEntry(counter_id=facts.preamble.id, index=p4runtime_pb2.Index(index=index))
        request = p4runtime_pb2.ReadRequest(device_id=DEVICE)
        request.entities.add().counter_entry.CopyFrom(asked)
        (reply,) = self._stub.Read(request)
        return int(reply.entities[0].counter_entry.data.packet_count)

    def send(self, frame: bytes, **metadata: int) -> None:
        """Packet-out with its metadata by name; what is not named is 0."""
        (facts,) = (each for each in self.info.controller_packet_metadata if each.preamble.name == "packet_out")
        packet = p4runtime_pb2.PacketOut(payload=frame)
        for field in facts.metadata:
            packet.metadata.add(metadata_id=field.id, value=_bytes(metadata.get(field.name, 0)))
        self._requests.put(p4runtime_pb2.StreamMessageRequest(packet=packet))

    def received(self) -> bytes:
        """The next packet-in, metadata and frame as the program sent them."""
        packet = self._packets.get(timeout=REPLY_TIMEOUT_S)
        metadata, bits = 0, 0
        (facts,) = (each for each in self.info.controller_packet_metadata if each.preamble.name == "packet_in")
        values = {each.metadata_id: int.from_bytes(each.value, "big") for each in packet.metadata}
        for field in facts.metadata:
            metadata, bits = metadata << field.bitwidth | values.get(field.id, 0), bits + field.bitwidth
        return metadata.to_bytes(bits // 8, "big") + bytes(packet.payload)

    def _write(self, verb: str, entity: p4runtime_pb2.Entity) -> None:
        request = p4runtime_pb2.WriteRequest(device_id=DEVICE, election_id=ELECTION)
        update = request.updates.add(type=p4runtime_pb2.Update.Type.Value(verb))
        update.entity.CopyFrom(entity)
        self._stub.Write(request)

    def write(self, update: p4runtime_pb2.Update) -> int:
        """One update, whatever it is: the code of the answer, 0 where it was carried out."""
        request = p4runtime_pb2.WriteRequest(device_id=DEVICE, election_id=ELECTION, updates=[update])
        call = self._stub.Write.future(request)
        if call.code() is grpc.StatusCode.OK:
            return 0
        for key, value in call.trailing_metadata():
            if key == "grpc-status-details-bin":
                error = p4runtime_pb2.Error()
                for detail in status_pb2.Status.FromString(value).details:
                    if detail.Unpack(error):
                        return int(error.canonical_code)
        return int(call.code().value[0])

    def taken(self) -> int:
        """How many packets have come from the switch since this was asked last."""
        count = 0
        with contextlib.suppress(queue.Empty):
            while True:
                self._packets.get_nowait()
                count += 1
        return count

    def _outgoing(self) -> Iterator[p4runtime_pb2.StreamMessageRequest]:
        while (request := self._requests.get()) is not None:
            yield request

    def _read(self) -> None:
        try:
            for message in self._stream:
                if message.HasField("arbitration"):
                    self._ready.set()
                elif message.HasField("packet"):
                    self._packets.put(message.packet)
        except grpc.RpcError:
            pass  # the context has ended


def _bytes(value: int) -> bytes:
    """A number as P4Runtime writes it: big-endian, as short as possible, at least one byte."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
