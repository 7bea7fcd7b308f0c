"""Reading what others wrote into frozen dataclasses, strictly: the dataclasses are the schema.

The one reader of control messages, run records, scenarios and key files, of JSON and of TOML. Rules:

* Every field must be there with its exact type unless it has a default; bool is no int, and int is a float.
* No field may be unknown (the error names one that is alike), and no key of a JSON object may come twice.
* Numbers are finite and bounded: NaN, Infinity and 1e400 are refused. Depth, length of lists and of texts are bounded
  (`Limits`); who reads a file bounds its size (fanin/files.py).
* Bytes must be UTF-8.

A field's type is int, float, bool, str, a Literal, tuple[T, ...], dict[str, T], another such dataclass, or a union of
these with each other or None. Whether a value makes sense is the dataclass's own business (`__post_init__`).
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import reprlib
import sys
import types
import typing
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_INTEGER = 2**64 - 1
MAX_SHOWN = 60
"""Characters of a value in an error."""

Kind = TypeVar("Kind")


class RecordError(ValueError):
    """Bytes or values that are not what the schema says; the text names the place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what a reader accepts."""

    text_characters: int
    items: int
    """Longest list or object."""
    printable: bool
    """Whether texts must be printable, on one line."""


FILES = Limits(text_characters=1 << 20, items=1 << 20, printable=False)
"""Limits of files, whose size is bounded when they are read."""
MAX_TEXT_CHARACTERS = 512
MAX_ITEMS = 65_536
"""Longest list or object."""
MESSAGES = Limits(text_characters=MAX_TEXT_CHARACTERS, items=MAX_ITEMS, printable=True)
"""Limits of messages that anybody on the network may send."""


def load_json(data: bytes) -> object:
    """Parse a JSON text; RecordError if it is none, or breaks the rules above."""
    try:
        body: object = json.loads(
            data.decode(),
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_bounded,
            object_pairs_hook=_unique,
        )
    except RecursionError:
        raise RecordError("not JSON that can be read: it is nested too deeply") from None
    except ValueError as error:
        raise RecordError(f"not JSON: {_why(error)}") from None
    return body


def load_toml(data: bytes) -> dict[str, Any]:
    """Parse a TOML text; RecordError as for JSON."""
    try:
        return tomllib.loads(data.decode().replace("\r\n", "\n"), parse_float=_finite)
    except RecursionError:
        raise RecordError("not TOML that can be read: it is nested too deeply") from None
    except ValueError as error:  # TOMLDecodeError is one
        raise RecordError(f"not TOML: {_why(error)}") from None


def read(body: object, kind: type[Kind], path: str, limits: Limits = FILES) -> Kind:
    """`body` as a `kind`; RecordError for anything that is not exactly one. `path` names it in that error."""
    if not isinstance(body, Mapping):
        raise RecordError(f"{path}: {shown(body)} is no object; expected the fields of {kind.__name__}")
    hints, optional = _layout(typing.cast("Hashable", kind))
    if unknown := body.keys() - hints.keys():
        raise RecordError(f"{path}: {unknown_field(str(min(unknown, key=str)), hints.keys() - body.keys())}")
    if absent := hints.keys() - body.keys() - optional:
        raise RecordError(f"{path}: field {min(absent)!r} is missing")
    return kind(**{name: value_of(value, hints[name], f"{path}.{name}", limits) for name, value in body.items()})


def read_message(body: Mapping[str, Any], kind: type[Kind], path: str) -> Kind:
    """Read a message as `read` does, within the limits of what anybody on the network may send."""
    return read(body, kind, path, MESSAGES)


def value_of(value: object, hint: Any, path: str, limits: Limits = FILES) -> object:
    """`value` as the type that `hint` names; the hints are those that this file names, and no others."""
    if hint is int or hint is str:  # most fields are: the rest need not be asked
        _check(_legal(value, hint, limits), value, hint, path)
        return value
    origin, arguments = _parts(hint)
    if origin in (types.UnionType, typing.Union):
        return _one_of(value, hint, arguments, path, limits)
    if origin is tuple and isinstance(value, list) and len(value) <= limits.items:
        return tuple(value_of(item, arguments[0], f"{path}[{at}]", limits) for at, item in enumerate(value))
    if origin is dict and isinstance(value, dict) and len(value) <= limits.items:
        for key in value:
            _check(_legal(key, str, limits), key, str, f"a key of {path}")
        return {key: value_of(item, arguments[1], f"{path}.{name(key)}", limits) for key, item in value.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return read(value, hint, path, limits)
    one_of = origin is Literal and type(value) in (str, int) and value in arguments
    _check(one_of or _legal(value, hint, limits), value, hint, path)
    return value


@functools.cache
def _parts(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A hint's origin and arguments; the cache has at most one entry per declared field."""
    return typing.get_origin(hint), typing.get_args(hint)


def _one_of(value: object, hint: Any, arguments: tuple[Any, ...], path: str, limits: Limits) -> object:
    if value is None and type(None) in arguments:
        return None
    kinds = [argument for argument in arguments if argument is not type(None)]
    if len(kinds) == 1:
        return value_of(value, kinds[0], path, limits)
    _check(any(_legal(value, kind, limits) for kind in kinds), value, hint, path)
    return value


def _legal(value: object, hint: Any, limits: Limits) -> bool:
    """Whether a value is of a scalar type, and within the limits."""
    if hint is float and type(value) is float:
        return math.isfinite(value)
    if hint in (int, float):
        return type(value) is int and -MAX_INTEGER <= value <= MAX_INTEGER
    if hint is str:
        return (
            type(value) is str
            and len(value) <= limits.text_characters
            and (value.isprintable() or not value or not limits.printable)
        )
    return isinstance(hint, type) and type(value) is hint


def _check(legal: bool, value: object, hint: Any, path: str) -> None:
    if not legal:
        raise RecordError(f"{path} = {shown(value)}; expected {expected(hint)}")


def shown(value: object) -> str:
    """A value as an error shows it: not at any length."""
    # reprlib looks at the first few items only: a list of millions would be written out whole to be cut off.
    text = reprlib.repr(value) if isinstance(value, list | dict) else repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def name(key: str) -> str:
    """A key as it was written, where that is one short line."""
    return key if key.isprintable() and len(key) <= MAX_SHOWN else repr(key[:MAX_SHOWN])


def unknown_field(field: str, known: typing.Iterable[str]) -> str:
    """Message about an unknown field, with one that may have been meant."""
    alike = difflib.get_close_matches(field[:MAX_SHOWN], sorted(known), 1)
    meant = f"; {alike[0]!r} is one" if alike else ""
    return f"unknown field {shown(field)}{meant}"


_NAMES: dict[Any, str] = {
    bool: "true or false",
    dict: "a table",
    float: "a number",
    int: "a whole number",
    str: "a text",
    tuple: "a list",
}


def expected(hint: Any) -> str:
    """Description of the values of a type, in words."""
    origin, arguments = _parts(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(expected(argument) for argument in arguments if argument is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if dataclasses.is_dataclass(hint):
        return "a table"
    return _NAMES.get(origin or hint) or str(getattr(hint, "__name__", hint))


def _why(error: ValueError) -> str:
    """The parser's words, on one line."""
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    return " ".join(str(error).split())


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:MAX_SHOWN]} is no finite number")
    return value


def _bounded(text: str) -> int:
    if len(text) > len(str(MAX_INTEGER)) + 1:  # Python's own limit is 4,300 digits, and its words are about Python
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


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
    missing = dataclasses.MISSING
    optional = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is not missing or field.default_factory is not missing
    }
    return typing.get_type_hints(kind), frozenset(optional)
