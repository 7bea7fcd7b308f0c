"""Packet tests in the language of p4c's STF files: entries, frames in, frames that must come out.

A line is `add TABLE [PRIORITY] FIELD:VALUE... ACTION(NAME:VALUE, ...)`, `setdefault TABLE ACTION(...)`,
`mirroring_add SESSION PORT`, `mc_mgrp_create GROUP`, `mc_node_create INSTANCE PORT...`, `mc_node_associate GROUP NODE`,
`packet PORT HEX` or `expect PORT [HEX] [$]`: `*` stands for any digit, and without `$` more may follow. Names may be
cut at the front. Of a ternary value `*` is any digit, too; the highest priority wins. Anything else is a RuleError.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fanin.switch.p4 import V1Switch
from fanin.switch.p4.replication import MirrorSession, Replica
from fanin.switch.p4.tables import KeyField, Match, MatchKind, Table

ACTION = re.compile(r"(?P<before>.*\s)(?P<action>[\w.$]+)\s*\((?P<data>[^)]*)\)\s*$")
DIGIT_BITS = {"0x": 4, "0b": 1, "0o": 3}


class RuleError(Exception):
    """A line that is none of the language, or names what the program has not."""


@dataclass
class PacketTest:
    """The lines of one file, carried out one by one."""

    switch: V1Switch
    parameters: dict[str, list[str]]
    """Names of the parameters of each action."""
    expected: dict[int, list[str]] = field(default_factory=dict)
    sent: dict[int, list[bytes]] = field(default_factory=dict)
    nodes: list[tuple[Replica, ...]] = field(default_factory=list)
    frames: int = 0

    def run(self, text: str) -> None:
        """All lines of a file."""
        for line in text.splitlines():
            words = line.partition("#")[0].split()
            if words and words[0].lower() not in ("wait", "no_packet"):
                self._line(words[0].lower(), words[1:])

    def differences(self) -> list[str]:
        """Differences of the output from the expectation, at the ports that the file names."""
        found = []
        for port, wanted in sorted(self.expected.items()):
            got = self.sent.get(port, [])
            if wanted == ["$ANY"]:
                continue
            if len(wanted) != len(got):
                found.append(f"port {port}: {len(wanted)} frames are expected, and {len(got)} came")
            found += [
                f"port {port}: {each} is expected, and {frame.hex()} came"
                for each, frame in zip(wanted, got, strict=False)
                if not _alike(each, frame)
            ]
        return found

    def _line(self, verb: str, words: list[str]) -> None:
        if verb == "packet":
            port = int(words[0])
            self.expected.setdefault(port, [])
            self.frames += 1
            for to, data in self.switch.process(port, bytes.fromhex("".join(words[1:])), 0.0):
                self.sent.setdefault(to, []).append(data)
        elif verb == "expect":
            self.expected.setdefault(int(words[0]), []).append("".join(words[1:]) or "$ANY")
        elif verb == "add":
            self._add(" ".join(words))
        elif verb == "setdefault":
            before, action, given = self._call(" ".join(words))
            table = self._table(before[0])
            table.set_default(*self._action(table, action, given))
        elif verb == "mirroring_add":
            self.switch.mirrors[int(words[0])] = MirrorSession((Replica(int(words[1]), 0),))
        elif verb == "mc_mgrp_create":
            self.switch.groups[int(words[0])] = ()
        elif verb == "mc_node_create":
            self.nodes.append(tuple(Replica(int(port), int(words[0])) for port in words[1:]))
        elif verb == "mc_node_associate":
            self.switch.groups[int(words[0])] += self.nodes[int(words[1])]
        else:
            raise RuleError(f"{verb!r} is not implemented")

    def _add(self, text: str) -> None:
        before, action, data = self._call(text)
        table = self._table(before[0])
        keys = before[1:]
        priority = int(keys.pop(0)) if keys and ":" not in keys[0] else 0
        given = {}
        for each in keys:
            name, _, value = each.partition(":")
            part = _key_field(table, name)
            given[part.name] = _match(part, value)
        matches = tuple(given.get(part.name, _anything(part)) for part in table.key)
        table.insert(matches, priority, *self._action(table, action, data))

    def _call(self, text: str) -> tuple[list[str], str, dict[str, int]]:
        if (found := ACTION.match(text)) is None:
            raise RuleError(f"an action is expected: {text}")
        pairs = [each.partition(":") for each in found["data"].replace(" ", "").split(",") if each]
        return found["before"].split(), found["action"], {name: int(value, 0) for name, _, value in pairs}

    def _table(self, name: str) -> Table:
        return self.switch.program.tables[_named(name, list(self.switch.program.tables))]

    def _action(self, table: Table, name: str, data: dict[str, int]) -> tuple[str, tuple[int, ...]]:
        action = _named(name, list(table.actions))
        return action, tuple(data[each] for each in self.parameters[action])


def _named(wanted: str, names: list[str]) -> str:
    """The name that is meant: itself, or the only one that ends so."""
    if wanted in names:
        return wanted
    found = [name for name in names if name.endswith(wanted)]
    if len(found) != 1:
        raise RuleError(f"{wanted} is one of {found or names}")
    return found[0]


def _key_field(table: Table, name: str) -> KeyField:
    name = re.sub(r"\$(\d+)", r"[\1]", name)
    for part in table.key:
        if part.name in (name, f"{name}$", f"{name}.$valid$"):
            return part
    return next(part for part in table.key if part.name == _named(name, [each.name for each in table.key]))


def _anything(part: KeyField) -> Match:
    return Match(0, 0) if part.kind in (MatchKind.TERNARY, MatchKind.LPM) else Match(0)


def _match(part: KeyField, value: str) -> Match:
    whole = (1 << part.bits) - 1
    if "&&&" in value:
        return Match(*(int(each, 0) for each in value.split("&&&")))
    if "/" in value:
        prefix, _, length = value.partition("/")
        return Match(int(prefix, 0), whole - (whole >> int(length)))
    mask = whole
    if "*" in value and value[:2] in DIGIT_BITS:
        bits = DIGIT_BITS[value[:2]]
        mask = 0
        for digit in value[2:]:
            mask = mask << bits | ((1 << bits) - 1) * (digit != "*")
    number = int(value.replace("*", "0"), 0)
    return Match(number & mask, mask)


def _alike(wanted: str, frame: bytes) -> bool:
    exact, digits = wanted.endswith("$"), wanted.removesuffix("$").lower()
    got = frame.hex()
    if len(got) < len(digits) or (exact and len(got) != len(digits)):
        return False
    return all(one in ("*", other) for one, other in zip(digits, got, strict=False))
