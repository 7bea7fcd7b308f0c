"""Table entries between P4Runtime messages and the emulator's tables (specification, section 9.1)."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from fanin.switch.p4.action_profiles import MAX_WEIGHT
from fanin.switch.p4.actions import Group, Member, Share, TableError
from fanin.switch.p4.meters import Meter, MeterRates
from fanin.switch.p4.tables import Entry, Match, Table
from fanin.switch.p4runtime.server.meter_entries import fill_config, read_rates
from fanin.switch.p4runtime.server.p4info import Described, by_id
from fanin.switch.p4runtime.server.status import Code, StatusError, from_table
from fanin.switch.p4runtime.server.translated import UnknownNameError, Values
from fanin.switch.p4runtime.server.values import decoded, encoded
from fanin.switch.p4runtime.server.watches import fill_watch, read_watch

EXACT, LPM = p4info_pb2.MatchField.EXACT, p4info_pb2.MatchField.LPM
TERNARY, RANGE = p4info_pb2.MatchField.TERNARY, p4info_pb2.MatchField.RANGE
OPTIONAL = p4info_pb2.MatchField.OPTIONAL
KINDS = {EXACT: "exact", LPM: "lpm", TERNARY: "ternary", RANGE: "range", OPTIONAL: "optional"}
INSERT, MODIFY, DELETE = (getattr(p4runtime_pb2.Update, name) for name in ("INSERT", "MODIFY", "DELETE"))


class TableEntries:
    """Reads and writes the tables of one program."""

    def __init__(self, described: Described, ports: Container[int]) -> None:
        """`ports`: those that group members may watch."""
        self._described = described
        self._ports = ports

    # --- writing ---

    def write(self, kind: int, entry: Any, now_us: int) -> None:
        """Insert, modify or delete one entry, or change a default action."""
        info, table = self._table(entry.table_id)
        if entry.HasField("time_since_last_hit"):
            raise StatusError(Code.INVALID_ARGUMENT, "the time since a packet found an entry is not written")
        if entry.is_default_action:
            self._write_default(kind, entry, info, table)
            return
        matches = self._matches(entry, info, new=kind == INSERT)
        self._check_priority(entry, table)
        if table.immutable:
            self._write_constant(kind, entry, matches, info, table)
            return
        try:
            if kind == DELETE:
                table.delete(matches, entry.priority)
                return
            self._check_timeout(entry, table)
            rates = self._read_direct(entry)
            action, data, target = self._chosen_action(entry, info, table)
            change = table.insert if kind == INSERT else table.modify
            changed = change(matches, entry.priority, action, data, target)
        except TableError as error:
            raise from_table(error) from None
        changed.idle_us, changed.used_us = -(-entry.idle_timeout_ns // 1000), now_us
        changed.note = entry.metadata, entry.controller_metadata
        self._set_direct(entry, changed, rates)

    def _write_constant(self, kind: int, entry: Any, matches: tuple[Match, ...], info: Any, table: Table) -> None:
        """Change the counter or the meter of a constant entry; its other parts cannot be changed (section 9.1.3).

        The compiled program does not tell which initial entries of a table are constant, and which may be changed
        (section 9.1.4), so that all count as constant; the error code is BMv2's.
        """
        if kind != MODIFY or entry.HasField("action"):
            if info.is_const_table:
                raise StatusError(Code.PERMISSION_DENIED, f"the entries of table {table.name} are constant")
            raise StatusError(
                Code.UNKNOWN, f"the initial entries of table {table.name} are not changed here, nor others added"
            )
        rates = self._read_direct(entry)
        try:
            found = table.lookup(matches, entry.priority)
        except TableError as error:
            raise from_table(error) from None
        self._set_direct(entry, found, rates)

    def write_direct_counter(self, kind: int, entry: Any) -> None:
        """Set the counts of one entry."""
        if kind != MODIFY:
            raise StatusError(Code.INVALID_ARGUMENT, "direct counters can only be modified")
        self._check_counted(entry.table_entry.table_id)
        found = self._found(entry.table_entry)
        if entry.HasField("data"):
            found.counts[0], found.counts[1] = entry.data.packet_count, entry.data.byte_count

    def write_direct_meter(self, kind: int, entry: Any) -> None:
        """Set the rates of one entry's meter."""
        if kind != MODIFY:
            raise StatusError(Code.INVALID_ARGUMENT, "direct meters can only be modified")
        self._check_metered(entry.table_entry.table_id)
        _set_rates(self._found(entry.table_entry), read_rates(entry))

    def _read_direct(self, entry: Any) -> MeterRates | None:
        """The rates of a written entry; StatusError if it has a meter or a counter, and its table has none."""
        if entry.HasField("counter_data"):
            self._check_counted(entry.table_id)
        if (rates := read_rates(entry, "meter_config")) is not None:
            self._check_metered(entry.table_id)
        return rates

    def _set_direct(self, entry: Any, changed: Entry, rates: MeterRates | None) -> None:
        """Set an entry's meter and counts. Without rates, all packets are green; without counts, they are kept."""
        if rates is not None or changed.meter is not None:
            _set_rates(changed, rates)
        if entry.HasField("counter_data"):
            data = entry.counter_data
            changed.counts[0], changed.counts[1] = data.packet_count, data.byte_count

    def _check_counted(self, table_id: int) -> None:
        if table_id not in self._described.direct_counters:
            raise StatusError(Code.INVALID_ARGUMENT, f"table {table_id:#x} has no direct counter")

    def _check_metered(self, table_id: int) -> None:
        if table_id not in self._described.direct_meters:
            raise StatusError(Code.INVALID_ARGUMENT, f"table {table_id:#x} has no direct meter")

    def _check_timeout(self, entry: Any, table: Table) -> None:
        if entry.idle_timeout_ns < 0 or (entry.idle_timeout_ns and not table.ages):
            raise StatusError(Code.INVALID_ARGUMENT, f"entries of table {table.name} have no idle timeout")

    def idle(self, now_us: int) -> tuple[list[Any], int | None]:
        """Entries that no packet has matched for their idle timeout, each once, and when to check again, in us."""
        found, following = [], None
        for table_id, (info, table) in self._described.tables.items():
            for entry in table if table.ages else ():
                if not entry.idle_us:
                    continue
                # Check an entry again even if its idleness was reported: a packet may have matched it since.
                due = (now_us if entry.notified else entry.used_us) + entry.idle_us
                if due <= now_us:
                    entry.notified, due = True, now_us + entry.idle_us
                    message = self._message(table_id, info, table, entry, default=False)
                    message.ClearField("action")
                    found.append(message)
                following = due if following is None else min(due, following)
        return found, following

    def _write_default(self, kind: int, entry: Any, info: Any, table: Table) -> None:
        if kind != MODIFY or entry.match or entry.priority:
            raise StatusError(
                Code.INVALID_ARGUMENT, "a default action can only be modified, and has neither match nor priority"
            )
        if table.profile is not None:
            raise StatusError(
                Code.INVALID_ARGUMENT, f"table {table.name} has an action profile: its default action is constant"
            )
        rates = self._read_direct(entry)
        try:
            if entry.HasField("action"):
                table.set_default(*self._action(entry, info))
                table.miss.note = entry.metadata, entry.controller_metadata
            else:
                table.set_default(None)
        except TableError as error:
            raise from_table(error) from None
        self._set_direct(entry, table.miss, rates)

    def _table(self, table_id: int) -> tuple[Any, Table]:
        return self._described.known(self._described.tables, table_id, "table")

    def _matches(self, entry: Any, info: Any, *, new: bool = False) -> tuple[Match, ...]:
        """The matches of an entry, one per key field; `new`: unknown names get a number."""
        given = {}
        for match in entry.match:
            if match.field_id in given:
                raise StatusError(Code.INVALID_ARGUMENT, f"match field {match.field_id} is given twice")
            given[match.field_id] = match
        values = self._described.values
        matches = tuple(_match(given.pop(field.id, None), field, values, new=new) for field in info.match_fields)
        if given:
            raise StatusError(Code.INVALID_ARGUMENT, f"table {info.preamble.name} has no match field {min(given)}")
        return matches

    def _check_priority(self, entry: Any, table: Table) -> None:
        if table.ranked and entry.priority <= 0:
            raise StatusError(Code.INVALID_ARGUMENT, f"entries of table {table.name} need a priority above 0")
        if not table.ranked and entry.priority:
            raise StatusError(Code.INVALID_ARGUMENT, f"entries of table {table.name} have no priority")

    def _chosen_action(self, entry: Any, info: Any, table: Table) -> tuple[str, tuple[int, ...], Member | Group | None]:
        """An entry's action with its data; in a table with an action profile, the member or group that it names."""
        if table.profile is None:
            return *self._action(entry, info), None
        profile, kind = self._described.program.profiles[table.profile], entry.action.WhichOneof("type")
        if kind == "action_profile_member_id":
            return "", (), profile.member(entry.action.action_profile_member_id)
        if kind == "action_profile_group_id":
            return "", (), profile.group(entry.action.action_profile_group_id)
        if kind != "action_profile_action_set" or profile.selector is None:
            raise StatusError(Code.INVALID_ARGUMENT, f"table {table.name}: a member or a group is expected")
        shares: list[Share] = []
        for number, each in enumerate(entry.action.action_profile_action_set.action_profile_actions, 1):
            if not 0 < each.weight <= MAX_WEIGHT:
                raise StatusError(Code.INVALID_ARGUMENT, f"a weight of {each.weight}: expected 1..{MAX_WEIGHT}")
            made = profile.made(number, *self.read_action(each.action))
            shares.append(Share(made, each.weight, read_watch(each, self._ports)))
        if sum(share.weight for share in shares) > MAX_WEIGHT:
            raise StatusError(Code.INVALID_ARGUMENT, f"weights of more than {MAX_WEIGHT} in all")
        return "", (), Group(0, tuple(shares))

    def read_action(self, wanted: Any) -> tuple[str, tuple[int, ...]]:
        """Name and data of an action message, for any table."""
        if wanted.action_id not in self._described.actions:
            raise StatusError(Code.INVALID_ARGUMENT, f"there is no action with id {wanted.action_id:#x}")
        action = self._described.actions[wanted.action_id]
        given = {parameter.param_id: parameter.value for parameter in wanted.params}
        if len(given) != len(wanted.params) or given.keys() != by_id(action.params).keys():
            raise StatusError(
                Code.INVALID_ARGUMENT,
                f"action {action.preamble.name} takes {[each.name for each in action.params]}, once each",
            )
        return action.preamble.name, tuple(
            self._described.values.read(given[each.id], each, f"parameter {each.name}") for each in action.params
        )

    def _action(self, entry: Any, info: Any) -> tuple[str, tuple[int, ...]]:
        if entry.action.WhichOneof("type") != "action":
            raise StatusError(Code.INVALID_ARGUMENT, f"table {info.preamble.name}: an action is expected")
        wanted = entry.action.action
        scopes = {reference.id: reference.scope for reference in info.action_refs}
        if wanted.action_id not in scopes:
            raise StatusError(
                Code.INVALID_ARGUMENT, f"table {info.preamble.name} has no action with id {wanted.action_id:#x}"
            )
        forbidden = "DEFAULT_ONLY" if not entry.is_default_action else "TABLE_ONLY"
        if scopes[wanted.action_id] == p4info_pb2.ActionRef.Scope.Value(forbidden):
            raise StatusError(Code.PERMISSION_DENIED, f"that action of table {info.preamble.name} is {forbidden}")
        return self.read_action(wanted)

    def _found(self, entry: Any) -> Entry:
        info, table = self._table(entry.table_id)
        if entry.is_default_action:
            return table.miss
        try:
            return table.lookup(self._matches(entry, info), entry.priority)
        except TableError as error:
            raise from_table(error) from None

    # --- reading ---

    def read(self, wanted: Any, now_us: int = 0) -> Iterator[Any]:
        """Entities that match a TableEntry in which only some fields are set; table id 0 asks for all tables."""
        tables = self._described.tables if not wanted.table_id else (wanted.table_id,)
        for table_id in tables:
            info, table = self._table(table_id)
            if wanted.is_default_action:
                found = [table.miss] if table.miss.action else []
            elif wanted.match:
                try:
                    matches = self._matches(wanted, info)
                except UnknownNameError:
                    return
                found = [each for each in table.matching(matches) if each.rank == _rank(wanted, table, each)]
            else:
                found = [each for each in table if not wanted.priority or -each.rank == wanted.priority]
            for entry in found:
                message = self._message(table_id, info, table, entry, default=wanted.is_default_action)
                if wanted.HasField("counter_data") and table_id in self._described.direct_counters:
                    message.counter_data.packet_count, message.counter_data.byte_count = entry.packets, entry.bytes
                if wanted.HasField("meter_config") and entry.meter is not None and entry.meter.rates is not None:
                    fill_config(message.meter_config, entry.meter)
                if wanted.HasField("time_since_last_hit") and table.ages and not wanted.is_default_action:
                    message.time_since_last_hit.elapsed_ns = max(0, now_us - entry.used_us) * 1000
                if not wanted.HasField("action") or message.action == wanted.action:
                    yield p4runtime_pb2.Entity(table_entry=message)

    def read_direct_counters(self, wanted: Any) -> Iterator[Any]:
        """Entities of the direct counters of matching entries."""
        request = p4runtime_pb2.TableEntry()
        request.CopyFrom(wanted.table_entry)
        request.counter_data.SetInParent()
        for entity in self._read_some(request):
            entry = entity.table_entry
            if entry.HasField("counter_data"):
                counter = p4runtime_pb2.DirectCounterEntry(data=entry.counter_data)
                counter.table_entry.table_id, counter.table_entry.priority = entry.table_id, entry.priority
                counter.table_entry.match.extend(entry.match)
                yield p4runtime_pb2.Entity(direct_counter_entry=counter)

    def read_direct_meters(self, wanted: Any) -> Iterator[Any]:
        """Entities of the direct meters of matching entries."""
        request = p4runtime_pb2.TableEntry()
        request.CopyFrom(wanted.table_entry)
        request.meter_config.SetInParent()
        for entity in self._read_some(request):
            entry = entity.table_entry
            if entry.table_id not in self._described.direct_meters:
                continue
            meter = p4runtime_pb2.DirectMeterEntry()
            if entry.HasField("meter_config"):
                meter.config.CopyFrom(entry.meter_config)
            meter.table_entry.table_id, meter.table_entry.priority = entry.table_id, entry.priority
            meter.table_entry.match.extend(entry.match)
            yield p4runtime_pb2.Entity(direct_meter_entry=meter)

    def _read_some(self, wanted: Any) -> Iterator[Any]:
        """Entities of matching entries; StatusError if a single entry is asked for and does not exist."""
        found = self.read(wanted)
        first = next(found, None)
        if first is not None:
            yield first
        elif wanted.match:
            raise StatusError(Code.NOT_FOUND, f"table {wanted.table_id:#x} has no entry with this match")
        yield from found

    def _message(self, table_id: int, info: Any, table: Table, entry: Entry, *, default: bool) -> Any:
        message = p4runtime_pb2.TableEntry(table_id=table_id, is_default_action=default)
        if not default:
            for match, field in zip(entry.matches, info.match_fields, strict=True):
                _add_match(message, match, field, self._described.values)
            message.priority = -entry.rank if table.ranked else 0
        if isinstance(entry.note, tuple):
            message.metadata, message.controller_metadata = entry.note
        if entry.idle_us:
            message.idle_timeout_ns = entry.idle_us * 1000
        target = entry.target
        if target is None:
            self.fill_action(message.action.action, entry.action, entry.data)
        elif isinstance(target, Member):
            message.action.action_profile_member_id = target.number
        elif target.number:
            message.action.action_profile_group_id = target.number
        else:  # an action set, written with the entry as a group without an id
            for share in target.shares:
                made = message.action.action_profile_action_set.action_profile_actions.add(weight=share.weight)
                self.fill_action(made.action, share.member.action, share.member.data)
                fill_watch(made, share.watch)
        return message

    def fill_action(self, message: Any, name: str, data: tuple[int, ...]) -> None:
        """Write an action's id and its data into an Action message."""
        action = next(each for each in self._described.actions.values() if each.preamble.name == name)
        message.action_id = action.preamble.id
        for parameter, value in zip(action.params, data, strict=True):
            message.params.add(param_id=parameter.id, value=self._described.values.written(value, parameter))


