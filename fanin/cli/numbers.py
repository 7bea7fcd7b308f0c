"""Options with wide ranges: their bounds are in the error alone, since help of 80 columns has no room for them."""

from __future__ import annotations

import typer

MOST = 2**64 - 1


def number_of_64_bits(given: str | int) -> int:
    """A whole number in 0..2^64 - 1, as typer's `parser`, which gets the default as it is."""
    text = str(given)
    if not (text.isascii() and text.isdigit() and int(text) <= MOST):
        raise typer.BadParameter(f"{text!r} is no whole number in 0..{MOST}")
    return int(text)
