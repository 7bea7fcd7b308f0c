"""The operator key of a switch, in a file that only its owner can read: who has the key may ask and change anything.

One file per user, made by the first switch that the user starts and found by that user's tools without being told; or
one per switch, where FANIN_KEY_FILE or --key-file says so.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from fanin import files
from fanin.errors import ConfigurationError
from fanin.protocol.seal import KEY_BYTES, Credentials, key_from_text

VARIABLE = "FANIN_KEY_FILE"
MAX_FILE_BYTES = 1024
MAKE = "name a path where nothing is: `fanin switch --key-file PATH` makes a key there"


def default_path() -> Path:
    """Path of this user's key: below XDG_STATE_HOME, or ~/.local/state. RuntimeError for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state else Path.home() / ".local" / "state") / "fanin" / "operator.key"


def load_or_create(path: Path) -> bytes:
    """The key in a file; a file that is not there yet is made, for its owner only.

    ConfigurationError for a file that is no key file, that others may read, or that cannot be read or written.
    """
    for _ in range(2):  # the second time round, another switch has just made it
        if (key := load(path)) is not None:
            return key
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                files.create(path, secrets.token_bytes(KEY_BYTES).hex() + "\n")
        except OSError as error:
            raise ConfigurationError(f"key file {path}: {files.in_words(error)}") from None
    key = load(path)
    if key is None:
        raise ConfigurationError(f"key file {path} comes and goes. Remedy: name another with --key-file")
    return key


def load(path: Path, *, may_be_anothers: bool = False) -> bytes | None:
    """The key in a file; None where there is none. ConfigurationError as for `load_or_create`.

    `may_be_anothers`: a file, or a folder on the way, that belongs to another user has no key for this one.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                raise ConfigurationError(f"key file {path} is no file. Remedy: {MAKE}")
            if facts.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ConfigurationError(f"key file {path} may be used by others. Remedy: chmod 600 {path}")
            text = file.read(MAX_FILE_BYTES).decode("ascii", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if may_be_anothers and isinstance(error, PermissionError):
            return None
        raise ConfigurationError(f"key file {path}: {files.in_words(error)}") from None
    key = key_from_text(text)
    if key is None:
        raise ConfigurationError(f"{path} is no key file of fanin. Remedy: {MAKE}")
    return key


def operator_credentials(path: Path | None) -> Credentials | None:
    """Return the credentials by which this user's tools act as operators; None where the user has no key.

    `path`: a file that was named and must exist; None: the file of FANIN_KEY_FILE, or else this user's own.
    """
    named = path or (Path(given) if (given := os.environ.get(VARIABLE, "")) else None)
    key = _own() if named is None else load(named)
    if key is None and named is not None:
        raise ConfigurationError(f"key file {named}: there is no such file. Remedy: copy the switch's")
    return None if key is None else Credentials(key, discloses=False)


def _own() -> bytes | None:
    """This user's key. None as well for a user without a home (a container's number without a name), and where HOME is
    another user's: neither has a key of its own, and both may ask what anybody may."""
    try:
        return load(default_path(), may_be_anothers=True)
    except RuntimeError:
        return None
