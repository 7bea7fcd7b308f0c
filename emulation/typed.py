"""Dataclasses from what a JSON or TOML parser returns, read strictly: records of runs, scenarios."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from fanin.errors import ConfigurationError

Kept = TypeVar("Kept")
MAX_SHOWN = 60
"""Characters of a wrong value in an error."""


def read_dataclass(body: Mapping[str, Any], kind: type[Kept], path: str) -> Kept:
    """A `kind` from a table; ConfigurationError names the field, below `path`, that is unknown, missing or wrong.

    Field types may be scalars, Literal, `X | None`, tuples, dicts with names as keys, and dataclasses of these. Lists
    become tuples.
    """
    hints = typing.get_type_hints(kind)
    missing, absent = dataclasses.MISSING, set()
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.default is missing and field.default_factory is missing and field.name not in body:
            absent.add(field.name)
    if absent or (unknown := body.keys() - hints.keys()):
        what = f"field {min(absent)!r} is missing" if absent else f"unknown field {min(unknown)!r}"
        raise ConfigurationError(f"{path}: {what}")
    return kind(**{name: _read(value, hints[name], f"{path}.{name}") for name, value in body.items()})


def _read(value: Any, hint: Any, path: str) -> Any:
    """`value` as the type that `hint` names."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        scalars = [argument for argument in arguments if argument is not type(None)]
        if len(scalars) == 1:
            return _read(value, scalars[0], path)
        legal = type(value) in scalars
    elif origin is Literal:
        legal = type(value) in (str, int) and value in arguments
    elif origin is tuple:
        if isinstance(value, list):
            return tuple(_read(item, arguments[0], f"{path}[{at}]") for at, item in enumerate(value))
        legal = False
    elif origin is dict:
        if isinstance(value, dict):
            return {key: _read(item, arguments[1], f"{path}.{_shown(key)}") for key, item in value.items()}
        legal = False
    elif dataclasses.is_dataclass(hint):
        if isinstance(value, dict):
            return read_dataclass(value, typing.cast("type[Any]", hint), path)
        legal = False
    elif hint is float:
        legal = type(value) in (int, float)
    else:
        legal = type(value) is hint
    if not legal:
        text = repr(value)
        shown = text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."
        raise ConfigurationError(f"{path} = {shown}; expected {expected(hint)}")
    return value


def _shown(key: str) -> str:
    """As it was written, where that is one short line."""
    return key if key.isprintable() and len(key) <= MAX_SHOWN else repr(key[:MAX_SHOWN])


_NAMES: dict[Any, str] = {
    bool: "true or false",
    dict: "a table",
    float: "a number",
    int: "a whole number",
    str: "a text",
    tuple: "a list",
}


def expected(hint: Any) -> str:
    """What a value of that type is, in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(expected(argument) for argument in arguments if argument is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if dataclasses.is_dataclass(hint):
        return "a table"
    return _NAMES.get(origin or hint) or str(getattr(hint, "__name__", hint))
