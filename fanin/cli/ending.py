"""How every command ends: one line that says what, where and the remedy, and the status that `--help` promises.

Rules
-----
* What a user, a network or a machine can bring about ends in one line on standard error. A traceback is for a bug of
  ours, and says so.
* The result is not lost to a terminal that lacks its characters: they are replaced.
* A command that runs many trials one after the other says, when it is interrupted, how many were done and what they
  have shown (`told_when_interrupted`).
* Output that could not be written, standard output included, is a failure: a pipeline must see it.

    status  when
    ------  -----------------------------------------------------------------------------------------------------------
    0       all went well
    1       it was tried, and failed
    2       nothing was tried: an option, argument, environment variable or file is illegal, a package is missing
    70      a bug of fanin's, with a traceback
    130     interrupted (Ctrl-C, SIGTERM, SIGHUP): processes that were started are ended, and temporary files removed
    141     whoever read the output is gone, as `head` is; nothing is said
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import typer

from fanin import files, plugins
from fanin.cli import extras
from fanin.errors import ConfigurationError, FaninError

DONE, FAILED, USAGE, BUG, INTERRUPTED, READER_GONE = 0, 1, 2, 70, 130, 141
PROMISED = {
    DONE: "all went well",
    FAILED: "it was tried and failed; one line says why, and the remedy",
    USAGE: "nothing was tried, since an option, argument, environment variable or file is illegal, or a package is "
    "missing",
    BUG: "a bug of fanin's, with a traceback",
    INTERRUPTED: "interrupted",
    READER_GONE: "whoever read the output is gone",
}
"""Every status with its meaning, as `--help` and docs/errors.md have them."""

_CLICK: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
"""Base of all that typer says about a command line; its module depends on typer's version."""


SIZES = ("COLUMNS", "LINES", "TERMINAL_WIDTH")
"""Variables from which rich and typer take a terminal's size; without columns they show nothing."""
ENDING = (signal.SIGTERM, signal.SIGHUP)


class ReaderGoneError(Exception):
    """Nobody reads standard output any more."""


class _Named(io.FileIO):
    """Standard output whose errors name it."""

    def write(self, data: Any) -> int:
        """Write as FileIO does; a reader that is gone raises ReaderGoneError."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise ReaderGoneError from None
        except OSError as error:
            raise OSError(error.errno, error.strerror, "standard output") from None


@contextlib.contextmanager
def past_typer() -> Iterator[None]:
    """Keep typer from two exceptions that it ends without a word: Ctrl-C, by some of its versions, and a broken pipe,
    which it takes for that of standard output.
    """
    try:
        yield
    except KeyboardInterrupt as interruption:
        raise typer.Abort(*interruption.args) from None
    except BrokenPipeError as error:
        raise FaninError(files.of_system(error)) from None


@contextlib.contextmanager
def told_when_interrupted(done: Callable[[], str]) -> Iterator[None]:
    """Within the block, an interruption is told with what `done` says then: how much of the work was done by then."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(done()) from None


def run(call: Callable[[], object]) -> int:
    """Call `call`, print what goes wrong, and return the exit status of the process."""
    try:
        status = _status(call)
        sys.stdout.flush()
        return status
    except BaseException as error:
        return _say(*explain(error), error)


def _status(call: Callable[[], object]) -> int:
    try:
        status = call()
    except SystemExit as end:
        status = FAILED if isinstance(end.code, str) else end.code
    return status if isinstance(status, int) else DONE


