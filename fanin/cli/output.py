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


def check(*files: Path | None, read: Sequence[Path] = ()) -> None:
    """ConfigurationError for a file that could not be written: before a long run, not after it.

    `read`: files that the command reads, which it must not replace.
    """
    sources = {file.resolve() for file in read}
    for file in files:
        if file is None:
            continue
        if file.resolve() in sources:
            wrong = "the command reads it"
        elif file.is_dir() or not file.absolute().parent.is_dir():
            wrong = "it is a folder" if file.is_dir() else f"there is no folder {file.absolute().parent}"
        elif not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
            wrong = "permission denied"
        else:
            continue
        raise ConfigurationError(f"{file} cannot be written: {wrong}. Remedy: name a file in a folder of yours")


def command_line() -> str:
    """The command line as it was typed."""
    return shlex.join(["fanin", *sys.argv[1:]])
