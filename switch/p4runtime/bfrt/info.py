"""A device's description of its tables: bf-rt.json of the program, and of tables that every device has ($PORT, $pre).

Names are found by their last parts, as in the P4Info: the compiler may put the name of the pipe in front of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fanin.errors import ProgramError

BITS = {"bool": 1, "uint8": 8, "uint16": 16, "uint32": 32, "int32": 32, "uint64": 64, "int64": 64}
"""Widths in bits of the number types other than bit strings."""
MAX_BITS = 1 << 16


@dataclass(frozen=True, slots=True)
class BfrtField:
    """A field of a table's key, of its data, or of an action's data."""

    number: int
    name: str
    kind: str
    """`bytes`, a name of BITS, `string` ..."""
    bits: int
    """Width in bits; 0 for fields that are no numbers."""
    match: str = ""
    """Match kind of a key's field: Exact, Ternary, LPM, Range or Optional."""
    repeated: bool = False

    def stream(self, value: int) -> bytes:
        """A number as the service encodes it, in the bytes that the field's bits need. ProgramError if too large."""
        if value < 0 or value >> self.bits:
            raise ProgramError(
                f"{self.name} = {value:#x} does not fit in {self.bits} bits. Remedy: give a smaller value"
            )
        return value.to_bytes((self.bits + 7) // 8, "big")


@dataclass(frozen=True, slots=True)
class BfrtAction:
    """An action of a table."""

    number: int
    name: str
    fields: Mapping[str, BfrtField]


@dataclass(frozen=True, slots=True)
class BfrtTable:
    """A table of the program or of the device."""

    number: int
    name: str
    kind: str
    """MatchAction_Direct, Counter, Register, PortConfigure ..."""
    key: Mapping[str, BfrtField]
    data: Mapping[str, BfrtField]
    actions: Mapping[str, BfrtAction]

    def action(self, name: str) -> BfrtAction:
        """The action of that name, or whose name ends with `.name`. ProgramError without one."""
        for each in self.actions.values():
            if each.name == name or each.name.endswith(f".{name}"):
                return each
        raise ProgramError(
            f"table {self.name} has no action {name!r} on the device. "
            "Remedy: load fanin's program of this version on the device"
        )


class BfrtInfo:
    """All tables of a device and of one program on it."""

    def __init__(self, documents: Iterable[bytes]) -> None:
        """`documents`: bf-rt.json of program and device; empty ones are skipped. ProgramError for any other file."""
        self._tables: dict[str, BfrtTable] = {}
        for document in documents:
            if document:
                self._tables |= {table.name: table for table in _tables(document)}

    def find(self, name: str) -> BfrtTable | None:
        """The table of that name, with or without the pipe's name in front; None without one."""
        if name in self._tables:
            return self._tables[name]
        return next((table for each, table in self._tables.items() if each.endswith(f".{name}")), None)

    def table(self, name: str) -> BfrtTable:
        """The table of that name, with or without the pipe's name in front; ProgramError without one."""
        found = self.find(name)
        if found is None:
            raise ProgramError(
                f"the device has no table {name!r}: another program runs there, or another SDE. "
                "Remedy: load fanin's program of this version on the device"
            )
        return found


def _tables(document: bytes) -> Iterable[BfrtTable]:
    try:
        read = json.loads(document)
        return [_table(each) for each in read["tables"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ProgramError(f"this is no bf-rt.json: {type(error).__name__}: {error}") from None


def _table(described: Mapping[str, Any]) -> BfrtTable:
    actions = [
        BfrtAction(*_identity(each), _fields(each.get("data", ()))) for each in described.get("action_specs", ())
    ]
    return BfrtTable(
        *_identity(described),
        described["table_type"],
        _fields(described.get("key", ())),
        _fields(data["singleton"] for data in described.get("data", ()) if "singleton" in data),
        {action.name: action for action in actions},
    )


def _identity(described: Mapping[str, Any]) -> tuple[int, str]:
    """The id and the name in a description. TypeError if they are malformed."""
    number, name = described["id"], described["name"]
    if type(number) is not int or not 0 <= number < 1 << 32 or not isinstance(name, str):
        raise TypeError(f"{name!r} has the id {number!r}")
    return number, name


def _fields(described: Iterable[Mapping[str, Any]]) -> dict[str, BfrtField]:
    fields = {}
    for each in described:
        number, name = _identity(each)
        kind = each["type"]
        bits = kind["width"] if kind["type"] == "bytes" else BITS.get(kind["type"], 0)
        if type(bits) is not int or not 0 <= bits <= MAX_BITS:
            raise TypeError(f"{name!r} has {bits!r} bits")
        fields[name] = BfrtField(
            number, name, kind["type"], bits, each.get("match_type", ""), bool(each.get("repeated", False))
        )
    return fields
