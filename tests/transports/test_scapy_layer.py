"""The scapy layer reads what fanin/protocol/wire.py writes and writes the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from fanin.protocol.wire import HEADER_BYTES, Kind, Packet, WireError, parse
from tests.transports.packets import ANY_PACKET, HAND_BUILT

pytest.importorskip("scapy", reason="the scapy layer is an extra: pip install fanin[scapy]")

from scapy.layers.inet import IP, UDP
from scapy.packet import Raw

from fanin.scapy_layer import Fanin, bind_port, recognize_by_magic

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "golden" / "wire.json").read_text())


def _fields(packet: Packet) -> dict[str, Any]:
    return {
        "kind": packet.kind.value,
        "job": packet.job,
        "worker": packet.worker,
        "flags": packet.flags.value,
        "generation": packet.generation,
        "slot": packet.slot,
        "base": packet.base,
        "signature": packet.signature,
        "bitmap": packet.bitmap,
        "contributors": packet.contributors,
        "codes": list(packet.codes),
        "words": packet.words.tolist(),
    }


@pytest.mark.parametrize("name", HAND_BUILT)
def test_scapy_dissects_every_kind_of_packet(name: str) -> None:
    packet = HAND_BUILT[name]
    dissected = Fanin(packet.to_bytes())
    for field, value in _fields(packet).items():
        assert getattr(dissected, field) == value, field
    assert not dissected.payload
    assert packet.kind.name in dissected.summary()


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden["name"])
def test_scapy_reads_and_writes_the_golden_packets(golden: dict[str, Any]) -> None:
    data = bytes.fromhex(golden["bytes"])
    dissected = Fanin(data)
    assert Kind(dissected.kind).name == golden["kind"]
    for field in ("job", "worker", "flags", "generation", "slot", "base", "signature", "bitmap", "contributors"):
        assert getattr(dissected, field) == golden[field], field
    assert (dissected.codes, dissected.words) == (golden["codes"], golden["words"])
    dissected.clear_cache()
    assert bytes(dissected) == data


@given(ANY_PACKET)
def test_scapy_builds_the_bytes_that_fanin_builds(packet: Packet) -> None:
    assert bytes(Fanin(**_fields(packet))) == packet.to_bytes()


@given(ANY_PACKET)
def test_dissecting_and_building_again_changes_nothing(packet: Packet) -> None:
    dissected = Fanin(packet.to_bytes())
    dissected.clear_cache()
    assert bytes(dissected) == packet.to_bytes()


def test_a_packet_cut_short_is_dissected_as_far_as_it_goes() -> None:
    data = HAND_BUILT["contribution"].to_bytes()
    with pytest.raises(WireError):
        parse(data[:-1])
    dissected = Fanin(data[:-1])
    assert len(dissected.words) == len(HAND_BUILT["contribution"].words) - 1
    assert dissected[Raw].load == data[-4:-1]


def test_a_bound_port_is_dissected_in_both_directions() -> None:
    bind_port(47_123)
    data = HAND_BUILT["hello"].to_bytes()
    for source, destination in ((47_123, 5), (5, 47_123)):
        assert Fanin in IP(bytes(IP() / UDP(sport=source, dport=destination) / Raw(data)))


def test_magic_is_recognized_on_any_port_and_other_payloads_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UDP, "default_payload_class", UDP.default_payload_class)
    recognize_by_magic()
    udp = IP() / UDP(sport=50_001, dport=50_002)
    data = HAND_BUILT["result"].to_bytes()
    assert IP(bytes(udp / Raw(data)))[Fanin].kind == Kind.RESULT
    assert Fanin not in IP(bytes(udp / Raw(b"something else" * 10)))
    assert Fanin not in IP(bytes(udp / Raw(data[: HEADER_BYTES - 1])))


def test_scapy_matches_an_answer_to_its_question() -> None:
    hello, welcome = Fanin(HAND_BUILT["hello"].to_bytes()), Fanin(HAND_BUILT["welcome"].to_bytes())
    assert welcome.answers(hello)
    assert welcome.hashret() == hello.hashret()
    assert not hello.answers(welcome)
    assert not welcome.answers(Fanin(HAND_BUILT["probe"].to_bytes()))
