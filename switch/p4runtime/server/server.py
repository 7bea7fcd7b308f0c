"""The P4Runtime service over gRPC: calls, arbitration, and a code per update (specification, sections 5 and 12)."""

from __future__ import annotations

import itertools
import queue
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.rpc import status_pb2
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from fanin import files
from fanin.addresses import host_and_port
from fanin.errors import ConfigurationError
from fanin.switch.p4runtime.server.arbitration import MAX_STREAMS, Arbitration, Standing
from fanin.switch.p4runtime.server.device import Device
from fanin.switch.p4runtime.server.status import Code, StatusError

API_VERSION = "1.4.1"
"""Version of P4Runtime that Capabilities returns."""
THREADS = MAX_STREAMS + 8
"""Threads of the server: each stream occupies one while it lives; the others serve calls."""
QUEUED_MESSAGES = 4096
"""Most messages queued for one controller; beyond that packets are lost."""
MAX_MESSAGE_BYTES = 64 << 20
"""Longest request in bytes: a program and its P4Info must fit."""
MAX_TLS_FILE_BYTES = 1 << 20
ENTITIES_PER_RESPONSE = 256
"""Most entities in one message of a Read. Packets wait while it is built, for some milliseconds."""
UPDATES_AT_A_TIME = 64
"""Most updates of a Write that are carried out at a time. Packets wait meanwhile, for some milliseconds."""
STOP_GRACE_S = 0.5
SHORTEST_WAIT_S = 0.001

Transmit = Callable[[int, bytes], None]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files; with `ca`, clients must show a certificate that it has signed (mutual TLS)."""

    certificate: Path
    key: Path
    ca: Path | None = None

    def check(self) -> None:
        """Raise ConfigurationError for files of other content, of which gRPC would only say that it cannot bind."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for path in (self.certificate, self.key, self.ca):
            if path is not None:
                files.read(path, "--tls file", MAX_TLS_FILE_BYTES)
        try:
            context.load_cert_chain(self.certificate, self.key, password=lambda: b"")
        except OSError as error:  # ssl.SSLError is one
            raise ConfigurationError(
                f"--tls-certificate {self.certificate} and --tls-key {self.key} are no certificate and its private "
                f"key, in PEM and without a password: {reason(error)}. Remedy: name files that are"
            ) from None
        if self.ca is not None:
            check_authority(self.ca)


def check_authority(ca: Path) -> bytes:
    """The certificate of an authority in PEM. ConfigurationError for a file that has none."""
    data = files.read(ca, "--tls-ca", MAX_TLS_FILE_BYTES)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=data.decode("ascii"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"--tls-ca {ca} is no certificate in PEM: {reason(error)}. Remedy: name a file that is"
        ) from None
    return data


def reason(error: Exception) -> str:
    """OpenSSL's reason for an error in words, without the place in its source."""
    return str(getattr(error, "reason", None) or error).replace("_", " ").lower()


