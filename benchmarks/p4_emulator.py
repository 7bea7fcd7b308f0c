"""Packets per second of the compiled P4 program in its emulator, on one core: the slot machine itself, without sockets.

    python -m fanin.benchmarks.p4_emulator

Two workers contribute 64 words to the slots of one job in turn: every second packet closes a round and leaves as two
copies. Every result is checked. The goal is 2,000 packets per second; what a socket costs comes on top.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from fanin.formats.frames import Endpoint, Frame, mac_of, read_frame
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import Kind, Packet, parse
from fanin.switch.p4runtime.controller.job_control import JobControl, Placement
from fanin.switch.p4runtime.controller.links import LocalLink
from fanin.switch.p4runtime.controller.vocabulary import Vocabulary
from fanin.switch.p4runtime.opening import Artefacts, emulated_device

WORDS = 64
SLOTS = 64
SWITCH = Endpoint(mac_of(0x0A00_FFFF), 0x0A00_FFFF, 4919)
HOSTS = [Endpoint(mac_of(0x0A00_0001 + worker), 0x0A00_0001 + worker, 5000 + worker) for worker in range(2)]


def main() -> None:
    """Measure and print one line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=2000, help="rounds of one repetition; two packets each")
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()
    rates = [measure(given.rounds) for _ in range(given.repetitions)]
    print(
        f"{statistics.median(rates):,.0f} packets/s of {WORDS} words (median of {len(rates)}, "
        f"{min(rates):,.0f} to {max(rates):,.0f}), goal 2,000"
    )


def measure(rounds: int) -> float:
    """Packets per second over that many rounds."""
    sent: list[tuple[int, bytes]] = []
    link = LocalLink(emulated_device(Artefacts.read(None, None)), lambda port, data: sent.append((port, data)))
    vocabulary = Vocabulary(link.p4info())
    control = JobControl(link, vocabulary, Placement((SWITCH,)))
    control.serve()
    spec = JobSpec(job=1, generation=7, workers=2, quorum=2, slots=SLOTS, words_per_packet=WORDS, tokens=(1, 2))
    control.admit(spec)
    for worker, host in enumerate(HOSTS):
        token = np.array([0, spec.tokens[worker]], np.uint32)
        hello = Packet(kind=Kind.HELLO, job=1, worker=worker, generation=7, words=token)
        link.receive(1 + worker, Frame(host, SWITCH, hello.to_bytes()).to_bytes())
        control.receive(link.next_packet(0), 0.0)
    values = [np.arange(WORDS, dtype=np.uint32) * (worker + 1) for worker in range(2)]
    frames = [
        (1 + worker, Frame(HOSTS[worker], SWITCH, _contribution(worker, each, values[worker])).to_bytes())
        for each in range(rounds)
        for worker in range(2)
    ]
    sent.clear()
    begin = time.perf_counter()
    for port, frame in frames:
        link.receive(port, frame)
    elapsed_s = time.perf_counter() - begin
    assert len(sent) == 2 * rounds, "each round closes once and goes to both"
    for _, data in sent:
        frame_out = read_frame(data)
        assert frame_out is not None
        assert np.array_equal(parse(frame_out.payload).words, values[0] + values[1])
    return len(frames) / elapsed_s


def _contribution(worker: int, number: int, words: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> bytes:
    slot, base = number % SLOTS, number // SLOTS
    packet = Packet(
        kind=Kind.CONTRIBUTION, job=1, worker=worker, generation=7, slot=slot, base=base, signature=5, words=words
    )
    return packet.to_bytes()


if __name__ == "__main__":
    main()
