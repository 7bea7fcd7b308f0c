"""A file that keeps the outcome of each of many long runs, so that an interrupted benchmark continues where it was."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from fanin import files
from fanin.benchmarks.harness import Report
from fanin.errors import ConfigurationError
from fanin.records.dataclass_files import load_json, read_dataclass
from fanin.settings import Text

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class OutcomeOf(Protocol[R_co]):
    """A dataclass that holds a run's outcome, and names the run."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def run(self) -> R_co:
        """The run as a frozen dataclass, with everything that the outcome depends on."""


Brought = TypeVar("Brought", bound=OutcomeOf[Any])


class Kept(Generic[R, Brought]):
    """Outcomes by run; if there is a path, the file is written after every run."""

    def __init__(self, path: Path | None, kind: type[Brought]) -> None:
        """Read `path`, if it exists; ConfigurationError if it holds something else."""
        self._path = path
        self._found: dict[R, Brought] = {}
        if path is not None and path.exists():
            body = load_json(path, "the runs")
            if not isinstance(body, list):
                raise ConfigurationError(f"{files.name(path)} is no list of runs. Remedy: name a new file")
            for number, each in enumerate(body):
                outcome = read_dataclass(each, kind, f"{files.name(path)}: run {number}")
                self._found[outcome.run] = outcome

    def __getitem__(self, run: R) -> Brought:
        return self._found[run]

    def missing(self, runs: Iterable[R]) -> list[R]:
        """The runs without an outcome."""
        return [run for run in runs if run not in self._found]

    def collect(
        self,
        found: Iterable[Report],
        runs: Sequence[R],
        ranks: int,
        outcome_of: Callable[[R, list[Report]], Brought],
        key: str,
    ) -> Iterator[Report]:
        """Keep the outcome of each run once `ranks` ranks have reported it; `key` holds the run's index in `runs`.
        Yields all other reports.
        """
        said: dict[int, list[Report]] = defaultdict(list)
        for report in found:
            if key not in report:
                yield report
                continue
            number = report[key]
            said[number].append(report)
            if len(said[number]) == ranks:
                self.add(outcome_of(runs[number], said[number]))

    def add(self, outcome: Brought) -> None:
        """Keep an outcome, and write the file."""
        self._found[outcome.run] = outcome
        if self._path is not None:
            text = json.dumps([dataclasses.asdict(each) for each in self._found.values()]) + "\n"
            files.write(self._path, text, "the runs")


def runs_as_text(kind: type[Any]) -> Text:
    """The text form of a field of runs, which are flat dataclasses: a JSON list."""
    return Text(
        lambda _, text: tuple(kind(**each) for each in json.loads(text)),
        lambda runs: json.dumps([dataclasses.asdict(run) for run in runs]),
    )
