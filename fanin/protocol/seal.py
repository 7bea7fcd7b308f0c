"""Keys, and the keyed hash that every control message carries: who may say what, without a password on the wire.

Rules
-----
* A job has a secret, a text that its ranks share. The key of its control messages and every other key that the job
  needs are derived from it one way: one of them discloses neither the secret nor another one.
* A key has a public fingerprint, by which it is named in messages. A job at a switch is known by its name and the
  fingerprint of its key, so the same name under another secret is another job.
* The hash is BLAKE2b with a key (RFC 7693), over the bytes of the message as they travel: type, all fields, the
  challenge that the switch drew for this connection, and a number that only grows. Requests and replies are hashed with
  different personalizations, so that neither can be sent back as the other.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass, field

from fanin.protocol.tag_algorithm import GCM_SIV, SIPHASH, TagAlgorithm

KEY_BYTES = 32
TAG_BYTES = 16
"""Length of a keyed hash: 128 bits."""
FINGERPRINT_BYTES = 16
SECRET_BYTES = 32
"""Length of a secret that a program draws, rather than a person."""
NONCE_BITS = 62
"""Bits of the first number of a connection, so that any JSON reader can hold those that follow."""

DATA_KEY_BYTES = 16
"""Bytes of the key that data packets are tagged with (fanin/protocol/packet_tag.py)."""

_CONTROL, _FINGERPRINT = b"fanin control", b"fanin finger"
_DATA: dict[TagAlgorithm, bytes] = {SIPHASH: b"fanin data", GCM_SIV: b"fanin data siv"}
_REQUEST, _REPLY = b"fanin request", b"fanin reply"
_KEY = re.compile(rf"[0-9a-f]{{{2 * KEY_BYTES}}}")


def derived(secret: str, purpose: bytes) -> bytes:
    """The key that a secret gives for a purpose (at most 16 bytes long)."""
    return hashlib.blake2b(secret.encode(), digest_size=KEY_BYTES, person=purpose).digest()


def fingerprint(key: bytes) -> str:
    """A key's public name, in hexadecimal digits."""
    return hashlib.blake2b(key, digest_size=FINGERPRINT_BYTES, person=_FINGERPRINT).hexdigest()


def data_key(control_key: bytes, job: int, generation: int, algorithm: TagAlgorithm = SIPHASH) -> bytes:
    """The key of a job's data packets at one switch, where it has that index and generation: both ends derive it.

    No key serves two algorithms.
    """
    where = job.to_bytes(2, "big") + generation.to_bytes(4, "big")
    return hashlib.blake2b(where, key=control_key, digest_size=DATA_KEY_BYTES, person=_DATA[algorithm]).digest()


def tag(key: bytes, data: bytes, *, reply: bool) -> bytes:
    """The keyed hash of a message."""
    person = _REPLY if reply else _REQUEST
    return hashlib.blake2b(data, key=key, digest_size=TAG_BYTES, person=person).digest()


def tag_holds(key: bytes, data: bytes, claimed: bytes, *, reply: bool) -> bool:
    """Whether `claimed` is that hash; takes the same time whatever is claimed."""
    return hmac.compare_digest(tag(key, data, reply=reply), claimed)


def key_from_text(text: str) -> bytes | None:
    """A key as files and messages carry it, in hexadecimal digits; None for anything else."""
    return bytes.fromhex(text) if _KEY.fullmatch(text) else None


@dataclass(frozen=True, slots=True)
class Credentials:
    """The key with which one end of a control connection speaks."""

    key: bytes = field(repr=False)
    discloses: bool = True
    """Whether the switch may be told the key where it does not know it. False where it must know it already: an
    operator's key, or a job's at the switch that its rank 0 has started."""

    @classmethod
    def of_job(cls, secret: str | None, *, discloses: bool = True) -> Credentials:
        """Credentials of a job's ranks. Without a secret, everybody has them."""
        return cls(derived(secret or "", _CONTROL), discloses)

    @property
    def name(self) -> str:
        """Fingerprint of the control key."""
        return fingerprint(self.key)


OPEN = Credentials.of_job(None)
"""Credentials that everybody has: for jobs without a secret, and for questions that need none."""
