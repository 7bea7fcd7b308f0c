"""The controller's connection to a device: over gRPC, or directly to an emulated one in the same process."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from google.rpc import status_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from fanin.errors import ConfigurationError, FaninError, SwitchLostError, SwitchUnreachableError
from fanin.switch.p4runtime.server.device import Device
from fanin.switch.p4runtime.server.server import MAX_MESSAGE_BYTES, TlsFiles
from fanin.switch.p4runtime.server.status import Code, StatusError

CALL_TIMEOUT_S = 30.0
"""Longest time for a device's response: BMv2 takes some seconds to load a large program."""
QUEUED_PACKETS = 4096
"""Most packets that wait for the controller; beyond that they are lost, and workers send them again."""


class RefusedError(FaninError):
    """Raised when a device refuses an update, with its status code."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class Link(Protocol):
    """A connection to a device that can be programmed."""

    @property
    def description(self) -> str:
        """The device at the other end, in words."""

    def p4info(self) -> Any:
        """The P4Info of the program on the device."""

    def write(self, updates: Sequence[Any]) -> None:
        """Carry out updates in order; RefusedError for the first refused one (the others are carried out)."""

    def read(self, entities: Sequence[Any]) -> list[Any]:
        """Read the entities that match."""

    def send(self, packet: Any) -> None:
        """Send a PacketOut to the device."""

    def next_packet(self, timeout_s: float) -> Any | None:
        """Wait for the next PacketIn; None if none comes in time. SwitchLostError if the device is gone."""

    def close(self) -> None:
        """Close the connection; ends a wait for packets."""


def write_once(link: Link, update: Any) -> None:
    """Write an entry that may be there already."""
    try:
        link.write([update])
    except RefusedError as error:
        if error.code is not Code.ALREADY_EXISTS:
            raise


class LocalLink:
    """An emulated device in this process, whose ports the caller serves. Its calls may come from any thread."""

    def __init__(self, device: Device, transmit: Callable[[int, bytes], None]) -> None:
        """`transmit(port, data)` sends a packet that leaves a port; it is called with the device locked."""
        self._device = device
        self._transmit = transmit
        self._lock = threading.Lock()
        self._packets: queue.Queue[Any] = queue.Queue(QUEUED_PACKETS)
        self.failed: str = ""
        """Why the program last failed on a packet, in words; empty if it never did."""

    @property
    def description(self) -> str:
        """The running program and interpreter, in words."""
        assert self._device.switch is not None
        return f"P4 program in the emulator, {self._device.switch.engine}"

    def receive(self, port: int, data: bytes) -> None:
        """Process a packet that arrived at a port."""
        self.receive_batch([(port, data)])

    def receive_batch(self, packets: Sequence[tuple[int, bytes]]) -> None:
        """Process packets that arrived, each with its port."""
        with self._lock:
            assert self._device.switch is not None
            sent, failed = self._device.switch.process_batch(packets, time.monotonic())
            self._forward(sent)
            self.failed = failed or self.failed  # counted by the switch as well

    def receive_natively(self, ports: Any, count: int) -> bool:
        """Process `count` packets at native ports (native_ports.py); False if the program does not run natively."""
        with self._lock:
            switch = self._device.switch
            if switch is None or not switch.runs_natively:
                return False
            others, failed = switch.process_ports(ports, count, time.monotonic())
            self._forward(others)
            self.failed = failed or self.failed
        return True

    def _forward(self, sent: list[tuple[int, bytes]]) -> None:
        for port, data in sent:
            if port != self._device.cpu_port:
                self._transmit(port, data)
            else:
                with contextlib.suppress(queue.Full):
                    self._packets.put_nowait(self._device.packet_in(data))

    def p4info(self) -> Any:
        """P4Info of the loaded program."""
        return self._device.config.p4info

    def write(self, updates: Sequence[Any]) -> None:
        """Implements the protocol `Link` of this module."""
        refused: StatusError | None = None
        with self._lock:
            for update in updates:
                try:
                    self._device.write(update)
                except StatusError as error:
                    refused = refused or error
        if refused is not None:
            raise RefusedError(refused.code, str(refused))

    def read(self, entities: Sequence[Any]) -> list[Any]:
        """Implements the protocol `Link` of this module."""
        with self._lock:
            return [found for wanted in entities for found in self._device.read(wanted)]

    def send(self, packet: Any) -> None:
        """Implements the protocol `Link` of this module."""
        with self._lock:
            try:
                self._forward(self._device.packet_out(packet, time.monotonic()))
            except StatusError as error:
                raise RefusedError(error.code, str(error)) from None

    def next_packet(self, timeout_s: float) -> Any | None:
        """Implements the protocol `Link` of this module."""
        with contextlib.suppress(queue.Empty):
            return self._packets.get(timeout=timeout_s)
        return None

    def close(self) -> None:
        """Implements the protocol `Link` of this module."""
        with contextlib.suppress(queue.Full):
            self._packets.put_nowait(None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAddress:
    """Address of a device, and the controller's identity there."""

    target: str
    """Address as `host:port`."""
    device_id: int = 0
    """BMv2's default is 0."""
    election_id: int = 1
    tls: TlsFiles | None = None
    """Our certificate and key, and the authority that signed the device's."""
    ca: bytes | None = None
    """PEM of the authority alone, if the device does not ask for our certificate."""


