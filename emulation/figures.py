"""Tables of figures for terminals: as a table where it fits, as a list of lines where the terminal is too narrow.

rich by itself shortens headings to `median ...` where a table does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

INDENT = 2


def milliseconds(seconds: float | None, digits: int = 4) -> str:
    """Of a time in seconds, in so many digits, and all before the point where there are more: `4.567`, `12,890`.

    Empty where none was measured.
    """
    if seconds is None:
        return ""
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


class FigureTable:
    """Lines of cells under headings; the first column names the line and stands to the left, figures to the right.

    Texts are shown as they are: they may be a program's, so nothing in them is markup.
    """

    def __init__(self, title: str | Text, headings: Sequence[str], *, left: Sequence[str] = ()) -> None:
        """`left`: headings of further columns that hold words."""
        self.title = title if isinstance(title, Text) else Text(title, style="italic")
        self.headings = tuple(headings)
        self.caption = ""
        self._left = {self.headings[0], *left}
        self._lines: list[tuple[Text, ...] | str] = []

    def add(self, *cells: str | Text) -> None:
        """A line, with a cell per heading."""
        assert len(cells) == len(self.headings)
        self._lines.append(tuple(cell if isinstance(cell, Text) else Text(cell) for cell in cells))

    def add_section(self, name: str) -> None:
        """A heading of its own over the lines that follow."""
        self._lines.append(name)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield self.title
        table = self._table()
        # What it would take if nothing had to be cut: measured at a width that no table needs.
        wanted = Measurement.get(console, options.update(max_width=10_000), table).maximum
        shown = table if wanted <= options.max_width else self._list()
        # Where a console leaves long lines to the terminal (soft_wrap), what is indented would be cropped to its width.
        yield from console.render(shown, options.update(no_wrap=False, overflow="fold"))
        if self.caption:
            yield Text(self.caption)

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE, padding=(0, 0), pad_edge=False, show_edge=False)
        for heading in self.headings:
            justify = "left" if heading in self._left else "right"
            table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
        for line in self._lines:
            if isinstance(line, str):
                table.add_section()
                table.add_row(Text(line, style="bold"))
            else:
                table.add_row(*line)
        return table

    def _list(self) -> RenderableType:
        parts: list[RenderableType] = []
        for line in self._lines:
            if isinstance(line, str):
                parts.append(Text(line, style="bold"))
                continue
            name = line[0].copy()
            name.stylize("bold")
            parts.append(Text.assemble(f"{self.headings[0]} " if self.headings[0] else "", name))
            cells = zip(self.headings[1:], line[1:], strict=True)
            filled = [Text.assemble(f"{heading} ", cell) for heading, cell in cells if cell.plain.strip()]
            parts.append(Padding(Text("; ").join(filled), (0, 0, 0, INDENT)))
        return Group(*parts)
