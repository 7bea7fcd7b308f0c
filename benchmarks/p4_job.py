"""All-reduce of four ranks through the software switch and through the compiled P4 program, with the same packets.

    python -m fanin.benchmarks.p4_job

Both switches are processes with one UDP port; ranks are processes of torch.distributed over loopback. The switches take
turns, every sum is checked, and the figures are medians of the quotients of neighbouring runs. Words per packet and
slots, the only settings that would make their packets differ, are the same for both (`--words`, `--slots`). On a busy
machine the time of a call depends on the scheduler as much as on the switch, so the switch's processor time per
received packet stands beside it. The goal is a quotient of 3 in the time of a call.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fanin.emulation.processes import free_port
from fanin.host.session.control import ask
from fanin.modules import running
from fanin.options import SwitchAddress
from fanin.protocol import control
from fanin.switch.p4runtime.opening import WINDOW

TARGETS = ("software", "p4")
START_TIMEOUT_S = 60.0
JOB_TIMEOUT_S = 300.0
WARM_UP_CALLS = 2


def main() -> None:
    """Measure, print a line for each run, and one with the medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--bytes", type=int, default=1 << 20, help="size of the tensor, which is float32")
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--words", type=int, default=96, help="words per packet")
    parser.add_argument("--slots", type=int, default=WINDOW, help="the P4 program's window, for both")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        work(given)
        return
    runs: dict[str, list[Run]] = {target: [] for target in TARGETS}
    for _ in range(given.repetitions):
        for target in TARGETS:
            runs[target].append(run(target, given))
            print(f"{target}: {runs[target][-1]}", flush=True)
    print(f"{given.workers} ranks, {given.bytes:,} bytes, {given.words} words per packet; medians:")
    measured = {
        "ms of a call": {target: [each.call_s * 1e3 for each in runs[target]] for target in TARGETS},
        "us per packet": {target: [each.packet_us for each in runs[target]] for target in TARGETS},
    }
    for what, found in measured.items():
        quotients = [p4 / software for software, p4 in zip(*(found[target] for target in TARGETS), strict=True)]
        medians = ", ".join(f"{target} {statistics.median(found[target]):.2f}" for target in TARGETS)
        spread = f"{min(quotients):.2f} to {max(quotients):.2f}"
        print(f"  {what}: {medians}; the P4 program takes {statistics.median(quotients):.2f} times as much ({spread})")


@dataclass(frozen=True, slots=True)
class Run:
    """Measurements of one job."""

    call_s: float
    """Mean time of an all-reduce."""
    packets: int
    """Packets that reached the switch during the whole job."""
    busy_s: float
    """Processor time of the switch during the job."""

    @property
    def packet_us(self) -> float:
        """Processor time of the switch per packet, in microseconds."""
        return self.busy_s / self.packets * 1e6

    def __str__(self) -> str:
        return (
            f"{self.call_s * 1e3:.1f} ms a call, {self.packets:,} packets, {self.packet_us:.2f} us of the switch each"
        )


def busy_s(process: int) -> float:
    """Processor time of a process so far (proc(5))."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def packets_in(address: str) -> int:
    """Number of packets that a switch has received so far."""
    answer = ask(SwitchAddress.parse(address), control.Ask(), timeout_s=START_TIMEOUT_S)
    assert isinstance(answer, control.Stats)
    return sum(report.counters["packets_in"] for report in answer.data)


def run(target: str, given: argparse.Namespace) -> Run:
    """Run one job through a switch of that kind."""
    command = running("fanin", "switch", "--bind", "127.0.0.1:0", "--target", target)
    if target == "software":
        command += ["--no-shared-memory", "--flows", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as switch:
        try:
            assert switch.stdout is not None
            # Python's site module may print lines first.
            found = next(filter(None, (re.search(r"control: TCP port (\d+)", line) for line in switch.stdout)), None)
            assert found, "the switch says where it listens"
            address = f"udp://127.0.0.1:{found[1]}"
            before = busy_s(switch.pid)
            environment = {
                **os.environ,
                "FANIN_SWITCH": address,
                "FANIN_WORDS_PER_PACKET": str(given.words),
                "FANIN_SLOTS": str(given.slots),
                "OMP_NUM_THREADS": "1",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port()),
                "WORLD_SIZE": str(given.workers),
            }
            ranks = [
                subprocess.Popen(
                    running("fanin.benchmarks.p4_job", *sys.argv[1:], "--rank", str(rank)),
                    env={**environment, "RANK": str(rank)},
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for rank in range(given.workers)
            ]
            outputs = [rank.communicate(timeout=JOB_TIMEOUT_S)[0] for rank in ranks]
            assert not any(rank.returncode for rank in ranks), "a rank failed"
            return Run(float(outputs[0]), packets_in(address), busy_s(switch.pid) - before)
        finally:
            switch.terminate()


def work(given: argparse.Namespace) -> None:
    """Run one rank: time the calls; rank 0 prints the mean."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("fanin")
    count = given.bytes // 4
    expected = sum(range(1, given.workers + 1))
    for _ in range(WARM_UP_CALLS):
        dist.all_reduce(torch.full((count,), given.rank + 1.0))
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(given.calls):
        tensor = torch.full((count,), given.rank + 1.0)
        dist.all_reduce(tensor)
        assert torch.allclose(tensor, torch.full((count,), float(expected)), rtol=1e-2)
    seconds = (time.perf_counter() - begin) / given.calls
    dist.barrier()
    dist.destroy_process_group()
    if given.rank == 0:
        print(seconds)


if __name__ == "__main__":
    main()
