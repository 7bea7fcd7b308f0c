"""Quantities as people write them: `1gbit`, `50us`, `0.1%`, `2x`, `1mib`."""

from __future__ import annotations

import re
from typing import Annotated

from fanin.errors import ConfigurationError
from fanin.settings import Text

RATES = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
DURATIONS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
SIZES = {"b": 1.0, "k": 1024.0, "kib": 1024.0, "m": 1048576.0, "mib": 1048576.0}
MAX_NUMBER = 1e15
MAX_FACTOR = 1000
"""Largest slow-down factor: a slower worker would hardly run at all."""
QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z%]*)")


def rate_bit_s(text: str) -> float | None:
    """Parse a rate such as `100mbit` into bits per second; `none` gives None, no limit."""
    return None if text == "none" else _quantity("a rate", text, RATES, "100mbit, 1gbit or none")


def rate_text(rate: float | None) -> str:
    """The text that `rate_bit_s` parses into this rate."""
    if rate is None:
        return "none"
    name, unit = next((each for each in reversed(RATES.items()) if rate >= each[1]), ("bit", 1.0))
    return f"{rate / unit:g}{name}"


Rate = Annotated[float | None, Text(lambda _, text: rate_bit_s(text), rate_text)]
"""Type of a dataclass field of bits per second; None, as text `none`: no limit."""


def _rates(texts: str) -> tuple[float, ...]:
    found = map(rate_bit_s, texts.split(","))
    return tuple(rate for rate in found if rate is not None)


Rates = Annotated[
    tuple[float, ...], Text(lambda _, texts: _rates(texts), lambda rates: ",".join(map(rate_text, rates)) or "none")
]
"""Type of a dataclass field of several rates, as text with commas; empty, as text `none`."""


def duration_s(text: str) -> float:
    """Parse a duration such as `50us`, `2ms` or `1.5s` into seconds."""
    return _quantity("a duration", text, DURATIONS, "50us, 2ms or 1s")


def duration_text(seconds: float) -> str:
    """The text that `duration_s` parses into this duration."""
    name, unit = next((each for each in DURATIONS.items() if seconds >= each[1]), ("us", DURATIONS["us"]))
    return f"{seconds / unit:g}{name}"


Duration = Annotated[float, Text(lambda _, text: duration_s(text), duration_text)]
"""Type of a dataclass field of seconds."""


def size_bytes(text: str) -> int:
    """Parse a size such as `512kib` into bytes."""
    return int(_quantity("a size", text, SIZES, "512kib or 1mib"))


def probability(text: str) -> float:
    """Parse `0.1%` or `0.001` into 0..1; raises ConfigurationError for anything else."""
    match = QUANTITY.fullmatch(text.strip().lower())
    value = float(match[1]) / (100 if match[2] else 1) if match and match[2] in ("", "%") else -1.0
    if not 0.0 <= value <= 1.0:
        raise ConfigurationError(f"{text!r} is no probability; expected 0.1% or 0.001", "that value")
    return value


def factor(text: str) -> float:
    """Parse `2x` or `1.5` into a factor in 1..MAX_FACTOR; raises ConfigurationError for anything else."""
    match = QUANTITY.fullmatch(text.strip().lower().removesuffix("x"))
    if not match or match[2] or not 1 <= float(match[1]) <= MAX_FACTOR:
        raise ConfigurationError(f"{text!r} is no slow-down in 1x..{MAX_FACTOR}x; expected 2x or 1.5x", "that value")
    return float(match[1])


def _quantity(what: str, text: str, units: dict[str, float], examples: str) -> float:
    match = QUANTITY.fullmatch(text.strip().lower())
    if not match or match[2] not in units or float(match[1]) > MAX_NUMBER:
        raise ConfigurationError(f"{text!r} is no {what.removeprefix('a ')}; expected {examples}", "that value")
    return float(match[1]) * units[match[2]]
