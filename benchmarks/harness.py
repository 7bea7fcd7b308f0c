"""Common parts of all benchmarks: ranks that report, tables, files of results. The package's docstring shows use."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from fanin.emulation.announced import announced, reports_of
from fanin.emulation.figures import FigureTable, milliseconds
from fanin.emulation.network.switch_place import OWN, SwitchPlace
from fanin.emulation.network.topology import Link, Topology
from fanin.emulation.processes import LocalJob
from fanin.emulation.report import publish
from fanin.errors import ConfigurationError, FaninError
from fanin.records.dataclass_files import write_rows
from fanin.records.record import Scalar
from fanin.records.recording import Beginning, finished
from fanin.settings import words_of

UNUSABLE = "unusable"
"""Key of a report that holds the reason why a rival does not run."""
DEVICES = ("cpu", "cuda")

Report = dict[str, Any]
"""A JSON object that a rank printed, with the key `rank`."""
Cell = str | Callable[[Any], str]
"""How to make a cell's text from a row: a function, or `attribute:format`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Destinations of a benchmark's results."""

    console: Console = field(default_factory=Console)
    json: Path | None = None
    """File for the rows, as a JSON list."""
    record: Path | None = None
    """File for the run's record."""
    html: Path | None = None
    """File for the page; None: the default path."""
    command: str = ""
    """The command line as the user typed it."""
    began: Beginning = field(default_factory=Beginning)
    notes: list[str] = field(default_factory=list)
    """Remarks for the record, which follow those that `publish` is given."""

    def show(self, rows: Sequence[Any], *tables: RenderableType) -> None:
        """Print the tables, and write the rows, which are dataclasses, to `json`, if given."""
        for each in tables:
            self.console.print(each)
        if self.json is not None:
            write_rows(self.json, rows)

    def say(self, line: str) -> None:
        """Print a line without markup."""
        self.console.print(line, markup=False, highlight=False)

    def note(self, line: str) -> None:
        """Print a remark, and keep it for the record."""
        self.notes.append(line)
        self.console.print(line)

    def say_unusable(self, unusable: Mapping[str, str]) -> None:
        """Print a line with the reason for every rival that does not run here."""
        for label, reason in unusable.items():
            self.say(f"{label} did not run: {reason}")

    def publish(
        self, title: str, settings: Mapping[str, Scalar], *, notes: Sequence[str] = (), **measured: Any
    ) -> None:
        """Write the record and the page. `measured`: arguments of `recording.finished`, such as `rows`."""
        run = finished(
            self.began,
            kind="bench",
            title=title,
            command=self.command,
            settings=settings,
            notes=(*notes, *self.notes),
            **measured,
        )
        if self.record is not None:
            run.write(self.record)
        publish(run, self.html, self.console)


def require_device(device: str) -> None:
    """Raise ConfigurationError if PyTorch has no such device on this machine."""
    if device == "cuda":
        import torch  # only for cuda: in other runs this process leaves torch to the ranks

        if not torch.cuda.is_available():
            raise ConfigurationError("device = 'cuda', and PyTorch sees no CUDA device here. Remedy: --device cpu")


# --- ranks ---


def reports(
    output: Output,
    words: str,
    workers: int,
    module: str,
    asked: Any,
    *,
    link: Link | None = None,
    switch_at: SwitchPlace = OWN,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Report]:
    """Run `module` on every rank with the dataclass `asked` as its command line; yield the ranks' reports as they come.

    With `link`, there is one rank per host, over links like it, with the switch at `switch_at`; with None all ranks are
    on this machine, without links. `words` and the ranks' progress are shown meanwhile.
    """
    arguments, environment = words_of(asked), environment or {}
    with ExitStack() as stack:
        if link is None:
            job = LocalJob(module, arguments, workers, environment)
        else:
            from fanin.emulation.network.fabric import Fabric
            from fanin.emulation.network.placed_job import placed_job
            from fanin.emulation.network.switches import Switches

            fabric = stack.enter_context(Fabric(Topology(workers=workers, link=link, switch_at=switch_at)))
            stack.enter_context(Switches(fabric, "native", fabric.folder))
            job = placed_job(fabric, module, arguments, environment)
        yield from reports_of_job(output, words, job)


