"""A switch of the v1model architecture that runs a compiled program, packet by packet: no socket, no clock, no thread.

Rules
-----
* A packet goes through parser, ingress, replication, egress and deparser as in BMv2's simple_switch. At the end of
  ingress the first row that holds decides:

      program asked for        what happens
      -----------------------  -----------------------------------------------------------------------------------------
      a clone                  the packet as it came in is parsed again and goes to the mirror session's egress, in
                               addition to what follows
      a digest                 the fields of its list, as they are now, are kept for the control plane
      resubmit                 the packet as it came in starts ingress again, with the fields of the list kept
      a multicast group        a copy per replica goes to egress; the packet itself ends
      egress_spec = drop       the packet ends
      otherwise                it goes to egress at port egress_spec

  At the end of egress: a clone, then drop, then recirculation (the deparsed packet starts over), else it leaves.
* A second pass, by resubmit or recirculate, starts with metadata of zeros: the field list's fields are restored, then
  instance_type and packet_length are set, whatever the list says. ingress_port and the time stamp are 0 unless they are
  in the list.
* An ingress clone is parsed with its ingress_port, and nothing else, of standard metadata. All metadata is reset
  afterwards, the parser's included; then the field list is restored and instance_type is set.
* truncate() applies to the packet that it was called for, when that leaves: replicas, clones and second passes keep
  their full length.
* Everything happens at once and in order: replicas in the order of the group, packets in the order in which they came.
* What a program leaves undefined (an element beyond a stack, division by zero) is a PacketError: the packet is lost and
  counted, and the switch goes on.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fanin.errors import PacketError, UnsupportedError
from fanin.extension import native_extension
from fanin.p4_ports import DROP_PORT
from fanin.switch.p4.native import NativeMachine
from fanin.switch.p4.native_code import NotNative
from fanin.switch.p4.packet_state import NO_CUT, PacketState, ParserStop
from fanin.switch.p4.program import Program, load
from fanin.switch.p4.replication import MAX_GROUP, MAX_SESSION, MirrorSession, Replica, Watched

MAX_PASSES = 1024
"""Most passes through a pipeline that one packet may cause, copies included: this ends programs that loop."""
MAX_PARSE_STATES = 4096
"""Most parse states that one packet may pass: this ends parsers that loop without reading."""
MAX_DIGESTS = 1 << 16
NORMAL, INGRESS_CLONE, EGRESS_CLONE, RECIRCULATED, REPLICATED, RESUBMITTED = 0, 1, 2, 4, 5, 6
"""Values of standard_metadata.instance_type that a program reads."""

log = logging.getLogger("fanin.switch.p4")


@dataclass(slots=True)
class Tally:
    """Counts of packets and bytes; all only grow."""

    packets_in: int = 0
    packets_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    dropped: int = 0
    """Packets that the program itself dropped, copies included."""
    failed: int = 0
    """Packets lost because the program did something undefined with them."""
    endless: int = 0
    """Part of `failed`: packets lost because they caused more than MAX_PASSES passes."""


class EndlessError(PacketError):
    """Raised when one packet causes more than MAX_PASSES passes."""


@dataclass(frozen=True, slots=True)
class _Entering:
    """A packet that waits for the parser."""

    data: bytes
    port: int
    """Port of its arrival: ingress_port in its first pass, and in the parser of a clone."""
    kind: int = NORMAL
    kept: tuple[tuple[int, int], ...] = ()
    """Places and values of fields that it keeps from an earlier pass."""


@dataclass(frozen=True, slots=True)
class _Leaving:
    """A packet that waits for egress."""

    fields: list[int]
    state: PacketState
    port: int


def _no_randomness(limit: int) -> int:
    raise PacketError("the program draws random numbers, and this switch was given none")


@dataclass(slots=True)
class V1Switch:
    """A program and the state of the switch around it. Not thread safe."""

    program: Program
    random: Callable[[int], int] = _no_randomness
    """`random(n)` draws from 0..n-1, for programs that use random numbers."""
    native: bool | None = None
    """Interpreter of the program: True: native, False: Python, None: native for every program that it runs."""
    groups: Watched[tuple[Replica, ...]] = field(default_factory=lambda: Watched(MAX_GROUP))
    """Multicast groups by number, from 1 on."""
    mirrors: Watched[MirrorSession] = field(default_factory=lambda: Watched(MAX_SESSION))
    """Clone sessions by number."""
    tally: Tally = field(default_factory=Tally)
    digests: deque[tuple[int, tuple[int, ...]]] = field(default_factory=lambda: deque(maxlen=MAX_DIGESTS))
    """Digests as (learn list, values), for the control plane to take; beyond MAX_DIGESTS the oldest are lost."""
    engine: str = field(init=False, default="Python interpreter")
    """Name of the interpreter of the program, with the reason if it has to be Python."""
    _machine: NativeMachine | None = field(init=False, default=None)
    _places: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        layout = self.program.layout
        names = ("ingress_port", "packet_length", "instance_type", "egress_spec", "egress_port")
        self._places = {name: layout.required("standard_metadata", name)[0] for name in names}
        optional = {
            "standard_metadata": ("parser_error", "checksum_error"),
            "intrinsic_metadata": ("mcast_grp", "egress_rid", "ingress_global_timestamp", "egress_global_timestamp"),
            "queueing_metadata": ("enq_timestamp",),
        }
        for header, members in optional.items():
            for name in members:
                if (found := layout.intrinsic(header, name)) is not None:
                    self._places[name] = found[0]
        self._choose_interpreter()

    @classmethod
    def from_json(
        cls, text: str | bytes, *, random: Callable[[int], int] = _no_randomness, native: bool | None = None
    ) -> V1Switch:
        """Load a program. ProgramError and UnsupportedError as in switch/p4/program.py.

        With `native`, UnsupportedError also for a program that the native interpreter does not run.
        """
        return cls(load(text, drop_port=DROP_PORT), random, native)

    def _choose_interpreter(self) -> None:
        extension = native_extension(self.native)
        if extension is None:
            self.engine += ": the native extension is not used"
            return
        limits = {"max_states": MAX_PARSE_STATES, "max_passes": MAX_PASSES, "drop_port": DROP_PORT}
        try:
            machine = NativeMachine(extension, self.program, self._places, limits)
        except NotNative as reason:
            self.engine += f": the native one does not do {reason}"
            if self.native:
                raise UnsupportedError(f"the native interpreter does not do {reason}") from None
            log.warning("this program runs in the %s; it is many times slower there", self.engine)
            return
        self._machine, self.engine = machine, "native interpreter"
        self.groups.changed, self.mirrors.changed = machine.set_group, machine.set_mirror

    def process(self, port: int, data: bytes, now: float) -> list[tuple[int, bytes]]:
        """Process a packet from `port` (0..510) at `now` seconds; return the leaving packets, in order, with ports.

        PacketError if the program does something undefined; packets that this one has caused are then lost as well.
        """
        if self._machine is None:
            return self._process_here(port, data, now)
        sent, reason = self._process_natively([(port, data)], now)
        if reason:
            raise PacketError(reason)
        return sent

    def process_batch(self, packets: Sequence[tuple[int, bytes]], now: float) -> tuple[list[tuple[int, bytes]], str]:
        """Process packets with their ports; return the leaving packets, in order, and the reason of the last loss.

        A packet that is lost (see `process`) is counted as failed, and the others are processed.
        """
        if self._machine is not None:
            return self._process_natively(list(packets), now)
        sent: list[tuple[int, bytes]] = []
        reason = ""
        for port, data in packets:
            try:
                sent += self._process_here(port, data, now)
            except PacketError as error:
                reason = str(error)
        return sent, reason

    def process_ports(self, ports: Any, count: int, now: float) -> tuple[list[tuple[int, bytes]], str]:
        """Process `count` packets that have arrived at native ports (native/p4/p4_ports.hpp).

        Packets that leave through a native port wait there; those that leave elsewhere are returned. Requires
        `runs_natively`.
        """
        assert self._machine is not None
        others, bytes_in, bytes_out, dropped, lost, reason, left = self._machine.process_ports(ports, int(now * 1e6))
        self._tallied(count, bytes_in, bytes_out, dropped, lost, left)
        return others, reason

    @property
    def runs_natively(self) -> bool:
        """Whether the native interpreter runs the program."""
        return self._machine is not None

    def _process_natively(self, packets: list[tuple[int, bytes]], now: float) -> tuple[list[tuple[int, bytes]], str]:
        assert self._machine is not None
        sent, bytes_in, bytes_out, dropped, lost, reason = self._machine.process(packets, int(now * 1e6))
        self._tallied(len(packets), bytes_in, bytes_out, dropped, lost, len(sent))
        return sent, reason

    def _tallied(self, came: int, bytes_in: int, bytes_out: int, dropped: int, lost: int, left: int) -> None:
        tally = self.tally
        tally.packets_in += came
        tally.bytes_in += bytes_in
        tally.dropped += dropped
        tally.failed += lost
        tally.packets_out += left
        tally.bytes_out += bytes_out
        assert self._machine is not None
        tally.endless += self._machine.endless_since_last()
        if self.program.learn_lists:
            self.digests.extend(self._machine.take_digests())

    def _process_here(self, port: int, data: bytes, now: float) -> list[tuple[int, bytes]]:
        tally = self.tally
        tally.packets_in += 1
        tally.bytes_in += len(data)
        try:
            sent = self._run(_Entering(data, port), int(now * 1e6))
        except (IndexError, ZeroDivisionError, ValueError, OverflowError, MemoryError) as error:
            tally.failed += 1
            raise PacketError(f"the program does something undefined with this packet: {error}") from error
        except PacketError as error:
            tally.failed += 1
            tally.endless += isinstance(error, EndlessError)
            raise
        tally.packets_out += len(sent)
        for _, leaving in sent:
            tally.bytes_out += len(leaving)
        return sent

    def _run(self, first: _Entering, now_us: int) -> list[tuple[int, bytes]]:
        sent: list[tuple[int, bytes]] = []
        entering, leaving = deque([first]), deque[_Leaving]()
        passes = 0
        while entering or leaving:
            passes += 1
            if passes > MAX_PASSES:
                raise EndlessError(f"one packet caused more than {MAX_PASSES} passes: the program goes in circles")
            if leaving:
                self._egress(leaving.popleft(), now_us, entering, leaving, sent)
            else:
                self._ingress(entering.popleft(), now_us, entering, leaving)
        return sent

    # --- parser and ingress ---

    def _parsed(self, packet: _Entering, now_us: int) -> tuple[list[int], PacketState]:
        """Parse a packet; return its fields and its state."""
        places, data = self._places, packet.data
        f = self.program.layout.blank.copy()
        k = PacketState(len(data), self.random, now_us, packet.port)
        if packet.kind in (NORMAL, INGRESS_CLONE):
            f[places["ingress_port"]] = packet.port
        for place, value in packet.kept:
            f[place] = value
        if packet.kind != INGRESS_CLONE:
            f[places["packet_length"]] = len(data)
            f[places["instance_type"]] = packet.kind
        if packet.kind == NORMAL and "ingress_global_timestamp" in places:
            f[places["ingress_global_timestamp"]] = now_us & 0xFFFF_FFFF_FFFF
        error, at = self._read(f, data, k)
        k.payload = data[at:]
        if "parser_error" in places:
            f[places["parser_error"]] = error
        wrong = self.program.verify(f, k)
        if "checksum_error" in places:
            f[places["checksum_error"]] = int(wrong)
        return f, k

    def _read(self, f: list[int], data: bytes, k: PacketState) -> tuple[int, int]:
        """Run the parser; return the code of the error that it ends with, and how many bytes it has read."""
        state, at, left = self.program.parser_start, 0, MAX_PARSE_STATES
        try:
            while state is not None:
                state, at = state(f, data, at, k)
                left -= 1
                if not left:
                    raise PacketError(f"the parser went through more than {MAX_PARSE_STATES} states")
        except ParserStop as stop:
            return stop.code, stop.at
        return self.program.errors["NoError"], at

    def _walk(self, node: Callable[..., Any] | None, f: list[int], k: PacketState) -> None:
        """Run a pipeline, from its first node on."""
        while node is not None:
            node = node(f, k)

    def _ingress(self, packet: _Entering, now_us: int, entering: deque[_Entering], leaving: deque[_Leaving]) -> None:
        places = self._places
        f, k = self._parsed(packet, now_us)
        self._walk(self.program.ingress_start, f, k)
        k.exit = False
        if k.clone is not None:
            self._clone_ingress(packet, f, k.clone, now_us, leaving)
            k.clone = None
        if k.digest:
            self._learn(f, k.digest)
        if k.resubmit:
            entering.append(_Entering(packet.data, packet.port, RESUBMITTED, self._kept(f, k.resubmit)))
            return
        group = f[places["mcast_grp"]] if "mcast_grp" in places else 0
        if group:
            f[places["instance_type"]] = REPLICATED
            k.cut = NO_CUT
            self._replicate(f, k, self.groups.get(group, ()), leaving)
            return
        port = f[places["egress_spec"]]
        if port == DROP_PORT:
            self.tally.dropped += 1
            return
        f[places["instance_type"]] = NORMAL
        leaving.append(_Leaving(f, k, port))

    def _learn(self, f: list[int], number: int) -> None:
        places = self.program.learn_lists[number].places
        self.digests.append((number, tuple(f[place] & (1 << bits) - 1 for place, bits in places)))

    def _replicate(self, f: list[int], k: PacketState, replicas: tuple[Replica, ...], leaving: deque[_Leaving]) -> None:
        instance_at = self._places.get("egress_rid")
        for port, instance in replicas:
            copy = f.copy()
            if instance_at is not None:
                copy[instance_at] = instance
            leaving.append(_Leaving(copy, k.copied(), port))

    def _kept(self, f: list[int], number: int) -> tuple[tuple[int, int], ...]:
        """Places and values of the fields of list `number`, which a packet keeps in another pass."""
        return tuple((place, f[place]) for place in self.program.field_lists.get(number, ()))

    def _clone_ingress(
        self, packet: _Entering, f: list[int], asked: tuple[int, int], now_us: int, leaving: deque[_Leaving]
    ) -> None:
        session = self.mirrors.get(asked[0])
        if session is None:
            return
        again = _Entering(packet.data, packet.port, INGRESS_CLONE)
        copy, state = self._parsed(again, now_us)
        self._reset_metadata(copy)
        for place, value in self._kept(f, asked[1]):
            copy[place] = value
        copy[self._places["instance_type"]] = INGRESS_CLONE
        state.cut = session.cut or NO_CUT
        self._replicate(copy, state, session.replicas, leaving)

    # --- egress and deparser ---

    def _egress(
        self,
        packet: _Leaving,
        now_us: int,
        entering: deque[_Entering],
        leaving: deque[_Leaving],
        sent: list[tuple[int, bytes]],
    ) -> None:
        places, f, k = self._places, packet.fields, packet.state
        f[places["egress_port"]] = packet.port
        f[places["egress_spec"]] = 0
        f[places["packet_length"]] = k.length
        if "egress_global_timestamp" in places:
            f[places["egress_global_timestamp"]] = now_us & 0xFFFF_FFFF_FFFF
        if "enq_timestamp" in places:
            f[places["enq_timestamp"]] = now_us & 0xFFFF_FFFF
        self._walk(self.program.egress_start, f, k)
        if k.clone is not None:
            self._clone_egress(f, k, k.clone, leaving)
            k.clone = None
        if f[places["egress_spec"]] == DROP_PORT:
            self.tally.dropped += 1
            return
        self.program.update(f, k)
        data = self.program.deparse(f, k)
        if k.recirculate:
            entering.append(_Entering(data, k.port, RECIRCULATED, self._kept(f, k.recirculate)))
            return
        sent.append((packet.port, data[: k.cut] if len(data) > k.cut else data))

    def _clone_egress(self, f: list[int], k: PacketState, asked: tuple[int, int], leaving: deque[_Leaving]) -> None:
        """Send a copy of the current packet to the session's egress, with metadata reset except for the field list."""
        session = self.mirrors.get(asked[0])
        if session is None:
            return
        copy = f.copy()
        self._reset_metadata(copy)
        for place, value in self._kept(f, asked[1]):
            copy[place] = value
        copy[self._places["instance_type"]] = EGRESS_CLONE
        state = k.copied()
        state.cut = session.cut or NO_CUT
        self._replicate(copy, state, session.replicas, leaving)

    def _reset_metadata(self, f: list[int]) -> None:
        layout = self.program.layout
        for header in layout.headers.values():
            if header.metadata:
                end = header.base + header.type.places
                f[header.base : end] = layout.blank[header.base : end]
