"""A file that keeps what each of many long runs brought, so that a benchmark goes on where it was interrupted."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from fanin import files
from fanin.emulation.dataclass_files import load_json, read_dataclass
from fanin.errors import ConfigurationError

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class OutcomeOf(Protocol[R_co]):
    """A dataclass that says of which run it is."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def run(self) -> R_co:
        """A frozen dataclass: everything that the outcome depends on."""


Brought = TypeVar("Brought", bound=OutcomeOf[Any])


class Kept(Generic[R, Brought]):
    """Outcomes, in a file where there is one: it is written after every run."""

    def __init__(self, path: Path | None, kind: type[Brought]) -> None:
        """ConfigurationError for a file that holds something else."""
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
        """The runs that are still to be done."""
        return [run for run in runs if run not in self._found]

    def add(self, outcome: Brought) -> None:
        """Keep it, in the file, too."""
        self._found[outcome.run] = outcome
        if self._path is not None:
            # The old file stays until the new one is whole.
            fresh = self._path.with_name(self._path.name + ".new")
            text = json.dumps([dataclasses.asdict(each) for each in self._found.values()]) + "\n"
            files.write(fresh, text, "the runs")
            os.replace(fresh, self._path)