def reports_of_job(output: Output, words: str, job: LocalJob) -> Iterator[Report]:
    """Run a job to its end, show `words` and its progress, and yield its ranks' reports."""
    with announced(output.console, words) as tell, job:
        for rank, record in reports_of(job, tell):
            yield {**record, "rank": rank}


def by(found: Iterable[Report], *keys: str) -> dict[Any, list[Report]]:
    """Group reports by the value of a key, or by the tuple of the values of several keys."""
    groups: dict[Any, list[Report]] = defaultdict(list)
    for report in found:
        values = tuple(report[key] for key in keys)
        groups[values if len(keys) > 1 else values[0]].append(report)
    return groups


def slowest(found: Iterable[Mapping[str, Any]]) -> list[float]:
    """By sample, the slowest rank's time (`seconds`, equally many per rank): a collective ends with its last rank."""
    return [max(each) for each in zip(*(report["seconds"] for report in found), strict=True)]


def explained_error(what: str, found: Iterable[Mapping[str, Any]], tolerated: float) -> float:
    """Largest `max_error` of any rank; FaninError if it exceeds `tolerated`."""
    error: float = max(report["max_error"] for report in found)
    if not error <= tolerated:
        raise FaninError(f"{what}: an error of {error:.3g} where at most {tolerated:.3g} is explained")
    return error


def alike(what: str, found: Sequence[Mapping[str, Any]], key: str) -> None:
    """Raise FaninError if ranks report different values of `key`, such as checksums of results."""
    if any(report[key] != found[0][key] for report in found):
        raise FaninError(f"{what}: the ranks got different results. Remedy: please report this with the command")


def busy(found: Iterable[Mapping[str, Any]]) -> float | None:
    """Load of the processors by the first report that has it, since all ranks share the machine; None if none has."""
    return next((report["processor"] for report in found if report.get("processor") is not None), None)


def median_ratio(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> float | None:
    """Median time of `theirs` over that of `ours`: above 1, ours is faster. None if `theirs` did not run."""
    return statistics.median(slowest(theirs)) / statistics.median(slowest(ours)) if theirs else None


def usable(found: Iterable[Report], unusable: dict[str, str]) -> Iterator[Report]:
    """Yield the reports of rivals that run here; the reasons of the others go to `unusable`, by label."""
    for report in found:
        if UNUSABLE in report:
            unusable[report["rival"]] = report[UNUSABLE]
        else:
            yield report


# --- tables ---


def table(
    title: str,
    rows: Iterable[Any],
    columns: Sequence[tuple[str, Cell]],
    *,
    left: Sequence[str] = (),
    section: Callable[[Any], str] | None = None,
    caption: str = "",
) -> FigureTable:
    """A table with a line per row. `columns`: (heading, cell).

    A cell is a function of the row, or `attribute:format`, empty for None: `to_gloo:.2f`, `at_s:{:.1f} s`,
    `median_s:ms` (milliseconds in 4 digits; `ms3`: in 3 digits, `ms0`: whole ones). `left`: headings of further columns
    that hold words. `section` returns a heading, which is printed above the rows that share it.
    """
    found = FigureTable(title, [heading for heading, _ in columns], left=left)
    over = None
    for row in rows:
        if section is not None and section(row) != over:
            over = section(row)
            found.add_section(over)
        found.add(*(_text(cell, row) for _, cell in columns))
    found.caption = caption
    return found


def _text(cell: Cell, row: Any) -> str:
    if not isinstance(cell, str):
        return cell(row)
    name, _, form = cell.partition(":")
    value = getattr(row, name)
    if value is None:
        return ""
    if form == "ms0":
        return f"{value * 1e3:.0f}"
    if form.startswith("ms"):
        return milliseconds(value, int(form[2:] or 4))
    return form.format(value) if "{" in form else format(value, form)
