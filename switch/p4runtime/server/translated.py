"""Values between P4Runtime messages and the program: numbers, or names that stand for them (specification, section 18).

A type that `p4runtime_translation` presents to the control plane as a string is a number in packets. The specification
leaves it to the switch's configuration which number a name has:

1. Names in the configuration (`fanin p4 run --names`) have the numbers that it gives.
2. A name that is a decimal number means that number, if no other name has it: so ports need no configuration.
3. Any other name gets the smallest number from 1 on that no name has, when an entry with it is first written.

A name keeps its number while the program is loaded, and no two names have the same. A number without a name, such as
one that a packet brings to the control plane, is read as a decimal number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fanin import files
from fanin.errors import ConfigurationError
from fanin.switch.p4runtime.server.status import Code, StatusError
from fanin.switch.p4runtime.server.values import decoded, encoded

MAX_NAME_BYTES = 1024
MAX_NAMES = 1 << 16
"""Most names of one type."""
MAX_FILE_BYTES = 1 << 24
Configured = Mapping[str, Mapping[str, int]]
"""Names and their numbers, by type: its name in the program, or the URI of its translation."""


class UnknownNameError(StatusError):
    """Raised for a name with which nothing was written, so that no object has it."""

    def __init__(self, name: str) -> None:
        super().__init__(Code.NOT_FOUND, f"there is nothing with the name {name!r}")


class Names:
    """The names and numbers of one translated type: P4Runtime sends the names, tables hold the numbers."""

    def __init__(self, kind: str, bits: int, configured: Mapping[str, int]) -> None:
        """ConfigurationError for numbers that do not fit `bits` bits, or that two names share."""
        self.kind = kind
        self.bits = bits
        self._numbers = dict(configured)
        self._names = {number: name for name, number in configured.items()}
        wrong = next((name for name, number in configured.items() if not 0 <= number < 1 << bits), None)
        if wrong is not None or len(self._names) < len(self._numbers):
            said = "two of them are the same" if wrong is None else f"{wrong!r} has none of {bits} bits"
            raise ConfigurationError(f"--names: the numbers of {kind}: {said}. Remedy: correct them")
        self._next = 1

    def number(self, data: bytes, what: str, *, new: bool) -> int:
        """The number of a name; with `new`, an unknown name gets one. StatusError otherwise, or for an invalid name."""
        try:
            name = data.decode()
        except UnicodeDecodeError:
            raise StatusError(Code.INVALID_ARGUMENT, f"{what} is a name, in UTF-8") from None
        if len(data) > MAX_NAME_BYTES:
            raise StatusError(Code.INVALID_ARGUMENT, f"{what}: a name has at most {MAX_NAME_BYTES} bytes")
        if name in self._numbers:
            return self._numbers[name]
        meant = _decimal(name, self.bits)
        if meant is None or meant in self._names:
            if not new:
                raise UnknownNameError(name)
            meant = self._free(what)
        if new:
            self._numbers[name], self._names[meant] = meant, name
        return meant

    def _free(self, what: str) -> int:
        while self._next in self._names:
            self._next += 1
        if self._next >> self.bits or len(self._numbers) >= MAX_NAMES:
            raise StatusError(
                Code.RESOURCE_EXHAUSTED, f"{what}: {self.kind} has {len(self._numbers)} names, and room for no more"
            )
        return self._next

    def name(self, number: int) -> bytes:
        """The name of a number, or without one, the number in decimal."""
        return self._names.get(number, str(number)).encode()


def _decimal(name: str, bits: int) -> int | None:
    plain = name.isascii() and name.isdigit() and len(name) <= len(str(1 << bits))
    if not plain or str(int(name)) != name or int(name) >> bits:
        return None
    return int(name)


class Values:
    """Converts values of a program's match fields, parameters and metadata from and to messages.

    `field` is the description of one of these in the P4Info.
    """

    def __init__(self, errors: Mapping[str, int], names: Mapping[str, Names]) -> None:
        """`errors`: codes of P4 errors, by name. `names`: by type, the names of those translated to strings."""
        self._errors = errors
        self._names = names

    def has_names(self, field: Any) -> bool:
        """Whether the field's numbers have names, so that masks and ranges have no meaning."""
        return field.type_name.name in self._names

    def read(self, data: bytes, field: Any, what: str, *, new: bool = True) -> int:
        """The number that packets carry, from a message's bytes; `new` as in Names.number."""
        if self.has_names(field):
            return self._names[field.type_name.name].number(data, what, new=new)
        if field.bitwidth:
            return decoded(data, field.bitwidth, what)
        name = data.decode("utf-8", "replace")
        if name not in self._errors:
            raise StatusError(Code.INVALID_ARGUMENT, f"{what}: the program has no error {name!r}")
        return self._errors[name]

    def written(self, number: int, field: Any) -> bytes:
        """The bytes of a number in a message."""
        if not self.has_names(field) and not field.bitwidth:
            names = (name for name, each in self._errors.items() if each == number)
            return next((name.encode() for name in names), encoded(number))
        return self.of_type(number, field.type_name.name)

    def of_type(self, number: int, kind: str) -> bytes:
        """The bytes of a number of the type named `kind`, which may be translated to a string."""
        return self._names[kind].name(number) if kind in self._names else encoded(number)


def read_names(path: Path) -> Configured:
    """Read `{"TYPE or URI": {"name": number, ...}, ...}` from a file. ConfigurationError for any other content."""
    try:
        document = json.loads(files.read(path, "--names", MAX_FILE_BYTES))
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"--names {path} is no JSON: {error}. Remedy: name a file of names by type") from None
    tables = document.values() if isinstance(document, dict) else [None]
    if not all(isinstance(each, dict) and all(type(number) is int for number in each.values()) for each in tables):
        raise ConfigurationError(
            f'--names {path}: expected {{"TYPE": {{"name": number, ...}}, ...}}. Remedy: a type of the program, or its '
            "URI, with a number for each name"
        )
    return document  # type: ignore[no-any-return]  # as was just seen
