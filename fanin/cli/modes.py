"""Options without an effect, refused where the user has typed them: beside another option, or without one."""

from __future__ import annotations

from typing import Any

import typer

from fanin.cli.fields import is_typed
from fanin.errors import ConfigurationError


def refuse_with(context: typer.Context, other: str, *parameters: str) -> None:
    """Raise ConfigurationError for typed parameters that do nothing beside `other`, an option as it is written."""
    if unused := typed(context, *parameters):
        raise ConfigurationError(f"{', '.join(unused)}: not with {other}. Remedy: leave out one of them")


def refuse_without(context: typer.Context, other: str, *parameters: str) -> None:
    """Raise ConfigurationError for typed parameters that do nothing where `other` is not given."""
    if unused := typed(context, *parameters):
        raise ConfigurationError(f"{', '.join(unused)}: not without {other}. Remedy: add that, or leave out the former")


def typed(context: typer.Context, *parameters: str) -> list[str]:
    """The options, as they are written, of those of the parameters that are on the command line."""
    found: dict[str, Any] = {each.name: each for each in context.command.params}
    return [
        _written(found[name], context.params.get(name))
        for name in parameters
        if name in found and is_typed(context, name)
    ]


def _written(option: Any, value: object) -> str:
    """Name of an option; of a flag with two names, the one that was given."""
    return str(option.secondary_opts[0] if value is False and option.secondary_opts else option.opts[0])
