"""Files that a user names: read and written with errors that say which one, why not, and what to do."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from fanin.errors import ConfigurationError, FaninError

MAX_SHOWN = 60
MAX_BYTES = 1 << 28
"""Longest file that is read: a record of the longest run has some 30 MiB."""

REMEDIES = {
    errno.ENOSPC: "free space there, or name another place",
    errno.EDQUOT: "free space there, or name another place",
    errno.EFBIG: "raise `ulimit -f`, or name another place",
    errno.EROFS: "name a place that can be written",
    errno.EPIPE: "let its reader read to the end, or name a file",
    errno.EIO: "see what stands behind it, or name another place",
    errno.EMFILE: "raise `ulimit -n`",
    errno.ENFILE: "the whole system has too many open files: close some",
    errno.EACCES: "name something of yours, or run as a user who may",
    errno.EPERM: "name something of yours, or run as a user who may",
    errno.ENOENT: "correct the path",
    errno.ENOTDIR: "correct the path",
    errno.EISDIR: "name a file",
    errno.ELOOP: "correct the path",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EBADF: "leave standard output open, or send it to /dev/null",
    errno.ENOMEM: "free memory, or ask for less",
    errno.EAGAIN: "raise `ulimit -u`, or end other processes",
    errno.EADDRINUSE: "stop what uses it (`ss -lntup` shows that), or choose another port",
    errno.EADDRNOTAVAIL: "name an address of this machine (`ip address` shows them)",
    errno.ENETUNREACH: "bring the network up: `ip link set lo up` for this machine itself, else see `ip route`",
}
"""Remedies by the system's error number, some of them for sockets, memory and threads."""
OTHERWISE = "see what stands behind it"
COPIED_BYTES = 1 << 20
"""Bytes of a file that are copied at once."""
NOT_REPLACED = (errno.EACCES, errno.EPERM, errno.EBUSY)
"""Errors of a file that can only be written in place; EBUSY: something is mounted there."""


def name(path: str | Path) -> str:
    """A path as an error shows it: on one line, whatever bytes it is made of."""
    text = os.fspath(path)
    return text if text.isprintable() else repr(text)


def in_words(error: OSError) -> str:
    """The error in words, with the remedy."""
    return f"{error.strerror or error}. Remedy: {REMEDIES.get(error.errno or 0, OTHERWISE)}"


def of_system(error: OSError) -> str:
    """An operating system's error: what, where and the remedy."""
    where = f"{name(os.fsdecode(error.filename))}: " if isinstance(error.filename, str | bytes) else ""
    return f"{where}{in_words(error)}"


def of_port(error: OSError) -> str:
    """The error of a port that cannot be opened in words, with the remedy: permission depends on the port's number."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{error.strerror}. Remedy: choose a port from 1024 on, or run as a user who may have a lower one"
    if error.errno == errno.EINVAL:
        return f"{error.strerror}. Remedy: name the interface of a link-local address, as in [fe80::1%eth0]:4919"
    return in_words(error)


def read(path: Path, what: str, limit_bytes: int = MAX_BYTES) -> bytes:
    """Return the bytes of a file. ConfigurationError where it cannot be read or has more than `limit_bytes`.

    `what`: what the file is, for the error.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise ConfigurationError(f"{what} {name(path)} cannot be read: {in_words(error)}") from None
    except ValueError as error:  # a NUL in the path
        raise ConfigurationError(f"{what} {name(path)} cannot be read: {error}. Remedy: correct the path") from None
    if len(data) > limit_bytes:
        raise ConfigurationError(f"{what} {name(path)} has more than {limit_bytes:,} bytes. Remedy: name another file")
    return data


def write(path: Path, text: str, what: str) -> None:
    """Write a whole file; FaninError where that fails, since it comes at the end of a run. `what` as for `read`."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"), what)


def write_bytes(path: Path, data: bytes, what: str) -> None:
    """Write a whole file, as `write` does."""
    try:
        put(path, data)
    except OSError as error:
        raise FaninError(f"{what} {name(path)} cannot be written: {in_words(error)}") from None


def put(path: Path, data: bytes) -> None:
    """Write a whole file, or leave what was there before, as `in_place_of` does; OSError where that fails."""
    with in_place_of(path) as place:
        place.write_bytes(data)


@contextlib.contextmanager
def in_place_of(path: Path, *, continued: bool = False) -> Iterator[Path]:
    """Yield the path of a new file that takes this one's place at the end, unless an exception ends the block.

    It has the owner and the permissions of the old file, and its bytes where it is `continued`. Devices, pipes and
    links (/dev/stdout), and a file whose folder takes no other, are written in place: then this yields `path`. OSError
    where the file cannot be written.
    """
    try:
        old = os.lstat(path)
    except FileNotFoundError:
        old = None
    if old is not None and not stat.S_ISREG(old.st_mode):
        yield path
        return
    if old is not None:
        os.close(os.open(path, os.O_WRONLY))  # OSError for a file that may not be written
    with contextlib.ExitStack() as stack:
        fresh = _stand_in(path, old, stack)
        if fresh is None:
            yield path
            return
        if old is not None and continued:
            _copy(path, fresh)
        yield fresh
        try:
            os.replace(fresh, path)
        except OSError as error:
            if error.errno not in NOT_REPLACED:
                raise
            _copy(fresh, path)


def _copy(source: Path, target: Path) -> None:
    with open(source, "rb") as read, open(target, "wb") as written:  # the import of shutil takes long
        while piece := read.read(COPIED_BYTES):
            written.write(piece)


def _stand_in(path: Path, old: os.stat_result | None, stack: contextlib.ExitStack) -> Path | None:
    """Make a new file, which `stack` removes unless it was renamed; None where none can stand in for what is there."""
    try:
        fresh, descriptor = stack.enter_context(_beside(path, 0o666))
        with os.fdopen(descriptor, "wb"):
            if old is not None:
                _liken(descriptor, old)
    except OSError as error:
        if error.errno in NOT_REPLACED:
            return None
        raise
    return fresh


def append(file: io.FileIO, data: bytes) -> None:
    """Append all of this to a file, or nothing: a part of a record would spoil what is appended later. OSError where
    the disk is full.
    """
    left = memoryview(data)
    try:
        while left:
            left = left[file.write(left) :]  # a disk that is nearly full takes a part
    except OSError:
        _drop(file, len(data) - len(left))
        raise


def _drop(file: io.FileIO, part_bytes: int) -> None:
    """Cut off the end of a file, unless another writer's bytes lie behind it."""
    with contextlib.suppress(OSError):
        end = file.tell()
        if part_bytes and end == os.fstat(file.fileno()).st_size:
            file.truncate(end - part_bytes)
            file.seek(end - part_bytes)


def _liken(descriptor: int, old: os.stat_result) -> None:
    """Give a new file the owner and the permissions of the old one."""
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    if stat.S_IMODE(new.st_mode) != stat.S_IMODE(old.st_mode):
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


@contextlib.contextmanager
def _beside(path: Path, mode: int) -> Iterator[tuple[Path, int]]:
    """Yield path and descriptor of a new file in the same folder, which is gone at the end unless it was renamed."""
    fresh = path.with_name(f".fanin-{os.urandom(8).hex()}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        yield fresh, descriptor
    finally:
        fresh.unlink(missing_ok=True)


def create(path: Path, text: str) -> None:
    """Make a file for its owner only: whole or not at all, and never over another. OSError where that fails."""
    with _beside(path, 0o600) as (fresh, descriptor):
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.link(fresh, path)


def mute(descriptor: int) -> None:
    """Discard everything that is written to this descriptor from now on."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), descriptor)
