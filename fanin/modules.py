"""Command lines that run a module of fanin's in another process, whatever lies in the folder where it starts.

`python -m` looks into the working folder first: a `queue.py` or `random.py` of the user's would be taken for Python's,
and the sources in a clone for what is installed. `-P` (Python 3.11) and `-I` (which leaves out PYTHONPATH, too) are no
remedy: the folder is taken off the path instead, before anything but `sys` is imported.
"""

from __future__ import annotations

import sys

WITHOUT_FOLDER = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); sys.argv.pop(0); "
    "import runpy; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
"""Program for `python -c`; the module's name is its first argument. Where PYTHONSAFEPATH is set, the path has no ''."""


def running(module: str, *arguments: str, python: str | None = None) -> list[str]:
    """The command line of `module` with its `arguments`; `python` is the interpreter, by default this process's."""
    return [python or sys.executable, "-c", WITHOUT_FOLDER, module, *arguments]
