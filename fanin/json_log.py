"""The log as JSON lines, where FANIN_LOG asks for it: an object per record of the logger `fanin` and those below it.

    FANIN_LOG=json            records of level INFO and above, on standard error
    FANIN_LOG=json:WARNING    of that level and above
    FANIN_LOG=json:DEBUG:log-%r.jsonl    into a file of each rank

| field | is |
|---|---|
| `time` | ISO 8601 with microseconds, UTC |
| `level` | `DEBUG`, `INFO`, `WARNING` or `ERROR` |
| `event` | the record's text before its values are filled in: the same for all records of a kind |
| `values` | these values, in order; texts and finite numbers as they are, everything else as text |
| `message` | the text with its values |
| `rank`, `group`, `job` | of this process in its world's group; null before it has met the others |
| `logger`, `process` | the logger's name, and `host:pid` |
| `error` | with an exception only: its traceback |
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import socket
import sys
from collections.abc import Mapping
from datetime import datetime, timezone

from fanin import files
from fanin.errors import ConfigurationError

VARIABLE = "FANIN_LOG"
FORM = "json"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
DEFAULT_LEVEL = "INFO"
RANK_VARIABLE = "RANK"
"""Variable of torchrun: the rank for a file's name where the caller knows none."""
log = logging.getLogger("fanin")


class JsonLines(logging.Formatter):
    """Writes records as the table above says."""

    def __init__(self) -> None:
        super().__init__()
        self.rank: int | None = None
        self.group: str | None = None
        self.job: str | None = None
        self._host = socket.gethostname()

    def format(self, record: logging.LogRecord) -> str:
        """One object, on one line."""
        given = record.args if isinstance(record.args, tuple) else () if record.args is None else (record.args,)
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "event": str(record.msg),
            "values": [each if _is_json(each) else str(each) for each in given],
            "message": record.getMessage(),
            "rank": self.rank,
            "group": self.group,
            "job": self.job,
            "logger": record.name,
            "process": f"{self._host}:{os.getpid()}",
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, allow_nan=False)


class _File(logging.FileHandler):
    """A file of which it is said once that it cannot be written; logging prints a traceback for each record."""

    def __init__(self, name: str) -> None:
        super().__init__(name, encoding="utf-8")
        self._told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Take the exception that a record has met."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._told and sys.stderr is not None:
            self._told = True
            with contextlib.suppress(OSError):
                print(f"{VARIABLE}: {_refusal(self.baseFilename, error)}", file=sys.stderr)


def _refusal(name: str, error: OSError) -> str:
    return f"{files.name(name)} cannot be written: {files.in_words(error)}"


def _is_json(value: object) -> bool:
    """Whether JSON can hold the value as it is: NaN and infinities it cannot."""
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, str | int | None)


_lines: JsonLines | None = None


def configure(environment: Mapping[str, str], rank: int | None = None) -> None:
    """Set the log up as FANIN_LOG says, once in a process. `rank`: replaces `%r` in names of files; None: RANK's value.

    ConfigurationError for a value that is none of those above, or a file that cannot be written.
    """
    global _lines
    text = environment.get(VARIABLE, "")
    if not text or _lines is not None:
        return
    form, _, rest = text.partition(":")
    level, _, path = rest.partition(":")
    level = level.upper() or DEFAULT_LEVEL
    if form != FORM or level not in LEVELS:
        raise ConfigurationError(
            f"{VARIABLE}={text!r}: expected json, json:LEVEL or json:LEVEL:FILE, with LEVEL one of {', '.join(LEVELS)}",
            VARIABLE,
        )
    handler = _file(path, environment, rank) if path else logging.StreamHandler(sys.stderr)
    _lines = JsonLines()
    handler.setFormatter(_lines)
    log.addHandler(handler)
    log.setLevel(level)
    log.propagate = False  # else a program's own handlers would print every line once more


def identify(rank: int, group: str, job: str) -> None:
    """Write this rank, group and job into every line from now on."""
    if _lines is not None:
        _lines.rank, _lines.group, _lines.job = rank, group, job


def _file(path: str, environment: Mapping[str, str], rank: int | None) -> logging.Handler:
    name = path.replace("%r", environment.get(RANK_VARIABLE, "0") if rank is None else str(rank))
    try:
        return _File(name)
    except OSError as error:
        raise ConfigurationError(f"{VARIABLE}: {_refusal(name, error)}") from None
