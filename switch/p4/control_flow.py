"""Actions, tables and conditions of a program as Python source. A node of the control flow becomes a function of fields
and packet state that runs the node and returns the next one, or None at the end of the pipeline."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

from fanin.errors import UnsupportedError
from fanin.switch.p4.action_profiles import ActionProfile
from fanin.switch.p4.bounds import MAX_FIELD_BITS, MAX_KEY_BITS, MAX_PARAMETERS
from fanin.switch.p4.document import Node
from fanin.switch.p4.expressions import Expressions
from fanin.switch.p4.externs import Counter
from fanin.switch.p4.layout import Field
from fanin.switch.p4.meters import MeterArray
from fanin.switch.p4.primitives import Compiler, Objects
from fanin.switch.p4.tables import KeyField, Match, MatchKind, Table

HIT, MISS = "__HIT__", "__MISS__"
ConstantEntry = tuple[tuple[Match, ...], int, str, tuple[int, ...]]
"""Matches, rank, action, data."""


@dataclass(slots=True)
class Action:
    """An action: its function's name in compiled code, and its parameters' widths."""

    name: str
    symbol: str
    widths: tuple[int, ...]
    parameters: tuple[str, ...]
    exits: bool


@dataclass(slots=True)
class TableSource:
    """A table's declaration: `make` returns a new Table, without its actions and entries."""

    make: Callable[[], Table]
    symbol: str
    place: Node
    """The table's path in the document, for errors; the node has no value, which would keep the document in memory."""
    nexts: dict[str, str]
    """Names of the next functions, by action, or HIT and MISS; key "" if there is no default action."""
    actions: dict[str, int]
    """Numbers of the actions by name."""
    default: tuple[str, tuple[int, ...], bool]
    """The default action, "" if the program has none, its data, and whether it is constant."""
    entries: list[ConstantEntry] | None
    """The constant entries; None: the control plane writes them."""


