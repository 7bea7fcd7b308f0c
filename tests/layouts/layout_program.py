"""A rank that sends over TCP what a training step sends in a layout of stages and replicas, and computes nothing."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

PORT = 29_600
TIMEOUT_S = 60.0
REPEATS = 2


class Rank:
    """Connections to all other ranks, and the parts of a step."""

    def __init__(self, rank: int, addresses: list[str]) -> None:
        self.rank, self.size = rank, len(addresses)
        self.peers: dict[int, socket.socket] = {}
        self._sender = ThreadPoolExecutor(1)
        listener = socket.create_server(("", PORT))
        listener.settimeout(TIMEOUT_S)
        for other in range(rank):
            self.peers[other] = self._connected(addresses[other])
            self.peers[other].sendall(bytes([rank]))
        for _ in range(rank + 1, self.size):
            peer, _ = listener.accept()
            peer.settimeout(TIMEOUT_S)
            self.peers[peer.recv(1)[0]] = peer
        listener.close()

    @staticmethod
    def _connected(address: str) -> socket.socket:
        end = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return socket.create_connection((address, PORT), TIMEOUT_S)
            except ConnectionRefusedError:  # the other rank has not begun
                if time.monotonic() > end:
                    raise

    def receive(self, peer: int, size: int) -> None:
        """Take so many bytes in."""
        while size:
            size -= len(self.peers[peer].recv(min(size, 1 << 16)))

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        for connection in self.peers.values():
            connection.sendall(b".")
        for peer in self.peers:
            self.receive(peer, 1)

    def passes(self, pipeline: list[int], micro_batches: int, size: int) -> None:
        """All micro-batches from the pipeline's first rank to its last."""
        place = pipeline.index(self.rank)
        for _ in range(micro_batches):
            if place > 0:
                self.receive(pipeline[place - 1], size)
            if place < len(pipeline) - 1:
                self.peers[pipeline[place + 1]].sendall(bytes(size))

    def ring(self, group: list[int], size: int) -> None:
        """Parts of 1/N go on from rank to rank, 2 (N - 1) times."""
        place, part = group.index(self.rank), size // len(group)
        for _ in range(2 * (len(group) - 1)):
            sent = self._sender.submit(self.peers[group[(place + 1) % len(group)]].sendall, bytes(part))
            self.receive(group[place - 1], part)
            sent.result()

    def step(self, mesh: list[list[int]], micro_batches: int, activation_bytes: int, stage_bytes: int) -> float:
        """Seconds of this rank's part of a step that all begin together."""
        replica = next(stage.index(self.rank) for stage in mesh if self.rank in stage)
        pipeline = [stage[replica] for stage in mesh]
        self.barrier()
        begun = time.monotonic()
        self.passes(pipeline, micro_batches, activation_bytes)
        self.passes(pipeline[::-1], micro_batches, activation_bytes)
        self.ring(next(stage for stage in mesh if self.rank in stage), stage_bytes)
        return time.monotonic() - begun


def main() -> None:
    """Take `{"addresses": ..., "steps": [arguments of Rank.step, ...]}`; print the least time of each step."""
    asked: dict[str, Any] = json.loads(sys.argv[1])
    rank = Rank(int(os.environ["RANK"]), asked["addresses"])
    took_s = [min(rank.step(*step) for _ in range(REPEATS)) for step in asked["steps"]]
    rank.barrier()
    print(json.dumps({"took_s": took_s}), flush=True)


if __name__ == "__main__":
    main()
