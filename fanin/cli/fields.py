"""Options of a command from the fields of a record: docstrings are the help, metadata the bounds (settings.py)."""

from __future__ import annotations

import ast
import copy
import dataclasses
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.models import ParameterInfo

from fanin.errors import ConfigurationError
from fanin.settings import Setting, fields_of, settings_of


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


def parameters(kind: type, *, absent: bool = False) -> list[inspect.Parameter]:
    """A keyword parameter with typer's annotation for each field of the record that a command line can give.

    `absent`: options have no defaults, and are None unless they are given.
    """
    texts = docstrings(kind)
    return [
        _parameter(setting, texts.get(setting.field, ""), absent) for setting in settings_of(kind) if setting.is_option
    ]


def _parameter(setting: Setting, text: str, absent: bool) -> inspect.Parameter:
    kind, default = setting.kind, _default(setting)
    facts: dict[str, Any] = {"help": text, **_shown(default)}
    if setting.text is not None:
        kind = str
    elif setting.bounds is not None:
        facts |= _range(setting)
    if absent:
        facts["show_default"] = str(default) or False
        kind, default = kind | None, None
    return inspect.Parameter(
        setting.field,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, typer.Option(f"--{setting.option}", **facts)],
    )


def _default(setting: Setting) -> Any:
    """The field's default as a command line gives it; `Parameter.empty` without one."""
    if not setting.has_default:
        return inspect.Parameter.empty
    return setting.default if setting.text is None else setting.written(setting.default)


def _shown(default: Any) -> dict[str, Any]:
    """Facts of an option by which its default is shown with spaces in a list: lines of help break at spaces alone."""
    return {"show_default": default.replace(",", ", ")} if isinstance(default, str) and "," in default else {}


def _range(setting: Setting) -> dict[str, Any]:
    """Facts of a number's option: help shows its bounds, and the record's own words refuse what is outside them."""
    assert setting.bounds is not None
    whole = int in setting.kinds

    def read(given: Any) -> Any:
        try:
            value = int(given) if whole else float(given)
            setting.check(value)
        except ConfigurationError as error:
            raise typer.BadParameter(error.text) from None
        except ValueError:
            raise typer.BadParameter(f"{given!r} is no {'whole ' * whole}number") from None
        return value

    return {"min": setting.bounds.least, "max": setting.bounds.most, "parser": read}


def described(kind: type, *fields: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorator of a function for typer: its parameters of these fields' names take help, bounds and default from the
    record.

    A default that the function gives such a parameter stays, and help is added to the field's. A field with a `Text` is
    given as its text, which `fields_of` reads.
    """
    texts = docstrings(kind)
    settings = {setting.field: setting for setting in settings_of(kind) if setting.field in fields}

    def completed(option: inspect.Parameter) -> inspect.Parameter:
        if (setting := settings.get(option.name)) is None:
            return option
        facts = [copy.copy(each) for each in option.annotation.__metadata__]
        own = next(each for each in facts if isinstance(each, ParameterInfo))
        further = own.help
        default = _default(setting) if option.default is inspect.Parameter.empty else option.default
        for name, fact in {**_shown(default), **(_range(setting) if setting.bounds is not None else {})}.items():
            setattr(own, name, fact)
        if own.metavar is not None and setting.bounds is not None:  # its column is too narrow for the bounds as well
            own.min = own.max = None
            further = " ".join(text for text in (f"{setting.bounds}.".capitalize(), further) if text)
        own.help = " ".join(text for text in (texts[option.name], further) if text)
        return option.replace(default=default, annotation=Annotated[(option.annotation.__origin__, *facts)])

    def decorated(call: Callable[..., None]) -> Callable[..., None]:
        shown = inspect.signature(call, eval_str=True)
        return taking(call, inspect.getdoc(call) or "", [completed(each) for each in shown.parameters.values()])

    return decorated


def with_options(
    kind: type[Any], call: Callable[..., None], text: str, more: Sequence[inspect.Parameter] = ()
) -> Callable[..., None]:
    """A function for typer, with options of the record's fields and `more`: it calls `call(make, typed, **more)`.

    `make()` is the record, or a ConfigurationError where it is illegal; `typed` are the values of options that the user
    has typed, by parameter. `text` is the help of the command.
    """
    own = parameters(kind)

    def command(context: typer.Context, **given: Any) -> None:
        typed = {name: value for name, value in given.items() if is_typed(context, name)}
        texts = {each.name: given.pop(each.name) for each in own}
        call(lambda: kind(**fields_of(kind, texts)), typed, **given)

    return taking(command, text, [parameter("context", typer.Context, inspect.Parameter.empty), *own, *more])


def taking(call: Callable[..., None], text: str, options: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """`call`, which takes any keywords, as a function for typer with these parameters and this help."""
    call.__doc__ = text
    call.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return call


def is_typed(context: typer.Context, parameter: str) -> bool:
    """Whether the option was on the command line, be it with its default."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def parameter(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    """One further option, annotated as typer wants it."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
