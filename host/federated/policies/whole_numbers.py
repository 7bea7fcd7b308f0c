"""Check of settings that are whole numbers: a fraction, NaN or a flag is refused where it is given."""

from __future__ import annotations

from numbers import Integral

from fanin.errors import ConfigurationError

MOST = (1 << 63) - 1


def whole_number(name: str, value: object, least: int, most: int = MOST) -> None:
    """Raise ConfigurationError unless `value` is a whole number in least..most."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        bounds = f"at least {least}" if most == MOST else f"{least} to {most}"
        raise ConfigurationError(
            f"{name} = {value!r}; must be a whole number, {bounds}. Remedy: give {name} such a number"
        )
