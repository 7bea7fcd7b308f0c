"""Functions are called where a program ends, after those that the program itself has registered with atexit.

`atexit` calls the youngest function first. The backend's modules are imported by `init_process_group`, so a function
that a program registers before it would find groups that have left their jobs. `import torch` imports this module.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable

_ENDINGS = contextlib.ExitStack()
atexit.register(_ENDINGS.close)


def at_end(ending: Callable[[], None]) -> None:
    """Call `ending` where the program ends; endings that were given later are called earlier, as by atexit."""
    _ENDINGS.callback(ending)
