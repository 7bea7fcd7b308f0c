"""One rank of a test job: runs every `check_*` of some modules in order and writes what happened to each.

tests/torch/rank_checks.py starts it as `python -m tests.torch.rank_main MODULE,... OUT.json`, with torch's usual
environment (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). A check is a function of (rank, size). A failure is kept as
its traceback and the next check runs, so that one launch tells about all of them. After a check that failed on some
ranks alone no other one runs: the ranks may be at different collectives, and each check would fail as late as its
time-out.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.distributed_c10d import _get_default_store

OTHERS_TIMEOUT = timedelta(seconds=180)
"""How long a rank waits for the others' outcomes of a check: longer than a collective of theirs may take to fail."""


def main() -> None:
    """Run the checks of the modules named on the command line."""
    module_names, out = sys.argv[1:3]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    modules = [importlib.import_module(each) for each in module_names.split(",")]
    dist.init_process_group("fanin", timeout=timedelta(seconds=60))
    store = c10d.PrefixStore("outcomes", _get_default_store())
    outcome: dict[str, str] = {}
    parted = ""
    for name, check in [each for module in modules for each in vars(module).items()]:
        if name.startswith("check_"):
            try:
                if not parted:
                    check(rank, size)
                outcome[name] = parted or "ok"
            except Exception:
                outcome[name] = traceback.format_exc()
            Path(out).write_text(json.dumps(outcome))
            if not parted and not _agree(store, name, outcome[name] == "ok", rank, size):
                parted = f"did not run: {name} had failed on some ranks alone"
    dist.destroy_process_group()


def _agree(store: c10d.Store, check: str, passed: bool, rank: int, size: int) -> bool:
    """Whether the check passed on every rank, or failed on every rank."""
    store.set(f"{check}/{rank}", str(passed))
    keys = [f"{check}/{each}" for each in range(size)]
    store.wait(keys, OTHERS_TIMEOUT)
    return len(set(store.multi_get(keys))) == 1


if __name__ == "__main__":
    main()
