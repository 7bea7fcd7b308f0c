"""CURVE key pairs, the switch's and those of clients on its list, in files that only their owners can read."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fanin import files
from fanin.errors import ConfigurationError
from fanin.protocol import strict

if TYPE_CHECKING:
    import zmq

MAX_FILE_BYTES = 65_536
KEY_CHARACTERS = 40
"""A 256-bit key in Z85."""


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """Both keys in Z85; the other side needs the public one."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"CurveKeys(public={self.public!r}, secret=...)"


CLIENT_VARIABLE = "FANIN_CURVE_CLIENT_KEYS"
"""File with the key pair of this process's clients; made if need be. Its public part goes on the switch's list."""


def _new_pair() -> tuple[str, str]:
    import zmq  # here, since it takes long to import and a switch without keys needs none of it

    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def client_keys() -> CurveKeys:
    """Return the key pair by which clients of this process identify themselves: the one in the file that
    CLIENT_VARIABLE names; without such a file, a new pair.
    """
    path = os.environ.get(CLIENT_VARIABLE, "")
    if path:
        return load_or_create(Path(path))
    public, secret = _new_pair()
    return CurveKeys(public, secret)


def encrypt_client(socket: zmq.Socket[bytes], server_key: str) -> None:
    """Have a client's socket encrypt for the server that has this public key (Z85), and show this process's own.

    ConfigurationError for a text that is no key.
    """
    import zmq

    own = client_keys()
    try:
        socket.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
    except (zmq.ZMQError, UnicodeError) as error:
        raise ConfigurationError(f"curve_server_key is not a key in Z85: {error}", "curve_server_key") from error
    socket.setsockopt(zmq.CURVE_PUBLICKEY, own.public.encode())
    socket.setsockopt(zmq.CURVE_SECRETKEY, own.secret.encode())


def load_or_create(path: Path) -> CurveKeys:
    """The keys in a file; a file that does not exist yet is written with new ones, for its owner only.

    ConfigurationError for a file that is no key file or cannot be read or written.
    """
    try:
        if path.exists():
            return _read(path)
        public, secret = _new_pair()
        files.create(path, json.dumps({"public": public, "secret": secret}) + "\n")
        return CurveKeys(public, secret)
    except FileExistsError:  # another process has just made it
        return _read(path)
    except OSError as error:
        raise ConfigurationError(f"CURVE keys {files.name(path)}: {files.in_words(error)}") from None


def _read(path: Path) -> CurveKeys:
    data = files.read(path, "--curve-keys", MAX_FILE_BYTES)
    import zmq

    try:
        keys = strict.read(strict.load_json(data), CurveKeys, "keys")
        derived = zmq.curve_public(keys.secret.encode()).decode()
    except (ValueError, zmq.ZMQError):  # RecordError and UnicodeError are ValueErrors
        derived, keys = "", CurveKeys("-", "-")
    if derived != keys.public or len(derived) != KEY_CHARACTERS:
        raise ConfigurationError(
            f"CURVE keys: {path} is no key file of fanin. Remedy: name a file that does not exist yet, and it is made"
        )
    return keys