class _Stream:
    """Queue of messages to one controller's StreamChannel; None ends the stream."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Any] = queue.Queue(QUEUED_MESSAGES)

    def send(self, message: Any) -> bool:
        """Queue a message; return whether there was room for it."""
        try:
            self.messages.put_nowait(message)
        except queue.Full:
            return False
        return True


class Service(p4runtime_pb2_grpc.P4RuntimeServicer):  # type: ignore[misc]  # the stubs have no types
    """The five calls of P4Runtime for one device."""

    def __init__(self, device: Device, device_id: int, transmit: Transmit) -> None:
        """`transmit(port, data)` sends a packet that leaves the switch; it is called with the lock held."""
        self.device = device
        self.lock = threading.Lock()
        """Guards the device and all attributes below."""
        self._changing = threading.Lock()
        """Held by a call that loads a program or writes, one at a time; packets pass whenever it releases `lock`."""
        self._device_id = device_id
        self._transmit = transmit
        self._arbitration = Arbitration()
        self.lost_packets = 0
        """Packets and digests for the control plane that were lost: there was no primary, or its queue was full."""
        self._timer: threading.Thread | None = None
        self._changed = threading.Condition(self.lock)
        self._closed = False

    # --- packets ---

    def receive(self, packets: Sequence[tuple[int, bytes]]) -> None:
        """Process packets that arrived, each with its port. A packet on which the program fails is counted."""
        with self.lock:
            if self.device.switch is not None:
                now = time.monotonic()
                sent, _ = self.device.switch.process_batch(packets, now)
                self._send_out(sent)
                if self.device.announces:
                    self._announce(now)

    def receive_natively(self, ports: Any, count: int) -> bool:
        """Process `count` packets at native ports (native_ports.py); False if the program does not run natively."""
        with self.lock:
            switch = self.device.switch
            if switch is None or not switch.runs_natively:
                return False
            now = time.monotonic()
            others, _ = switch.process_ports(ports, count, now)
            self._send_out(others)
            if self.device.announces:
                self._announce(now)
        return True

    def port_changed(self, port: int, up: bool) -> None:
        """Note that a port of the switch went down or came up."""
        with self.lock:
            self.device.set_port(port, up)

    def _send_out(self, sent: list[tuple[int, bytes]]) -> None:
        for port, data in sent:
            if port != self.device.cpu_port:
                self._transmit(port, data)
                continue
            primary = self._arbitration.primary
            message = p4runtime_pb2.StreamMessageResponse(packet=self.device.packet_in(data))
            if not isinstance(primary, _Stream) or not primary.send(message):
                self.lost_packets += 1

    # --- digests and idle entries ---

    def _announce(self, now: float) -> None:
        """Send the notifications that are due, and wake the timer thread for later ones; with the lock held."""
        for message in self.device.announcements(now):
            primary = self._arbitration.primary
            if not isinstance(primary, _Stream) or not primary.send(message):
                self.lost_packets += 1
        if self.device.next_announcement() is None:
            return
        if self._timer is None and not self._closed:
            self._timer = threading.Thread(target=self._keep_time, name="fanin p4runtime timer", daemon=True)
            self._timer.start()
        self._changed.notify_all()

    def _keep_time(self) -> None:
        with self.lock:
            while not self._closed:
                due = self.device.next_announcement()
                now = time.monotonic()
                if due is None or due > now:
                    self._changed.wait(None if due is None else max(due - now, SHORTEST_WAIT_S))
                else:
                    self._announce(now)

    def close(self) -> None:
        """End the timer thread."""
        with self.lock:
            self._closed = True
            self._changed.notify_all()
        if self._timer is not None:
            self._timer.join()

    # --- calls ---

    def Capabilities(self, request: Any, context: Any) -> Any:  # noqa: N802 (the service's name)
        """Return the version of the API."""
        return p4runtime_pb2.CapabilitiesResponse(p4runtime_api_version=API_VERSION)

    def SetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Load, check or commit a program."""
        with _answering(context), self._changing:
            with self.lock:
                self._check(request, writes=True)
            loaded = self.device.prepare(request.action, request.config)
            with self.lock:
                self._check(request, writes=True)  # another controller may be primary by now
                self.device.install(request.action, loaded, request.config)
        return p4runtime_pb2.SetForwardingPipelineConfigResponse()

    def GetForwardingPipelineConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Return the loaded program's configuration, or the requested parts of it."""
        response = p4runtime_pb2.GetForwardingPipelineConfigResponse()
        kinds = p4runtime_pb2.GetForwardingPipelineConfigRequest
        with self.lock, _answering(context):
            self._check(request)
            config = self.device.config
            if config is not None:
                response.config.cookie.CopyFrom(config.cookie)
                if request.response_type in (kinds.ALL, kinds.P4INFO_AND_COOKIE):
                    response.config.p4info.CopyFrom(config.p4info)
                if request.response_type in (kinds.ALL, kinds.DEVICE_CONFIG_AND_COOKIE):
                    response.config.p4_device_config = config.p4_device_config
        return response

    def Write(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Carry out updates in order; the error's details have a code for each update.

        Packets may be processed between updates, of which UPDATES_AT_A_TIME are carried out at a time.
        """
        results: list[Any] = []
        with _answering(context), self._changing:
            with self.lock:
                self._check(request, writes=True)
            if request.atomicity != p4runtime_pb2.WriteRequest.CONTINUE_ON_ERROR:
                raise StatusError(Code.UNIMPLEMENTED, "only CONTINUE_ON_ERROR is implemented")
            for first in range(0, len(request.updates), UPDATES_AT_A_TIME):
                with self.lock:
                    now = time.monotonic()
                    results += [self._written(each, now) for each in request.updates[first : first + UPDATES_AT_A_TIME]]
                    if self.device.announces:
                        self._announce(now)
        if any(result.canonical_code for result in results):
            _abort_with_details(context, results)
        return p4runtime_pb2.WriteResponse()

    def _written(self, update: Any, now: float) -> Any:
        """Carry out an update, with the lock held; return the outcome as a p4.v1.Error."""
        try:
            self.device.write(update, now)
        except StatusError as error:
            return _as_error(error)
        return p4runtime_pb2.Error(canonical_code=Code.OK)

    def Read(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        """Yield entities, up to ENTITIES_PER_RESPONSE per message.

        Not a snapshot: the lock is released between messages, because packets wait while it is held, and one wildcard
        can ask for hundreds of thousands of registers.
        """
        found = self._found(request)
        while True:
            with self.lock, _answering(context):
                entities = list(itertools.islice(found, ENTITIES_PER_RESPONSE))
            if not entities:
                return
            yield p4runtime_pb2.ReadResponse(entities=entities)

    def _found(self, request: Any) -> Iterator[Any]:
        """Yield the entities of a ReadRequest, built one by one; the caller holds the lock for each step."""
        self._check(request)
        for wanted in request.entities:
            yield from self.device.read(wanted, time.monotonic())

    def StreamChannel(self, requests: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        """Serve arbitration and packets of one controller until it ends its stream."""
        stream = _Stream()
        ended: list[StatusError] = []

        def listen() -> None:
            try:
                for request in requests:
                    self._take(stream, request)
            except StatusError as error:
                ended.append(error)
            except grpc.RpcError:
                pass  # the controller is gone
            stream.messages.put(None)

        def leave() -> None:
            with self.lock:
                self._tell(self._arbitration.leave(stream))
            stream.send(None)

        if not context.add_callback(leave):
            return
        threading.Thread(target=listen, name="fanin p4runtime stream", daemon=True).start()
        while (message := stream.messages.get()) is not None:
            yield message
        if ended:
            leave()
            context.abort(_grpc_code(ended[0].code), str(ended[0]))

    # --- one message of a stream ---

    def _take(self, stream: _Stream, request: Any) -> None:
        kind = request.WhichOneof("update")
        if kind == "arbitration":
            update = request.arbitration
            if update.device_id != self._device_id:
                raise StatusError(Code.NOT_FOUND, f"this server has device {self._device_id}, not {update.device_id}")
            if update.HasField("role") and (update.role.name or update.role.id):
                raise StatusError(Code.UNIMPLEMENTED, "only the default role is implemented")
            with self.lock:
                self._tell(self._arbitration.advertise(stream, _election_id(update.election_id)))
        elif kind == "packet":
            self._take_packet(stream, request.packet)
        elif kind == "digest_ack":
            with self.lock:
                self.device.acknowledge(request.digest_ack)
        else:
            self._complain(stream, StatusError(Code.UNIMPLEMENTED, f"messages of type {kind} are not implemented"))

    def _take_packet(self, stream: _Stream, packet: Any) -> None:
        try:
            with self.lock:
                if self._arbitration.primary is not stream:
                    raise StatusError(Code.PERMISSION_DENIED, "only the primary controller may send packets")
                now = time.monotonic()
                self._send_out(self.device.packet_out(packet, now))
                if self.device.announces:
                    self._announce(now)
        except StatusError as error:
            self._complain(stream, error, packet)

    def _complain(self, stream: _Stream, error: StatusError, packet: Any = None) -> None:
        """Send a StreamError (section 16.3); the stream continues."""
        message = p4runtime_pb2.StreamMessageResponse()
        message.error.canonical_code, message.error.message = int(error.code), str(error)
        if packet is not None:
            message.error.packet_out.packet_out.CopyFrom(packet)
        else:
            message.error.other.SetInParent()
        stream.send(message)

    def _tell(self, standings: list[Standing]) -> None:
        for standing in standings:
            message = p4runtime_pb2.StreamMessageResponse()
            message.arbitration.device_id = self._device_id
            message.arbitration.election_id.high = standing.election_id >> 64
            message.arbitration.election_id.low = standing.election_id & ((1 << 64) - 1)
            message.arbitration.status.code = int(standing.code)
            assert isinstance(standing.stream, _Stream)
            standing.stream.send(message)

    def _check(self, request: Any, *, writes: bool = False) -> None:
        if request.device_id != self._device_id:
            raise StatusError(Code.NOT_FOUND, f"this server has device {self._device_id}, not {request.device_id}")
        if writes:
            if request.role or request.role_id:
                raise StatusError(Code.PERMISSION_DENIED, "only the default role is implemented")
            self._arbitration.check_writer(_election_id(request.election_id))


class GrpcServer:
    """A gRPC server for a Service, which serves from its construction on."""

    def __init__(self, service: Service, host: str, port: int, tls: TlsFiles | None = None) -> None:
        """`port` 0: any free one, see attribute `port`. ConfigurationError if a port or file cannot be used."""
        options = (("grpc.max_receive_message_length", MAX_MESSAGE_BYTES), ("grpc.so_reuseport", 0))
        self._service = service
        self._server = grpc.server(futures.ThreadPoolExecutor(THREADS, "fanin p4runtime"), options=options)
        p4runtime_pb2_grpc.add_P4RuntimeServicer_to_server(service, self._server)
        address = host_and_port(host, port)
        try:
            if tls is None:
                self.port: int = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, _credentials(tls))
        except (RuntimeError, OSError) as error:
            raise ConfigurationError(
                f"P4Runtime cannot be served at {address}: {error}. Remedy: stop what uses the port (`ss -lntp` shows "
                "that), or name another, of this machine"
            ) from None
        if not self.port:
            raise ConfigurationError(
                f"P4Runtime cannot be served at {address}: the port cannot be had. "
                "Remedy: stop what uses it (`ss -lntp` shows that), or choose another address"
            )
        self._server.start()

    def close(self) -> None:
        """End all calls and streams."""
        self._server.stop(STOP_GRACE_S).wait()
        self._service.close()


def _credentials(tls: TlsFiles) -> Any:
    ca = None if tls.ca is None else tls.ca.read_bytes()
    pair = tls.key.read_bytes(), tls.certificate.read_bytes()
    return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)


class _answering:  # noqa: N801 (used as a statement)
    """Turns a StatusError into the call's status."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StatusError):
            self._context.abort(_grpc_code(error.code), str(error))


def _election_id(message: Any) -> int:
    return int(message.high) << 64 | int(message.low)


def _grpc_code(code: Code) -> Any:
    return next(each for each in grpc.StatusCode if each.value[0] == int(code))


def _as_error(error: StatusError) -> Any:
    return p4runtime_pb2.Error(canonical_code=int(error.code), message=str(error), space="fanin")


def _abort_with_details(context: Any, results: list[Any]) -> None:
    """End the call with UNKNOWN, and one p4.v1.Error per update in the status details (section 12.3)."""
    failed = next(result for result in results if result.canonical_code)
    status = status_pb2.Status(code=int(Code.UNKNOWN), message=f"an update was refused: {failed.message}")
    for result in results:
        status.details.add().Pack(result)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, status.message)
