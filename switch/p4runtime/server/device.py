"""A P4Runtime device: an emulated switch with its program, and all that can be read and written in it.

Pure translation: no gRPC, no thread, no socket.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any

from p4.v1 import p4runtime_pb2

from fanin.errors import ConfigurationError, PacketError, ProgramError, UnsupportedError
from fanin.p4_ports import DROP_PORT
from fanin.switch.p4 import V1Switch
from fanin.switch.p4.meters import Meter
from fanin.switch.p4.replication import MAX_GROUP, MAX_SESSION, MirrorSession, Replica
from fanin.switch.p4runtime.server.digest_entries import DigestEntries
from fanin.switch.p4runtime.server.meter_entries import fill_config, read_rates
from fanin.switch.p4runtime.server.p4info import Described
from fanin.switch.p4runtime.server.profile_entries import ProfileEntries
from fanin.switch.p4runtime.server.status import Code, StatusError
from fanin.switch.p4runtime.server.table_entries import DELETE, INSERT, MODIFY, TableEntries
from fanin.switch.p4runtime.server.translated import Configured, Values
from fanin.switch.p4runtime.server.values import decoded, encoded

MAX_REPLICAS = 1024
"""Most replicas of one group."""
Actions = p4runtime_pb2.SetForwardingPipelineConfigRequest


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded program without any state yet, with the ForwardingPipelineConfig that contained it."""

    switch: V1Switch
    described: Described
    config: Any


