"""fanin's packet as a scapy layer: to read captures and to build packets by hand. Needs `pip install fanin[scapy]`.

    >>> from fanin.scapy_layer import Fanin, bind_port, recognize_by_magic
    >>> recognize_by_magic()                                # every UDP payload that begins like a packet of ours
    >>> for packet in sniff(offline="rank0.pcap"): print(packet[Fanin].summary())
    >>> sr1(IP(dst="10.0.0.1") / UDP(dport=4711) / Fanin(kind="PROBE", words=[0] * 300))

Fields stand in the order, and have the names, of fanin/protocol/wire.py; docs/protocol.md says what they mean for each
kind.
"""

from __future__ import annotations

import struct
import zlib

from scapy.fields import (
    ByteEnumField,
    ByteField,
    FieldLenField,
    FieldListField,
    FlagsField,
    IntField,
    PadField,
    ShortField,
    XIntField,
    XShortField,
)
from scapy.layers.inet import UDP
from scapy.packet import Packet, Raw, bind_layers

from fanin.protocol import wire
from fanin.protocol.wire import Flag, Kind, Reason

_FLAG_NAMES = [flag.name or "" for flag in Flag]
_ANSWERS = {
    Kind.RESULT: Kind.CONTRIBUTION,
    Kind.ANSWER: Kind.CONTRIBUTION,
    Kind.RECEIPT: Kind.CONTRIBUTION,
    Kind.WELCOME: Kind.HELLO,
    Kind.BYE: Kind.BYE,
    Kind.ECHO: Kind.PROBE,
}


class _WholeWords(FieldListField):
    """Words up to the end; of a datagram that was cut short, what is no whole word stays behind as payload."""

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, list[int]]:
        whole = len(s) // wire.WORD_BYTES * wire.WORD_BYTES
        _, words = super().getfield(pkt, s[:whole])
        return s[whole:], words


class Fanin(Packet):
    """One datagram. `checksum` left alone is filled in when flags has CHECKSUM, and 0 otherwise."""

    name = "fanin"
    fields_desc = [  # noqa: RUF012 - scapy's own declaration
        XShortField("magic", wire.MAGIC),
        ByteField("version", wire.VERSION),
        ByteEnumField("kind", Kind.CONTRIBUTION.value, {kind.value: kind.name for kind in Kind}),
        ShortField("job", 0),
        ByteField("worker", 0),
        FlagsField("flags", 0, 8, _FLAG_NAMES),
        XIntField("generation", 0),
        IntField("slot", 0),
        IntField("base", 0),
        XIntField("signature", 0),
        XIntField("bitmap", 0),
        ShortField("contributors", 0),
        FieldLenField("code_count", None, count_of="codes", fmt="B"),
        ByteField("lanes", 0),
        XIntField("checksum", None),
        PadField(
            FieldListField("codes", [], XShortField("code", 0), count_from=lambda packet: packet.code_count),
            wire.WORD_BYTES,
        ),
        _WholeWords("words", [], XIntField("word", 0)),
    ]

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Fill in the checksum."""
        data = pkt + pay
        if self.checksum is None and self.flags & Flag.CHECKSUM:
            return data[: wire.OFFSET_CHECKSUM] + struct.pack("!I", zlib.crc32(data)) + data[wire.HEADER_BYTES :]
        return data

    def mysummary(self) -> str:
        """Kind, who, where and how much: what `summary()` shows."""
        kind = Kind(self.kind).name if self.kind in Kind._value2member_map_ else f"kind {self.kind}"
        text = f"fanin {kind} job {self.job} worker {self.worker} slot {self.slot} base {self.base}"
        if self.kind == Kind.NOTICE and self.contributors in Reason._value2member_map_:
            text += f" {Reason(self.contributors).name}"
        return f"{text} flags {self.flags or 0} codes {len(self.codes)} words {len(self.words)}"

    def hashret(self) -> bytes:
        """The bytes that a question and its answer have in common."""
        return struct.pack("!HI", self.job, self.slot)

    def answers(self, other: Packet) -> bool:
        """Whether this is what a switch sends back for `other`."""
        if not isinstance(other, Fanin) or (self.job, self.slot) != (other.job, other.slot):
            return False
        return bool(self.kind == Kind.NOTICE or _ANSWERS.get(self.kind) == other.kind)


def bind_port(port: int) -> None:
    """From now on scapy reads UDP datagrams from and to this port as fanin's."""
    bind_layers(UDP, Fanin, sport=port)
    bind_layers(UDP, Fanin, dport=port)


def recognize_by_magic() -> None:
    """From now on scapy reads UDP payloads that begin with fanin's magic as fanin's, on ports bound to nothing else."""
    magic = struct.pack("!H", wire.MAGIC)

    def default_payload_class(self: Packet, payload: bytes) -> type[Packet]:
        return Fanin if payload.startswith(magic) and len(payload) >= wire.HEADER_BYTES else Raw

    UDP.default_payload_class = default_payload_class  # type: ignore[method-assign]
