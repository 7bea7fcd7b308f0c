"""Reading JSON from anybody into frozen dataclasses, strictly: the dataclasses are the schema.

Every field must be there with its exact type unless it has a default, none may be unknown, no key may come twice,
numbers are finite and bounded, lists and texts are bounded, and texts are printable. A field's type is int, float,
bool, str, a Literal of texts, tuple[T, ...], dict[str, T], another such dataclass, or one of these or None.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Hashable
from typing import Any, Literal, TypeVar

MAX_TEXT_CHARACTERS = 512
MAX_ITEMS = 65_536
"""Longest list or object."""
MAX_INTEGER = 2**64 - 1

Kind = TypeVar("Kind")


class RecordError(ValueError):
    """Bytes or values that are not what the schema says; the text names the place."""


def load(data: bytes) -> object:
    """What the JSON text says; RecordError where it is none."""
    try:
        body: object = json.loads(data, parse_constant=_no_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise RecordError(f"not JSON: {error}") from None
    return body


def read(body: dict[str, Any], kind: type[Kind], path: str) -> Kind:
    """`body` as a `kind`; RecordError for anything that is not exactly one. `path` names it in that error."""
    hints, optional = _layout(typing.cast("Hashable", kind))
    if unknown := body.keys() - hints.keys():
        raise RecordError(f"{path}: unknown field {shown(min(unknown))}")
    if absent := hints.keys() - body.keys() - optional:
        raise RecordError(f"{path}: field {min(absent)!r} is missing")
    return kind(**{name: _value(value, hints[name], f"{path}.{name}") for name, value in body.items()})


def shown(value: object) -> str:
    """A value as an error shows it: not at any length."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    body = dict(pairs)
    if len(body) != len(pairs):
        raise ValueError("a key appears twice")
    return body


@functools.cache
def _layout(kind: Hashable) -> tuple[dict[str, Any], frozenset[str]]:
    """The fields of a record type with their types, and those that may be absent."""
    assert isinstance(kind, type)
    assert dataclasses.is_dataclass(kind)
    optional = {field.name for field in dataclasses.fields(kind) if field.default is not dataclasses.MISSING}
    return typing.get_type_hints(kind), frozenset(optional)


def _value(value: object, hint: Any, path: str) -> object:
    """`value` as the type that `hint` names; the hints are those that this file names, and no others."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        if value is None:
            return None
        return _value(value, arguments[0], path)
    if origin is Literal:
        legal: object = isinstance(value, str) and value in arguments
    elif origin is tuple:
        if isinstance(value, list) and len(value) <= MAX_ITEMS:
            return tuple(_value(item, arguments[0], f"{path}[{at}]") for at, item in enumerate(value))
        legal = False
    elif origin is dict:
        if isinstance(value, dict) and len(value) <= MAX_ITEMS:
            return {key: _value(item, arguments[1], f"{path}.{shown(key)}") for key, item in value.items()}
        legal = False
    elif dataclasses.is_dataclass(hint):
        if isinstance(value, dict):
            return read(value, typing.cast("type[Any]", hint), path)
        legal = False
    elif hint is float and type(value) is float:
        legal = math.isfinite(value)
    elif hint in (int, float):
        legal = type(value) is int and -MAX_INTEGER <= value <= MAX_INTEGER
    elif hint is str:
        legal = isinstance(value, str) and len(value) <= MAX_TEXT_CHARACTERS and (value.isprintable() or not value)
    else:
        legal = type(value) is hint
    if not legal:
        raise RecordError(f"{path}: {shown(value)} is no {getattr(hint, '__name__', hint)}")
    return value
