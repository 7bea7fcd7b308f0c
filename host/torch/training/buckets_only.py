"""The argument of a communication hook: a bucket of gradients, or with a reducer of DDP's in Python something else.

With torch._dynamo.config.optimize_ddp = "python_reducer" there are no buckets: a hook is called for every parameter
with a tuple of gradient and parameter, and what it returns is dropped. Which gradients belong together, their order and
the last one of a step, on which residuals and codecs depend, cannot be told from that.
"""

from __future__ import annotations

from typing import Any

from fanin.errors import UnsupportedError


def require_bucket(hook: str, bucket: Any) -> None:
    """Raise UnsupportedError, with the remedy, where `bucket` is not a bucket of gradients."""
    if isinstance(bucket, tuple):
        raise UnsupportedError(
            f"{hook} needs DDP's buckets, and torch._dynamo.config.optimize_ddp = 'python_reducer' calls hooks for "
            "single parameters. Remedy: leave optimize_ddp as it is by default, or train without this hook; "
            "fanin.Options(lanes=8), or FANIN_LANES=8, narrows the lanes of all sums there, too"
        )
