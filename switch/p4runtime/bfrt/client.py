"""A connection to a BfRt server: subscription, binding to a program, reads and writes.

A server accepts reads and writes only from clients that have subscribed over a stream, with a client id of their own,
and have bound themselves to a program. The stream ends with the server; `lost` then says why.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.rpc import status_pb2

from fanin import files
from fanin.errors import ConfigurationError, FaninError, SwitchLostError, SwitchUnreachableError
from fanin.switch.p4runtime.bfrt import messages
from fanin.switch.p4runtime.bfrt.info import BfrtInfo
from fanin.switch.p4runtime.controller.links import CALL_TIMEOUT_S, RefusedError
from fanin.switch.p4runtime.server.server import MAX_MESSAGE_BYTES
from fanin.switch.p4runtime.server.status import Code

LOAD_TIMEOUT_S = 120.0
"""Longest time that a device may take to load a program."""
MAX_PROGRAM_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class BfrtAddress:
    """Address of a device, and the controller's client id there."""

    target: str
    """Address as `host:port`."""
    device_id: int = 0
    client_id: int = 0
    """Only one client at a time may use an id."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline of a compiled program, and the pipes that run it."""

    name: str
    context: Path
    binary: Path
    pipes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """Files that the SDE's compiler has written for a program."""

    name: str
    info: Path
    """Path of the compiler's bf-rt.json."""
    pipelines: tuple[Pipeline, ...]

    def message(self) -> Any:
        """A ForwardingPipelineConfig with the files' contents. ConfigurationError for a file that cannot be read."""
        config = messages.ForwardingPipelineConfig(
            p4_name=self.name, bfruntime_info=files.read(self.info, "bf-rt.json", MAX_PROGRAM_BYTES)
        )
        for each in self.pipelines:
            config.profiles.add(
                profile_name=each.name,
                context=files.read(each.context, "context.json", MAX_PROGRAM_BYTES),
                binary=files.read(each.binary, "pipeline binary", MAX_PROGRAM_BYTES),
                pipe_scope=each.pipes,
            )
        return config