def explain(error: BaseException) -> tuple[int, str]:
    """Return status and message for the exception that ended a command; an empty message is not to be printed."""
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return INTERRUPTED, f"interrupted: {error}" if str(error) else "interrupted"
    if isinstance(error, _CLICK):
        return USAGE, _usage(error)
    if isinstance(error, ConfigurationError):
        return USAGE, str(error)
    if isinstance(error, FaninError):
        return FAILED, str(error)
    if isinstance(error, ModuleNotFoundError) and (remedy := extras.remedy(error.name)) is not None:
        return USAGE, f"this needs {error.name}. Remedy: {remedy}"
    if isinstance(error, ReaderGoneError):
        return READER_GONE, ""
    if isinstance(error, MemoryError):
        return FAILED, "out of memory. Remedy: ask for less, or use a machine with more"
    if isinstance(error, Exception) and (said := plugins.blamed(error)) is not None:
        return FAILED, said
    if isinstance(error, OSError):
        return FAILED, files.of_system(error)
    if isinstance(error, UnicodeEncodeError):
        text = files.name(error.object[error.start : error.end][: files.MAX_SHOWN])
        return FAILED, f"{text} cannot be written in {error.encoding}. Remedy: use a UTF-8 locale, as LC_ALL=C.UTF-8"
    if isinstance(error, RuntimeError) and _starts_no_thread(error):
        return FAILED, files.of_system(OSError(errno.EAGAIN, "no further thread can be started"))
    number = getattr(error, "errno", None)
    if type(error).__module__.startswith("zmq") and isinstance(number, int):  # a ZMQError is no OSError
        return FAILED, files.of_system(OSError(number, str(error)))
    return BUG, ""


def _starts_no_thread(error: RuntimeError) -> bool:
    """Whether the system has refused a thread: Python has no type for it, so the place where it was raised tells."""
    starts = threading.Thread.start.__code__
    return any(frame.f_code is starts for frame, _ in traceback.walk_tb(error.__traceback__))


def _usage(error: Any) -> str:
    """Typer's message about a command line, on one line."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":  # typer has printed the help
        return ""
    command = context.command_path if context is not None else "fanin"
    text = " ".join(str(error.format_message()).split()).rstrip(".")
    return f"{text}. Remedy: `{command} --help` says what can be given"


def _say(status: int, line: str, error: BaseException) -> int:
    """Print the line on standard error, which may itself be full or closed, and return the status."""
    _discard_output()
    try:
        if status == BUG:
            traceback.print_exception(error, file=sys.stderr)
            line = "this is a bug of fanin's: please report it with what is above"
        if line:
            print(f"fanin: {one_line(line)}", file=sys.stderr, flush=True)
    except (OSError, AttributeError, ValueError):
        pass  # nobody can be told; the status is what remains
    return status


def one_line(text: str) -> str:
    """`text` as one line that any terminal can show."""
    return "".join(letter if letter.isprintable() else " " for letter in text.replace("\n", "; "))


def _discard_output() -> None:
    """Write out standard output. Where that fails, discard the rest: Python, at its end, would try again, fail, and end
    with a status of its own.
    """
    try:
        sys.stdout.flush()
    except (OSError, ValueError, ReaderGoneError):
        if isinstance(getattr(sys.stdout.buffer, "raw", None), _Named):
            files.mute(1)


def prepare() -> None:
    """Prepare this process: SIGTERM and SIGHUP interrupt it as Ctrl-C does; its standard streams are open, standard
    output names itself in errors, and characters that the terminal lacks are replaced. A terminal's size in the
    environment that is none (`COLUMNS=0`) counts as unset.
    """
    for variable in SIZES:
        if not re.fullmatch(r"0*[1-9][0-9]{0,5}", os.environ.get(variable, "1")):
            del os.environ[variable]
    for number in ENDING:
        if signal.getsignal(number) == signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, _interrupt)
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # Closed, and must not become that of the next file that is opened. A result still fails to be written.
            opened = os.open(os.devnull, os.O_RDONLY if descriptor == 1 else os.O_RDWR)
            assert opened == descriptor
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    terminal = os.isatty(1)
    if sys.stdout is not None:
        sys.stdout.flush()
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Named(1, "wb", closefd=False)), encoding, "replace", line_buffering=terminal
    )
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Interrupt as Ctrl-C does, once; a second signal ends the process at once."""
    for each in ENDING:
        signal.signal(each, signal.SIG_DFL)
    raise KeyboardInterrupt
