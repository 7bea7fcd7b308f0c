"""Dataclasses from files, JSON or TOML, read strictly (fanin/protocol/strict.py), and rows of figures into them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from fanin import files
from fanin.errors import ConfigurationError
from fanin.protocol import strict
from fanin.protocol.strict import expected

__all__ = ["expected", "load_json", "load_toml", "read_dataclass", "write_rows"]

Kept = TypeVar("Kept")


def read_dataclass(body: Mapping[str, Any], kind: type[Kept], path: str) -> Kept:
    """A `kind` from a table; ConfigurationError names the field, below `path`, that is unknown, missing or wrong.

    Field types may be scalars, Literal, unions of these with None, tuples, dicts with names as keys, and dataclasses of
    these. Lists become tuples.
    """
    try:
        return strict.read(body, kind, path)
    except strict.RecordError as error:
        raise ConfigurationError(str(error), "that field") from None


def load_json(path: Path, what: str) -> object:
    """Parse a JSON file; ConfigurationError if it cannot be read or is no JSON."""
    try:
        return strict.load_json(files.read(path, what))
    except strict.RecordError as error:
        raise ConfigurationError(f"{what} {files.name(path)}: {error}", "the file") from None


def load_toml(path: Path, what: str) -> dict[str, Any]:
    """Parse a TOML file; ConfigurationError if it cannot be read or is no TOML."""
    try:
        return strict.load_toml(files.read(path, what))
    except strict.RecordError as error:
        raise ConfigurationError(f"{what} {files.name(path)}: {error}", "the file") from None


def write_rows(path: Path, rows: Sequence[Any]) -> None:
    """A JSON list of dataclasses or dicts, as `--json FILE` of a benchmark asks for; what files.write raises."""
    plain = [row if isinstance(row, dict) else dataclasses.asdict(row) for row in rows]
    files.write(path, json.dumps(plain, indent=2) + "\n", "the figures")
