"""Commands whose options are known once they are asked for: `fanin --help` imports none of the modules behind them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import typer
import typer.main
from typer.core import TyperCommand


def add(app: typer.Typer, name: str, text: str, make: Callable[[], Callable[..., None]], epilog: str) -> None:
    """Add a command to `app`. `make` returns its function, and is called when it runs or shows its own help."""

    class Later(TyperCommand):
        """Stands for the command in its group."""

        @functools.cached_property
        def _command(self) -> Any:
            alone = typer.Typer(add_completion=False)
            alone.command(name, help=text, epilog=epilog)(make())
            return typer.main.get_command(alone)

        @property
        def params(self) -> list[Any]:  # type: ignore[override]
            return list(self._command.params)

        @params.setter
        def params(self, _: list[Any]) -> None:
            """Ignore what the group knows: nothing."""

        def make_context(self, *args: Any, **kwargs: Any) -> Any:
            return self._command.make_context(*args, **kwargs)

    @app.command(name, help=text, epilog=epilog, cls=Later)
    def stand_in() -> None:
        """Never called: the context is the command's own."""
