"""Detect peers of a ROUTER socket that have hung up: libzmq reports closed connections by their file descriptors.

Rules
-----
* Every message carries the descriptor over which it came (property SRCFD), and the socket's monitor reports which
  descriptors were closed. So the peers of a connection are known when it ends.
* The system reuses the number of a closed descriptor for the next connection. If a message of the new connection is
  received before the end of the old one, both peers count as gone. The peer blamed by mistake is only suspected, and
  gives a sign of life.
* MAX_PEERS are remembered, each from its first request on. Beyond that the one silent for longest is forgotten; its end
  then shows by its silence alone.
"""

from __future__ import annotations

from collections import OrderedDict

import zmq
from zmq.utils.monitor import recv_monitor_message

MAX_PEERS = 65_536
EVENTS_PER_TURN = 1024
"""Most closed connections that are handled before requests get their turn."""


class HangUps:
    """Watches a ROUTER socket, created before the socket is bound. Used by the thread that reads the socket."""

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        self._router = router
        self.socket: zmq.Socket[bytes] = router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        """Monitor socket, readable when `gone` has peers to return."""
        self._peers: OrderedDict[bytes, int] = OrderedDict()
        """The descriptor of each peer, the one silent for longest first."""
        self._at: dict[int, set[bytes]] = {}
        """The peers that have sent messages over each descriptor."""

    def receive(self) -> tuple[bytes, list[bytes], str]:
        """The next message: peer, frames, and source address. zmq.Again without one."""
        first = self._router.recv(zmq.NOBLOCK, copy=False)
        peer = first.bytes
        if peer in self._peers:
            self._peers.move_to_end(peer)
        else:
            self._note(peer, int(first.get(zmq.SRCFD)))
        frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
        return peer, [frame.bytes for frame in frames], str(frames[-1].get("Peer-Address"))

    def knows(self, peer: bytes) -> bool:
        """Whether the peer has sent a message, and `gone` has not returned it yet."""
        return peer in self._peers

    def take_closed(self) -> list[bytes]:
        """Peers whose connections were closed since the last call."""
        gone: list[bytes] = []
        for _ in range(EVENTS_PER_TURN):
            if not self.socket.poll(0):
                break
            closed = int(recv_monitor_message(self.socket)["value"])
            for peer in self._at.pop(closed, ()):
                del self._peers[peer]
                gone.append(peer)
        return gone

    def close(self) -> None:
        """Stop watching the socket."""
        if not self.socket.closed:
            self._router.disable_monitor()
            self.socket.close(linger=0)

    def _note(self, peer: bytes, descriptor: int) -> None:
        self._peers[peer] = descriptor
        self._at.setdefault(descriptor, set()).add(peer)
        if len(self._peers) > MAX_PEERS:
            oldest, at = self._peers.popitem(last=False)
            self._at[at].discard(oldest)
            if not self._at[at]:
                del self._at[at]
