"""The asking end of a sealed control connection: which challenge and number go out, and which replies count.

No socket, no clock. Used by workers and tools (host/session/control.py), and by a leaf towards its parent, which speaks
with the keys of all its jobs over one connection (switch/service/parent_link.py).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from fanin.protocol import control
from fanin.protocol.control import Challenge, Refused, Seal
from fanin.protocol.seal import NONCE_BITS, Credentials

MAX_CHALLENGES = 64
"""Challenges in a row that are answered: one per connection and key, and again where the switch was restarted."""
MAX_UNHEARD = 64
"""Requests that are sent again after a challenge; older ones are left to callers, who repeat them anyway."""
MAX_KEYS = 4096
"""Keys of one conversation; the longest unused is forgotten, and replies sealed with it are dropped."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A reply whose seal holds, and the fingerprint of its key; empty: a refusal that may come without a seal."""

    reply: control.Reply
    key: str


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """The switch does not have the key, and takes no further keys (`closed`), or must not be told this one."""

    key: str
    closed: bool


@dataclass(slots=True)
class _SentRequest:
    request: control.Request
    credentials: Credentials
    challenge: str
    disclosed: bool


class Conversation:
    """The seals of one connection, which may go through several sockets one after another."""

    def __init__(self, random_bits: Callable[[int], int]) -> None:
        self._challenge = ""
        self._first = self._number = random_bits(NONCE_BITS)
        self._keys: OrderedDict[str, bytes] = OrderedDict()
        self._unheard: deque[_SentRequest] = deque(maxlen=MAX_UNHEARD)
        self._challenges = 0
        self._again: list[bytes] = []
        self.answered = False
        """Whether a reply to a request has ever come, under a seal that holds."""

    def outgoing(self, request: control.Request, credentials: Credentials) -> bytes:
        """The bytes that carry a request."""
        sent = _SentRequest(request, credentials, "", False)
        self._unheard.append(sent)
        return self._say(sent, disclose=False)

    def incoming(self, data: bytes) -> Heard | UnknownKey | None:
        """Take in the bytes of a reply; None for a challenge, after which `to_say_again` has requests, or a bad seal.

        ControlError for bytes that are no message, or no reply.
        """
        sealed = control.read(data, control.MAX_REPLY_BYTES)
        reply, seal = sealed.message, sealed.seal
        if isinstance(reply, control.Request):
            raise control.ControlError("a request came instead of a reply")
        if isinstance(reply, Challenge):
            return self._challenged(reply)
        if seal is None:
            return Heard(reply, "") if isinstance(reply, Refused) and reply.code in control.UNSEALED else None
        key = self._keys.get(seal.key)
        current = seal.challenge == self._challenge and self._first < seal.number <= self._number
        if key is None or not current or not sealed.holds(key):
            return None
        self._challenges, self.answered = 0, True
        for sent in [each for each in self._unheard if each.credentials.name == seal.key]:
            self._unheard.remove(sent)
        return Heard(reply, seal.key)

    @property
    def challenged(self) -> bool:
        """Whether a challenge has come, as from a switch of fanin alone, and no reply behind it."""
        return self._challenges > 0

    def to_say_again(self) -> list[bytes]:
        """The messages that must be sent again, in order, after a challenge."""
        again, self._again = self._again, []
        return again

    def _challenged(self, challenge: Challenge) -> UnknownKey | None:
        self._challenges += 1
        if self._challenges > MAX_CHALLENGES:
            return None
        self._challenge = challenge.challenge
        for sent in self._unheard:
            unknown = sent.credentials.name == challenge.key and not challenge.known
            if unknown and (challenge.closed or not sent.credentials.discloses):
                return UnknownKey(challenge.key, challenge.closed)
            if sent.challenge != self._challenge or (unknown and not sent.disclosed):
                self._again.append(self._say(sent, disclose=unknown))
        return None

    def _say(self, sent: _SentRequest, *, disclose: bool) -> bytes:
        name, key = sent.credentials.name, sent.credentials.key
        self._keys[name] = key
        self._keys.move_to_end(name)
        if len(self._keys) > MAX_KEYS:
            self._keys.popitem(last=False)
        self._number += 1
        sent.challenge, sent.disclosed = self._challenge, disclose
        disclosed = key.hex() if disclose else None
        seal = Seal(key=name, challenge=self._challenge, number=self._number, disclosed=disclosed)
        return control.to_bytes(sent.request, seal=seal, key=key)