class Device:
    """The emulator behind P4Runtime. Not thread safe: its servers hold a lock."""

    def __init__(
        self,
        cpu_port: int,
        random: Callable[[int], int],
        native: bool | None = None,
        make: Callable[..., V1Switch] = V1Switch.from_json,
    ) -> None:
        """`cpu_port`: the switch port of the control plane. `random(n)` draws from 0..n-1.

        `native`: choice of the interpreter, as in V1Switch. `make` loads a program, like V1Switch.from_json.
        """
        self.cpu_port = cpu_port
        self.ports: Container[int] = range(DROP_PORT)
        """Ports that members of groups may watch; set before a program is loaded."""
        self.names: Configured = {}
        """Names and their numbers, by translated type (translated.py); set before a program is loaded."""
        self._down: frozenset[int] = frozenset()
        """Ports that are down."""
        self._random = random
        self._native = native
        self._make = make
        self.switch: V1Switch | None = None
        self.config: Any = None
        """The ForwardingPipelineConfig of the loaded program; None without one."""
        self._group_metadata: dict[int, bytes] = {}
        """By multicast group, metadata of the controller, kept unchanged."""
        self._saved: Loaded | None = None
        self._described: Described | None = None
        self._next_idle_us: int | None = None
        self._rescan = False
        """Whether a table was written since entries were last checked for idle timeouts."""
        self._tables: TableEntries | None = None
        self._profiles: ProfileEntries | None = None
        self._digests: DigestEntries | None = None

    # --- the pipeline ---

    def set_pipeline(self, action: int, config: Any) -> None:
        """SetForwardingPipelineConfig (section 7); StatusError when the program or its P4Info is refused."""
        self.install(action, self.prepare(action, config), config)

    def prepare(self, action: int, config: Any) -> Loaded | None:
        """Load the program if `action` asks for one. This changes no state, so that packets may be processed meanwhile.

        StatusError as in `set_pipeline`.
        """
        if action in (Actions.COMMIT, Actions.RECONCILE_AND_COMMIT):
            return None
        if action not in (Actions.VERIFY, Actions.VERIFY_AND_SAVE, Actions.VERIFY_AND_COMMIT):
            raise StatusError(Code.INVALID_ARGUMENT, f"action {action} of SetForwardingPipelineConfig is none")
        try:
            switch = self._make(config.p4_device_config, random=self._random, native=self._native)
            return Loaded(switch, Described.match(switch.program, config.p4info, self.names), config)
        except (ConfigurationError, ProgramError) as error:
            raise StatusError(Code.INVALID_ARGUMENT, str(error)) from None
        except UnsupportedError as error:
            raise StatusError(Code.UNIMPLEMENTED, str(error)) from None

    def install(self, action: int, loaded: Loaded | None, config: Any) -> None:
        """Carry out `action` with the result of `prepare`."""
        if action == Actions.RECONCILE_AND_COMMIT:
            self._reconcile(config)
        elif action == Actions.COMMIT:
            if self._saved is None:
                raise StatusError(Code.FAILED_PRECONDITION, "no pipeline was saved that could be committed")
            self._commit(self._saved)
        elif action == Actions.VERIFY_AND_SAVE:
            self._saved = loaded
        elif action == Actions.VERIFY_AND_COMMIT and loaded is not None:
            self._commit(loaded)

    def _reconcile(self, config: Any) -> None:
        """Keep the state, which is possible if program and P4Info are unchanged; StatusError otherwise."""
        if self.switch is None or config.p4_device_config != self.config.p4_device_config:
            raise StatusError(Code.UNIMPLEMENTED, "state is only kept when the program stays the same")
        try:
            Described.match(self.switch.program, config.p4info, self.names)
        except (ConfigurationError, ProgramError) as error:
            raise StatusError(Code.INVALID_ARGUMENT, str(error)) from None
        if _without_package(config.p4info) != _without_package(self.config.p4info):
            raise StatusError(Code.UNIMPLEMENTED, "state is only kept when the P4Info stays the same")
        self.config = config

    def _commit(self, loaded: Loaded) -> None:
        self.switch, self._described, self.config = loaded.switch, loaded.described, loaded.config
        described = loaded.described
        self._tables = TableEntries(described, self.ports)
        self._profiles = ProfileEntries(described, self._tables, self.ports)
        self._tell_profiles()
        self._digests = DigestEntries(described)
        self._group_metadata.clear()
        self._saved = None

    def _ready(self) -> tuple[V1Switch, Described, TableEntries]:
        if self.switch is None or self._described is None or self._tables is None:
            raise StatusError(Code.FAILED_PRECONDITION, "no forwarding pipeline was set on this device")
        return self.switch, self._described, self._tables

    # --- ports ---

    def set_port(self, port: int, up: bool) -> None:
        """Note that a port went down or came up: members that watch it get no packets while it is down."""
        self._down = self._down - {port} if up else self._down | {port}
        self._tell_profiles()

    def _tell_profiles(self) -> None:
        if self.switch is not None:
            for profile in self.switch.program.profiles.values():
                profile.down = self._down

    # --- packets ---

    def packet_out(self, message: Any, now: float) -> list[tuple[int, bytes]]:
        """Send a packet of the control plane through the pipeline; return the leaving packets, with their ports."""
        switch, described, _ = self._ready()
        given = {each.metadata_id: each.value for each in message.metadata}
        head, bits = 0, 0
        # A program without a packet_out header gets the payload alone.
        for field in () if described.packet_out is None else described.packet_out.metadata:
            what = f"metadata {field.name}"
            data = given.pop(field.id, None)
            value = 0 if data is None else described.values.read(data, field, what, new=False)
            head, bits = head << field.bitwidth | value, bits + field.bitwidth
        if given:
            raise StatusError(Code.INVALID_ARGUMENT, f"packet_out has no metadata {min(given)}")
        if bits % 8:
            raise StatusError(Code.INVALID_ARGUMENT, f"packet_out has {bits} bits, which are no whole bytes")
        try:
            return switch.process(self.cpu_port, head.to_bytes(bits // 8, "big") + message.payload, now)
        except PacketError as error:
            raise StatusError(Code.INTERNAL, str(error)) from None

    def packet_in(self, data: bytes) -> Any:
        """The PacketIn for a frame that the program sent to the control plane."""
        _, described, _ = self._ready()
        message = p4runtime_pb2.PacketIn()
        fields = [] if described.packet_in is None else described.packet_in.metadata
        bits = sum(field.bitwidth for field in fields)
        head, left = int.from_bytes(data[: bits // 8], "big"), bits
        for field in fields:
            left -= field.bitwidth
            value = described.values.written(head >> left & ((1 << field.bitwidth) - 1), field)
            message.metadata.add(metadata_id=field.id, value=value)
        message.payload = data[bits // 8 :]
        return message

    # --- notifications to the control plane ---

    def announcements(self, now: float) -> list[Any]:
        """Stream messages to send now: digests, and notices of entries that have become idle."""
        if self.switch is None or self._digests is None or self._tables is None:
            return []
        learned = list(self.switch.digests)
        self.switch.digests.clear()
        messages = self._digests.learn(learned, now) + self._digests.due(now)
        idle: list[Any] = []
        now_us = int(now * 1e6)
        if self._ages and (self._rescan or (self._next_idle_us is not None and self._next_idle_us <= now_us)):
            # Packets can only delay timeouts, so that no entry need be checked before the next one.
            idle, self._next_idle_us = self._tables.idle(now_us)
            self._rescan = False
        if idle:
            message = p4runtime_pb2.StreamMessageResponse()
            message.idle_timeout_notification.timestamp = int(now * 1e9)
            message.idle_timeout_notification.table_entry.extend(idle)
            messages.append(message)
        return messages

    def next_announcement(self) -> float | None:
        """Time at which to call `announcements` again, unless packets or writes come before; None: not by time."""
        if self._digests is None:
            return None
        times = [self._digests.streams.next_due(), None if self._next_idle_us is None else self._next_idle_us / 1e6]
        return min((each for each in times if each is not None), default=None)

    @property
    def announces(self) -> bool:
        """Whether the program has digests or entries with idle timeouts."""
        return self.switch is not None and (bool(self.switch.program.learn_lists) or self._ages)

    @property
    def _ages(self) -> bool:
        return self.switch is not None and any(table.ages for table in self.switch.program.tables.values())

    def acknowledge(self, ack: Any) -> None:
        """Note that the controller has acknowledged a list of digests."""
        if self._digests is not None:
            self._digests.streams.acknowledge(ack.digest_id, ack.list_id)

    # --- writing ---

    def write(self, update: Any, now: float = 0.0) -> None:
        """Carry out one update at `now` seconds. StatusError for a refused one, which changes nothing."""
        _, _, tables = self._ready()
        assert self._profiles is not None
        assert self._digests is not None
        if update.type not in (INSERT, MODIFY, DELETE):
            raise StatusError(Code.INVALID_ARGUMENT, "an update inserts, modifies or deletes")
        kind = update.entity.WhichOneof("entity")
        if kind == "table_entry":
            self._rescan = True
            tables.write(update.type, update.entity.table_entry, int(now * 1e6))
        elif kind == "direct_counter_entry":
            tables.write_direct_counter(update.type, update.entity.direct_counter_entry)
        elif kind == "packet_replication_engine_entry":
            self._write_replication(update.type, update.entity.packet_replication_engine_entry)
        elif kind == "direct_meter_entry":
            tables.write_direct_meter(update.type, update.entity.direct_meter_entry)
        elif kind == "action_profile_member":
            self._profiles.write_member(update.type, update.entity.action_profile_member)
        elif kind == "action_profile_group":
            self._profiles.write_group(update.type, update.entity.action_profile_group)
        elif kind == "digest_entry":
            self._digests.write(update.type, update.entity.digest_entry)
        elif kind in ("counter_entry", "register_entry", "value_set_entry", "meter_entry"):
            if update.type != MODIFY:
                raise StatusError(Code.INVALID_ARGUMENT, f"a {kind} can only be modified")
            self._write_cells(kind, update.entity)
        else:
            raise _no_such(kind)

    def _write_cells(self, kind: str, entity: Any) -> None:
        switch, described, _ = self._ready()
        if kind == "value_set_entry":
            entry = entity.value_set_entry
            info = described.known(described.value_sets, entry.value_set_id, "value set")
            values = set()
            for member in entry.members:
                whole = 0
                given = {each.field_id: each for each in member.match}
                for field in info.match:
                    if field.id not in given or given[field.id].WhichOneof("field_match_type") != "exact":
                        raise StatusError(Code.INVALID_ARGUMENT, f"field {field.name} of a member must match exactly")
                    value = described.values.read(given[field.id].exact.value, field, field.name)
                    whole = whole << field.bitwidth | value
                if whole in values:
                    raise StatusError(Code.ALREADY_EXISTS, f"a member of {info.preamble.name} is given twice")
                values.add(whole)
            if len(values) > info.size:
                raise StatusError(Code.RESOURCE_EXHAUSTED, f"value set {info.preamble.name} has {info.size} members")
            switch.program.value_sets[info.preamble.name].values = values
            return
        if kind == "meter_entry":
            entry = entity.meter_entry
            meters = described.known(described.meters, entry.meter_id, "meter")
            rates = read_rates(entry)
            for at in _indices(entry, meters.size):
                meters[at].set(rates)
            return
        if kind == "counter_entry":
            entry = entity.counter_entry
            info = described.known(described.counters, entry.counter_id, "counter")
            counter = switch.program.counters[info.preamble.name]
            for at in _indices(entry, counter.size):
                if entry.HasField("data"):
                    counter.packets[at], counter.bytes[at] = entry.data.packet_count, entry.data.byte_count
            return
        entry = entity.register_entry
        info = described.known(described.registers, entry.register_id, "register")
        register = switch.program.registers[info.preamble.name]
        if entry.data.WhichOneof("data") != "bitstring":
            raise StatusError(Code.INVALID_ARGUMENT, "a register's data is a bitstring")
        value = decoded(entry.data.bitstring, register.bits, f"register {info.preamble.name}")
        for at in _indices(entry, register.size):
            register.cells[at] = value

    def _write_replication(self, kind: int, entry: Any) -> None:
        switch, _, _ = self._ready()
        which = entry.WhichOneof("type")
        if which == "multicast_group_entry":
            group = entry.multicast_group_entry
            number, known = group.multicast_group_id, set(switch.groups)
            _check_change(kind, number, known, "multicast group", MAX_GROUP)
            if kind == DELETE:
                del switch.groups[number]
                self._group_metadata.pop(number, None)
            else:
                switch.groups[number] = _replicas(group.replicas)
                self._group_metadata[number] = group.metadata
        elif which == "clone_session_entry":
            session = entry.clone_session_entry
            if session.session_id > MAX_SESSION:
                text = f"clone session {session.session_id}: v1model has numbers of 15 bits, 1..{MAX_SESSION}"
                raise StatusError(Code.INVALID_ARGUMENT, text)
            _check_change(kind, session.session_id, set(switch.mirrors), "clone session", MAX_SESSION)
            if kind == DELETE:
                del switch.mirrors[session.session_id]
            else:
                if session.class_of_service:
                    raise StatusError(Code.UNIMPLEMENTED, "clones have no classes of service")
                if session.packet_length_bytes < 0:
                    text = f"clone session {session.session_id}: a length of {session.packet_length_bytes} bytes"
                    raise StatusError(Code.INVALID_ARGUMENT, text)
                made = MirrorSession(_replicas(session.replicas), session.packet_length_bytes)
                switch.mirrors[session.session_id] = made
        else:
            raise StatusError(Code.INVALID_ARGUMENT, "a multicast group or a clone session is expected")

    # --- reading ---

    def read(self, wanted: Any, now: float = 0.0) -> Iterator[Any]:
        """The entities that one entity of a ReadRequest asks for."""
        switch, described, tables = self._ready()
        assert self._profiles is not None
        assert self._digests is not None
        kind = wanted.WhichOneof("entity")
        if kind == "table_entry":
            yield from tables.read(wanted.table_entry, int(now * 1e6))
        elif kind == "direct_counter_entry":
            yield from tables.read_direct_counters(wanted.direct_counter_entry)
        elif kind == "packet_replication_engine_entry":
            yield from self._read_replication(wanted.packet_replication_engine_entry)
        elif kind == "counter_entry":
            for info in _chosen(described, described.counters, wanted.counter_entry.counter_id, "counter"):
                counter = switch.program.counters[info.preamble.name]
                for at in _indices(wanted.counter_entry, counter.size):
                    entity = p4runtime_pb2.Entity()
                    entity.counter_entry.counter_id, entity.counter_entry.index.index = info.preamble.id, at
                    entity.counter_entry.data.packet_count = counter.packets[at]
                    entity.counter_entry.data.byte_count = counter.bytes[at]
                    yield entity
        elif kind == "register_entry":
            for info in _chosen(described, described.registers, wanted.register_entry.register_id, "register"):
                register = switch.program.registers[info.preamble.name]
                for at in _indices(wanted.register_entry, register.size):
                    entity = p4runtime_pb2.Entity()
                    entity.register_entry.register_id, entity.register_entry.index.index = info.preamble.id, at
                    entity.register_entry.data.bitstring = encoded(register.cells[at])
                    yield entity
        elif kind == "direct_meter_entry":
            yield from tables.read_direct_meters(wanted.direct_meter_entry)
        elif kind == "meter_entry":
            number = wanted.meter_entry.meter_id
            if number:
                described.known(described.meters, number, "meter")
            for meter_id, meters in described.meters.items():
                if number in (0, meter_id):
                    for at in _indices(wanted.meter_entry, meters.size):
                        yield _meter_entity(meter_id, at, meters[at])
        elif kind == "value_set_entry":
            for info in _chosen(described, described.value_sets, wanted.value_set_entry.value_set_id, "value set"):
                yield _value_set_entity(info, switch.program.value_sets[info.preamble.name].values, described.values)
        elif kind == "action_profile_member":
            yield from self._profiles.read_members(wanted.action_profile_member)
        elif kind == "action_profile_group":
            yield from self._profiles.read_groups(wanted.action_profile_group)
        elif kind == "digest_entry":
            yield from self._digests.read(wanted.digest_entry)
        else:
            raise _no_such(kind)

    def _read_replication(self, wanted: Any) -> Iterator[Any]:
        switch, _, _ = self._ready()
        which = wanted.WhichOneof("type")
        if which in ("multicast_group_entry", None):
            number = wanted.multicast_group_entry.multicast_group_id
            for group, replicas in sorted(switch.groups.items()):
                if number in (0, group):
                    entity = p4runtime_pb2.Entity()
                    entry = entity.packet_replication_engine_entry.multicast_group_entry
                    entry.multicast_group_id, entry.metadata = group, self._group_metadata.get(group, b"")
                    _add_replicas(entry, replicas)
                    yield entity
        if which in ("clone_session_entry", None):
            number = wanted.clone_session_entry.session_id
            for session, made in sorted(switch.mirrors.items()):
                if number in (0, session):
                    entity = p4runtime_pb2.Entity()
                    entry = entity.packet_replication_engine_entry.clone_session_entry
                    entry.session_id, entry.packet_length_bytes = session, made.cut
                    _add_replicas(entry, made.replicas)
                    yield entity


def _value_set_entity(info: Any, whole: set[int], values: Values) -> Any:
    entity = p4runtime_pb2.Entity()
    entity.value_set_entry.value_set_id = info.preamble.id
    for value in sorted(whole):
        member, left = entity.value_set_entry.members.add(), sum(field.bitwidth for field in info.match)
        for field in info.match:
            left -= field.bitwidth
            part = value >> left & ((1 << field.bitwidth) - 1)
            member.match.add(field_id=field.id).exact.value = values.written(part, field)
    return entity


def _meter_entity(meter_id: int, index: int, meter: Meter) -> Any:
    entity = p4runtime_pb2.Entity()
    entity.meter_entry.meter_id, entity.meter_entry.index.index = meter_id, index
    if meter.rates is not None:
        fill_config(entity.meter_entry.config, meter)
    return entity


def _no_such(kind: str | None) -> StatusError:
    if kind is None:
        return StatusError(Code.INVALID_ARGUMENT, "an entity that is none: its oneof is not set")
    return StatusError(Code.UNIMPLEMENTED, f"entities of type {kind} are not implemented")


def _chosen(described: Described, infos: dict[int, Any], number: int, what: str) -> list[Any]:
    return [described.known(infos, number, what)] if number else list(infos.values())


def _indices(entry: Any, size: int) -> range:
    """The cells that an entry names: the one of its index, or all without an index."""
    if not entry.HasField("index"):
        return range(size)
    index = entry.index.index
    if index < 0:
        raise StatusError(Code.INVALID_ARGUMENT, f"index {index} is negative")
    if index >= size:
        raise StatusError(Code.OUT_OF_RANGE, f"index {index} is not in 0..{size - 1}")
    return range(index, index + 1)


def _without_package(info: Any) -> bytes:
    """Deterministic bytes of a P4Info without pkg_info, to compare two of them."""
    plain = type(info)()
    plain.CopyFrom(info)
    plain.ClearField("pkg_info")
    return bytes(plain.SerializeToString(deterministic=True))


def _check_change(kind: int, number: int, known: set[int], what: str, most: int) -> None:
    if not 0 < number <= most:
        code = Code.OUT_OF_RANGE if number else Code.INVALID_ARGUMENT
        raise StatusError(code, f"{what} {number}: the number must be in 1..{most}")
    if kind == INSERT and number in known:
        raise StatusError(Code.ALREADY_EXISTS, f"{what} {number} exists already")
    if kind != INSERT and number not in known:
        raise StatusError(Code.NOT_FOUND, f"there is no {what} {number}")


def _replicas(given: Any) -> tuple[Replica, ...]:
    replicas = tuple(Replica(_port(each), each.instance) for each in given)
    if len(set(replicas)) != len(replicas):
        raise StatusError(Code.INVALID_ARGUMENT, "a replica is given twice: port and instance together must be unique")
    if len(replicas) > MAX_REPLICAS:
        raise StatusError(Code.RESOURCE_EXHAUSTED, f"{len(replicas)} replicas; a group has at most {MAX_REPLICAS}")
    return replicas


def _port(replica: Any) -> int:
    kind = replica.WhichOneof("port_kind")
    port = decoded(replica.port, 32, "port") if kind == "port" else replica.egress_port
    if not 0 <= port < 512 or replica.instance >> 16:
        raise StatusError(Code.INVALID_ARGUMENT, f"port {port}, instance {replica.instance}: v1model has 9 and 16 bits")
    return int(port)


def _add_replicas(entry: Any, replicas: tuple[Replica, ...]) -> None:
    for port, instance in replicas:
        entry.replicas.add(egress_port=port, instance=instance)