@dataclass(slots=True)
class ControlFlow:
    """Compiles actions and pipelines to lines of source, and collects the tables' declarations."""

    objects: Objects
    counters: dict[str, Counter]
    lines: list[str] = field(default_factory=list)
    actions: dict[int, Action] = field(default_factory=dict)
    tables: dict[str, TableSource] = field(default_factory=dict)
    profiles: dict[str, Callable[[], ActionProfile]] = field(default_factory=dict)
    """By name, a function that makes a new profile."""
    selectors: dict[str, Node] = field(default_factory=dict)
    """Declarations of selectors, by the name of the function that computes the hash."""
    nodes: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Nodes by name, as in Program.nodes."""

    def read_actions(self, root: Node) -> None:
        """Compile `actions` of the document, each to a function `(f, k, p)`."""
        for node in root["actions"]:
            number = node["id"].integer
            if number in self.actions:
                raise node.fail(f"action id {number} is given twice")
            data = node["runtime_data"].no_more_than(MAX_PARAMETERS, "parameters of an action")
            widths = tuple(each["bitwidth"].at_most(MAX_FIELD_BITS, "bits of a parameter") for each in data)
            names = tuple(each["name"].text for each in node["runtime_data"])
            primitives = list(node["primitives"])
            exits = any(each["op"].text == "exit" for each in primitives)
            self.actions[number] = Action(node["name"].text, f"A_{number}", widths, names, exits)
            self.lines += [f"def A_{number}(f, k, p):", *Compiler(self.objects, widths).body(primitives)]

    def read_pipeline(self, pipeline: Node) -> None:
        """Compile one of `pipelines`; its first node becomes the function `<name>_start`."""
        name = pipeline["name"].text
        for node in pipeline.each("action_profiles"):
            self._profile(node)
        kinds = ("tables", "conditionals", "action_calls")
        nodes = {
            node["name"].text: f"N_{name}_{kind}_{at}" for kind in kinds for at, node in enumerate(pipeline.each(kind))
        }

        def named(node: Node | None) -> str:
            if node is None:
                return "None"
            if node.text not in nodes:
                raise node.fail(f"there is no table or condition {node.text!r} in pipeline {name!r}")
            return nodes[node.text]

        for node in pipeline.each("tables"):
            nexts = {key: named(node["next_tables"].get(key)) for key in _keys(node)}
            nexts[""] = named(node.get("base_default_next"))
            self.nodes[nodes[node["name"].text]] = "table", node["name"].text
            self._table(node, nodes[node["name"].text], nexts)
        spend = self.objects.budget.spend
        for node in pipeline.each("conditionals"):
            condition = Compiler(self.objects, ()).expressions.truth(node["expression"])
            yes, no = named(node.get("true_next")), named(node.get("false_next"))
            self.nodes[nodes[node["name"].text]] = "condition", _written(node)
            self.lines += spend([f"def {nodes[node['name'].text]}(f, k):", f" return {yes} if {condition} else {no}"])
        for node in pipeline.each("action_calls"):
            action = self._action(node["action_id"])
            self.nodes[nodes[node["name"].text]] = "call", action.name
            after = "None if k.exit else " * action.exits + named(node.get("next_node"))
            self.lines += [f"def {nodes[node['name'].text]}(f, k):", f" {action.symbol}(f, k, ())", f" return {after}"]
        self.lines.append(f"{name}_start = {named(pipeline.get('init_table'))}")

    def _action(self, node: Node) -> Action:
        if node.integer not in self.actions:
            raise node.fail(f"there is no action with id {node.integer}")
        return self.actions[node.integer]

    def _table(self, node: Node, symbol: str, nexts: dict[str, str]) -> None:
        name = node["name"].text
        if name in self.tables:
            raise node.fail(f"table {name!r} is declared twice")
        if node["type"].text not in ("simple", "indirect", "indirect_ws"):
            raise UnsupportedError(f"{node.path}: tables of type {node['type'].text!r} are not implemented")
        key, terms, left = [], [], 0
        for each in reversed(list(node["key"])):
            part, source = self._key_field(each)
            key.append(part)
            terms.append(f"{source} << {left}" if left else source)
            left += part.bits
            if left > MAX_KEY_BITS:
                raise node["key"].fail(f"a key of more than {MAX_KEY_BITS:,} bits")
        self.objects.budget.spend(terms)
        counts = node.flag("with_counters")
        profile = None if node["type"].text == "simple" else self._profile_of(node)
        meters = self._meters_of(node, name)
        make = functools.partial(
            Table,
            name,
            tuple(reversed(key)),
            node["max_size"].integer,
            counts=counts,
            profile=None if profile is None else profile.name,
            meters=None if meters is None else meters.name,
            ages=node.flag("support_timeout"),
        )
        is_exact, actions = make().is_exact, self._actions_of(node)
        entries = None if node.get("entries") is None else self._entries_of(node, tuple(reversed(key)))
        self.tables[name] = TableSource(
            make, symbol, Node(None, node.path), nexts, actions, self._default_of(node), entries
        )
        handle = f"T_{symbol}"
        self.lines.append(f"def {symbol}(f, k):")
        if not key:
            self.lines.append(f" e = {handle}.miss")
        else:
            self.lines.append(f" x = {' | '.join(reversed(terms))}")
            if is_exact:
                self.lines.append(f" e = {handle}_exact(x) or {handle}.miss")
            else:
                self.lines.append(f" e = {handle}_remembered(x) or {handle}.find(x)")
        if counts:
            self.lines.append(f" if e is not {handle}.miss: e.counts[0] += 1; e.counts[1] += k.arrived")
        if node.flag("support_timeout"):
            self.lines.append(" e.used_us = k.now_us; e.notified = False")
        if meters is not None:
            place, coloured = self._meter_target(node, meters)
            colour = coloured.wrapped(f"{meters.symbol}.of_entry(e.meter, k)", 2)
            self.lines.append(f" if e is not {handle}.miss: f[{place}] = {colour}")
        if profile is not None:
            self.lines += [
                f" m = {profile.symbol}.chosen(e, f, k)",
                " m.run(f, k, m.data)",
                " if k.exit: return None",
                f" return {handle}.after(m.action, e is not {handle}.miss)",
            ]
            return
        self.lines.append(" e.run(f, k, e.data)")
        exits = any(self.actions[number].exits for number in actions.values())
        self.lines.append(" return None if k.exit else e.next" if exits else " return e.next")

    def _profile(self, node: Node) -> None:
        name, at = node["name"].text, len(self.profiles)
        if name in self.profiles:
            raise node.fail(f"action profile {name!r} is declared twice")
        selector = node.get("selector")
        symbol = None if selector is None else f"K_P{at}"
        self.profiles[name] = functools.partial(ActionProfile, name, f"P_{at}", node["max_size"].integer, symbol)
        if symbol is not None and selector is not None:
            self.selectors[symbol] = selector

    def _profile_of(self, node: Node) -> ActionProfile:
        name = node["action_profile"]
        if name.text not in self.profiles:
            raise name.fail(f"there is no action profile {name.text!r}")
        return self.profiles[name.text]()

    def _meters_of(self, node: Node, table: str) -> MeterArray | None:
        name = node.get("direct_meters")
        if name is None:
            return None
        found = self.objects.meters.get(name.text)
        if found is None or found.table != table:
            raise name.fail(f"there are no meters {name.text!r} of this table")
        return found

    def _meter_target(self, node: Node, meters: MeterArray) -> tuple[int, Field]:
        assert meters.target is not None
        return self.objects.layout.field(Node(list(meters.target), f"{node.path}.direct_meters"))

    def _key_field(self, node: Node) -> tuple[KeyField, str]:
        text = node["match_type"].text
        if text not in MatchKind._value2member_map_:
            raise UnsupportedError(f"{node.path}: match type {text!r} is not implemented")
        kind, target, name, mask = MatchKind(text), node["target"], node.get("name"), node.get("mask")
        if kind is MatchKind.VALID:
            header = self.objects.layout.header(target)
            return KeyField(header.name if name is None else name.text, kind, 1), f"f[{header.valid}]"
        if isinstance(target.value, dict):  # of a header that only the packet determines
            value = Expressions(self.objects.layout, self.objects.registers).data(target)
            if value.bits is None or name is None:
                raise UnsupportedError(f"{target.path}: a key of this form is not implemented")
            bits, source, called = value.bits, value.source, name.text
        else:
            place, part = self.objects.layout.field(target)
            bits, source = part.bits, part.unsigned(f"f[{place}]")
            called = f"{target[0].text}.{target[1].text}" if name is None else name.text
        if mask is not None:
            source = f"({source} & {mask.hexadecimal:#x})"
        return KeyField(called, kind, bits), source

    def _actions_of(self, node: Node) -> dict[str, int]:
        if (numbers := node.get("action_ids")) is not None:
            return {self._action(each).name: each.integer for each in numbers}
        by_name = {action.name: number for number, action in self.actions.items()}
        for each in node["actions"]:
            if each.text not in by_name:
                raise each.fail(f"there is no action {each.text!r}")
        return {each.text: by_name[each.text] for each in node["actions"]}

    def _default_of(self, node: Node) -> tuple[str, tuple[int, ...], bool]:
        default = node.get("default_entry")
        if default is None:
            return "", (), False
        data = tuple(each.hexadecimal for each in default.each("action_data"))
        fixed = default.flag("action_const") and default.flag("action_entry_const")
        return self._action(default["action_id"]).name, data, fixed

    def _entries_of(self, node: Node, key: tuple[KeyField, ...]) -> list[ConstantEntry]:
        entries = []
        for each in node.each("entries"):
            action = each["action_entry"]
            data = tuple(value.hexadecimal for value in action["action_data"])
            rank = each["priority"].integer if each.get("priority") is not None else 0
            if len(each["match_key"]) != len(key):
                raise each.fail(f"the table has {len(key)} key fields")
            matches = tuple(read_match(*pair) for pair in zip(each["match_key"], key, strict=True))
            entries.append((matches, rank, self._action(action["action_id"]).name, data))
        return entries


def read_match(node: Node, field: KeyField) -> Match:
    """Read the match of a constant entry on one key field."""
    kind = node["match_type"].text
    if kind == "valid":
        return Match(int(node.flag("key")))
    if kind == "exact":
        return Match(node["key"].hexadecimal)
    if kind == "ternary":
        return Match(node["key"].hexadecimal, node["mask"].hexadecimal)
    if kind == "range":
        return Match(low=node["start"].hexadecimal, high=node["end"].hexadecimal)
    if kind == "lpm":
        if (length := node["prefix_length"].integer) > field.bits:
            raise node.fail(f"a prefix of {length} bits of a field of {field.bits}")
        return Match(node["key"].hexadecimal, ((1 << length) - 1) << (field.bits - length))
    raise UnsupportedError(f"{node.path}: match type {kind!r} is not implemented")


def _keys(node: Node) -> list[str]:
    if not isinstance(node["next_tables"].value, dict):
        raise node["next_tables"].fail("an object is expected")
    return list(node["next_tables"].value)


def _written(node: Node) -> str:
    """A condition's text in the program's source, if the document has it; else its name."""
    place = node.get("source_info")
    text = None if place is None else place.get("source_fragment")
    return node["name"].text if text is None else text.text
