"""`fanin advise`: where a job's sums are best made, from measurements between its own ranks (docs/advise.md).

Every rank runs this, as torchrun starts it or `fanin advise --hosts` does; they agree through a gloo group. The lowest
rank of each host probes the links, one phase after the other (fanin/advice/link_probes.py). What follows from that is
predicted on rank 0 (fanin/advice/forecasts.py), and the best two choices are then measured beside gloo.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from fanin.addresses import SwitchList
from fanin.advice.advice_plan import Plan
from fanin.advice.forecasts import (
    Choice,
    Forecast,
    Network,
    Profile,
    find_racks,
    forecasts,
    recommended,
    settings,
    spare_weight,
)
from fanin.advice.gpu_notes import gpu_notes
from fanin.advice.jumbo_notes import jumbo_notes
from fanin.advice.link_probes import Listener, interface_mtu, round_trip_s, send_datagrams, stream
from fanin.advice.load_notes import load_notes
from fanin.advice.local_step_notes import meeting_notes
from fanin.advice.meeting_point import meet
from fanin.advice.own_processors import core_speed, idle_share, own_core_limit
from fanin.benchmarks.allreduce import checked_error
from fanin.benchmarks.harness import slowest
from fanin.benchmarks.rivals import Rival
from fanin.emulation.process_log import cause_in
from fanin.emulation.processes import free_port
from fanin.errors import ConfigurationError, FaninError
from fanin.host.diagnosis import gpu_driver_is_there
from fanin.host.torch.gloo.gloo_devices import unlike_gloos_choice
from fanin.host.torch.gpus import Gpu, gpu_of
from fanin.host.torch.meeting.network_interfaces import interface_of
from fanin.host.torch.meeting.placement import BOOT_ID, host_identity, hosts_of
from fanin.host.torch.meeting.reachable import GLOO_INTERFACES, reachable_host
from fanin.modules import running
from fanin.options import Options
from fanin.protocol.wire import MAX_WORKERS

GROUP_TIMEOUT = timedelta(minutes=10)
TOGETHER_S, ALONE_S, UPLINK_S = 2.0, 0.7, 1.0
IDLE_S = 1.0
"""Time over which the share of idle processors is measured."""
SETTLING_S = 0.3
"""Wait after a phase until queues are empty."""
PROFILE_STEPS = 5
PROFILE_TIMEOUT_S = 180.0
MEASURE_TIMEOUT_S = 240.0
MEASURED = 2
"""Choices that are measured, besides gloo."""
ROUNDS, SAMPLES_PER_ROUND = 2, 2
FLOAT_BYTES = 4
WEIGHED_BYTES = 4 << 20
MAX_MEASURED_BYTES = 64 << 20
NOT_PASSED_ON = ("TORCHELASTIC_", "FANIN_SWITCH", "FANIN_RACK", "FANIN_LANES", "FANIN_TIMELINE")
"""Variables that mean something else to the programs that are measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Result of `fanin advise`, at rank 0."""

    network: Network
    hosts: tuple[str, ...]
    """Host names, as the hosts report them."""
    ecn: bool
    profile: Profile
    found: tuple[Forecast, ...]
    """All choices, the quickest in prediction first."""
    best: Forecast | None
    """The recommended choice; None: stay with gloo."""
    settings: dict[str, str]
    racks: tuple[str, ...]
    """FANIN_RACK for each host; empty: none."""
    notes: tuple[str, ...] = ()


def advise(plan: Plan, say: Any) -> Advice | None:
    """Measure and predict, on every rank; return the advice on rank 0, None elsewhere. `say` gets lines on progress.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set, as torchrun does.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = meet(rank, size, plan.names, say)
    give_gloo_an_interface()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=GROUP_TIMEOUT)
    try:
        return _Rank(plan, say).run()
    finally:
        dist.destroy_process_group()


