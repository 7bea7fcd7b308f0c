"""A JSON document with typed look-ups, whose errors name the place in the document."""

from __future__ import annotations

import json
from collections.abc import Iterator

from fanin.errors import ProgramError
from fanin.switch.p4.bounds import MAX_FIELD_BITS, MAX_INTEGER

MAX_DOCUMENT_BYTES = 1 << 26
"""Longest accepted program, in bytes: p4c's output for a switch of 256 words has about 2 MiB."""
REMEDY = "Remedy: name the JSON that p4c-bm2-ss writes"
MAX_DIGITS = MAX_FIELD_BITS // 4 + 3
"""Most characters of a hexadecimal number, with its sign and 0x."""


class Node:
    """One value of the document, with its place. Look-ups raise ProgramError."""

    __slots__ = ("_place", "value")

    def __init__(self, value: object, place: str | tuple[Node, str | int]) -> None:
        """`place`: a path, or the parent node and the key or index in it. Paths are built on demand, since only errors
        need them, and a program has fifty thousand values."""
        self.value = value
        self._place = place

    @property
    def path(self) -> str:
        """The keys and indices that lead here from the root, such as `tables[2].key[0]`."""
        if isinstance(self._place, str):
            return self._place
        parent, key = self._place
        return (f"{parent.path}.{key}" if isinstance(key, str) else f"{parent.path}[{key}]").removeprefix(".")

    @classmethod
    def read(cls, text: str | bytes) -> Node:
        """The root of a document. ProgramError if it is not a JSON object."""
        if len(text) > MAX_DOCUMENT_BYTES:
            raise ProgramError(f"the program has {len(text):,} bytes; at most {MAX_DOCUMENT_BYTES:,} are read")
        try:
            value = json.loads(
                text, strict=False
            )  # p4c writes the strings of a program as they are, line ends included
        except (ValueError, RecursionError) as error:
            raise ProgramError(f"the program is no JSON: {error}. {REMEDY}") from None
        if not isinstance(value, dict):
            raise ProgramError(f"the program is no JSON object. {REMEDY}")
        return cls(value, "")

    def fail(self, text: str) -> ProgramError:
        """A ProgramError, for the caller to raise, that names this place."""
        return ProgramError(f"{self.path or 'the program'}: {text}")

    def __getitem__(self, key: str | int) -> Node:
        """A member of an object or an element of an array; ProgramError if it is missing."""
        value = self.value
        if isinstance(key, str) and isinstance(value, dict) and key in value:
            return Node(value[key], (self, key))
        if isinstance(key, int) and isinstance(value, list) and key < len(value):
            return Node(value[key], (self, key))
        raise self.fail(f"{key!r} is missing. {REMEDY}")

    def get(self, key: str) -> Node | None:
        """A member of an object; None if it is absent or null."""
        if not isinstance(self.value, dict):
            raise self.fail("an object is expected")
        return None if self.value.get(key) is None else self[key]

    def __iter__(self) -> Iterator[Node]:
        """The elements of an array."""
        if not isinstance(self.value, list):
            raise self.fail("an array is expected")
        return (Node(value, (self, at)) for at, value in enumerate(self.value))

    def __len__(self) -> int:
        if not isinstance(self.value, list):
            raise self.fail("an array is expected")
        return len(self.value)

    def each(self, key: str) -> Iterator[Node]:
        """The elements of an array member, which may be absent."""
        member = self.get(key)
        return iter(()) if member is None else iter(member)

    @property
    def text(self) -> str:
        """This value as a string."""
        if not isinstance(self.value, str):
            raise self.fail("a string is expected")
        return self.value

    @property
    def integer(self) -> int:
        """This value as a number without a fraction, from 0 to MAX_INTEGER."""
        if type(self.value) is not int or not 0 <= self.value <= MAX_INTEGER:
            raise self.fail(f"a number 0, 1, 2, ... up to {MAX_INTEGER} is expected")
        return self.value

    def at_most(self, most: int, what: str) -> int:
        """This value as an integer, at most `most`; `what` names the counted things in the error."""
        if (value := self.integer) > most:
            raise self.fail(f"{value:,} {what}; at most {most:,}")
        return value

    def no_more_than(self, most: int, what: str) -> Node:
        """This array, if it has at most `most` elements; `what` names them in the error."""
        if len(self) > most:
            raise self.fail(f"{len(self):,} {what}; at most {most:,}")
        return self

    @property
    def hexadecimal(self) -> int:
        """This value as an integer written in base 16, perhaps with a sign."""
        if len(self.text) > MAX_DIGITS:
            raise self.fail(f"a hexadecimal number of {len(self.text):,} digits; at most {MAX_DIGITS:,}")
        try:
            return int(self.text, 16)
        except ValueError:
            raise self.fail(f"{self.value!r} is no hexadecimal number") from None

    def flag(self, key: str) -> bool:
        """A boolean member; False where it is absent."""
        member = self.get(key)
        if member is None:
            return False
        if not isinstance(member.value, bool):
            raise member.fail("true or false is expected")
        return member.value

    def name_pair(self) -> tuple[str, str]:
        """This value as two strings."""
        if len(self) != 2:
            raise self.fail("two names are expected")
        return self[0].text, self[1].text
