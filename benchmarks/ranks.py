"""The ranks' side of a benchmark: the command line that `harness.reports` gives them, and reports in JSON lines."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, TypeVar

from fanin import plugins
from fanin.emulation.process_output import print_object
from fanin.errors import FaninError
from fanin.settings import fields_of, settings_of

COLLECTIVE_TIMEOUT = timedelta(seconds=120)

Asked = TypeVar("Asked")


def asked_of(kind: type[Asked], description: str | None) -> Asked:
    """Parse this process's command line, which `settings.words_of` made of a dataclass, into that dataclass."""
    parser = argparse.ArgumentParser(description=description)
    for setting in settings_of(kind):
        parser.add_argument(
            f"--{setting.option}",
            dest=setting.field,
            type=str if setting.text is not None or setting.kind not in (int, float) else setting.kind,
            required=not setting.has_default,
        )
    return kind(**fields_of(kind, vars(parser.parse_args())))


@contextlib.contextmanager
def group_of_ranks(backend: str = "gloo", timeout: timedelta = COLLECTIVE_TIMEOUT) -> Iterator[tuple[int, int]]:
    """Run torch.distributed's world with one thread per rank, from entry to exit; yields rank and number of ranks.

    An exception out of another package's codec or policy becomes a FaninError that names the package.
    """
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timeout)
    try:
        yield dist.get_rank(), dist.get_world_size()
    except FaninError:
        raise
    except Exception as error:
        if (said := plugins.blamed(error)) is None:
            raise
        raise FaninError(said) from error
    dist.barrier()
    dist.destroy_process_group()


def report(record: dict[str, Any]) -> None:
    """Print a record, which `harness.reports` yields in the parent."""
    print_object(record)


def progress(words: str) -> None:
    """Report progress; only rank 0 does."""
    if os.environ.get("RANK") == "0":
        report({"progress": words})
