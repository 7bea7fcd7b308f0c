"""Commands and groups of which `fanin --help` knows names and one line each, and imports nothing more.

`text` is that line: the first of what the command's own help says (tests/commands/test_command_line.py).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup


class NamedCommand(TyperCommand):
    """A command that is named by every error of its command line."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Read the command line, as a command of typer's does."""
        with _named(self, info_name, parent):
            return super().make_context(info_name, args, parent, **extra)


@contextlib.contextmanager
def _named(command: Any, name: str | None, parent: Any) -> Iterator[None]:
    """Give errors the command that they are of: those of the parser, as for an option without its value, have none."""
    try:
        yield
    except Exception as error:
        if getattr(error, "ctx", error) is None:
            error.ctx = command.context_class(command, info_name=name, parent=parent)  # type: ignore[attr-defined]
        raise


def add(
    app: typer.Typer, name: str, text: str, make: Callable[[], Callable[..., Any]], epilog: str, **settings: Any
) -> None:
    """Add a command to `app`. `make` returns its function, and is called when it runs or shows its own help.

    `settings`: click's, for the context of the command.
    """

    class Later(TyperCommand):
        """Stands for the command in its group."""

        @functools.cached_property
        def _command(self) -> Any:
            alone = typer.Typer(add_completion=False)
            alone.command(name, epilog=epilog, context_settings=settings)(make())
            return typer.main.get_command(alone)

        @property
        def params(self) -> list[Any]:
            return list(self._command.params)

        @params.setter
        def params(self, _: list[Any]) -> None:
            """Ignore the empty list that the group sets."""

        def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
            with _named(self._command, info_name, parent):
                return self._command.make_context(info_name, args, parent, **extra)

    @app.command(name, help=text, epilog=epilog, cls=Later, context_settings=settings)
    def stand_in() -> None:
        """Never called: the context is the command's own."""


def add_group(app: typer.Typer, name: str, text: str, make: Callable[[], typer.Typer]) -> None:
    """Add a group of commands to `app`. `make` returns the group, and is called when one of its commands is meant."""

    class LaterGroup(TyperGroup):
        """Stands for the group in the group or application above it."""

        @functools.cached_property
        def _group(self) -> Any:
            return typer.main.get_group(make())

        @property
        def commands(self) -> Any:
            return self._group.commands

        @commands.setter
        def commands(self, _: Any) -> None:
            """Ignore the empty table that the group above sets."""

        def make_context(self, *args: Any, **kwargs: Any) -> Any:
            return self._group.make_context(*args, **kwargs)

    app.add_typer(typer.Typer(cls=LaterGroup, no_args_is_help=True), name=name, help=text)
