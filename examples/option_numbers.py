"""Numbers on the command lines of examples: what no training could begin with is refused by the parser."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

MOST = 2**31 - 1
MOST_SEED = 2**32 - 1
"""Largest seed that torch, NumPy and gymnasium all take."""


def whole(least: int, most: int = MOST) -> Callable[[str], int]:
    """Return a `type` for argparse: a whole number in least..most."""

    def number(given: str) -> int:
        text = given.strip()
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(most)) and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{given!r} is no whole number in {least}..{most}. Remedy: give one")
        return int(text)

    return number


seed = whole(0, MOST_SEED)
"""Type of an option that is a seed."""


def finite(given: str) -> float:
    """Type of an option that is a finite number."""
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{given!r} is no finite number. Remedy: give one")
    return value
