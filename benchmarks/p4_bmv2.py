"""The compiled P4 program in BMv2 beside fanin's emulator: packets per second, with the same packets in turns.

    sudo python -m fanin.benchmarks.p4_bmv2

Needs simple_switch_grpc on PATH and root. The work is that of p4_emulator.py: two workers contribute 64 words to 64
slots, and every result is checked. BMv2 gets its packets through veth pairs, 16 rounds at a time. It has several
threads, so its packets per second are given both by wall-clock time and by its processor time; the emulator, which has
one thread and no sockets here, is measured in processor time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

from fanin.benchmarks import p4_emulator
from fanin.benchmarks.p4_emulator import HOSTS, SPEC, SWITCH, WORDS
from fanin.emulation.bmv2_process import DEVICE_ID, launched, linked, missing
from fanin.switch.p4runtime.controller.job_control import JobControl, Placement
from fanin.switch.p4runtime.controller.links import DeviceAddress, GrpcLink
from fanin.switch.p4runtime.controller.vocabulary import Vocabulary
from fanin.switch.p4runtime.opening import BUILD, PROGRAM, Artefacts
from fanin.switch.p4runtime.server.p4info import read_p4info

BURST = 16
"""Rounds sent at a time: a port of BMv2 queues 64 packets, and drops further ones."""
TIMEOUT_S = 20.0


def main() -> None:
    """Measure in turns, and print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=2048, help="rounds of one repetition in BMv2, a multiple of 16")
    parser.add_argument("--emulator-rounds", type=int, default=5000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--program", default=PROGRAM, help="one of p4/build for v1model")
    given = parser.parse_args()
    if (reason := missing()) is not None:
        raise SystemExit(reason)
    wall, processor, emulated = [], [], []
    for _ in range(given.repetitions):
        rates = run(given.program, given.rounds)
        wall.append(rates[0])
        processor.append(rates[1])
        emulated.append(p4_emulator.run(given.program, given.emulator_rounds, True)[0])
    for name, found in (
        ("BMv2, wall-clock time", wall),
        ("BMv2, processor time", processor),
        ("native interpreter, processor time", emulated),
    ):
        print(
            f"{name}, {given.program}: {statistics.median(found):,.0f} packets/s of {WORDS} words "
            f"(median of {len(found)}, {min(found):,.0f} to {max(found):,.0f})"
        )


def run(program: str, rounds: int) -> tuple[float, float]:
    """Packets per second of wall-clock time, and of BMv2's processor time."""
    artefacts = Artefacts.read(BUILD / f"{program}.json.gz", BUILD / f"{program}.p4info.txtpb")
    with (
        tempfile.TemporaryDirectory() as folder,
        linked(range(1, len(HOSTS) + 1)) as links,
        launched(Path(folder) / "bmv2.log", links) as (address, switch),
    ):
        sockets = list(links.sockets.values())
        link = GrpcLink(DeviceAddress(target=address, device_id=DEVICE_ID))
        link.ensure_pipeline(read_p4info(artefacts.p4info), artefacts.program)
        control = JobControl(link, Vocabulary(link.p4info()), Placement((SWITCH,)))
        control.serve()
        control.admit(SPEC)
        for worker, tap in enumerate(sockets):
            tap.send(p4_emulator.hello(worker))
            control.receive(link.next_packet(TIMEOUT_S), 0.0)
        for tap in sockets:
            tap.recv(1 << 14)  # the worker's WELCOME
        frames = p4_emulator.contributions(rounds)
        results = []
        begin, begin_s = time.perf_counter(), processor_s(switch.pid)
        for first in range(0, len(frames), BURST * len(HOSTS)):
            for port, frame in frames[first : first + BURST * len(HOSTS)]:
                sockets[port - 1].send(frame)
            results += [tap.recv(1 << 14) for tap in sockets for _ in range(BURST)]
        elapsed_s, used_s = time.perf_counter() - begin, processor_s(switch.pid) - begin_s
        link.close()
    for data in results:
        p4_emulator.check_sum(data)
    return len(frames) / elapsed_s, len(frames) / used_s


def processor_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
