"""The files that a worker's options name, looked at before it joins: later, other ranks would have to do without it."""

from __future__ import annotations

import os
from pathlib import Path

from fanin.errors import ConfigurationError
from fanin.files import name
from fanin.options import ENVIRONMENT_PREFIX, Options

OUTPUTS = ("pcap", "timeline", "trace")
STANDARD_ERROR = "-"


def check_outputs(options: Options, rank: int) -> None:
    """ConfigurationError for one that cannot be written, with rank and path."""
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
