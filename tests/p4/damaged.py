"""Compiled programs with damage: seeded mutations of a document, as a loader may get them over the network."""

from __future__ import annotations

import copy
import random
from typing import Any

ODD: list[Any] = [
    None, True, -1, 0, 1, 2, 63, 65, 1 << 16, (1 << 16) + 1, 1 << 26, 1 << 32, 10**30, 1.5, "", "0x", "-0x1", "x", [],
    {}, ["x"], "0x" + "f" * 16, "0x" + "f" * 16_384, "0x" + "f" * 40_000, "$valid$",
]  # fmt: skip
MAX_COPIES = 2_000
MAX_DEPTH = 200


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value of a document, the whole one first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inner for found in paths(each, (*path, key)))]


def at(document: Any, path: tuple[Any, ...]) -> Any:
    """The value that a path leads to."""
    for key in path:
        document = document[key]
    return document


def damaged(original: Any, ways: list[tuple[Any, ...]], draw: random.Random) -> Any:
    """A copy with one to three changes: values replaced, left out, repeated, swapped with others, or nested deeply."""
    document = copy.deepcopy(original)
    for _ in range(draw.randint(1, 3)):
        path = draw.choice(ways[1:])
        try:
            _change(document, path, at(original, draw.choice(ways[1:])), draw)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change has taken it away
    return document


def _change(document: Any, path: tuple[Any, ...], other: Any, draw: random.Random) -> None:
    parent, key = at(document, path[:-1]), path[-1]
    kind = draw.choice(("odd", "odd", "drop", "swap", "repeat", "repeat much", "nest"))
    if kind == "odd":
        parent[key] = draw.choice(ODD)
    elif kind == "drop":
        del parent[key]
    elif kind == "swap":
        parent[key] = copy.deepcopy(other)
    elif kind == "nest":
        inner = parent[key]
        for _ in range(draw.choice((1, 50, MAX_DEPTH))):
            inner = {"type": "expression", "value": inner}
        parent[key] = inner
    elif isinstance(parent, list):
        parent[key:key] = [
            copy.deepcopy(parent[key]) for _ in range(1 if kind == "repeat" else draw.randint(2, MAX_COPIES))
        ]
    else:
        parent[f"{key}2"] = parent[key]