def give_gloo_an_interface() -> None:
    """Name the interface on the way to the other ranks, where gloo by itself would listen on loopback.

    It would where this machine's own name is a loopback address, as on Debian. The variable holds for the programs that
    are measured, too; one that the user has set stays.
    """
    host = unlike_gloos_choice()
    if not host or os.environ.get(GLOO_INTERFACES):
        return
    with contextlib.suppress(OSError):
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)[0][4][0])
        if (name := interface_of(address)) is not None:
            os.environ[GLOO_INTERFACES] = name


def own_gpu(say: Any) -> Gpu | None:
    """Measure this rank's GPU; None without one, or, with a line to `say`, where it cannot be measured.

    Ranks of one host measure at the same time, as they train: what they share, such as a root port, is in the rates.
    """
    import torch

    if not gpu_driver_is_there() or not torch.cuda.is_available():
        return None
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    try:
        with torch.cuda.device(device):
            return gpu_of(device, Options.from_environment(os.environ))
    except (RuntimeError, ConfigurationError) as error:
        say(f"rank {os.environ['RANK']}: its GPU could not be measured: {str(error).splitlines()[0]}")
        return None


class _Rank:
    """This rank's part of the measurement."""

    def __init__(self, plan: Plan, say: Any) -> None:
        self.plan, self.say = plan, say
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        own: dict[str, Any] = {
            "host": host_identity(Options.from_environment(os.environ)),
            "machine": BOOT_ID.read_text().strip() if BOOT_ID.exists() else socket.gethostname(),
            "cores": own_core_limit(len(os.sched_getaffinity(0))),
        }
        gpu = own_gpu(say)
        own["gpu"] = None if gpu is None else dataclasses.asdict(gpu)
        self.facts: list[dict[str, Any]] = self.all(own)
        self.hosts = hosts_of([each["host"] for each in self.facts])
        self.host = self.hosts.of(self.rank)
        self.leads = self.hosts.leaders[self.host] == self.rank
        self.n = len(self.hosts.ranks)
        self.all(None)  # no rank starts any more, which takes processors
        idle = idle_share(IDLE_S) if self.leads else 1.0
        self.processors: list[tuple[float, float]] = self.by_host((idle, core_speed() if self.leads else 1.0))
        """By host: the share of processor time that nobody uses, and the speed of a core (Network)."""

    @property
    def _addresses(self) -> list[str]:
        """Addresses of the running switches, without weights."""
        return [each.partition("=")[0] for each in self.plan.switches]

    def all(self, own: Any) -> list[Any]:
        """Gather every rank's object."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, own)
        return found

    def by_host(self, own: Any) -> list[Any]:
        """Gather the object of every host's lowest rank."""
        found = self.all(own)
        return [found[leader] for leader in self.hosts.leaders]

    def tell(self, text: str) -> None:
        """Say a line, on rank 0 alone."""
        if self.rank == 0:
            self.say(text)

    def run(self) -> Advice | None:
        if self.size < 2:
            raise ConfigurationError("one rank alone has nobody to sum with. Remedy: start at least two")
        network, ecn = self._network()
        profile = self._profile()
        notes: list[str] = []
        if network.spares and self.n > 1:
            network = self._weighed(network, notes)
        found = forecasts(network, self.plan.lanes, profile)
        if self.plan.measures:
            found = self._measure(found, network, profile, notes)
        best = recommended(found)
        if self.rank != 0:
            return None
        gpus = [None if each["gpu"] is None else Gpu(**each["gpu"]) for each in self.facts]
        names = tuple(self.facts[leader]["host"] for leader in self.hosts.leaders)
        notes += load_notes(network, names)
        notes += jumbo_notes(network, names, (best or found[0]).choice, profile)
        notes += gpu_notes(network, gpus, profile, best)
        notes += meeting_notes(network, self.plan.lanes, profile, best)
        racks: tuple[str, ...] = ()
        if best is not None and best.choice.place == "racks":
            racks = tuple(_rack_name(network, host) for host in range(self.n))
        return Advice(
            network=network, hosts=names, ecn=ecn, profile=profile, found=tuple(found), best=best,
            settings={} if best is None else settings(best.choice, network, self._addresses), racks=racks,
            notes=tuple(notes),
        )  # fmt: skip

    # --- links ---

    def _network(self) -> tuple[Network, bool]:
        on_machine = [self.facts[leader]["machine"] for leader in self.hosts.leaders]
        cores = [self.facts[leader]["cores"] / on_machine.count(on_machine[host])
                 for host, leader in enumerate(self.hosts.leaders)]  # fmt: skip
        shape: dict[str, Any] = {
            "ranks": tuple(map(len, self.hosts.ranks)), "cores": tuple(cores), "spares": len(self.plan.switches),
            "idle": tuple(idle for idle, _ in self.processors),
            "core_speeds": tuple(speed for _, speed in self.processors),
        }  # fmt: skip
        if self.n == 1:
            return Network(rates=(0.0,), round_trip_s=20e-6, mtu=9000, **shape), False
        with Listener(self.host) if self.leads else contextlib.nullcontext() as listener:
            at = self.by_host((reachable_host(), listener.port) if listener is not None else None)
            others = [at[(self.host + step) % self.n] for step in range(1, self.n)]
            self.tell(f"round trips, ECN and packet lengths between {self.n} hosts")
            trips = self._phase(lambda: [round_trip_s(each, self.host) for each in others])
            mtus = self._phase(lambda: min(interface_mtu(each) for each in others))
            self._phase(lambda: send_datagrams(others, self.host))
            time.sleep(SETTLING_S)
            arrived = self.by_host({} if listener is None else listener.datagrams())
            seen = [arrived[two].get(one) for one in range(self.n) for two in range(self.n) if one != two]
            together: dict[tuple[int, int], float] = {}
            if self.n > 2:
                self.tell("all hosts send to all, to find those that share an uplink")
                together = self._streams(listener, lambda: stream(others, self.host, TOGETHER_S))
            racks = find_racks(together, self.n)
            beside = {host: rack for rack in racks for host in rack} or dict.fromkeys(
                range(self.n), tuple(range(self.n))
            )
            ups, downs = [0.0] * self.n, [0.0] * self.n
            self.tell("each link alone")
            for host in range(self.n):
                rack = beside[host]
                to = rack[(rack.index(host) + 1) % len(rack)] if len(rack) > 1 else (host + 1) % self.n
                alone = self._streams(listener, lambda to=to: stream([at[to]], self.host, ALONE_S), only=host)
                ups[host] = max(
                    alone.get((host, to), 0.0), sum(each for (one, _), each in together.items() if one == host)
                )
                downs[to] = max(downs[to], alone.get((host, to), 0.0))
            uplinks = self._uplinks(listener, racks, at) if racks else ()
        rates = tuple(min(up, down or up) for up, down in zip(ups, downs, strict=True))
        mtu = min((each.mtu if each else 0 for each in seen), default=0)
        network = Network(
            rates=rates, round_trip_s=statistics.median(t for each in trips for t in each), mtu=mtu or 1500,
            interface_mtus=tuple(mtus), racks=racks, uplinks=uplinks, **shape,
        )  # fmt: skip
        if not all(rates):
            silent = ", ".join(str(host) for host, rate in enumerate(rates) if not rate)
            raise FaninError(
                f"nothing could be sent between hosts {silent} and their neighbours. Remedy: open all TCP ports"
            )
        return network, all(each is not None and each.ecn for each in seen)

    def _phase(self, act: Any) -> list[Any]:
        """Call `act` on every host's lowest rank at the same time, and return the results by host."""
        error, result = "", None
        if self.leads:
            try:
                result = act()
            except OSError as problem:
                error = f"host {self.host}: {problem}"
        told = self.by_host((error, result))
        if failed := next((error for error, _ in told if error), ""):
            raise FaninError(f"{failed}. Remedy: let hosts reach each other's TCP ports")
        return [result for _, result in told]

    def _streams(self, listener: Listener | None, act: Any, only: int | None = None) -> dict[tuple[int, int], float]:
        """Let all hosts, or `only` one, send; return the rate of each pair of hosts (sender, receiver)."""
        self._phase(lambda: act() if only in (None, self.host) else None)
        came = self.by_host({} if listener is None else listener.rates())
        return {(one, two): rate for two, rates in enumerate(came) for one, rate in rates.items()}

    def _uplinks(
        self, listener: Listener | None, racks: tuple[tuple[int, ...], ...], at: list[Any]
    ) -> tuple[float, ...]:
        """Measure each rack's uplink, in its slower direction, while all of its hosts send to the next rack's. One rack
        at a time: TCP in both directions of one link keeps neither busy (ACKs wait behind data).
        """
        out = []
        for number, rack in enumerate(racks):
            there = racks[(number + 1) % len(racks)]
            self.tell(f"uplink {number + 1} of {len(racks)}")
            pairs = {host: there[place % len(there)] for place, host in enumerate(rack)}
            to = pairs.get(self.host)
            rates = self._streams(listener, lambda to=to: None if to is None else stream([at[to]], self.host, UPLINK_S))
            out.append(sum(rates.values()))
        return tuple(min(out[number], out[number - 1]) for number in range(len(racks)))

    # --- the program ---

    def _profile(self) -> Profile:
        if not self.plan.program:
            return Profile(((0.0, self.plan.bytes),))
        self.tell(f"{PROFILE_STEPS} steps of {' '.join(self.plan.program)}")
        with tempfile.TemporaryDirectory(prefix="fanin-advise-") as folder:
            file = Path(folder) / "timeline"
            process = self._start(list(self.plan.program), {"FANIN_TIMELINE": str(file)}, Path(folder) / "log")
            try:
                end = time.monotonic() + PROFILE_TIMEOUT_S
                while process.poll() is None and time.monotonic() < end and _steps(file) <= PROFILE_STEPS:
                    time.sleep(0.1)
                ended = process.poll()
                dist.barrier()
            finally:
                _stop(process)
            profile = profile_of(file.read_text().splitlines()) if file.exists() else None
            log = (Path(folder) / "log").read_text(errors="replace")
        told = self.all(
            (None if profile is None else dataclasses.asdict(profile), ended, cause_in(log) if ended else "")
        )
        of_rank_0 = told[0][0]
        if of_rank_0 is None:
            why = next((f"rank {rank} ended with status {status}: {text}" for rank, (_, status, text) in enumerate(told)
                        if status), "it made no optimizer step over backend 'fanin'")  # fmt: skip
            raise FaninError(f"no training step of {' '.join(self.plan.program)} was seen: {why}")
        return Profile(tuple(map(tuple, of_rank_0["buckets"])), of_rank_0["compute_s"])

    def _start(self, command: list[str], extra: dict[str, str], log: Path, output: Any = subprocess.DEVNULL) -> Any:
        """Start a program on this rank, as all ranks do, with a store of its own; it ends with this rank."""
        port: list[int | None] = [None]
        if self.rank == 0:
            port = [free_port()]
        dist.broadcast_object_list(port, 0)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_PASSED_ON)}
        environment = {**kept, "OMP_NUM_THREADS": "1", "MASTER_PORT": str(port[0]), **extra}
        environment["FANIN_PARENT"] = str(os.getpid())
        with log.open("wb") as errors:
            return subprocess.Popen(
                running("fanin.emulation.parent_death", "--", *command),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )

    # --- measuring ---

    def _weighed(self, network: Network, notes: list[str]) -> Network:
        """Return the network with the rate of the switches' links: as given, else as a sum at these alone shows it."""
        told = SwitchList.parse(",".join(self.plan.switches)).weights
        if any(weight != 1 for weight in told):
            return dataclasses.replace(network, spare_weight=statistics.mean(told))
        alone = Choice("switch")
        if not self.plan.measures or network.size > MAX_WORKERS:
            return network
        self.tell(f"links of {network.spares} switch{'es' * (network.spares > 1)}")
        result = self._run([alone], network, WEIGHED_BYTES)
        if isinstance(result, str):
            notes.append(f"{alone.in_words} could not be measured: {result}")
            return network
        weight = spare_weight(network, WEIGHED_BYTES, result[Rival("fanin").label])
        return dataclasses.replace(network, spare_weight=weight)

    def _measure(self, found: list[Forecast], network: Network, profile: Profile, notes: list[str]) -> list[Forecast]:
        """Measure the best choices beside gloo, each placement in a run of its own, and add what was measured."""
        wanted = [each.choice for each in found if each.choice.place][:MEASURED]
        size = min(MAX_MEASURED_BYTES, max(size for _, size in profile.buckets))
        for place in dict.fromkeys(choice.place for choice in wanted):
            chosen = [choice for choice in wanted if choice.place == place]
            self.tell(f"measuring {', '.join(choice.in_words for choice in chosen)}, and gloo, {size:,} bytes")
            told = self._run(chosen, network, size)
            if isinstance(told, str):
                notes.append(f"{chosen[0].in_words} could not be measured: {told}")
                continue
            gloo_s = told[Rival("gloo").label]
            by_choice = {choice: told[Rival("fanin", choice.lanes).label] for choice in chosen}
            found = [
                dataclasses.replace(each, measured_s=by_choice[each.choice], gloo_s=gloo_s) if each.choice in by_choice
                else dataclasses.replace(each, measured_s=gloo_s) if not each.choice.place
                else each
                for each in found
            ]  # fmt: skip
        return found

    def _run(self, chosen: list[Choice], network: Network, size: int) -> dict[str, float] | str:
        """Measure some choices of one placement, and gloo; return median seconds by rival, or the failure in words."""
        rivals = [Rival("gloo"), *(Rival("fanin", choice.lanes) for choice in chosen)]
        extra = settings(chosen[0], network, self._addresses)
        extra.pop("FANIN_LANES", None)
        if chosen[0].place == "racks":
            extra["FANIN_RACK"] = _rack_name(network, self.host)
        command = running("fanin.benchmarks.allreduce_worker")
        command += ["--rivals", ",".join(rival.label for rival in rivals), "--count", str(size // FLOAT_BYTES)]
        command += ["--rounds", str(ROUNDS), "--samples-per-round", str(SAMPLES_PER_ROUND)]
        with tempfile.TemporaryDirectory(prefix="fanin-advise-") as folder:
            log = Path(folder) / "log"
            process = self._start(command, extra, log, subprocess.PIPE)
            try:
                output, _ = process.communicate(timeout=MEASURE_TIMEOUT_S)
                error = (
                    "" if process.returncode == 0 else f"rank {self.rank}: {cause_in(log.read_text(errors='replace'))}"
                )
            except subprocess.TimeoutExpired:
                output, error = b"", f"rank {self.rank}: not done after {MEASURE_TIMEOUT_S:g} s"
            finally:
                _stop(process)
        reports = [json.loads(line) for line in output.splitlines() if line.startswith(b'{"rival"')]
        told = self.all((error, {each["rival"]: each for each in reports}))
        if failed := next((error for error, _ in told if error), ""):
            return failed
        result = {}
        for rival in rivals:
            each = [of_rank[rival.label] for _, of_rank in told]
            checked_error(rival, each, self.size)
            result[rival.label] = statistics.median(slowest(each))
        return result


def _rack_name(network: Network, host: int) -> str:
    return f"rack{next(number for number, rack in enumerate(network.racks) if host in rack)}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the program and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _steps(file: Path) -> int:
    return file.read_text().count('"kind": "step"') if file.exists() else 0


def profile_of(lines: Sequence[str]) -> Profile | None:
    """Profile of the last whole step in a timeline (host/torch/collectives/timeline.py); None where there is none."""
    records = []
    for line in lines:
        with contextlib.suppress(ValueError):  # the last line may be half there
            records.append(json.loads(line))
    steps = {each["step"]: each["time"] for each in records if each["kind"] == "step"}
    for step in sorted(steps, reverse=True):
        sums = [each for each in records if each["kind"] == "reduction" and each["step"] == step]
        if step + 1 in steps and sums:
            buckets = sorted((each["submitted"] - steps[step], each["bytes"]) for each in sums)
            return Profile(tuple((max(0.0, ready), size) for ready, size in buckets), max(0.0, buckets[-1][0]))
    return None
