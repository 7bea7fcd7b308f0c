"""Reading of states that `state_dict` returned: an entry that is missing, or no such thing, is refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from fanin.errors import ConfigurationError

REMEDY = "Remedy: load what state_dict() has returned, of the same version of fanin"

Kind = TypeVar("Kind")


def entry(state: object, key: object, kind: type[Kind], whose: str) -> Kind:
    """Return `state[key]`; ConfigurationError unless the state is a dict that has it, and it is of this kind."""
    value = mapping(state, whose).get(key, _NONE)
    if value is _NONE:
        raise ConfigurationError(f"{whose} has no {key!r}. {REMEDY}")
    return checked(value, kind, f"{key!r} of {whose}")


def checked(value: object, kind: type[Kind], what: str) -> Kind:
    """Return the value; ConfigurationError where it is of another kind, or a negative number."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ConfigurationError(f"{what} is a {type(value).__name__}, not a {kind.__name__}. {REMEDY}")
    if isinstance(value, int) and value < 0:
        raise ConfigurationError(f"{what} is {value}, which is below 0. {REMEDY}")
    return value


def number(value: object, what: str) -> float:
    """Return a number as a float. Raises ConfigurationError if the value is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{what} is a {type(value).__name__}, not a number. {REMEDY}")
    return float(value)


def mapping(value: object, what: str) -> Mapping[Any, Any]:
    """Return the value as a mapping. Raises ConfigurationError if it is none."""
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{what} is a {type(value).__name__}, not a dict. {REMEDY}")
    return value


def sequence(state: object, key: object, whose: str, count: int | None = None) -> list[Any]:
    """Return `state[key]`, a tuple or list of `count` elements, as a list; else ConfigurationError."""
    value = entry(state, key, object, whose)
    if not isinstance(value, tuple | list) or (count is not None and len(value) != count):
        wanted = "a list" if count is None else f"a list of {count}"
        raise ConfigurationError(f"{key!r} of {whose} is not {wanted}. {REMEDY}")
    return list(value)


def floats(state: object, key: object, whose: str, count: int | None = None) -> torch.Tensor:
    """Return `state[key]`, a float32 tensor of one dimension and `count` elements; else ConfigurationError."""
    value = entry(state, key, torch.Tensor, whose)
    if value.dim() != 1 or value.dtype is not torch.float32 or (count is not None and len(value) != count):
        wanted = "elements" if count is None else f"{count} elements"
        raise ConfigurationError(
            f"{key!r} of {whose} is {value.dtype} of {tuple(value.shape)}, not {wanted} of float32. {REMEDY}"
        )
    return value


def tensors(state: object, key: object, whose: str) -> dict[str, torch.Tensor]:
    """Return `state[key]`, a dict of tensors by name; else ConfigurationError."""
    found = mapping(entry(state, key, object, whose), f"{key!r} of {whose}")
    return {str(name): entry(found, name, torch.Tensor, f"{key!r} of {whose}") for name in found}


_NONE = object()
