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
    """A time in milliseconds with `digits` digits, or all digits before the point if these are more: `4.567`, `12,890`.
    Empty for None.
    """
    if seconds is None:
        return ""
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 10 ** (digits - 1) else f"{value:.{digits}g}"


class FigureTable:
    """A table of lines under headings; the first column, which names the line, is left-aligned, figures right-aligned.

    Cells are shown as plain text: they may come from a program, so nothing in them is read as markup.
    """

    def __init__(self, title: str | Text, headings: Sequence[str], *, left: Sequence[str] = ()) -> None:
        """`left`: further headings whose columns hold words and are left-aligned."""
        self.title = title if isinstance(title, Text) else Text(title, style="italic")
        self.headings = tuple(headings)
        self.caption = ""
        self._left = {self.headings[0], *left}
        self._lines: list[tuple[Text, ...] | str] = []

    def add(self, *cells: str | Text) -> None:
        """Add a line with one cell per heading."""
        assert len(cells) == len(self.headings)
        self._lines.append(tuple(cell if isinstance(cell, Text) else Text(cell) for cell in cells))

    def add_section(self, name: str) -> None:
        """Add a heading above the lines that follow."""
        self._lines.append(name)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield self.title
        table = self._table()
        # The width at which nothing is cut, measured with more room than any table needs.
        wanted = Measurement.get(console, options.update(max_width=10_000), table).maximum
        shown = table if wanted <= options.max_width else self._list()
        # With soft_wrap the console would crop indented lines to its width, so lines are folded here.
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
