"""Compare a switch with the twin: after every packet, both must send the same datagrams to the same workers.

The one difference that docs/protocol.md allows everywhere is an answer without words (bare). In histories with
`may_differ` any difference is reported and is no failure. If the switch refuses a job, its history is skipped with the
reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fanin.emulation.conformance.histories import History, Voices
from fanin.emulation.conformance.subject import STRANGERS, Sent, Subject
from fanin.errors import AdmissionError
from fanin.options import SwitchAddress
from fanin.protocol.wire import OFFSET_FLAGS, OFFSET_KIND, Flag, Kind, Packet, WireError, parse
from fanin.switch.machine.switch_machine import SwitchMachine

MEMORY_BYTES = 1 << 28
"""The twin's memory: more than any job here needs."""
SAME, DIFFERS, ALLOWED, REFUSED = "same", "differs", "differs, as hardware may", "refused"


@dataclass(frozen=True, slots=True)
class HistoryResult:
    """The outcome of one history."""

    history: str
    seed: int
    outcome: str
    """SAME, DIFFERS, ALLOWED or REFUSED."""
    packets: int
    """Number of packets sent to the switch."""
    bare: int
    """Number of answers that the switch sent bare where the twin sent words."""
    difference: str = ""
    """The first difference: the packet that was sent, what the twin answers, what came. For REFUSED, the reason."""

    @property
    def fails(self) -> bool:
        """Whether the outcome is DIFFERS: the switch does not behave as a fanin switch."""
        return self.outcome == DIFFERS

    def __str__(self) -> str:
        said = f"{self.history}, seed {self.seed}: {self.outcome}, {self.packets} packets"
        if self.bare:
            said += f", {self.bare} answers bare, as hardware may send them"
        return f"{said}\n{self.difference}" if self.difference else said


def check(address: SwitchAddress, history: History, seed: int, words: int | None = None) -> HistoryResult:
    """Play a history to a switch and to the twin. Raises SilentSubjectError or SwitchUnreachableError."""
    try:
        subject = Subject(address, history.wanted, words)
    except AdmissionError as error:
        return HistoryResult(history.name, seed, REFUSED, 0, 0, f"  {error}")
    try:
        return _Play(subject, history, seed).run()
    finally:
        subject.close()


class _Play:
    """Plays one history to the switch and to the twin."""

    def __init__(self, subject: Subject, history: History, seed: int) -> None:
        self._subject, self._history, self._seed = subject, history, seed
        self._twin = SwitchMachine(MEMORY_BYTES)
        self._twin.admit(subject.spec)
        self._voices = Voices(subject.spec, seed)
        self._packets = self._bare = 0

    def run(self) -> HistoryResult:
        for says in (Voices.hellos, self._history.says):
            difference = self._say(says(self._voices))
            if difference:
                outcome = ALLOWED if self._history.may_differ else DIFFERS
                if self._history.may_differ:
                    difference += f"\n  allowed: {self._history.may_differ}"
                return self._verdict(outcome, difference)
        return self._verdict(SAME)

    def _verdict(self, outcome: str, difference: str = "") -> HistoryResult:
        return HistoryResult(self._history.name, self._seed, outcome, self._packets, self._bare, difference)

    def _say(self, said: Iterable[tuple[int, bytes]]) -> str:
        """Send datagrams (place, data) to both until their answers differ; returns the difference as text, or ""."""
        for place, data in said:
            self._packets += 1
            self._twin.receive_datagram(data, place, 0.0)
            wanted: Sent = {}
            for sent, to in self._twin.datagrams_to_send(0.0):
                if sent[OFFSET_KIND] != Kind.RECEIPT:
                    wanted.setdefault(to, []).append(sent)
                    self._voices.saw(parse(sent))
            got = self._subject.exchange(place, data, {to: len(packets) for to, packets in wanted.items()})
            for to in sorted(wanted.keys() | got.keys()):
                expected, came = sorted(wanted.get(to, [])), sorted(got.get(to, []))
                if expected != came:
                    allowed = sorted(self._as_bare(expected, came))
                    if allowed != came:
                        return self._told(place, data, to, expected, came)
        return ""

    def _as_bare(self, expected: list[bytes], came: list[bytes]) -> Iterable[bytes]:
        """Yield the expected answers in the form in which they may have come: bare if a bare one came; whole if only
        the twin shortened it, because it never answers with more bytes than came in, while a pipeline cannot compare
        lengths.
        """
        for data in expected:
            if data[OFFSET_KIND] == Kind.ANSWER and data not in came:
                if (short := _bare(data)) in came:
                    self._bare += 1
                    yield short
                    continue
                whole = [each for each in came if _is_answer(each) and _bare(each) == _bare(data)]
                if data[OFFSET_FLAGS] & Flag.BARE and whole:
                    yield whole[0]
                    continue
            yield data

    def _told(self, place: int, data: bytes, to: int, expected: list[bytes], came: list[bytes]) -> str:
        lines = [f"  packet {self._packets}, from {_name(place)}: {_shown(data)}"]
        for title, packets in ((f"to {_name(to)} the twin sends", expected), ("this switch sends", came)):
            lines += [f"    {title} {_shown(each)}" for each in packets] or [f"    {title} nothing"]
        return "\n".join(lines)


def _name(place: int) -> str:
    return f"worker {place}" if place < STRANGERS else "a stranger"


def _is_answer(data: bytes) -> bool:
    return len(data) > OFFSET_KIND and data[OFFSET_KIND] == Kind.ANSWER


def _bare(data: bytes) -> bytes:
    """The same answer as an acknowledgement without words, which is all that hardware need send."""
    answer = parse(data)
    return Packet(
        kind=Kind.ANSWER,
        job=answer.job,
        worker=answer.worker,
        flags=Flag.BARE | answer.flags & Flag.CHECKSUM,
        generation=answer.generation,
        slot=answer.slot,
        base=answer.base,
        bitmap=answer.bitmap,
    ).to_bytes()


def _shown(data: bytes) -> str:
    """A packet in words, or its bytes."""
    try:
        packet = parse(data)
    except WireError as error:
        return f"{len(data)} bytes ({error}): {data[:48].hex()}"
    words = packet.words[:4].tolist()
    more = " ..." if len(packet.words) > 4 else ""
    return (
        f"{packet.kind.name} of worker {packet.worker}, slot {packet.slot}, base {packet.base}, flags "
        f"{packet.flags:#x}, signature {packet.signature}, bitmap {packet.bitmap:#x}, contributors "
        f"{packet.contributors}, {len(packet.codes)} codes, {len(packet.words)} words: "
        f"{' '.join(f'{word:08x}' for word in words)}{more}"
    )
