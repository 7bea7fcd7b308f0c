"""Authentication between the bytes of the control channel and the controller: the rights of each sender. No socket, no
clock.

Rules
-----
* Every request is sealed with a key (fanin/protocol/seal.py). A request whose keyed hash, challenge or number is wrong
  is answered here and never reaches the controller. Every request that reaches it comes with a `Caller`.
* A key is the switch's own (an operator's), one that it was started with, or one that a rank has disclosed. A switch
  that serves many users needs no list of their keys: a job is known by its name and its key, so that a new key gives
  access to nothing but new jobs under that key. A `closed` switch, which one rank started for its own job, accepts no
  disclosed keys; under the open key it answers only Ask, and Attach, with which a leaf asks whether it is there.
* A challenge is drawn for each connection, and numbers grow within it, so that a recorded message is never valid again.
* All memory here is bounded, and the least recently used entry is dropped first: an honest rank then repeats one
  exchange.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from fanin.protocol import control
from fanin.protocol.control import Challenge, Refusal, Refused, Seal, Sealed
from fanin.protocol.seal import FINGERPRINT_BYTES, OPEN, fingerprint, key_from_text
from fanin.switch.controller.admission import refuse

MAX_CONNECTIONS = 4096
"""Connections whose challenge is remembered."""
MAX_KEYS = 4096
"""Disclosed keys that are remembered."""
MAX_PEERS_PER_CONNECTION = 256
"""Peers, one for each key, that are remembered for one connection."""
CHALLENGE_BITS = 128
_REMEDY = "give every rank of the job the same secret: through one store, or as FANIN_SECRET"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request, as far as its seal proves it."""

    key: str
    """Fingerprint of the key that the request was sealed with."""
    operator: bool = False
    """Whether that key is the switch's own."""
    source: str = ""
    """Numeric address that the connection comes from."""
    control_key: bytes = field(default=b"", repr=False)
    """The key itself, from which the keys of data packets are derived."""

    @property
    def is_open(self) -> bool:
        """Whether the request is sealed with the open key, which everybody has: it proves nothing about the sender."""
        return self.key == OPEN.name and not self.operator


@dataclass(frozen=True, slots=True)
class Entered:
    """An authenticated request of `peer`, to whom the controller's replies go."""

    peer: bytes
    request: control.Request
    caller: Caller


@dataclass(slots=True)
class _Connection:
    challenge: str
    number: int = -1
    """Number of the last request that was accepted; numbers below it are replays."""
    peers: dict[bytes, None] = field(default_factory=dict)
    """Peers that have sent requests over this connection, oldest first: a leaf uses one key for each job."""


class Gate:
    """Keys, challenges and numbers of all connections of one switch."""

    def __init__(
        self,
        random_bits: Callable[[int], int],
        *,
        operator_key: bytes | None = None,
        keys: Collection[bytes] | None = None,
    ) -> None:
        """`keys`: the only keys that a closed switch accepts. None: it accepts any key that a rank discloses."""
        self._random_bits = random_bits
        self._closed = keys is not None
        self._operator = None if operator_key is None else fingerprint(operator_key)
        self._configured = {fingerprint(key): key for key in (OPEN.key, *(keys or ()))}
        if operator_key is not None and self._operator is not None:
            self._configured[self._operator] = operator_key
        self._learned: OrderedDict[str, bytes] = OrderedDict()
        self._connections: OrderedDict[bytes, _Connection] = OrderedDict()

    # --- in ---

    def enter(self, route: bytes, data: bytes, source: str = "") -> Entered | control.Reply:
        """Authenticate bytes received over the connection `route`; if they are rejected, return the unsealed reply."""
        try:
            sealed = control.read(data)
        except control.ControlError as error:
            code = Refusal.MALFORMED if error.version is None else Refusal.VERSION
            return refuse(code, str(error), "install the same fanin version on workers and switch")
        request, seal = sealed.message, sealed.seal
        if not isinstance(request, control.Request):
            return refuse(Refusal.MALFORMED, "a reply came instead of a request", "ask, and do not answer")
        if seal is None:
            return _refuse("the message carries no keyed hash", "install the same fanin version everywhere")
        connection = self._connection(route)
        key = self._find(sealed, seal)
        if key is None or seal.challenge != connection.challenge:
            known = key is not None
            return Challenge(challenge=connection.challenge, key=seal.key, known=known, closed=self._closed)
        if not sealed.holds(key):
            return _refuse(f"the message is not sealed with key {seal.key}, which it names", _REMEDY)
        if seal.number <= connection.number:
            return _refuse("the message was said before", _REMEDY)
        connection.number = seal.number
        if seal.disclosed is not None and seal.key not in self._configured:
            self._learn(seal.key, key)
        caller = Caller(key=seal.key, operator=seal.key == self._operator, source=source, control_key=key)
        if self._closed and caller.is_open and not isinstance(request, control.Ask | control.Attach):
            return _refuse("this switch serves the job of the rank that started it, and no other", _REMEDY)
        peer = bytes.fromhex(seal.key) + route
        connection.peers[peer] = None
        if len(connection.peers) > MAX_PEERS_PER_CONNECTION:
            del connection.peers[next(iter(connection.peers))]
        return Entered(peer, request, caller)

    def knows(self, route: bytes) -> bool:
        """Whether a request over this connection has been authenticated."""
        connection = self._connections.get(route)
        return connection is not None and connection.number >= 0

    def forget(self, route: bytes) -> tuple[bytes, ...]:
        """Forget a closed connection; return the peers that have sent requests over it."""
        connection = self._connections.pop(route, None)
        return () if connection is None else tuple(connection.peers)

    def key(self, name: str) -> bytes | None:
        """The key of that fingerprint, if known: a leaf seals its requests to the parent with its ranks' keys."""
        return self._configured.get(name) or self._learned.get(name)

    def _find(self, sealed: Sealed, seal: Seal) -> bytes | None:
        """The key that the seal names: a known one, or the disclosed one if the seal verifies with it; else None."""
        if (known := self._configured.get(seal.key)) is not None:
            return known
        if (known := self._learned.get(seal.key)) is not None:
            self._learned.move_to_end(seal.key)
            return known
        if self._closed or seal.disclosed is None:
            return None
        key = key_from_text(seal.disclosed)
        return key if key is not None and fingerprint(key) == seal.key and sealed.holds(key) else None

    def _learn(self, name: str, key: bytes) -> None:
        self._learned[name] = key
        self._learned.move_to_end(name)
        if len(self._learned) > MAX_KEYS:
            self._learned.popitem(last=False)

    def _connection(self, route: bytes) -> _Connection:
        connection = self._connections.get(route)
        if connection is None:
            connection = self._connections[route] = _Connection(f"{self._random_bits(CHALLENGE_BITS):032x}")
            if len(self._connections) > MAX_CONNECTIONS:
                self._connections.popitem(last=False)
        self._connections.move_to_end(route)
        return connection

    # --- out ---

    def sealed(self, peer: bytes, reply: control.Reply) -> tuple[bytes, bytes] | None:
        """The connection of `peer` and the sealed bytes of a reply; None if the connection or its key is forgotten."""
        name, route = peer[:FINGERPRINT_BYTES].hex(), peer[FINGERPRINT_BYTES:]
        key, connection = self.key(name), self._connections.get(route)
        if key is None or connection is None:
            return None
        seal = Seal(key=name, challenge=connection.challenge, number=connection.number)
        return route, control.to_bytes(reply, seal=seal, key=key)


def _refuse(reason: str, remedy: str) -> Refused:
    return refuse(Refusal.KEY, reason, remedy)
