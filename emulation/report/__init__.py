"""The report of a run: one HTML page that needs nothing but itself, and its plots as PNG.

    write_report(record, Path("report.html"))                  # needs the `plot` extra: matplotlib and Jinja2

Every `fanin emulate` and `fanin bench` ends with one (`publish`); `fanin report RECORD.json --html FILE` makes it again
from a saved record. A report is a function of its record: what was not measured is not on the page.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from rich.console import Console

from fanin import files
from fanin.emulation.record import RunRecord
from fanin.errors import ConfigurationError, FaninError

DEFAULT_PAGE = Path("fanin-report.html")
"""Of a run that was not told where; the next run's replaces it."""
NEEDED = ("matplotlib", "jinja2")


def write_report(record: RunRecord, html: Path, png_folder: Path | None = None) -> list[Path]:
    """Write the page, and a PNG per plot into `png_folder` if given; returns what was written.

    ConfigurationError without the `plot` extra, FaninError for a path that cannot be written.
    """
    check_available()
    from fanin.emulation.report.page import plots_of, render

    plots = plots_of(record)
    written = [html]
    try:
        files.write(html, render(record, plots), "the report")
        if png_folder is not None:
            png_folder.mkdir(parents=True, exist_ok=True)
            for plot in plots:
                written.append(png_folder / f"{plot.key}.png")
                written[-1].write_bytes(plot.png())
    except OSError as error:
        raise FaninError(f"the report's plots cannot be written: {error.filename}: {files.in_words(error)}") from None
    return written


def publish(record: RunRecord, html: Path | None, console: Console) -> None:
    """Write the page of a run that has ended, and say where. None: to DEFAULT_PAGE, or, without the extra, nowhere."""
    try:
        write_report(record, html or DEFAULT_PAGE)
    except FaninError as error:
        if html is not None:
            raise
        console.print(f"no report: {error}", markup=False, highlight=False)
        return
    console.print(f"report: {html or DEFAULT_PAGE}", markup=False, highlight=False)


def check_available() -> None:
    """ConfigurationError when a report cannot be made here. For before a long run, not after it."""
    for module in NEEDED:
        if importlib.util.find_spec(module) is None:
            raise ConfigurationError(f"a report needs {module}: pip install 'fanin[plot]'")
