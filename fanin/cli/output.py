"""Output files of commands that measure: their options, checked before anything is measured."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fanin.errors import ConfigurationError

JsonFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the figures there, as JSON.")]
JsonObject = Annotated[bool, typer.Option("--json", help="One JSON object.")]
RecordFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write the run's record there, of which `fanin report` makes pages.")
]
HtmlFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The report; default: fanin-report.html.", show_default=False)
]


def check(*files: Path | None, read: Sequence[Path] = (), unasked: Sequence[Path] = ()) -> None:
    """ConfigurationError for a file that could not be written, or would be twice: before a long run, not after it.

    `read`: files that the command reads, which it must not replace. `unasked`: files that it writes if it can.
    """
    sources = {file.resolve() for file in read}
    taken = [file.resolve() for file in (*files, *unasked) if file is not None and not _takes_all(file)]
    for file in files:
        if file is None:
            continue
        if taken.count(file.resolve()) > 1:
            raise ConfigurationError(
                f"{file} cannot be written: two outputs would be written there. Remedy: name two files"
            )
        if file.resolve() in sources:
            wrong = "the command reads it"
        elif file.is_dir() or not file.absolute().parent.is_dir():
            wrong = "it is a folder" if file.is_dir() else f"there is no folder {file.absolute().parent}"
        elif not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
            wrong = "permission denied"
        else:
            continue
        raise ConfigurationError(f"{file} cannot be written: {wrong}. Remedy: name a file in a folder of yours")


def unasked_page(html: Path | None) -> list[Path]:
    """The page that a command writes where none is named."""
    from fanin.emulation.report import DEFAULT_PAGE

    return [DEFAULT_PAGE] if html is None else []


def _takes_all(file: Path) -> bool:
    """Whether several outputs may be written there, as to a terminal, a pipe or /dev/null."""
    return file.exists() and not file.is_file()


def command_line() -> str:
    """The command line as it was typed."""
    return shlex.join(["fanin", *sys.argv[1:]])
