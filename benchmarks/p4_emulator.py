"""Packets per second of the compiled P4 program in its emulator, on one core: the slot machine itself, without sockets.

    python -m fanin.benchmarks.p4_emulator

Two workers contribute 64 words to the slots of one job in turn: every second packet closes a round and leaves as two
copies. Every result is checked, and both interpreters must send the same bytes. The figure counts processor time of the
thread that runs the program; sockets would cost time in addition. The goal is 300,000 packets per second.
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
from fanin.switch.p4runtime.opening import BUILD, PROGRAM, Artefacts, emulated_device

WORDS = 64
SLOTS = 64
BATCH = 64
"""Packets handed over together, as by the loop of a socket."""
SWITCH = Endpoint(mac_of(0x0A00_FFFF), 0x0A00_FFFF, 4919)
HOSTS = [Endpoint(mac_of(0x0A00_0001 + worker), 0x0A00_0001 + worker, 5000 + worker) for worker in range(2)]

SPEC = JobSpec(job=1, generation=7, workers=2, quorum=2, slots=SLOTS, words_per_packet=WORDS, tokens=(1, 2))
VALUES = [np.arange(WORDS, dtype=np.uint32) * (worker + 1) for worker in range(2)]


def main() -> None:
    """Measure and print a line for each interpreter."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5000, help="rounds of one repetition; two packets each")
    parser.add_argument("--python-rounds", type=int, default=500, help="the same for the Python interpreter")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--program", default=PROGRAM, help="one of p4/build for v1model")
    given = parser.parse_args()
    assert run(given.program, 200, True)[1] == run(given.program, 200, False)[1], "both send the same bytes"
    for name, native, rounds in (("native", True, given.rounds), ("Python", False, given.python_rounds)):
        rates = [run(given.program, rounds, native)[0] for _ in range(given.repetitions)]
        print(
            f"{name} interpreter, {given.program}: {statistics.median(rates):,.0f} packets/s of {WORDS} words "
            f"(median of {len(rates)}, {min(rates):,.0f} to {max(rates):,.0f})"
        )


def run(program: str, rounds: int, native: bool) -> tuple[float, list[tuple[int, bytes]]]:
    """Run the program for that many rounds; returns packets per second, and the frames that it sent."""
    device = emulated_device(Artefacts.read(BUILD / f"{program}.json.gz", BUILD / f"{program}.p4info.txtpb"), native)
    link = LocalLink(device, lambda port, data: None)
    switch, vocabulary = device.switch, Vocabulary(link.p4info())
    assert switch is not None
    control = JobControl(link, vocabulary, Placement((SWITCH,)))
    control.serve()
    control.admit(SPEC)
    for worker in range(len(HOSTS)):
        link.receive(1 + worker, hello(worker))
        control.receive(link.next_packet(0), 0.0)
    frames = contributions(rounds)
    batches = [frames[first : first + BATCH] for first in range(0, len(frames), BATCH)]
    sent: list[tuple[int, bytes]] = []
    begin = time.thread_time()
    for batch in batches:
        sent += switch.process_batch(batch, 0.0)[0]
    elapsed_s = time.thread_time() - begin
    assert len(sent) == 2 * rounds, "each round closes once and goes to both"
    for _, data in sent:
        check_sum(data)
    return len(frames) / elapsed_s, sent


def hello(worker: int) -> bytes:
    """A worker's HELLO as a frame."""
    token = np.array([0, SPEC.tokens[worker]], np.uint32)
    packet = Packet(kind=Kind.HELLO, job=1, worker=worker, generation=7, words=token)
    return Frame(HOSTS[worker], SWITCH, packet.to_bytes()).to_bytes()


def contributions(rounds: int) -> list[tuple[int, bytes]]:
    """Both workers' contributions to that many rounds, in turn, as (port, frame)."""
    return [
        (1 + worker, Frame(HOSTS[worker], SWITCH, _contribution(worker, each)).to_bytes())
        for each in range(rounds)
        for worker in range(len(HOSTS))
    ]


def check_sum(frame: bytes) -> None:
    """Check that a frame from the switch holds the sum of both workers."""
    read = read_frame(frame)
    assert read is not None
    assert np.array_equal(parse(read.payload).words, VALUES[0] + VALUES[1])


def _contribution(worker: int, number: int) -> bytes:
    slot, base = number % SLOTS, number // SLOTS
    packet = Packet(
        kind=Kind.CONTRIBUTION,
        job=1,
        worker=worker,
        generation=7,
        slot=slot,
        base=base,
        signature=5,
        words=VALUES[worker],
    )
    return packet.to_bytes()


if __name__ == "__main__":
    main()
