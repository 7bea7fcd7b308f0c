"""Peers of a ROUTER socket that have hung up: libzmq tells of closed connections by their file descriptors.

Rules
-----
* Every message says over which descriptor it came (the property SRCFD), and the socket's monitor which descriptors were
  closed. So whoever asked over a connection is known when that ends.
* The system gives the number of a descriptor to the next connection. Where a message of that one is taken in before
  the end of the one before is, both peers count as gone. Of the one that is named wrongly a sign of life is wanted,
  which it gives.
* MAX_PEERS are remembered, each from its first request on: the one that has been silent for longest goes first, and is
  then missed by its silence alone.
"""

from __future__ import annotations

from collections import OrderedDict

import zmq
from zmq.utils.monitor import recv_monitor_message

MAX_PEERS = 65_536
EVENTS_PER_TURN = 1024
"""Closed connections that are looked at before requests get their turn."""


class HangUps:
    """Watches a ROUTER socket from before it is bound. Driven by the thread that reads the socket."""

    def __init__(self, router: zmq.Socket[bytes]) -> None:
        self._router = router
        self.socket: zmq.Socket[bytes] = router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        """Readable when `gone` has something to say."""
        self._peers: OrderedDict[bytes, int] = OrderedDict()
        """The descriptor of each peer."""
        self._at: dict[int, set[bytes]] = {}
        """The peers of each descriptor."""

    def receive(self) -> tuple[bytes, list[bytes], str]:
        """The next message: peer, frames, and the address that they come from. zmq.Again when there is none."""
        first = self._router.recv(zmq.NOBLOCK, copy=False)
        peer = first.bytes
        if peer in self._peers:
            self._peers.move_to_end(peer)
        else:
            self._note(peer, int(first.get(zmq.SRCFD)))
        frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
        return peer, [frame.bytes for frame in frames], str(frames[-1].get("Peer-Address"))

    def knows(self, peer: bytes) -> bool:
        """Whether it has asked, and has not hung up as far as `gone` has told."""
        return peer in self._peers

    def gone(self) -> list[bytes]:
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
