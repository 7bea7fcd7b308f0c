"""Common parts of all benchmarks: ranks that report, tables, and the files of results. Use: the package's docstring."""

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
from fanin.emulation.dataclass_files import write_rows
from fanin.emulation.figures import FigureTable, milliseconds
from fanin.emulation.network.switch_place import OWN, SwitchPlace
from fanin.emulation.network.topology import Link, Topology
from fanin.emulation.processes import LocalJob
from fanin.emulation.record import Scalar
from fanin.emulation.recording import Beginning, finished
from fanin.emulation.report import publish
from fanin.errors import ConfigurationError, FaninError
from fanin.settings import words_of

UNUSABLE = "unusable"
"""Key of a report that says why a rival does not run."""
DEVICES = ("cpu", "cuda")

Report = dict[str, Any]
"""One JSON object that a rank printed, with its `rank`."""
Cell = str | Callable[[Any], str]
"""Text of a cell from a row: a function, or `attribute:format`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Destinations of a benchmark's results."""

    console: Console = field(default_factory=Console)
    json: Path | None = None
    """File for the rows."""
    record: Path | None = None
    """File for the run's record."""
    html: Path | None = None
    """File for the page; None: the default one."""
    command: str = ""
    """The command line, as it was typed."""
    began: Beginning = field(default_factory=Beginning)
    notes: list[str] = field(default_factory=list)
    """Remarks that the record has, after those that `publish` is given."""

    def show(self, rows: Sequence[Any], *tables: RenderableType) -> None:
        """Print the tables, and write the rows, which are dataclasses, as a JSON list."""
        for each in tables:
            self.console.print(each)
        if self.json is not None:
            write_rows(self.json, rows)

    def say(self, line: str) -> None:
        """Print a line as it is."""
        self.console.print(line, markup=False, highlight=False)

    def note(self, line: str) -> None:
        """Print a remark, which the record keeps."""
        self.notes.append(line)
        self.console.print(line)

    def say_unusable(self, unusable: Mapping[str, str]) -> None:
        """Print a line for every rival that did not run here."""
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
    """ConfigurationError where PyTorch sees no such device on this machine."""
    if device == "cuda":
        import torch  # the ranks do so anyway, and this process need not wait for it

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
    """Run `module` on every rank with the command line of the dataclass `asked`; yield the ranks' reports as they come.

    One rank per host over links like `link`, with the switch at `switch_at`; None: this machine, without links. `words`
    and the ranks' progress are shown meanwhile.
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
    """Run a job to its end, and yield what its ranks report."""
    with announced(output.console, words) as tell, job:
        for rank, record in reports_of(job, tell):
            yield {**record, "rank": rank}


def by(found: Iterable[Report], *keys: str) -> dict[Any, list[Report]]:
    """The reports in groups, by the value of a key, or by a tuple of the values of several."""
    groups: dict[Any, list[Report]] = defaultdict(list)
    for report in found:
        values = tuple(report[key] for key in keys)
        groups[values if len(keys) > 1 else values[0]].append(report)
    return groups


def slowest(found: Iterable[Mapping[str, Any]]) -> list[float]:
    """The slowest rank's time of each sample (`seconds`, as many from every rank): a collective ends with its last."""
    return [max(each) for each in zip(*(report["seconds"] for report in found), strict=True)]


def explained_error(what: str, found: Iterable[Mapping[str, Any]], tolerated: float) -> float:
    """The largest `max_error` of any rank; FaninError where it is larger than can be explained."""
    error: float = max(report["max_error"] for report in found)
    if not error <= tolerated:
        raise FaninError(f"{what}: an error of {error:.3g} where at most {tolerated:.3g} is explained")
    return error


def alike(what: str, found: Sequence[Mapping[str, Any]], key: str) -> None:
    """FaninError where ranks differ in what they report under `key`, such as checksums of results."""
    if any(report[key] != found[0][key] for report in found):
        raise FaninError(f"{what}: the ranks got different results")


def busy(found: Iterable[Mapping[str, Any]]) -> float | None:
    """Load of the processors, as the first rank that knows it saw it; all ranks share the machine."""
    return next((report["processor"] for report in found if report.get("processor") is not None), None)


def median_ratio(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> float | None:
    """The median time of `theirs` over that of `ours`: above 1, ours is faster. None where they did not run."""
    return statistics.median(slowest(theirs)) / statistics.median(slowest(ours)) if theirs else None


def usable(found: Iterable[Report], unusable: dict[str, str]) -> Iterator[Report]:
    """Reports of rivals that run here; why others do not goes to `unusable`, by label."""
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
    """A table with a line per row. `columns`: headings, and each the cell's text.

    A cell is a function of the row, or `attribute:format`, empty for None: `to_gloo:.2f`, `median_s:ms` (milliseconds),
    `loss:{:.1f} s`. `left`: headings of further columns of words. `section`: a heading over rows that share it.
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
    if form.startswith("ms"):
        return milliseconds(value, int(form[2:] or 4))
    return form.format(value) if "{" in form else format(value, form)
