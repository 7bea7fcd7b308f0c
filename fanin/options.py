"""A worker's options, with where each may come from: `pg_options=fanin.Options(...)` or the environment.

Reading the environment is the caller's: `Options.from_environment` takes a mapping.
"""

from __future__ import annotations

import dataclasses
import functools
import numbers
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from fanin.addresses import HOSTS, MAX_WEIGHT, MIN_WEIGHT, SwitchList
from fanin.addresses import SwitchAddress as SwitchAddress
from fanin.errors import ConfigurationError
from fanin.faults import FaultPlan, FaultSchedule
from fanin.interface_list import InterfaceList
from fanin.numerics.reduction import lanes_number
from fanin.protocol.job import Asked, AskedRounds
from fanin.protocol.tag_algorithm import TAG_ALGORITHMS, TagAlgorithm
from fanin.settings import Bounds, check_bounds, settings_of

ENVIRONMENT_PREFIX = "FANIN_"
MAX_HOST_CHARACTERS = 200
MIN_SECRET_CHARACTERS = 16
"""Shortest secret that people may choose: an attacker who sees messages of the job can try to guess it."""
EXACT_ELEMENTS = 256
"""Tensors of up to so many elements are reduced exactly in a group of any size."""
EXACT_WORDS = 4096
"""Larger tensors are reduced exactly, too, while all ranks' elements together are no more than this: up to 1,024 each
with four ranks."""
MAX_EXACT_ELEMENTS = 1 << 31
"""A limit for the option; what it costs is N times the bytes."""
MAX_FLOWS = 16
"""Sockets and threads of a switch."""
LINK_RATES = Bounds(MIN_WEIGHT, MAX_WEIGHT)
LIVENESS_S = Bounds(0.2, 3600)
"""Silence after which a rank or a switch may count as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds(AskedRounds):
    """When a job's rounds close (docs/slot-machine.md); the same on every rank. The default: synchronous all-reduce.

    `quorum` None: a round waits for all ranks.
    """

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.max_staleness is not None and self.staleness > self.max_staleness:
            raise ConfigurationError(
                f"staleness = {self.staleness}, above max_staleness = {self.max_staleness}", "one of the two"
            )


SYNCHRONOUS = Rounds()
"""Every round waits for every worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Asked):
    """Everything a worker can be told. Each field is also an environment variable: `lanes` is FANIN_LANES."""

    _timeout: ClassVar[None] = None
    """No option: torch reads this attribute of a group's options (init_device_mesh); None leaves it its own default."""
    switch: str | None = None
    """`udp://host:port` or `zmq://host:port`; several, separated by commas, share the work. `rank0`: one that rank 0
    starts; `hosts`: one on each host; `hosts,ADDRESS,...`: these and others, such as spare hosts'. `ADDRESS=2` and
    `hosts=2` say how fast links there are, compared with each other (docs/torch.md, *Shards*). None: rank 0's where all
    ranks are on one host, else one on each host."""
    host: str | None = None
    """Any text: ranks with the same one count as ranks of one host, which share memory. None: as the kernel has it."""
    rack: str | None = None
    """Any text, on every host or on none: hosts with the same one are behind one uplink. Sums are then made inside a
    rack before anything crosses its uplink (docs/torch.md, *Racks*)."""
    link: Annotated[float | None, LINK_RATES] = None
    """Rate of this host's link, in a unit that is the same on all hosts; with shards on hosts, those with fast links
    sum more. None: what `hosts=` says, or 1."""
    interfaces: str | None = None
    """Network interfaces of this host that carry data between hosts, as in `eth0,eth1`, `^docker0` or
    `eth0=10,eth1=25` with their rates. The host has a shard at the address of each (docs/torch.md, *Several network
    cards*). None: the interface on the way to the other hosts."""
    lanes: int | str = 32
    """Bits per lane for floating point tensors: 32, 16, 8 or 4, packed. Narrow lanes move fewer bytes and round more.
    Or bits up / bits down, "8/8", "4/8", "4/4", "2/8" or "2/4": lanes that keep their bits with any number of workers,
    through a software switch (docs/numerics.md, *Wide sums*). "8" and "4" are "8/8" and "4/4"; in the environment,
    where everything is text, 8 and 4 are packed."""
    codec: str | None = None
    """A gradient codec of one stage, such as `rotated:8` (docs/codecs.md): sums and averages of float32, float16 and
    bfloat16 that are not small go through it, without error feedback, since a tensor's next step cannot be told from
    another tensor's. The same on every rank. None: lanes alone."""
    exact_elements: Annotated[int | None, Bounds(0, MAX_EXACT_ELEMENTS)] = None
    """The largest count of elements that is reduced exactly (docs/numerics.md), at N times the words. None: 256, or as
    many as make 4,096 with all ranks; 0: none, so that small sums take lanes and small maxima gloo. The same on every
    rank of a group."""
    flows: Annotated[int | None, Bounds(1, MAX_FLOWS)] = None
    """Sockets and threads of the switch that rank 0 starts; one that is there already decides by itself. None: one per
    four cores of the switch."""
    checksum: bool | None = None
    """CRC-32 in every packet. None: only where datagrams are corrupted on purpose (faults), since UDP and TCP have
    checksums of their own."""
    tag: TagAlgorithm | None = None
    """Algorithm of keyed tags: `siphash`, or `gcm-siv`, which wants a processor with AES and carry-less multiplication
    (docs/security.md). The same on every rank. None: gcm-siv where all ranks and the switch can, else siphash."""
    native: bool | None = None
    """True: the native engine or an error. False: the Python twin. None: native where it is built."""
    shared_memory: bool | None = None
    """False: packets go by UDP even to a switch on this machine. None, True: through shared memory where they can."""
    fallback: Literal["raise", "gloo", "cards"] = "raise"
    """Reaction to a lost switch: an error on every rank, or, loudly and once, gloo from there on. `cards`: to a lost
    network of hosts with several network cards, the cards that are left (docs/torch.md). The same on every rank.
    """
    on_nonfinite: Literal["warn", "raise", "skip"] = "warn"
    """Reaction to NaN or infinities that a rank contributes to a sum (docs/nonfinite.md): a warning that names rank,
    step and parameter; NonFiniteError on every rank; or the step is left out on every rank. The same on every rank.
    """
    inside: Literal["nccl", "gloo"] | None = None
    """Sums of two levels (docs/gpu.md): large floating point all-reduces are scattered over the ranks of a host by this
    library, each part is summed between hosts by fanin, and the parts are gathered inside again. `nccl`: CUDA tensors;
    `gloo`: tensors in host memory. The same on every rank. None: one level."""
    device_wait: Literal["auto", "value", "kernel", "block"] = "auto"
    """How CUDA streams wait for a result (docs/gpu.md): `value`, in the device's queue (cuStreamWaitValue32); `kernel`,
    by torch's kernel that polls; `block`: `wait` blocks the calling thread, and ranks may use groups in any order.
    `auto`: the first of them that works. Ranks may differ."""
    ordered_futures: bool = False
    """Whether asking a collective for its future waits for it, so that callbacks run in program order. For hooks whose
    callbacks issue collectives for several buckets (PowerSGD); it costs the overlap with the backward pass."""
    connect_timeout_s: Annotated[float, Bounds(0.1, 600)] = 5.0
    """Longest wait for the first answer of a switch."""
    idle_return_s: Annotated[float, Bounds(0, 86_400)] = 60.0
    """A group of new_group that has summed nothing for so long gives its slots back to the switch, and joins anew at
    its next sum. 0: never. It does so once all of its ranks are for it."""
    ports: str | None = None
    """Ports of the switches that this rank starts, as in `5000-5063`. A switch has a number for control (TCP) and its
    first flow (UDP), and the next ones for further flows; a host of several ranks has a shard and a leaf of each shard
    (docs/launchers.md, *Ports*). None: any that are free."""
    liveness_timeout_s: Annotated[float | None, LIVENESS_S] = None
    """Silence after which a rank, or the switch, counts as lost, of the switch that rank 0 starts; one that is there
    already decides by itself. None: 30 s. A rank that is killed is noticed sooner (docs/errors.md)."""
    faults: str | None = None
    """Faults injected at this worker, for tests: `drop=1%,dup=0.5%,reorder=2%,corrupt=0.1%@seed=7`, and when to end it:
    `kill=worker:2@step:40`. The grammar is in fanin/faults.py."""
    timeline: str | None = None
    """File that receives a JSON line per reduction and per optimizer step of this worker, with times; `%r` becomes the
    rank. `fanin emulate` draws its time lines from such files, and `fanin trace` makes a trace of them."""
    flight_recorder: str | None = None
    """Beginning of the name of a file that receives the latest collectives of this rank when one of them fails, a rank
    or the switch is lost, or the group ends; the rank follows, as in `/tmp/fanin_rank_0`. `torchfrtrace` compares the
    files of all ranks (docs/watching.md). None: nothing is recorded."""
    otel: bool = False
    """Whether OpenTelemetry gets a span of each collective and optimizer step of this rank, and its log
    (docs/watching.md). OTEL_EXPORTER_OTLP_ENDPOINT and the like say where they are sent. Needs the extra `otel`."""
    metrics: str | None = None
    """Port at which Prometheus finds the metrics of this process's ranks: `:9465` on loopback, `0.0.0.0:9465` for other
    machines, each rank at its number more (docs/watching.md). Needs the extra `metrics`."""
    pcap: str | None = None
    """File that receives every datagram of this worker as a packet capture; `%r` becomes the rank."""
    trace: str | None = None
    """File that receives one line of text per datagram of this worker; `%r` becomes the rank, `-` is standard error."""
    secret: str | None = field(default=None, repr=False)
    """Secret that only the ranks of a job share, 16..512 characters. None: behind torch.distributed rank 0 draws one,
    and the others have it from the group's store; without torch, whoever knows the job's name is in it.
    """
    curve_server_key: str | None = None
    """The switch's CURVE public key in Z85 (40 characters): control, and zmq data, are then encrypted."""

    def __post_init__(self) -> None:
        def check(legal: bool, text: str, correct: str = "") -> None:
            if not legal:
                raise ConfigurationError(text, correct)

        for name, kinds in _kinds().items():
            value = getattr(self, name)
            legal = any(isinstance(value, kind) for kind in kinds) and (not isinstance(value, bool) or bool in kinds)
            check(legal, f"{name} = {value!r}; expected {' or '.join(_IN_WORDS[kind] for kind in kinds)}", name)
        check(
            self.link is None or self.link in LINK_RATES,
            f"link = {self.link}; expected the rate of this host's link compared with the others', {MIN_WEIGHT:g} to "
            f"{MAX_WEIGHT:,.0f}",
            "link",
        )
        check_bounds(self)
        _ = self.switch_list
        check(
            self.interface_list is None or not self.switches or self.switch_list.word == HOSTS,
            f"interfaces = {self.interfaces!r} with switch = {self.switch!r}: interfaces are those of switches that "
            "hosts start. Remedy: leave out interfaces, and give a switch an address on each network",
        )
        for name, text in (("host", self.host), ("rack", self.rack)):
            legal = text is None or (text.isprintable() and 0 < len(text) <= MAX_HOST_CHARACTERS)
            check(legal, f"{name} = {text!r}: expected text of 1 to {MAX_HOST_CHARACTERS} characters", name)
        lanes_number(self.lanes)
        codec = self.codec
        legal = codec is None or (codec.isprintable() and 0 < len(codec) <= 200)
        check(legal, f"codec = {codec!r}: expected text of 1 to 200 characters", "codec")
        words = self.words_per_packet
        check(
            words is None or words % 8 == 0, f"words_per_packet = {words}; must be a multiple of 8", "words_per_packet"
        )
        _ = self.port_range
        check(
            self.on_worker_loss in ("raise", "continue"),
            f"on_worker_loss = {self.on_worker_loss!r}; must be 'raise' or 'continue'",
            "on_worker_loss",
        )
        check(
            self.fallback in ("raise", "gloo", "cards"),
            f"fallback = {self.fallback!r}; must be 'raise', 'gloo' or 'cards'",
            "fallback",
        )
        check(
            self.fallback != "cards" or self.on_worker_loss == "raise",
            f"fallback = 'cards' with on_worker_loss = {self.on_worker_loss!r}: a job goes on with all of its ranks "
            "over the network cards that are left, or without lost ranks. Remedy: leave out one of the two",
        )
        check(
            self.on_nonfinite in ("warn", "raise", "skip"),
            f"on_nonfinite = {self.on_nonfinite!r}; must be 'warn', 'raise' or 'skip'",
            "on_nonfinite",
        )
        for name, plain in (("on_worker_loss", "raise"), ("fallback", "raise"), ("inside", None)):
            check(
                self.on_nonfinite == "warn" or getattr(self, name) == plain,
                f"on_nonfinite = {self.on_nonfinite!r} with {name} = {getattr(self, name)!r}: ranks would not all hear "
                f"of the same sums. Remedy: on_nonfinite='warn', or leave out {name}",
            )
        tags = " or ".join(map(repr, TAG_ALGORITHMS))
        check(self.tag in (None, *TAG_ALGORITHMS), f"tag = {self.tag!r}; must be {tags}", "tag")
        check(
            self.inside in (None, "nccl", "gloo"), f"inside = {self.inside!r}; must be 'nccl', 'gloo' or None", "inside"
        )
        for name, plain in (("on_worker_loss", "raise"), ("fallback", "raise")):
            check(
                self.inside is None or getattr(self, name) == plain,
                f"inside = {self.inside!r} with {name} = {getattr(self, name)!r}: a group inside a host ends with the "
                f"first rank that is lost. Remedy: leave out one of the two",
            )
        ways = ("auto", "value", "kernel", "block")
        text = f"device_wait = {self.device_wait!r}; must be one of {', '.join(ways)}"
        check(self.device_wait in ways, text, "device_wait")
        if self.faults is not None:
            others = [each.text for each in FaultSchedule.parse(self.faults).scheduled if not each.by_worker]
            check(not others, f"faults: a worker cannot do {'; '.join(others)}. Remedy: use `fanin emulate --fault`")
        secret = self.secret
        legal = secret is None or MIN_SECRET_CHARACTERS <= len(secret) <= 512
        check(legal, "secret must have 16..512 characters", "secret")
        key = self.curve_server_key
        check(key is None or len(key) == 40, "curve_server_key must be 40 characters (Z85)", "curve_server_key")

    @property
    def lanes_number(self) -> int:
        """`lanes` as reductions have them (Reduction.lanes)."""
        return lanes_number(self.lanes)

    def largest_exact(self, ranks: int) -> int:
        """The largest count of elements that a group of so many ranks reduces exactly."""
        return max(EXACT_ELEMENTS, EXACT_WORDS // ranks) if self.exact_elements is None else self.exact_elements

    @property
    def goes_on(self) -> bool:
        """Whether a job may go on over shards without what it has lost: ranks and shards, or a network."""
        return self.on_worker_loss == "continue" or self.fallback == "cards"

    @property
    def may_fall_back(self) -> bool:
        """Whether fallback="gloo" could be set beside the other options, and is not."""
        return self.fallback != "gloo" and self.on_nonfinite == "warn" and self.inside is None

    @property
    def interface_list(self) -> InterfaceList | None:
        """The value of `interfaces`, parsed."""
        return None if self.interfaces is None else InterfaceList.parse(self.interfaces)

    @property
    def switches(self) -> tuple[SwitchAddress, ...]:
        """The addresses that `switch` names; none for a word, or where nothing is said."""
        return self.switch_list.addresses

    @property
    def switch_list(self) -> SwitchList:
        """The value of `switch`, parsed."""
        return SwitchList() if self.switch is None else SwitchList.parse(self.switch)

    @property
    def port_range(self) -> tuple[int, int] | None:
        """The least and the greatest of `ports`."""
        if self.ports is None:
            return None
        least, dash, greatest = self.ports.partition("-")
        legal = dash and all(each.isascii() and each.isdigit() and len(each) <= 5 for each in (least, greatest))
        if not legal or not 1 <= int(least) <= int(greatest) <= 65_535:
            raise ConfigurationError(
                f"ports = {self.ports!r}: expected two ports in 1..65535, as in 5000-5063", "ports"
            )
        return int(least), int(greatest)

    @property
    def packet_faults(self) -> FaultPlan | None:
        """Faults that are injected into datagrams, if any."""
        return None if self.faults is None else FaultSchedule.parse(self.faults).packets

    @property
    def corrupts(self) -> bool:
        """Whether the faults damage datagrams, which a job without checksums would take in."""
        return self.packet_faults is not None and self.packet_faults.corrupt > 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], **given: object) -> Options:
        """Options from FANIN_* variables; what is `given` wins. An unknown or illegal value is a ConfigurationError.

        fanin/variables.py warns of unknown variables.
        """
        values: dict[str, object] = {}
        hints = typing.get_type_hints(cls)
        for each in dataclasses.fields(cls):
            text = environment.get(ENVIRONMENT_PREFIX + each.name.upper())
            if text is not None and text != "":
                values[each.name] = _read(each.name, hints[each.name], text)
        try:
            return cls(**{**values, **given})  # type: ignore[arg-type]
        except ConfigurationError as error:
            wrong = [name for name, value in values.items() if name not in given and not _is_legal(name, value)]
            if not error.correct or not wrong:
                raise
            raise ConfigurationError(error.text, _variables(*wrong)) from None