class GrpcLink:
    """A P4Runtime device over gRPC, whose primary controller this one is."""

    def __init__(self, address: DeviceAddress) -> None:
        """Connect and become primary. SwitchUnreachableError, or ConfigurationError if another one is primary."""
        self._address = address
        self._channel = channel_to(address)
        self._stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)
        self._requests: queue.Queue[Any] = queue.Queue(QUEUED_PACKETS)
        self._packets: queue.Queue[Any] = queue.Queue(QUEUED_PACKETS)
        self._standing: queue.Queue[Any] = queue.Queue(16)
        self._lost = ""
        self._refused: grpc.StatusCode | None = None
        """Status with which the device has ended the stream."""
        self._closed = False
        self._stream = self._stub.StreamChannel(iter(self._requests.get, None))
        self._thread = threading.Thread(target=self._listen, name="fanin p4runtime stream", daemon=True)
        self._thread.start()
        self._arbitrate()

    @property
    def description(self) -> str:
        """The device's address, in words."""
        return f"P4 program behind P4Runtime at {self._address.target}, device {self._address.device_id}"

    def _arbitrate(self) -> None:
        request = p4runtime_pb2.StreamMessageRequest()
        request.arbitration.device_id = self._address.device_id
        _set_election_id(request.arbitration.election_id, self._address.election_id)
        self._requests.put(request)
        target = self._address.target
        try:
            standing = self._standing.get(timeout=CALL_TIMEOUT_S)
        except queue.Empty:
            standing = None
        if standing is None:
            self.close()
            why = f": {self._lost}" if self._lost else ""
            if self._refused not in (None, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise FaninError(
                    f"what answers at {target} refuses device {self._address.device_id}{why}. Remedy: correct "
                    "--device-id, or --p4runtime"
                )
            raise SwitchUnreachableError(
                target, f"no P4Runtime device answers at {target}{why}. Remedy: see that it runs, and check --p4runtime"
            )
        if standing.status.code != Code.OK:
            self.close()
            highest = standing.election_id.high << 64 | standing.election_id.low
            raise ConfigurationError(
                f"another controller is primary at {target}, with election id {highest}. Remedy: stop it, or give "
                f"--election-id {highest + 1}"
            )

    def _listen(self) -> None:
        try:
            for message in self._stream:
                kind = message.WhichOneof("update")
                if kind == "packet":
                    with contextlib.suppress(queue.Full):
                        self._packets.put_nowait(message.packet)
                elif kind == "arbitration":
                    if not self._standing.full():
                        self._standing.put_nowait(message.arbitration)
                    if message.arbitration.status.code != Code.OK:
                        self._lost = "another controller has become primary"
            self._lost = self._lost or "the device ended the stream"
        except grpc.RpcError as error:
            self._refused, self._lost = error.code(), f"{error.code().name}: {error.details()}"
        with contextlib.suppress(queue.Full):
            self._standing.put_nowait(None)
        with contextlib.suppress(queue.Full):
            self._packets.put_nowait(None)

    def ensure_pipeline(self, p4info: Any, program: bytes) -> bool:
        """Load a program unless the device runs it; return whether it was loaded, which clears all state."""
        running = self._config()
        if running is not None and running.p4info == p4info and running.p4_device_config in (b"", program):
            return False
        if running is not None:
            self._delete_groups()
        self.load(p4info, program)
        return True

    def load(self, p4info: Any, program: bytes) -> None:
        """Load a program, which clears all state of the previous one."""
        kinds = p4runtime_pb2.SetForwardingPipelineConfigRequest
        request = kinds(device_id=self._address.device_id, action=kinds.VERIFY_AND_COMMIT)
        _set_election_id(request.election_id, self._address.election_id)
        request.config.p4info.CopyFrom(p4info)
        request.config.p4_device_config = program
        self._call(self._stub.SetForwardingPipelineConfig, request)

    def _delete_groups(self) -> None:
        """Delete all multicast groups: after a load BMv2 no longer lists them, but still replicates to them."""
        wanted = p4runtime_pb2.Entity()
        wanted.packet_replication_engine_entry.multicast_group_entry.SetInParent()
        self.write(
            [p4runtime_pb2.Update(type=p4runtime_pb2.Update.DELETE, entity=each) for each in self.read([wanted])]
        )

    def _config(self) -> Any:
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=self._address.device_id)
        try:
            response = self._call(self._stub.GetForwardingPipelineConfig, request)
        except RefusedError as error:
            if error.code is Code.FAILED_PRECONDITION:
                return None
            raise
        return response.config if response.HasField("config") else None

    def p4info(self) -> Any:
        """P4Info of the program that runs on the device."""
        config = self._config()
        if config is None:
            raise ConfigurationError(
                f"the device at {self._address.target} has no program. Remedy: give --program and --p4info"
            )
        return config.p4info

    def write(self, updates: Sequence[Any]) -> None:
        """Implements the protocol `Link` of this module."""
        if not updates:
            return
        request = p4runtime_pb2.WriteRequest(device_id=self._address.device_id, updates=updates)
        _set_election_id(request.election_id, self._address.election_id)
        self._call(self._stub.Write, request)

    def read(self, entities: Sequence[Any]) -> list[Any]:
        """Implements the protocol `Link` of this module."""
        request = p4runtime_pb2.ReadRequest(device_id=self._address.device_id, entities=entities)
        return list(self._call(lambda each, timeout: _entities(self._stub.Read(each, timeout=timeout)), request))

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            code = Code(error.code().value[0]) if error.code().value[0] in Code._value2member_map_ else Code.UNKNOWN
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise SwitchLostError(
                    self._address.target,
                    f"the P4Runtime device at {self._address.target} is gone: {error.details()}. "
                    "Remedy: start the device, then its controller",
                ) from None
            raise RefusedError(*_first_refusal(error, code)) from None

    def send(self, packet: Any) -> None:
        """Implements the protocol `Link` of this module."""
        with contextlib.suppress(queue.Full):
            self._requests.put_nowait(p4runtime_pb2.StreamMessageRequest(packet=packet))

    def next_packet(self, timeout_s: float) -> Any | None:
        """Implements the protocol `Link` of this module."""
        with contextlib.suppress(queue.Empty):
            packet = self._packets.get(timeout=timeout_s)
            if packet is None and not self._closed:
                raise SwitchLostError(
                    self._address.target,
                    f"the P4Runtime device at {self._address.target} is gone: {self._lost}. Remedy: start it, then "
                    "this controller again; it takes over what the device still has",
                )
            return packet
        return None

    def close(self) -> None:
        """Implements the protocol `Link` of this module."""
        self._closed = True
        with contextlib.suppress(queue.Full):
            self._requests.put_nowait(None)
        self._stream.cancel()
        self._channel.close()
        self._thread.join(CALL_TIMEOUT_S)


