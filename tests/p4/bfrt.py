"""A small BfRt server that checks what it is told, in front of an emulated device.

It is strict where a real one is: a client has subscribed, bound itself to the program, and speaks to all pipes; keys
are complete; every value has exactly the bytes of its field; what is inserted is not there, what is changed is; a group
has only nodes that exist, and no node goes while a group has it. Legal writes go to the emulator, which runs the
controls of the Tofino program; what leaves through its CPU port is in `cpu_out`.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.rpc import status_pb2
from p4.v1 import p4runtime_pb2

from fanin.switch.p4runtime.bfrt import messages
from fanin.switch.p4runtime.bfrt.messages import UpdateType
from fanin.switch.p4runtime.server.device import Device
from fanin.switch.p4runtime.server.status import Code, StatusError
from fanin.switch.p4runtime.server.values import encoded
from tests.p4.bfrt_info import FRONT_PANEL, PROGRAM, device_info, program_info
from tests.p4.bfrt_values import RefusalError, bytes_of, demand, number_of, put, value_of

P4_TYPES = {
    UpdateType.INSERT: p4runtime_pb2.Update.INSERT,
    UpdateType.MODIFY: p4runtime_pb2.Update.MODIFY,
    UpdateType.DELETE: p4runtime_pb2.Update.DELETE,
}


class BfrtServer:
    """The service. `lock` guards the device and what is below."""

    def __init__(self, device: Device) -> None:
        self.device, self.lock = device, threading.Lock()
        self.p4info = device.config.p4info
        self.info, self.own = program_info(self.p4info), device_info()
        self.tables = {each["id"]: each for text in (self.info, self.own) for each in json.loads(text)["tables"]}
        self.clients: set[int] = set()
        self.bound: set[int] = set()
        self.gone: queue.Queue[int] = queue.Queue()
        """Clients whose streams have ended."""
        self.loaded: list[Any] = []
        self.ports: dict[int, Any] = {}
        self.dark: set[int] = set()
        """Ports that never come up."""
        self.nodes: dict[int, Any] = {}
        self.groups: dict[int, Any] = {}
        self.most_groups = self.most_nodes = 1 << 16
        """Capacity of the replication engine."""
        self.cpu_out: queue.Queue[bytes] = queue.Queue()
        """Packets that left through the CPU port, with the program's header."""
        self.out: list[tuple[int, bytes]] = []
        """Packets that left through the other ports."""
        self.transmit: Callable[[int, bytes], object] = lambda port, frame: self.out.append((port, frame))

    # --- packets ---

    def receive(self, port: int, frame: bytes) -> None:
        with self.lock:
            assert self.device.switch is not None
            sent, failed = self.device.switch.process_batch([(port, frame)], 0.0)
        assert not failed, failed
        for number, left in sent:
            if number == self.device.cpu_port:
                self.cpu_out.put(left)
            else:
                self.transmit(number, left)

    # --- calls ---

    def stream(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        client = next(requests)
        answer = messages.StreamMessageResponse()
        answer.subscribe.CopyFrom(client.subscribe)
        fresh = client.client_id not in self.clients
        if not fresh:
            answer.subscribe.status.code, answer.subscribe.status.message = int(Code.ALREADY_EXISTS), "client id in use"
        self.clients.add(client.client_id)
        ended: queue.Queue[None] = queue.Queue()
        context.add_callback(lambda: ended.put(None))
        yield answer
        if fresh:
            told = 0
            while True:
                with contextlib.suppress(queue.Empty):
                    ended.get(timeout=0.01)
                    self.clients.discard(client.client_id)
                    self.bound.discard(client.client_id)
                    self.gone.put(client.client_id)
                    return
                if told < len(self.loaded):
                    told += 1
                    answer = messages.StreamMessageResponse()
                    answer.set_forwarding_pipeline_config_response.set_forwarding_pipeline_config_response_type = 1
                    yield answer

    def set_pipeline(self, request: Any, context: Any) -> Any:
        self._known(request, context)
        names = [each.p4_name for each in request.config]
        if request.action == messages.PipelineAction.BIND:
            if names != [PROGRAM]:
                context.abort(grpc.StatusCode.NOT_FOUND, f"no program {names}")
            self.bound.add(request.client_id)
        else:
            for config in request.config:
                assert all(each.context and each.binary for each in config.profiles)
            self.loaded.append(request)
        return messages.SetForwardingPipelineConfigResponse()

    def get_pipeline(self, request: Any, context: Any) -> Any:
        self._known(request, context)
        response = messages.GetForwardingPipelineConfigResponse()
        response.config.add(p4_name=PROGRAM, bfruntime_info=self.info)
        response.non_p4_config.bfruntime_info = self.own
        return response

    def _known(self, request: Any, context: Any, *, bound: bool = False) -> None:
        if request.client_id not in (self.bound if bound else self.clients):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the client has not subscribed, or bound itself")

    def write(self, request: Any, context: Any) -> Any:
        self._known(request, context, bound=True)
        results = []
        for update in request.updates:
            result = messages.Error()
            try:
                demand(request.target == messages.target(0), "not all of the device")
                demand(request.p4_name == PROGRAM, f"program {request.p4_name!r}")
                with self.lock:
                    self._update(UpdateType(update.type), update.entity.table_entry)
            except (RefusalError, StatusError) as error:
                result.canonical_code, result.message = int(error.code), str(error)
            results.append(result)
        if any(each.canonical_code for each in results):
            status = status_pb2.Status(code=int(Code.UNKNOWN), message="some were refused")
            for each in results:
                packed = any_pb2.Any()
                packed.Pack(each)
                status.details.append(packed)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
            context.abort(grpc.StatusCode.UNKNOWN, status.message)
        return messages.WriteResponse()

    def read(self, request: Any, context: Any) -> Iterator[Any]:
        self._known(request, context, bound=True)
        for entity in request.entities:
            response = messages.ReadResponse()
            try:
                demand(entity.table_entry.table_flags.from_hw, "counters are stale unless they come from the device")
                with self.lock:
                    for found in self._found(entity.table_entry):
                        response.entities.add().table_entry.CopyFrom(found)
            except RefusalError as error:
                response.status.add(canonical_code=int(error.code), message=str(error))
            yield response

    # --- entries ---

    def _table(self, entry: Any) -> dict[str, Any]:
        demand(entry.table_id in self.tables, f"no table {entry.table_id}", Code.NOT_FOUND)
        found: dict[str, Any] = self.tables[entry.table_id]
        return found

    def _key(self, table: dict[str, Any], entry: Any) -> dict[str, Any]:
        fields = {each["id"]: each for each in table["key"]}
        given = {each.field_id: each.exact.value for each in entry.key.fields}
        demand(given.keys() == fields.keys(), f"{table['name']}: key of fields {sorted(given)}, not {sorted(fields)}")
        return {fields[number]["name"]: number_of(fields[number], value) for number, value in given.items()}

    def _data(self, table: dict[str, Any], entry: Any) -> dict[str, Any]:
        described = [each["singleton"] for each in table["data"]]
        if entry.data.action_id:
            specs = [each for each in table["action_specs"] if each["id"] == entry.data.action_id]
            demand(specs, f"{table['name']} has no action {entry.data.action_id}")
            described = specs[0]["data"]
        fields = {each["id"]: each for each in described}
        demand(all(each.field_id in fields for each in entry.data.fields), f"{table['name']}: unknown data")
        values = {fields[each.field_id]["name"]: value_of(fields[each.field_id], each) for each in entry.data.fields}
        if entry.data.action_id:
            demand(len(values) == len(fields), f"{table['name']}: {sorted(values)} are not all data of its action")
        return values

    def _update(self, kind: UpdateType, entry: Any) -> None:
        table = self._table(entry)
        name = table["name"]
        if table["table_type"] in ("MatchAction_Direct", "Counter"):
            self.device.write(self._as_p4runtime(kind, table, entry))
            return
        (number,) = self._key(table, entry).values()
        values = self._data(table, entry)
        there = self._things(name)
        demand(kind is not UpdateType.INSERT or number not in there, f"{name}: {number} is there", Code.ALREADY_EXISTS)
        demand(kind is UpdateType.INSERT or number in there, f"{name}: no {number}", Code.NOT_FOUND)
        if kind is UpdateType.INSERT and name.startswith("$pre."):
            room = self.most_nodes if name == "$pre.node" else self.most_groups
            demand(len(there) < room, f"{name}: no room", Code.RESOURCE_EXHAUSTED)
        if name == "$pre.node":
            used = any(number in nodes for nodes in self.groups.values())
            demand(not used or kind is not UpdateType.DELETE, f"node {number} is in use", Code.FAILED_PRECONDITION)
        if name == "$pre.mgid" and kind is not UpdateType.DELETE:
            nodes = values["$MULTICAST_NODE_ID"]
            demand(all(node in self.nodes for node in nodes), "a node that is not there", Code.NOT_FOUND)
            sizes = {len(values[each["singleton"]["name"]]) for each in table["data"]}
            demand(len(sizes) == 1, "lists of different lengths")
            values = nodes
        if name == "$PORT":
            demand(kind is not UpdateType.INSERT or {"$SPEED", "$FEC"} <= values.keys(), "a port has speed and FEC")
            demand(kind is not UpdateType.MODIFY or "$SPEED" not in values, "the speed of a port is for good")
            values = there.get(number, {}) | values
        if kind is UpdateType.DELETE:
            del there[number]
        else:
            there[number] = values
        if name == "$pre.mgid":
            self._replicate(kind, number)

    def _things(self, name: str) -> dict[int, Any]:
        things: dict[str, dict[int, Any]] = {"$PORT": self.ports, "$pre.node": self.nodes, "$pre.mgid": self.groups}
        return things[name]

    def _replicate(self, kind: UpdateType, number: int) -> None:
        update = p4runtime_pb2.Update(type=P4_TYPES[kind])
        group = update.entity.packet_replication_engine_entry.multicast_group_entry
        group.multicast_group_id = number
        for node in self.groups.get(number, ()):
            for port in self.nodes[node]["$DEV_PORT"]:
                group.replicas.add(egress_port=port, instance=self.nodes[node]["$MULTICAST_RID"])
        self.device.write(update)

    def _as_p4runtime(self, kind: UpdateType, table: dict[str, Any], entry: Any) -> Any:
        update = p4runtime_pb2.Update(type=P4_TYPES[kind])
        if table["table_type"] == "Counter":
            demand(kind is UpdateType.MODIFY, "counters are there for good")
            written = update.entity.counter_entry
            written.counter_id = self._original(table, self.p4info.counters).preamble.id
            written.index.index = self._key(table, entry)["$COUNTER_INDEX"]
            written.data.packet_count = self._data(table, entry)["$COUNTER_SPEC_PKTS"]
            return update
        described = self._original(table, self.p4info.tables)
        written = update.entity.table_entry
        written.table_id, written.is_default_action = described.preamble.id, entry.is_default_entry
        if entry.is_default_entry:
            demand(not entry.HasField("key"), "a default entry has no key")
        else:
            key = self._key(table, entry)
            for each in described.match_fields:
                written.match.add(field_id=each.id).exact.value = encoded(key[each.name])
        demand(bool(entry.data.action_id) == (kind is not UpdateType.DELETE), "an entry has an action until it goes")
        if entry.data.action_id:
            values = self._data(table, entry)
            name = next(each["name"] for each in table["action_specs"] if each["id"] == entry.data.action_id)
            action = next(each for each in self.p4info.actions if each.preamble.name == name)
            written.action.action.action_id = action.preamble.id
            for each in action.params:
                written.action.action.params.add(param_id=each.id, value=encoded(values[each.name]))
        return update

    def _original(self, table: dict[str, Any], things: Any) -> Any:
        return next(each for each in things if f"pipe.{each.preamble.name}" == table["name"])

    # --- reads ---

    def _found(self, entry: Any) -> Iterator[Any]:
        table = self._table(entry)
        name = table["name"]
        wanted = next(iter(self._key(table, entry).values())) if entry.HasField("key") else None
        if table["table_type"] == "MatchAction_Direct":
            yield from self._entries(table, default=entry.is_default_entry)
        elif table["table_type"] == "Counter":
            yield from self._cells(table, wanted)
        elif name == "$PORT_STR_INFO":
            demand(wanted in FRONT_PANEL, f"no port {wanted}", Code.NOT_FOUND)
            yield self._entry(table, wanted, {"$DEV_PORT": FRONT_PANEL[str(wanted)]})
        else:
            there = self._things(name)
            demand(wanted is None or wanted in there, f"{name}: no {wanted}", Code.NOT_FOUND)
            for number in there if wanted is None else [wanted]:
                values = there[number]
                if name == "$PORT":
                    values = values | {"$PORT_UP": values.get("$PORT_ENABLE", False) and number not in self.dark}
                elif name == "$pre.mgid":
                    values = {"$MULTICAST_NODE_ID": values}
                yield self._entry(table, number, values)

    def _entry(self, table: dict[str, Any], key: Any, values: dict[str, Any], action: int = 0) -> Any:
        entry = messages.TableEntry(table_id=table["id"])
        keys = key if isinstance(key, dict) else {table["key"][0]["name"]: key}
        for each in table["key"]:
            entry.key.fields.add(field_id=each["id"]).exact.value = bytes_of(each, keys[each["name"]])
        described = [each["singleton"] for each in table["data"]]
        if action:
            entry.data.action_id = action
            described = next(each["data"] for each in table["action_specs"] if each["id"] == action)
        for each in described:
            if each["name"] in values:
                put(each, entry.data.fields.add(field_id=each["id"]), values[each["name"]])
        return entry

    def _entries(self, table: dict[str, Any], *, default: bool) -> Iterator[Any]:
        assert not default
        described = self._original(table, self.p4info.tables)
        actions = {each.preamble.id: each for each in self.p4info.actions}
        wanted = p4runtime_pb2.Entity(table_entry=p4runtime_pb2.TableEntry(table_id=described.preamble.id))
        for found in self.device.read(wanted):
            names = {each.id: each.name for each in described.match_fields}
            key = {names[each.field_id]: int.from_bytes(each.exact.value, "big") for each in found.table_entry.match}
            written = found.table_entry.action.action
            action = actions[written.action_id]
            named = {each.id: each.name for each in action.params}
            values = {named[each.param_id]: int.from_bytes(each.value, "big") for each in written.params}
            number = next(each["id"] for each in table["action_specs"] if each["name"] == action.preamble.name)
            yield self._entry(table, key, values, number)

    def _cells(self, table: dict[str, Any], index: Any) -> Iterator[Any]:
        wanted = p4runtime_pb2.Entity()
        wanted.counter_entry.counter_id = self._original(table, self.p4info.counters).preamble.id
        if index is not None:
            wanted.counter_entry.index.index = index
        for found in self.device.read(wanted):
            counted = found.counter_entry.data
            values = {"$COUNTER_SPEC_PKTS": counted.packet_count, "$COUNTER_SPEC_BYTES": counted.byte_count}
            yield self._entry(table, found.counter_entry.index.index, values)


@contextlib.contextmanager
def serving(server: BfrtServer) -> Iterator[str]:
    """Serve, and yield the server's address."""
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            call, request_deserializer=messages.UNARY[name][0].FromString, response_serializer=_to_bytes
        )
        for name, call in (
            ("Write", server.write),
            ("SetForwardingPipelineConfig", server.set_pipeline),
            ("GetForwardingPipelineConfig", server.get_pipeline),
        )
    }
    handlers["Read"] = grpc.unary_stream_rpc_method_handler(
        server.read, request_deserializer=messages.ReadRequest.FromString, response_serializer=_to_bytes
    )
    handlers["StreamChannel"] = grpc.stream_stream_rpc_method_handler(
        server.stream, request_deserializer=messages.StreamMessageRequest.FromString, response_serializer=_to_bytes
    )
    made = grpc.server(futures.ThreadPoolExecutor(8, "bfrt"), options=(("grpc.so_reuseport", 0),))
    made.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"{messages.PACKAGE}.BfRuntime", handlers),))
    port = made.add_insecure_port("127.0.0.1:0")
    made.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        made.stop(0.5).wait()


def _to_bytes(message: Any) -> bytes:
    return bytes(message.SerializeToString())
