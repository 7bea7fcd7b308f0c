"""Faults to inject, as text: `drop=1%,dup=0.5%,reorder=2%,corrupt=0.01%@seed=7`.

Each part is a probability per datagram and direction, `1%` or `0.01`; a part left out is 0, `@seed=` left out is 0.
Only the reading of the text stands here: host/transports/faulty.py draws the dice.
"""

from __future__ import annotations

from dataclasses import dataclass

from fanin.errors import ConfigurationError

EXAMPLE = "drop=1%,dup=0.5%,reorder=2%,corrupt=0.01%@seed=7"


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """How often each fault strikes a datagram, as probabilities in [0, 1], and the seed of the dice."""

    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """A datagram is held back until a few later ones have passed it."""
    corrupt: float = 0.0
    """One bit is flipped, or the datagram is cut short. The job must use checksums."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("drop", "duplicate", "reorder", "corrupt"):
            probability = getattr(self, name)
            if not 0.0 <= probability <= 1.0:
                raise ConfigurationError(f"faults: {name} = {probability}; must be in 0..1 (or 0%..100%)")

    @classmethod
    def parse(cls, text: str) -> FaultPlan:
        """Read the grammar above; ConfigurationError says which part is wrong."""
        faults, at, tail = text.partition("@")
        seed = 0
        if at:
            name, equals, digits = tail.partition("=")
            if name.strip() != "seed" or not equals or not digits.strip().isdecimal():
                raise ConfigurationError(f"faults {text!r}: expected @seed=NUMBER after the @, as in {EXAMPLE}")
            seed = int(digits)
        values: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in faults.split(","))):
            name, _, value = part.partition("=")
            field = _FIELDS.get(name.strip())
            if field is None:
                raise ConfigurationError(f"faults {text!r}: {name!r} is none of {', '.join(_FIELDS)}; as in {EXAMPLE}")
            if field in values:
                raise ConfigurationError(f"faults {text!r}: {name} stands there twice")
            values[field] = _probability(text, value.strip())
        return cls(**values, seed=seed)


_FIELDS = {"drop": "drop", "dup": "duplicate", "reorder": "reorder", "corrupt": "corrupt"}


def _probability(text: str, value: str) -> float:
    try:
        return float(value[:-1]) / 100 if value.endswith("%") else float(value)
    except ValueError:
        raise ConfigurationError(f"faults {text!r}: {value!r} is no probability; as in {EXAMPLE}") from None
