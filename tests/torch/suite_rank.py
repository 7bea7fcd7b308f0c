"""One rank of PyTorch's own distributed test suite, on fanin: `python -m tests.torch.suite_rank OUT.jsonl TEST...`.

The suite (torch.testing._internal.distributed.distributed_test) ships in the wheel. It starts processes anew for every
test; here they stay, and only the process group is made anew. The suite is told that the backend is gloo, since what it
expects of gloo is what fanin promises; groups are made with fanin all the same.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1]).resolve().parent
"""Folder of OUT.jsonl, which has to be new: the files through which ranks meet lie in it, and outlive the run."""
os.environ["TEMP_DIR"] = str(FOLDER)
os.environ["BACKEND"] = "gloo"

import torch  # noqa: E402 - the suite reads its environment when it is imported
import torch.distributed as dist  # noqa: E402
from torch._C import _distributed_c10d as c10d  # noqa: E402
from torch.testing._internal.distributed import distributed_test as suite  # noqa: E402

TIMEOUT = timedelta(seconds=40)
INIT = dist.init_process_group


def init_with_fanin(backend: str | None = None, **given: Any) -> None:
    """Replace the function with which tests make the world anew."""
    INIT(backend.replace("gloo", "fanin") if backend else backend, **given)


class FaninSuite(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    """PyTorch's own tests over fanin."""


def run(name: str, rank: int, size: int, index: int) -> str:
    """Run one test on this rank: ok, skipped or a traceback."""
    os.environ["TEMP_DIR"] = str(FOLDER / f"{index}")
    for folder in ("barrier", "init_dir", "test_dir"):
        (FOLDER / f"{index}" / folder).mkdir(parents=True, exist_ok=True)
    suite.Barrier.barrier_id = 0
    c10d.set_debug_level(c10d.DebugLevel.OFF)  # tests leave their own behind
    torch.manual_seed(0)
    case: Any = FaninSuite(name)
    case.rank, case.file_name = rank, str(FOLDER / f"{index}" / "rendezvous")
    suite.INIT_METHOD = f"file://{FOLDER / str(index) / 'second_rendezvous'}"
    store = c10d.FileStore(case.file_name, size)
    try:
        INIT("fanin", store=store, world_size=size, rank=rank, timeout=TIMEOUT)
        case._barrier()
        getattr(case, name)()
        case._barrier()
    except unittest.SkipTest as skip:
        return f"skipped: {skip}"
    except SystemExit as left:
        return f"skipped: exit {left.code}"
    except Exception:
        return traceback.format_exc()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return "ok"


def main() -> None:
    """Run the tests named on the command line (all of the suite's if none is)."""
    out, *names = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group = init_with_fanin  # type: ignore[assignment]
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    names = names or [name for name in sorted(dir(FaninSuite)) if name.startswith("test_")]
    store = c10d.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        size,
        is_master=rank == 0,
        timeout=timedelta(seconds=120),
    )
    os.environ.pop("MASTER_PORT")  # tests that want one choose their own
    for index, name in enumerate(names):
        store.set(f"ready-{index}-{rank}", "")
        store.wait([f"ready-{index}-{peer}" for peer in range(size)])
        started_s = time.monotonic()
        outcome = run(name, rank, size, index)
        with Path(out).open("a") as report:
            print(json.dumps([name, outcome, round(time.monotonic() - started_s, 1)]), file=report)


if __name__ == "__main__":
    main()
