"""The switch's CURVE key pair, kept in a file that only its owner can read."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import zmq

from fanin import files, strict
from fanin.errors import ConfigurationError

MAX_FILE_BYTES = 65_536
KEY_CHARACTERS = 40
"""A 256-bit key in Z85."""


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """Both keys in Z85; workers need the public one."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"CurveKeys(public={self.public!r}, secret=...)"


def load_or_create(path: Path) -> CurveKeys:
    """The keys in a file; a file that does not exist yet is written with new ones, for its owner only.

    ConfigurationError for a file that is no key file or cannot be read or written.
    """
    try:
        if path.exists():
            return _read(path)
        public, secret = (key.decode() for key in zmq.curve_keypair())
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump({"public": public, "secret": secret}, file)
            file.write("\n")
        return CurveKeys(public, secret)
    except OSError as error:
        raise ConfigurationError(f"--curve-keys {files.name(path)}: {files.in_words(error)}") from None


def _read(path: Path) -> CurveKeys:
    data = files.read(path, "--curve-keys", MAX_FILE_BYTES)
    try:
        keys = strict.read(strict.load_json(data), CurveKeys, "keys")
        derived = zmq.curve_public(keys.secret.encode()).decode()
    except (ValueError, zmq.ZMQError):  # RecordError and UnicodeError are ValueErrors
        derived, keys = "", CurveKeys("-", "-")
    if derived != keys.public or len(derived) != KEY_CHARACTERS:
        raise ConfigurationError(
            f"--curve-keys {path} is no key file of `fanin switch`. Remedy: name a file that does not exist yet, and "
            "it is made"
        )
    return keys
