"""The report of a run: one self-contained HTML page, and its plots as PNG.

    write_report(record, Path("report.html"))                  # needs the `plot` extra: matplotlib and Jinja2

Every `fanin emulate` and `fanin bench` ends with one (`publish`); `fanin report RECORD.json --html FILE` makes it again
from a saved record. A report is a function of its record: what was not measured is not on the page.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from rich.console import Console

from fanin import files
from fanin.errors import ConfigurationError, FaninError
from fanin.records.record import RunRecord

DEFAULT_PAGE = Path("fanin-report.html")
"""Default path of the page; the next run's page replaces it."""
NEEDED = ("matplotlib", "jinja2")


class DrawingError(FaninError):
    """A valid record could not be drawn, because of a defect of ours or of a library."""


def write_report(record: RunRecord, html: Path, png_folder: Path | None = None) -> list[Path]:
    """Write the page, and a PNG per plot into `png_folder` if given; returns what was written.

    ConfigurationError without the `plot` extra, FaninError for a path that cannot be written; DrawingError where a part
    of the record cannot be drawn.
    """
    check_available()
    from fanin.emulation.report.page import plots_of, render

    try:
        plots = plots_of(record)
        page = render(record, plots)
    except Exception as error:  # whether ours, matplotlib's or the template's: it must not cost the caller the record
        raise DrawingError(
            f"the page cannot be drawn: {type(error).__name__}: {error}. Remedy: please report this"
        ) from error
    written = [html]
    files.write(html, page, "the report")
    if png_folder is not None:
        try:
            png_folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FaninError(f"the folder {files.name(png_folder)} cannot be made: {files.in_words(error)}") from None
        for plot in plots:
            written.append(png_folder / f"{plot.key}.png")
            files.write_bytes(written[-1], plot.png(), "the plot")
    return written


def publish(record: RunRecord, html: Path | None, console: Console) -> None:
    """Write the page of an ended run, and print its path. `html` None: DEFAULT_PAGE, or none without the extra or where
    it cannot be written, which a line says; FaninError for a page that was asked for.

    If the page cannot be drawn, the record is written instead, as JSON.
    """
    page = html or DEFAULT_PAGE
    if html is None and missing():
        return  # no page was asked for, so the user is not told what one would need (docs/report.md)
    try:
        write_report(record, page)
    except DrawingError as error:
        kept = page.with_suffix(".json")
        record.write(kept)
        console.print(f"no report: {error} with the record, {kept}", markup=False, highlight=False)
        return
    except FaninError as error:
        if html is not None:
            raise
        console.print(f"no report: {error}", markup=False, highlight=False)
        return
    console.print(f"report: {page.absolute()}", markup=False, highlight=False, soft_wrap=True)


def missing() -> str | None:
    """Name of the first module that a report needs and that is not installed, or None."""
    return next((module for module in NEEDED if importlib.util.find_spec(module) is None), None)


def check_available() -> None:
    """Raise ConfigurationError if no report can be made here; to be called before a long run."""
    if module := missing():
        raise ConfigurationError(f"a report needs {module}. Remedy: pip install 'fanin[plot]'")
