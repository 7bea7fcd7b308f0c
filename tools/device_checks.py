"""Checks and measurements on a machine with one CUDA GPU, in under five minutes: `python tools/device_checks.py`.

Needs torch with CUDA and a C++ compiler; nothing has to be installed. Each check runs in processes of its own with a
time limit, the most important first; a check that fails, hangs or finds no time left stops no other. It ends with a
table, and with --out a JSON file of all reports. tests/torch/device_ranks.py has the programs of the processes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.machinery
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "tree"
"""The package laid out as by an installation (tools/linked_tree.py), so that none is needed."""
OUTPUT_CHARACTERS = 6000
"""Number of characters kept from the end of a failed rank's output."""


@dataclass(frozen=True, slots=True)
class Check:
    """A program of device_ranks.py, on `ranks` ranks."""

    program: str
    ranks: int
    limit_s: float
    says: str
    arguments: tuple[str, ...] = ()
    killed: tuple[int, ...] = ()
    """Ranks that a signal must end."""
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """The check's name in tables."""
        return " ".join((self.program, *self.arguments))


CHECKS = (
    Check("bits", 2, 60, "sums on the device have the bits of the host's path"),
    Check("waits", 2, 30, "wait returns at once while a peer is late", ("value",)),
    Check("times", 4, 30, "25 MiB of float32 on four ranks, against gloo", ("25",)),
    Check("cuda_checks", 2, 60, "every collective, streams, training (tests/torch/cuda_checks.py)"),
    Check("hsdp", 4, 30, "FSDP2 over hosts and inside them, fanin between, gloo inside"),
    Check("codecs", 2, 30, "codec_hook on the device has the host's bits; what residual and rotation take"),
    Check("wide", 2, 30, "wide sums and rounding at random on the device have the host's bits, and their times"),
    Check("spoiled", 2, 30, "on_nonfinite='raise' names the rank with infinities, on the device that quantizes"),
    Check("times", 2, 30, "25 MiB on two ranks", ("25",)),
    Check("kernels", 1, 60, "kernels against numpy on the device, bit by bit, and their times"),
    Check("times", 4, 30, "256 MiB on four ranks", ("256",)),
    Check("waits", 2, 30, "the same by threads, where wait blocks", ("block",)),
    Check("weights", 1, 30, "weights of all-gathers on the device have the host's bytes, and their times"),
    Check("nccl", 2, 30, "NCCL over sockets, two ranks on one device, where it runs"),
    Check("two_levels", 4, 30, "NCCL inside two hosts of two ranks on one device, fanin between, where NCCL runs so"),
    Check("killed", 2, 30, "a rank dies: streams go on, NaN, the typed error", ("value",), killed=(1,)),
    Check("killed", 2, 30, "the same by threads", ("block",), killed=(1,)),
    Check("late", 2, 30, "a rank never comes: streams go on, NaN, the typed error", ("value",)),
    Check("doctor", 1, 30, "what fanin doctor says of the device"),
    Check("about", 1, 30, "the machine, and its PCIe rate"),
    Check("sweep", 1, 30, "how the work of kernels is best divided"),
    Check("probe", 1, 30, "ways of waiting for a flag, and how long after it a stream goes on"),
    Check("waits", 2, 30, "the same by torch's kernel", ("kernel",)),
    Check("killed", 2, 30, "the same by torch's kernel", ("kernel",), killed=(1,)),
)


@dataclass(slots=True)
class Outcome:
    """Outcome of one check."""

    check: Check
    state: str
    """ok, FAILED, TIMEOUT or not run."""
    seconds: float = 0.0
    said: list[dict[str, Any]] = field(default_factory=list)
    """By rank, the report of its program."""
    printed: list[str] = field(default_factory=list)
    """By rank, the output; only if something went wrong."""

    def as_dict(self) -> dict[str, Any]:
        """The outcome as an object for the JSON file."""
        return {
            "check": self.check.name, "ranks": self.check.ranks, "says": self.check.says, "state": self.state,
            "seconds": round(self.seconds, 1), "said": self.said, "printed": self.printed,
        }  # fmt: skip


def prepare() -> None:
    """Compile the extension for this Python unless it exists, and lay the package out in TREE."""
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    if not (ROOT / "fanin" / f"_native{suffix}").exists():
        environment = {**os.environ, "FANIN_BUILD_JOBS": str(os.cpu_count() or 1)}
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
    subprocess.run([sys.executable, "tools/linked_tree.py"], cwd=ROOT, check=True)
    sys.path.append(str(TREE))


