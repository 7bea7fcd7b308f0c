"""Checks of the output files that options name, before the worker joins: later, the others would lose a rank by one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fanin.errors import ConfigurationError
from fanin.faults import FaultSchedule
from fanin.files import name
from fanin.options import ENVIRONMENT_PREFIX, Options

OUTPUTS = ("pcap", "timeline", "trace")
STANDARD_ERROR = "-"
OF_A_JOB = ("metrics", "pcap", "trace")
"""Options that show a job's packets and sums: a rank that is alone in its world has neither."""


def check_outputs(options: Options, rank: int) -> None:
    """Raise ConfigurationError, with rank and path, for an output file that cannot be written."""
    for option in OUTPUTS:
        given = getattr(options, option)
        if given is None or given == STANDARD_ERROR:
            continue
        path = Path(given.replace("%r", str(rank)))
        folder = path.absolute().parent
        if not folder.is_dir():
            wrong = f"there is no folder {name(folder)}"
        elif path.is_dir():
            wrong = "it is a folder"
        elif not os.access(path if path.exists() else folder, os.W_OK):
            wrong = "permission denied"
        else:
            continue
        variable = ENVIRONMENT_PREFIX + option.upper()
        raise ConfigurationError(
            f"rank {rank}: {variable}={name(given)}: {wrong}. Remedy: name a file in a folder of yours"
        )


def flight_recorder_file(prefix: str, rank: int) -> Path:
    """The path of a rank's file of the flight recorder; ConfigurationError where it cannot be written."""
    path = Path(f"{prefix}{rank}")
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or path.is_dir():
        raise ConfigurationError(
            f"rank {rank}: FANIN_FLIGHT_RECORDER={name(prefix)}: {name(path)} cannot be written. "
            "Remedy: name a folder of yours and the beginning of a file's name, as in /tmp/fanin_rank_"
        )
    return path


def without_effect_alone(options: Options) -> Iterator[str]:
    """Variables of the options that have values and do nothing at a rank that is alone in its world.

    FANIN_TIMELINE is not among them: steps are written, and a rank is killed at its step (`kill=worker:0@step:40`).
    """
    for option in OF_A_JOB:
        if getattr(options, option) is not None:
            yield ENVIRONMENT_PREFIX + option.upper()
    if FaultSchedule.parse(options.faults or "").packets is not None:
        yield f"{ENVIRONMENT_PREFIX}FAULTS"
    if options.on_nonfinite != "warn":
        yield f"{ENVIRONMENT_PREFIX}ON_NONFINITE"
