"""`fanin report`: the page of a run, from its saved record or from what its ranks wrote; or of two, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fanin.cli import extras, output
from fanin.errors import ConfigurationError

if TYPE_CHECKING:
    from fanin.records.record import RunRecord

MAX_FIRST_LINE_BYTES = 1 << 16
BEFORE_AND_AFTER = "before,after"


def report(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="A record (--record), or the files that FANIN_TIMELINE's ranks wrote."),
    ],
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Files of a second run, to set beside the first; again for each file."),
    ] = None,
    html: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("report.html"),
    png: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The plots as pictures, too.")] = None,
    names: Annotated[
        str | None,
        typer.Option(
            metavar="ONE,OTHER", help="Names of two runs that are compared; default: before,after.", show_default=False
        ),
    ] = None,
) -> None:
    """Make the page of a run, or of two side by side: one HTML file that needs nothing but itself."""
    extras.require("plot", "`fanin report`")
    if names is not None and not against:
        raise ConfigurationError(f"--names {names!r} is for two runs. Remedy: name the second with --against")
    called = tuple((BEFORE_AND_AFTER if names is None else names).split(","))
    if len(called) != 2 or not all(called) or called[0] == called[1]:
        raise ConfigurationError(f"--names {names!r}: expected two different names. Remedy: as in {BEFORE_AND_AFTER}")
    output.check(html, read=[*files, *(against or ())])
    from fanin.emulation.report import write_report

    record = read_run(files)
    if against:
        from fanin.emulation.report.comparing import compared

        record = compared(record, read_run(against), (called[0], called[1]))
    for path in write_report(record, html, png):
        print(path)


def read_run(files: list[Path]) -> RunRecord:
    """The record that one file has, or that is made of the files of a job's ranks."""
    if len(files) == 1 and not is_timeline(files[0]):
        from fanin.records.record import RunRecord

        return RunRecord.read(files[0])
    from fanin.emulation.tracing.records import record_of_files

    return record_of_files(files, output.command_line())


def is_timeline(file: Path) -> bool:
    """Whether the first line is one of FANIN_TIMELINE's."""
    try:
        with file.open("rb") as opened:
            first = json.loads(opened.readline(MAX_FIRST_LINE_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and first.get("kind") == "start"