def run(check: Check, limit_s: float, folder: Path) -> Outcome:
    """Start the ranks of a check, wait for `limit_s` at most, and kill those that still run."""
    # importable without an installation, since `prepare` has laid it out
    from fanin.emulation.processes import free_port

    folder.mkdir(parents=True)
    port, started = str(free_port()), time.monotonic()
    ranks = []
    for rank in range(check.ranks):
        environment = {
            **os.environ, "PYTHONPATH": f"{TREE}:{os.environ.get('PYTHONPATH', '')}", "PYTHONUNBUFFERED": "1",
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(check.ranks),
            "LOCAL_WORLD_SIZE": str(check.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1", **dict(check.environment),
        }  # fmt: skip
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.torch.device_ranks", check.program]
        command += [str(folder / f"said{rank}.json"), *check.arguments]
        with (folder / f"rank{rank}.txt").open("wb") as output:
            ranks.append(
                subprocess.Popen(
                    command, cwd=TREE, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                )
            )
    hung = False
    for process in ranks:
        try:
            process.wait(max(0.1, started + limit_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            hung = True
            with contextlib.suppress(ProcessLookupError):
                # faulthandler prints the stacks of its threads. Not SIGABRT: LLVM catches it while Triton compiles, and
                # the kernel under way then seems to fail to compile.
                process.send_signal(signal.SIGUSR1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
    for process in ranks:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    codes = [process.returncode for process in ranks]
    wrong = [rank for rank, code in enumerate(codes) if code and rank not in check.killed]
    said = []
    for rank in range(check.ranks):
        path = folder / f"said{rank}.json"
        said.append(json.loads(path.read_text()) if path.exists() else {})
    wrong += [rank for rank, each in enumerate(said) if "wrong" in each and rank not in wrong]
    printed = []
    if wrong or hung:
        for rank in range(check.ranks):
            text = (folder / f"rank{rank}.txt").read_text(errors="replace")[-OUTPUT_CHARACTERS:]
            printed.append(f"rank {rank}, exit code {codes[rank]}:\n{text}")
    state = "TIMEOUT" if hung else "FAILED" if wrong else "ok"
    return Outcome(check, state, time.monotonic() - started, said, printed)


def lines_of(outcome: Outcome) -> list[str]:
    """Lines for people: the outcome, and rank 0's report; other ranks' only if something went wrong."""
    check = outcome.check
    lines = [f"{outcome.state:8} {check.name} ({check.ranks} ranks, {outcome.seconds:.0f} s): {check.says}"]
    for rank, said in enumerate(outcome.said):
        for name, value in said.items():
            if rank == 0 or name == "wrong" or outcome.state != "ok":
                shown = f"{value:.4g}" if isinstance(value, float) else str(value)
                lines.append(f"           {'' if rank == 0 else f'[rank {rank}] '}{name}: {shown}")
    return lines


def _no_device() -> str:
    """Why there is nothing to check here; empty where there is a device, or DEVICE names another."""
    if os.environ.get("DEVICE", "cuda") != "cuda":
        return ""
    import torch

    if torch.cuda.is_available():
        return ""
    return f"PyTorch {torch.__version__} sees no CUDA device"


def main() -> None:
    """Run the checks that there is time for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="a JSON file of everything")
    parser.add_argument("--only", default="", help="names of checks, separated by commas")
    parser.add_argument("--seconds", type=float, default=290.0, help="for all of them together")
    given = parser.parse_args()
    names = [name for name in given.only.split(",") if name]
    known = {each for check in CHECKS for each in (check.program, check.name)}
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--only {','.join(unknown)}: no such row. Remedy: some of {', '.join(sorted(known))}")
    if why := _no_device():
        parser.error(f"{why}. Remedy: DEVICE=cpu rehearses the rows that need no device, on host memory")
    deadline = time.monotonic() + given.seconds
    prepare()
    print(f"prepared; {deadline - time.monotonic():.0f} s left", flush=True)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as temporary:
        for number, check in enumerate(CHECKS):
            if names and check.program not in names and check.name not in names:
                continue
            left_s = deadline - time.monotonic()
            if left_s < 5.0:
                outcomes.append(Outcome(check, "not run"))
                continue
            try:
                outcome = run(check, min(check.limit_s, left_s), Path(temporary) / str(number))
            except Exception as error:  # an error of this script, which must not end the other checks
                outcome = Outcome(check, "FAILED", printed=[repr(error)])
            outcomes.append(outcome)
            print("\n".join(lines_of(outcome)), flush=True)
            for text in outcome.printed:
                print(text, flush=True)
            if given.out:
                given.out.write_text(json.dumps([each.as_dict() for each in outcomes], indent=1))
    print("\nstate    check", flush=True)
    for outcome in outcomes:
        print(f"{outcome.state:8} {outcome.check.name} ({outcome.check.ranks} ranks, {outcome.seconds:.0f} s)")
    sys.exit(any(outcome.state != "ok" for outcome in outcomes))


if __name__ == "__main__":
    main()
