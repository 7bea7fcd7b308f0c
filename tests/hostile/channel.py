"""A controller with its gate in virtual time, and clients that speak to it in bytes: everything but the sockets."""

from __future__ import annotations

import random
from collections import defaultdict

from fanin.options import SwitchAddress
from fanin.protocol import control
from fanin.protocol.conversation import Conversation, Heard, UnknownKey
from fanin.protocol.seal import OPEN, Credentials
from fanin.protocol.window import DEFAULT_RECEIVE_BUFFER_BYTES
from fanin.switch.controller.controller import AnyController, Controller
from fanin.switch.controller.data_plane import DataPlane, Limits
from fanin.switch.controller.gate import Entered, Gate
from fanin.switch.controller.leaf import LeafController, ParentPath
from tests.support.controllers import BUFFERS, FakeServer

OPERATOR = Credentials(bytes(range(32)), discloses=False)
MEMORY_BYTES = 1 << 26


class Channel:
    """One switch: what comes over a route is answered there."""

    def __init__(self, *, memory_bytes: int = MEMORY_BYTES, share: float = 0.5, keys: tuple[bytes, ...] | None = None):
        self.now = 0.0
        self.clients = 0
        self.server = FakeServer(jobs_max=1 << 16)
        dice = random.Random(7)
        self.gate = Gate(dice.getrandbits, operator_key=OPERATOR.key, keys=keys)
        limits = Limits(memory_bytes=memory_bytes, source_share=share, liveness_timeout_s=5)
        self.controller: AnyController = self._make(limits, dice)
        self.answers: defaultdict[bytes, list[bytes]] = defaultdict(list)

    def _make(self, limits: Limits, dice: random.Random) -> AnyController:
        planes = {"udp": DataPlane(self.server, BUFFERS)}
        return Controller(limits, planes, random_bits=dice.getrandbits, started_s=0.0, engine="fake")

    def bring(self, route: bytes, data: bytes, source: str = "10.0.0.1") -> None:
        """Take in data of a connection as fanin.switch.service.service does."""
        entered = self.gate.enter(route, data, source)
        if isinstance(entered, Entered):
            self.controller.receive(entered.peer, entered.request, self.now, entered.caller)
        else:
            self.answers[route].append(control.to_bytes(entered))
        self.collect()

    def collect(self) -> None:
        for peer, reply in self.controller.messages_to_send():
            if (sealed := self.gate.sealed(peer, reply)) is not None:
                self.answers[sealed[0]].append(sealed[1])

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.controller.next_timer()) is not None and due <= end:
            self.now = max(due, self.now)
            self.controller.handle_timer(self.now)
            self.collect()
        self.now = end


class LeafChannel(Channel):
    """The same in front of a leaf, whose parent nobody plays."""

    def _make(self, limits: Limits, dice: random.Random) -> AnyController:
        parent = ParentPath(
            address=SwitchAddress("udp", "root", 4919),
            host="10.0.0.1",
            path_mtu=9000,
            receive_buffer_bytes=DEFAULT_RECEIVE_BUFFER_BYTES,
            own_address="udp://leaf:4919",
        )
        return LeafController(
            limits, self.server, parent, BUFFERS, random_bits=dice.getrandbits, started_s=0.0, engine="fake"
        )


class Client:
    """Speaks over one route, with one key."""

    def __init__(self, channel: Channel, route: str, credentials: Credentials = OPEN, source: str = "10.0.0.1") -> None:
        self.channel, self.credentials, self.source = channel, credentials, source
        channel.clients += 1
        self.route = f"{route} ({channel.clients})".encode()
        self.conversation = Conversation(random.Random(self.route).getrandbits)
        self.sent: list[bytes] = []
        """Everything that it has sent, for who sees packets."""

    def say(self, request: control.Request) -> control.Reply | UnknownKey | None:
        """Ask, and take in all answers; the last one that counts."""
        self._send(self.conversation.outgoing(request, self.credentials))
        return self.hear()

    def hear(self) -> control.Reply | UnknownKey | None:
        last: control.Reply | UnknownKey | None = None
        while self.channel.answers[self.route]:
            heard = self.conversation.incoming(self.channel.answers[self.route].pop(0))
            for again in self.conversation.to_say_again():
                self._send(again)
            if heard is not None:
                last = heard.reply if isinstance(heard, Heard) else heard
        return last

    def _send(self, data: bytes) -> None:
        self.sent.append(data)
        self.channel.bring(self.route, data, self.source)


def of_job(secret: str = "the job's own secret") -> Credentials:
    return Credentials.of_job(secret)
