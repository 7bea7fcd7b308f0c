"""Fields of option records: their bounds and their form as text stand beside each field, and nowhere else.

    workers: Annotated[int, Bounds(2, 32)] = 4
    \"\"\"Worker processes on this machine.\"\"\"
    lanes: Lanes = (32, 16, 8)
    \"\"\"fanin's lane widths, separated by commas.\"\"\"

The record checks itself (`check_bounds`); the command line makes an option of the field with the same bounds, whose
help is the field's docstring (fanin/cli/fields.py); `words_of` and `fields_of` pass records to other processes.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from fanin.bounds import Bounds as Bounds
from fanin.errors import ConfigurationError
from fanin.numerics.reduction import lanes_number

Value = TypeVar("Value")


class OneOf:
    """The legal words of a field, or of each word of a tuple."""

    def __init__(self, *words: str) -> None:
        self.words = words


@dataclass(frozen=True, slots=True)
class Named:
    """Name of the option where it is not the field's, without hyphens in front: `bytes`."""

    option: str


@dataclass(frozen=True, slots=True)
class Text:
    """Form of a field as text. `read` takes the option's name and a text; ConfigurationError says what is wrong."""

    read: Callable[[str, str], Any]
    written: Callable[[Any], str] = str


@dataclass(frozen=True, slots=True)
class Setting:
    """Facts about one field of an option record."""

    field: str
    name: str
    """Name of the setting in texts: the field's, or that of its `Named`."""
    kind: Any
    """Type of the field, without metadata."""
    default: Any
    """Default value; MISSING where the field must be given."""
    bounds: Bounds | None
    one_of: OneOf | None
    text: Text | None

    @property
    def option(self) -> str:
        """Name on a command line, without hyphens in front: `switch-at`."""
        return self.name.replace("_", "-")

    @property
    def is_option(self) -> bool:
        """Whether a command line can give it: a text, a number, a flag or a file, not a table of a scenario's file."""
        return self.text is not None or all(each in (str, int, float, bool, Path, type(None)) for each in self.kinds)

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The types that a value may have: several for a union."""
        united = typing.get_origin(self.kind) in (types.UnionType, typing.Union)
        return typing.get_args(self.kind) if united else (self.kind,)

    @property
    def has_default(self) -> bool:
        """Whether the field may be left out."""
        return self.default is not dataclasses.MISSING

    def written(self, value: Any) -> str | None:
        """The value as text; None for None."""
        if value is None and self.text is None:
            return None
        return str(value) if self.text is None else self.text.written(value)

    def check(self, value: Any, before: str = "") -> None:
        """ConfigurationError for a value outside the bounds; it names the option, the value and the bounds, and has
        `before` in front: whose option it is.
        """
        if value is None:
            return
        each = value if isinstance(value, tuple) else (value,)
        if self.bounds is not None and not all(one in self.bounds for one in each):
            raise ConfigurationError(f"{before}{self.name} = {self.written(value)}; must be {self.bounds}", self.name)
        if self.one_of is not None and not set(each) <= set(self.one_of.words):
            which = "some" if isinstance(value, tuple) else "one"
            words = ", ".join(self.one_of.words)
            text = f"{before}{self.name} = {self.written(value)!r}; must be {which} of {words}"
            raise ConfigurationError(text, self.name)


def settings_of(kind: Any) -> tuple[Setting, ...]:
    """The settings of a dataclass, in the order of its fields; those without `init` are left out."""
    return _settings(kind)


@functools.cache
def _settings(kind: Any) -> tuple[Setting, ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    found = []
    for each in dataclasses.fields(kind):
        if not each.init:
            continue
        hint = hints[each.name]
        facts = hint.__metadata__ if typing.get_origin(hint) is Annotated else ()

        def first(wanted: type, facts: tuple[Any, ...] = facts) -> Any:
            return next((fact for fact in facts if isinstance(fact, wanted)), None)

        named = first(Named)
        found.append(
            Setting(
                field=each.name,
                name=each.name if named is None else named.option,
                kind=hint.__origin__ if facts else hint,
                default=each.default,
                bounds=first(Bounds),
                one_of=first(OneOf),
                text=first(Text),
            )
        )
    return tuple(found)


def check_bounds(record: Any, before: str = "") -> None:
    """ConfigurationError for the first field of a dataclass that is outside its bounds, with `before` in front."""
    for setting in settings_of(type(record)):
        setting.check(getattr(record, setting.field), before)


def checked(kind: Any, field: str, value: Value) -> Value:
    """The value, if that field of a record may have it, else ConfigurationError: before the record can be made."""
    next(setting for setting in settings_of(kind) if setting.field == field).check(value)
    return value


def words_of(record: Any) -> list[str]:
    """The command line that `fields_of` reads back: every field that is not None, as `--option text`."""
    words: list[str] = []
    for setting in settings_of(type(record)):
        text = setting.written(getattr(record, setting.field))
        words += [] if text is None else [f"--{setting.option}", text]
    return words


def fields_of(kind: type, texts: dict[str, Any]) -> dict[str, Any]:
    """Values by field, from what a command line has by field: texts are read where the field has a `Text`."""
    values = {}
    for setting in settings_of(kind):
        if (given := texts.get(setting.field)) is None:
            continue
        values[setting.field] = setting.text.read(setting.name, given) if setting.text else given
    return values


# --- lists, separated by commas ---


def commas(values: Iterable[Any]) -> str:
    """The values as one text."""
    return ",".join(map(str, values))


def read_words(name: str, text: str) -> tuple[str, ...]:
    """Read words separated by commas: `gloo,mpi`."""
    return tuple(word for word in text.split(",") if word)


def read_numbers(name: str, text: str) -> tuple[int, ...]:
    """Read whole numbers separated by commas: `1500,9000`."""
    return _read_each(int, name, text)


def read_decimals(name: str, text: str) -> tuple[float, ...]:
    """Read numbers separated by commas: `0.1,0.3`."""
    return _read_each(float, name, text)


def _read_each(read: Callable[[str], Value], name: str, text: str) -> tuple[Value, ...]:
    try:
        return tuple(map(read, read_words(name, text)))
    except ValueError:
        raise ConfigurationError(f"{name} = {text!r}; expected numbers separated by commas", name) from None


def read_lanes(name: str, text: str) -> tuple[int | str, ...]:
    """Read lane widths: `32,8,4/8` are two packed ones, and bits up / bits down."""
    widths: list[int | str] = []
    for word in read_words(name, text):
        widths += [word] if "/" in word else read_numbers(name, word)
    for width in widths:
        lanes_number(width)
    return tuple(widths)


def read_percentages(name: str, text: str) -> tuple[float, ...]:
    """Read percentages: `0,0.5,1`, each perhaps with a `%`."""
    try:
        return tuple(float(part.strip().removesuffix("%")) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigurationError(f"{name} = {text!r}; expected percentages separated by commas", name) from None


Words = Annotated[tuple[str, ...], Text(read_words, commas)]
Numbers = Annotated[tuple[int, ...], Text(read_numbers, commas)]
Decimals = Annotated[tuple[float, ...], Text(read_decimals, commas)]
Lanes = Annotated[tuple[int | str, ...], Text(read_lanes, commas)]
Percentages = Annotated[tuple[float, ...], Text(read_percentages, commas)]
