"""Refuses communication hooks under DDP's reducer in Python, which calls them without buckets.

With torch._dynamo.config.optimize_ddp = "python_reducer", DDP calls a hook for every parameter, with a tuple of
gradient and parameter, and ignores its result. Residuals and codecs need more: the gradients that form a bucket, their
order, and the last one of a step. The hook cannot learn these from its calls.
"""

from __future__ import annotations

from typing import Any

from fanin.errors import UnsupportedError


def require_bucket(hook: str, bucket: Any) -> None:
    """Raise UnsupportedError, with a remedy, if `bucket` is not a bucket of gradients."""
    if isinstance(bucket, tuple):
        raise UnsupportedError(
            f"{hook} needs DDP's buckets, and torch._dynamo.config.optimize_ddp = 'python_reducer' calls hooks for "
            "single parameters. Remedy: leave optimize_ddp as it is by default, or train without this hook; "
            "fanin.Options(lanes=8), or FANIN_LANES=8, narrows the lanes of all sums there, too"
        )
