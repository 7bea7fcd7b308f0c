"""Read the state of a P4Runtime device without becoming its controller, and without writing."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any

import grpc
from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc

from fanin.errors import ConfigurationError, FaninError, SwitchUnreachableError
from fanin.switch.p4runtime.controller.links import CALL_TIMEOUT_S, DeviceAddress, channel_to
from fanin.switch.p4runtime.server.device import Device
from fanin.switch.p4runtime.server.status import StatusError

CELLS_PER_READ = 1024
"""Most register cells that one request reads."""


class DeviceReader:
    """A read-only connection to a device, for which this client need not be primary."""

    def __init__(self, address: DeviceAddress) -> None:
        """Create the channel; it connects with the first request."""
        self.address = address
        self._channel = channel_to(address)
        self._stub = p4runtime_pb2_grpc.P4RuntimeStub(self._channel)

    def config(self) -> Any:
        """The running pipeline's P4Info and program. ConfigurationError if the device has none."""
        request = p4runtime_pb2.GetForwardingPipelineConfigRequest(device_id=self.address.device_id)
        config = self._call(self._stub.GetForwardingPipelineConfig, request).config
        if not config.p4info.tables and not config.p4_device_config:
            raise ConfigurationError(f"the device at {self.address.target} has no program. Remedy: load one")
        return config

    def read(self, entities: Sequence[Any]) -> list[Any]:
        """Read the entities that match."""
        request = p4runtime_pb2.ReadRequest(device_id=self.address.device_id, entities=entities)
        found: list[Any] = self._call(
            lambda each, timeout: [
                entity for response in self._stub.Read(each, timeout=timeout) for entity in response.entities
            ],
            request,
        )
        return found

    def cells(self, register_id: int, indices: Sequence[int]) -> list[int]:
        """Values of a register array's cells at `indices`."""
        found: list[int] = []
        for first in range(0, len(indices), CELLS_PER_READ):
            wanted = []
            for index in indices[first : first + CELLS_PER_READ]:
                entity = p4runtime_pb2.Entity()
                entity.register_entry.register_id, entity.register_entry.index.index = register_id, index
                wanted.append(entity)
            found += [int.from_bytes(each.register_entry.data.bitstring, "big") for each in self.read(wanted)]
        if len(found) != len(indices):
            raise FaninError(
                f"the device at {self.address.target} answers {len(found)} of {len(indices)} cells. "
                "Remedy: see the device's log, then start its controller again"
            )
        return found

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            target = self.address.target
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise SwitchUnreachableError(
                    target,
                    f"no P4Runtime device answers at {target}: {error.details()}. Remedy: see that it runs, and check "
                    "--p4runtime",
                ) from None
            if error.code() is grpc.StatusCode.UNIMPLEMENTED and request.DESCRIPTOR.name == "ReadRequest":
                raise FaninError(
                    f"the device at {target} does not serve this over P4Runtime: {error.details()} (BMv2 serves no "
                    "registers). Remedy: a device that does, as fanin's emulator"
                ) from None
            raise FaninError(f"the device at {target} refuses: {error.details()}. Remedy: check --device-id") from None

    def close(self) -> None:
        """Close the connection to the device."""
        self._channel.close()


class RemoteCells(MutableSequence[int]):
    """Cells of a device's register array, read on first use and then cached; writes change the cache alone."""

    def __init__(self, reader: DeviceReader, register_id: int, size: int) -> None:
        self._reader, self._id, self._size = reader, register_id, size
        self._known: dict[int, int] = {}

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: Any) -> Any:
        if not 0 <= at < self._size:
            raise IndexError(f"cell {at} of {self._size}")
        if at not in self._known:
            (self._known[at],) = self._reader.cells(self._id, [at])
        return self._known[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        if not 0 <= at < self._size:
            raise IndexError(f"cell {at} of {self._size}")
        self._known[at] = value

    def __delitem__(self, at: Any) -> None:
        raise TypeError("a register array keeps its size")

    def insert(self, index: int, value: int) -> None:
        """Raise TypeError: a register array keeps its size."""
        raise TypeError("a register array keeps its size")


def copy_state(reader: DeviceReader, device: Device) -> None:
    """Copy entries, default actions, groups and clone sessions to `device`, an emulated one with the same program."""
    assert device.switch is not None
    info = device.config.p4info
    wanted = []
    for table in info.tables:
        # The constant entries of a table are part of the program, so that they exist here already.
        written = device.switch.program.tables[table.preamble.name]
        if not written.immutable:
            wanted.append(p4runtime_pb2.Entity(table_entry=p4runtime_pb2.TableEntry(table_id=table.preamble.id)))
        if not written.fixed_default:
            wanted.append(
                p4runtime_pb2.Entity(
                    table_entry=p4runtime_pb2.TableEntry(table_id=table.preamble.id, is_default_action=True)
                )
            )
    for kind in ("multicast_group_entry", "clone_session_entry"):
        entity = p4runtime_pb2.Entity()
        getattr(entity.packet_replication_engine_entry, kind).SetInParent()
        wanted.append(entity)
    found = reader.read(wanted)
    for entity in found:
        default = entity.HasField("table_entry") and entity.table_entry.is_default_action
        if default and not entity.table_entry.HasField("action"):
            continue
        kind = p4runtime_pb2.Update.MODIFY if default else p4runtime_pb2.Update.INSERT
        try:
            device.write(p4runtime_pb2.Update(type=kind, entity=entity))
        except StatusError as error:
            raise FaninError(
                f"what the device at {reader.address.target} holds cannot be taken over: {error}"
            ) from None