def _set_rates(entry: Entry, rates: MeterRates | None) -> None:
    if entry.meter is None:  # the entry of a miss is created without a meter
        entry.meter = Meter()
    entry.meter.set(rates)


def _rank(wanted: Any, table: Table, entry: Entry) -> int:
    """The rank that a matching entry must have; its own if the table or the request has no priority."""
    return -int(wanted.priority) if table.ranked and wanted.priority else entry.rank


def _match(given: Any, field: Any, values: Values, *, new: bool) -> Match:
    whole = (1 << field.bitwidth) - 1
    what = f"match field {field.name}"
    if given is None:
        if field.match_type == EXACT:
            raise StatusError(Code.INVALID_ARGUMENT, f"{what} must be given")
        return Match(low=0, high=whole) if field.match_type == RANGE else Match(0, 0)
    kind = given.WhichOneof("field_match_type")
    if kind != KINDS.get(field.match_type):
        raise StatusError(Code.INVALID_ARGUMENT, f"{what} is {KINDS.get(field.match_type)}, not {kind}")
    if kind == "exact":
        return Match(values.read(given.exact.value, field, what, new=new))
    if kind == "optional":
        return Match(values.read(given.optional.value, field, what, new=new), whole)
    if values.has_names(field):
        raise StatusError(Code.UNIMPLEMENTED, f"{what} has names, which have neither masks nor order: leave it out")
    if kind == "range":
        low, high = (decoded(each, field.bitwidth, what) for each in (given.range.low, given.range.high))
        if low > high or (low, high) == (0, whole):
            raise StatusError(Code.INVALID_ARGUMENT, f"{what}: {low}..{high} is empty, or all: leave it out")
        return Match(low=low, high=high)
    if kind == "lpm":
        length = given.lpm.prefix_len
        if not 0 < length <= field.bitwidth:
            raise StatusError(
                Code.INVALID_ARGUMENT, f"{what}: a prefix has 1..{field.bitwidth} bits; leave out one of 0"
            )
        value, mask = given.lpm.value, whole ^ (whole >> length)
    else:
        value, mask = given.ternary.value, decoded(given.ternary.mask, field.bitwidth, f"mask of {what}")
        if not mask:
            raise StatusError(Code.INVALID_ARGUMENT, f"{what}: a mask of 0 is written by leaving the field out")
    number = decoded(value, field.bitwidth, what)
    if number & ~mask:
        raise StatusError(Code.INVALID_ARGUMENT, f"{what}: {number:#x} has bits outside its mask {mask:#x}")
    return Match(number, mask)


def _add_match(message: Any, match: Match, field: Any, values: Values) -> None:
    """Add one field's match to an entry; a field that matches any value is left out."""
    whole = (1 << field.bitwidth) - 1
    if match.low is not None and match.high is not None:
        if (match.low, match.high) != (0, whole):
            message.match.add(field_id=field.id).range.low = encoded(match.low)
            message.match[-1].range.high = encoded(match.high)
        return
    mask = match.mask & whole
    if field.match_type == EXACT:
        message.match.add(field_id=field.id).exact.value = values.written(match.value, field)
    elif mask and field.match_type == OPTIONAL:
        message.match.add(field_id=field.id).optional.value = values.written(match.value, field)
    elif mask and field.match_type == LPM:
        message.match.add(field_id=field.id).lpm.value = encoded(match.value & mask)
        message.match[-1].lpm.prefix_len = mask.bit_count()
    elif mask:
        message.match.add(field_id=field.id).ternary.value = encoded(match.value & mask)
        message.match[-1].ternary.mask = encoded(mask)
