"""JSON from anybody on the network, into frozen dataclasses: strict.py with the limits of control messages."""

from __future__ import annotations

from typing import Any, TypeVar

from fanin.protocol import strict
from fanin.protocol.strict import RecordError, shown

__all__ = ["MAX_ITEMS", "MAX_TEXT_CHARACTERS", "RecordError", "load", "read", "shown"]

MAX_TEXT_CHARACTERS = 512
MAX_ITEMS = 65_536
"""Longest list or object."""
MESSAGES = strict.Limits(text_characters=MAX_TEXT_CHARACTERS, items=MAX_ITEMS, printable=True)

Kind = TypeVar("Kind")


def load(data: bytes) -> object:
    """What the JSON text says; RecordError where it is none."""
    return strict.load_json(data)


def read(body: dict[str, Any], kind: type[Kind], path: str) -> Kind:
    """`body` as a `kind`; RecordError for anything that is not exactly one. `path` names it in that error."""
    return strict.read(body, kind, path, MESSAGES)
