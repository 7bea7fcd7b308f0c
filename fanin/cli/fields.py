"""Options of a command from the fields of a record: docstrings are the help, metadata the bounds (settings.py)."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from fanin.settings import Setting, fields_of, settings_of

Record = TypeVar("Record")


@functools.cache
def docstrings(kind: type) -> dict[str, str]:
    """Docstrings of the fields of a class and its bases, each on one line, by field: read from the source."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        source = getattr(sys.modules.get(each.__module__), "__file__", None)
        if source is None or not dataclasses.is_dataclass(each):
            continue
        tree = _parsed(source)
        body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == each.__name__)
        for field, below in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and (text := _text_of(below)) is not None:
                found[ast.unparse(field.target)] = text
    return found


def _text_of(statement: ast.stmt) -> str | None:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return " ".join(value.value.split()) if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


@functools.cache
def _parsed(source: str) -> ast.Module:
    return ast.parse(Path(source).read_text(encoding="utf-8"))


def parameters(kind: type) -> list[inspect.Parameter]:
    """A keyword parameter with typer's annotation for each field of the record."""
    texts = docstrings(kind)
    return [_parameter(setting, texts.get(setting.field, "")) for setting in settings_of(kind)]


def _parameter(setting: Setting, text: str) -> inspect.Parameter:
    kind, default = setting.kind, setting.default
    facts: dict[str, Any] = {"help": text}
    if setting.text is not None:
        kind, default = str, setting.written(default) if setting.has_default else default
    elif setting.bounds is not None:
        facts |= {"min": setting.bounds.least, "max": setting.bounds.most}
    return inspect.Parameter(
        setting.field,
        inspect.Parameter.KEYWORD_ONLY,
        default=default if setting.has_default else inspect.Parameter.empty,
        annotation=Annotated[kind, typer.Option(f"--{setting.option}", **facts)],
    )


def with_options(
    kind: type[Record], call: Callable[..., None], text: str | None, more: Sequence[inspect.Parameter] = ()
) -> Callable[..., None]:
    """A function for typer: options of the record's fields and `more`; it calls `call(record, **more)`.

    `text` is the help of the command. ConfigurationError where the record is illegal.
    """
    own = parameters(kind)

    def command(**given: Any) -> None:
        texts = {each.name: given.pop(each.name) for each in own}
        call(kind(**fields_of(kind, texts)), **given)

    command.__doc__ = text
    command.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
    return command


def parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """One further option, annotated as typer wants it."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