def channel_to(address: DeviceAddress) -> Any:
    """A gRPC channel to a device, which connects on first use."""
    options = (("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),)
    if address.tls is None and address.ca is None:
        return grpc.insecure_channel(address.target, options=options)
    return grpc.secure_channel(address.target, _credentials(address), options=options)


def _entities(responses: Any) -> list[Any]:
    return [entity for response in responses for entity in response.entities]


def _first_refusal(error: Any, code: Code) -> tuple[Code, str]:
    """Code and text of the first refused update, from the status details (P4Runtime specification, section 12.3)."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                update = p4runtime_pb2.Error()
                if detail.Unpack(update) and update.canonical_code != Code.OK:
                    known = update.canonical_code in Code._value2member_map_
                    return Code(update.canonical_code) if known else Code.UNKNOWN, update.message
    return code, str(error.details())


def _credentials(address: DeviceAddress) -> Any:
    tls = address.tls
    if tls is None:
        return grpc.ssl_channel_credentials(address.ca)
    ca = None if tls.ca is None else tls.ca.read_bytes()
    return grpc.ssl_channel_credentials(ca, tls.key.read_bytes(), tls.certificate.read_bytes())


def _set_election_id(message: Any, election_id: int) -> None:
    message.high, message.low = election_id >> 64, election_id & ((1 << 64) - 1)