_IN_WORDS: dict[type, str] = {
    bool: "True or False", numbers.Integral: "a whole number", numbers.Real: "a number", str: "a text",
    type(None): "None",
}  # fmt: skip
_ABSTRACT: dict[type, type] = {int: numbers.Integral, float: numbers.Real}
"""Types that are accepted in place of these: numpy's numbers as well."""


@functools.cache
def _kinds() -> dict[str, tuple[type, ...]]:
    """Return the types that each option's value may have. They are checked since any text, even "false", is true."""
    found = {}
    for name, hint in typing.get_type_hints(Options).items():
        kinds = typing.get_args(hint) or (hint,)
        if all(isinstance(kind, type) for kind in kinds):  # the words of a Literal are compared by themselves
            found[name] = tuple(_ABSTRACT.get(kind, kind) for kind in kinds)
    return found


def _read(name: str, hint: object, text: str) -> object:
    kinds = typing.get_args(hint) or (hint,)
    try:
        if bool in kinds:
            return {"1": True, "true": True, "0": False, "false": False}[text.lower()]
        if int in kinds and str in kinds:  # whose words the option itself judges
            return int(text) if text.isdecimal() else text
        if int in kinds:
            return int(text)
        return float(text) if float in kinds else text
    except (KeyError, ValueError):
        legal = "1, true, 0 or false" if bool in kinds else "a whole number" if int in kinds else "a number"
        bounds = next(setting.bounds for setting in settings_of(Options) if setting.field == name)
        within = "" if bounds is None else f", {bounds}"
        variable = ENVIRONMENT_PREFIX + name.upper()
        raise ConfigurationError(f"{variable}={text!r}; expected {legal}{within}", _variables(name)) from None


def _is_legal(name: str, value: object) -> bool:
    """Whether an option may have this value, whatever the others have."""
    try:
        Options(**{name: value})  # type: ignore[arg-type]
    except ConfigurationError:
        return False
    return True


def _variables(*names: str) -> str:
    """Name the variables to correct, where options came from the environment."""
    return f"{' or '.join(ENVIRONMENT_PREFIX + name.upper() for name in names)}, or unset it"
