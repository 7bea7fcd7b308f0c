"""`fanin report`: the page of a run, from its saved record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fanin.cli import extras, output


def report(
    record: Annotated[Path, typer.Argument(help="What emulate or bench wrote with --record.")],
    html: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("report.html"),
    png: Annotated[Path | None, typer.Option(metavar="FOLDER", help="The plots as pictures, too.")] = None,
) -> None:
    """Draw a saved record again: one HTML page that needs nothing but itself."""
    extras.require("plot", "`fanin report`")
    output.check(html)
    from fanin.emulation.report import write_report
    from fanin.records.record import RunRecord

    for path in write_report(RunRecord.read(record), html, png):
        print(path)
