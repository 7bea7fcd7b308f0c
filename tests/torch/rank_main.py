"""One rank of a test job: runs every `check_*` of some modules in order and writes what happened to each.

Started by tests/torch/job.py as `python -m tests.torch.rank_main MODULE,... OUT.json`, with torch's usual environment
(RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT). A check is a function of (rank, size); a failure is kept as its traceback
and the next check runs, so that one launch tells about all of them.
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


def main() -> None:
    """Run the checks of the modules named on the command line."""
    module_names, out = sys.argv[1:3]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    modules = [importlib.import_module(each) for each in module_names.split(",")]
    dist.init_process_group("fanin", timeout=timedelta(seconds=60))
    outcome = {}
    for name, check in [each for module in modules for each in vars(module).items()]:
        if name.startswith("check_"):
            try:
                check(rank, size)
                outcome[name] = "ok"
            except Exception:
                outcome[name] = traceback.format_exc()
            Path(out).write_text(json.dumps(outcome))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