class BfrtClient:
    """One client of a BfRt server. Calls may come from any thread."""

    def __init__(self, address: BfrtAddress) -> None:
        """Connect and subscribe. SwitchUnreachableError, or ConfigurationError if another client has the client id."""
        self.address = address
        self.lost = ""
        """Why the stream ended; empty while it lives."""
        self._channel = grpc.insecure_channel(
            address.target, options=(("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),)
        )
        self._unary = {
            name: self._channel.unary_unary(
                messages.SERVICE + name, request_serializer=_to_bytes, response_deserializer=answer.FromString
            )
            for name, (_, answer) in messages.UNARY.items()
        }
        self._read = self._channel.unary_stream(
            f"{messages.SERVICE}Read",
            request_serializer=_to_bytes,
            response_deserializer=messages.ReadResponse.FromString,
        )
        self._program = ""
        self._requests: queue.Queue[Any] = queue.Queue()
        self._answers: queue.Queue[Any] = queue.Queue()
        stream = self._channel.stream_stream(
            f"{messages.SERVICE}StreamChannel",
            request_serializer=_to_bytes,
            response_deserializer=messages.StreamMessageResponse.FromString,
        )
        self._stream = stream(iter(self._requests.get, None))
        self._thread = threading.Thread(target=self._listen, name="fanin bfrt stream", daemon=True)
        self._thread.start()
        self._subscribe()

    def _subscribe(self) -> None:
        request = messages.StreamMessageRequest(client_id=self.address.client_id)
        request.subscribe.device_id = self.address.device_id
        self._requests.put(request)
        answer = self._next("subscribe", CALL_TIMEOUT_S)
        target = self.address.target
        if answer is None:
            why = f": {self.lost}" if self.lost else ""
            self.close()
            raise SwitchUnreachableError(
                target, f"no BfRt device answers at {target}{why}. Remedy: see that its switchd runs, and check --bfrt"
            )
        if answer.subscribe.status.code != Code.OK:
            self.close()
            raise ConfigurationError(
                f"the BfRt device at {target} refuses client {self.address.client_id}: "
                f"{answer.subscribe.status.message or 'it is taken'}. Remedy: stop the other client, or give another "
                "--client-id"
            )

    def _next(self, kind: str, timeout_s: float) -> Any | None:
        """The next message of that kind from the stream; None when the stream ends or no message comes in time."""
        with contextlib.suppress(queue.Empty):
            while (answer := self._answers.get(timeout=timeout_s)) is not None:
                if answer.WhichOneof("value") == kind:
                    return answer
        return None

    def _listen(self) -> None:
        try:
            for message in self._stream:
                self._answers.put(message)
            self.lost = "the device ended the stream"
        except grpc.RpcError as error:
            self.lost = f"{error.code().name}: {error.details()}"
        self._answers.put(None)

    # --- the program ---

    def programs(self) -> Any:
        """GetForwardingPipelineConfigResponse: the programs that the device runs, and its own tables."""
        request = messages.GetForwardingPipelineConfigRequest(
            device_id=self.address.device_id, client_id=self.address.client_id
        )
        return self._call("GetForwardingPipelineConfig", request)

    def ensure_program(self, config: Any) -> bool:
        """Load a program unless the device runs it; return whether it was loaded, which clears all state.

        `config` is a ForwardingPipelineConfig (CompiledProgram.message).
        """
        for each in self.programs().config:
            if (each.p4_name, each.bfruntime_info) == (config.p4_name, config.bfruntime_info):
                return False
        request = messages.SetForwardingPipelineConfigRequest(
            device_id=self.address.device_id,
            client_id=self.address.client_id,
            action=messages.PipelineAction.VERIFY_AND_WARM_INIT_BEGIN_AND_END,
            config=[config],
        )
        self._call("SetForwardingPipelineConfig", request, LOAD_TIMEOUT_S)
        kind = "set_forwarding_pipeline_config_response"
        while (answer := self._next(kind, LOAD_TIMEOUT_S)) is not None:
            if getattr(answer, kind).set_forwarding_pipeline_config_response_type == messages.WARM_INIT_FINISHED:
                return True
        raise SwitchLostError(
            self.address.target,
            f"the BfRt device at {self.address.target} does not say that {config.p4_name} is loaded. Remedy: its log",
        )

    def bind(self, program: str) -> BfrtInfo:
        """Bind this client to a program, empty for the only one, and return its tables.

        ConfigurationError if the device does not run it.
        """
        there = self.programs()
        names = [config.p4_name for config in there.config]
        if (program and program not in names) or (not program and len(names) != 1):
            raise ConfigurationError(
                f"the device at {self.address.target} runs {', '.join(names) or 'no program'}"
                f"{f', not {program}' if program else ''}. Remedy: load the program, and name it with --bfrt-program"
            )
        config = next(each for each in there.config if program in ("", each.p4_name))
        request = messages.SetForwardingPipelineConfigRequest(
            device_id=self.address.device_id, client_id=self.address.client_id, action=messages.PipelineAction.BIND
        )
        request.config.add(p4_name=config.p4_name)
        self._call("SetForwardingPipelineConfig", request)
        self._program = config.p4_name
        return BfrtInfo((config.bfruntime_info, there.non_p4_config.bfruntime_info))

    # --- entries ---

    def write(self, updates: Sequence[Any]) -> None:
        """Carry out updates in order; RefusedError for the first refused one (the others are carried out)."""
        if not updates:
            return
        request = messages.WriteRequest(
            target=messages.target(self.address.device_id),
            client_id=self.address.client_id,
            updates=updates,
            p4_name=self._program,
        )
        _complain_of(self._call("Write", request).status)

    def read(self, entries: Iterable[Any]) -> list[Any]:
        """TableEntry messages that match, read from the hardware: without a key, all entries of a table."""
        request = messages.ReadRequest(
            target=messages.target(self.address.device_id), client_id=self.address.client_id, p4_name=self._program
        )
        for each in entries:
            entity = request.entities.add()
            entity.table_entry.CopyFrom(each)
            entity.table_entry.table_flags.from_hw = True
        if not request.entities:
            return []
        found = []
        for response in self._guarded(lambda: list(self._read(request, timeout=CALL_TIMEOUT_S))):
            _complain_of(response.status)
            found += [entity.table_entry for entity in response.entities]
        return found

    def _call(self, name: str, request: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        return self._guarded(lambda: self._unary[name](request, timeout=timeout_s))

    def _guarded(self, call: Any) -> Any:
        try:
            return call()
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise SwitchLostError(
                    self.address.target,
                    f"the BfRt device at {self.address.target} is gone: {error.details()}. "
                    "Remedy: start the device, then its controller",
                ) from None
            raise _refusal(error) from None

    def close(self) -> None:
        """End the subscription and close the connection."""
        self._requests.put(None)
        self._stream.cancel()
        self._channel.close()
        self._thread.join(CALL_TIMEOUT_S)


def _to_bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())


def _complain_of(statuses: Iterable[Any]) -> None:
    for status in statuses:
        if status.canonical_code != Code.OK:
            raise RefusedError(_code(status.canonical_code), status.message)


def _refusal(error: Any) -> FaninError:
    """The error for the first refused update, from the status details, or for the call itself."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            for detail in status_pb2.Status.FromString(value).details:
                refused = messages.Error()
                if detail.Unpack(refused) and refused.canonical_code != Code.OK:
                    return RefusedError(_code(refused.canonical_code), refused.message)
    return RefusedError(_code(error.code().value[0]), str(error.details()))


def _code(number: int) -> Code:
    return Code(number) if number in Code._value2member_map_ else Code.UNKNOWN
