"""`fanin p4 run`: other people's programs on interfaces and sockets, with captures, traces and P4Runtime."""

from __future__ import annotations

import contextlib
import queue
import re
import socket
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")
grpc = pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[p4]'")

from p4.v1 import p4runtime_pb2, p4runtime_pb2_grpc  # noqa: E402

from fanin.emulation.bmv2_process import MTU  # noqa: E402
from fanin.errors import ConfigurationError  # noqa: E402
from fanin.extension import native_extension  # noqa: E402
from fanin.formats.capture import read_pcap  # noqa: E402
from fanin.switch.p4runtime.opening import BUILD, Artefacts  # noqa: E402
from fanin.switch.p4runtime.server.link_states import (  # noqa: E402
    DELETED_LINK,
    HEADER,
    IS_RUNNING,
    IS_UP,
    LINK,
    NEW_LINK,
    read_links,
)
from fanin.switch.p4runtime.server.p4info import read_p4info  # noqa: E402
from fanin.switch.p4runtime.server.port_set import Capture, PortSet, read_ports  # noqa: E402
from fanin.switch.p4runtime.server.raw_port import RawPort  # noqa: E402
from fanin.switch.p4runtime.standalone import RunOptions, StandaloneSwitch  # noqa: E402
from tests.p4.cables import NEEDS_ROOT, WAIT_S, frame, ip, veth  # noqa: E402
from tests.p4.router import CPU_PORT, ENTRIES, P4INFO, document  # noqa: E402
from tests.support.disk import room_for  # noqa: E402


def options(folder: Path, ports: dict[int, str], **more: object) -> RunOptions:
    (folder / "entries.txtpb").write_text(ENTRIES)
    given: dict[str, Any] = {
        "artefacts": Artefacts(document().encode(), P4INFO),
        "ports": ports,
        "p4runtime": ("127.0.0.1", 0),
        "entries": folder / "entries.txtpb",
        "cpu_port": CPU_PORT,
    }
    return RunOptions(**(given | more))


@NEEDS_ROOT
@pytest.mark.parametrize("captures", [True, False], ids=["captured", "native"])
def test_frames_pass_between_interfaces_as_the_entries_say_and_captures_have_them(
    tmp_path: Path, captures: bool
) -> None:
    with veth() as (first, at_first), veth() as (third, at_third):
        ports = {1: first, 3: third}
        given = options(tmp_path, ports, captures=tmp_path if captures else None)
        with contextlib.closing(StandaloneSwitch(given)) as switch:
            at_first.send(frame(0x2F, 7))  # no entry: dropped
            at_first.send(frame(0x1F, 7))
            assert at_third.recv(2000) == frame(0x1F, 9)
            assert f"1={first}, 3={third}" in switch.describe()[1]
        assert "2 packets in, 1 out, 1 dropped by the program, 0 lost" in switch.summary()
    if not captures:
        assert not list(tmp_path.glob("*.pcap"))
        return
    captured = {name: read_pcap((tmp_path / f"{name}.pcap").read_bytes()) for name in (f"{first}_in", f"{third}_out")}
    assert captured == {f"{first}_in": [frame(0x2F, 7), frame(0x1F, 7)], f"{third}_out": [frame(0x1F, 9)]}


def test_a_capture_whose_disk_is_full_ends_after_a_whole_packet_and_the_port_works_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(Capture(tmp_path, "veth0")) as capture:
        capture.note(frame(1, 2), out=True)
        whole = (tmp_path / "veth0_out.pcap").read_bytes()
        with room_for(len(whole) + 10):
            capture.note(frame(3, 4), out=True)
        capture.note(frame(5, 6), out=True)
    assert (tmp_path / "veth0_out.pcap").read_bytes() == whole
    (said,) = caplog.messages
    assert re.search(r"veth0_out\.pcap ends here: File too large\. Remedy: ", said)


@NEEDS_ROOT
def test_ports_are_down_while_their_cable_or_its_other_end_is(tmp_path: Path) -> None:
    heard: queue.Queue[tuple[int, bool]] = queue.Queue()
    with veth() as (name, tap), veth() as (other, _):
        end: str = tap.getsockname()[0]
        ip("link", "set", other, "down")
        with contextlib.closing(PortSet({1: name, 2: "udp:127.0.0.1:0", 4: other})) as ports:
            ports.watch(lambda number, up: heard.put((number, up)))
            assert heard.get_nowait() == (4, False), "at the start"
            for interface, state in ((end, "down"), (end, "up"), (other, "up")):
                ip("link", "set", interface, state)
                assert heard.get(timeout=WAIT_S) == (4 if interface == other else 1, state == "up")


def test_bytes_that_are_no_message_of_netlink_say_nothing_more() -> None:
    up, gone = IS_UP | IS_RUNNING, IS_UP
    datagram = b"".join(
        HEADER.pack(HEADER.size + LINK.size, kind, 0, 0, 0) + LINK.pack(0, 1, index, flags, 0)
        for kind, index, flags in ((NEW_LINK, 3, up), (NEW_LINK, 4, gone), (DELETED_LINK, 5, up))
    )
    whole = [(NEW_LINK, 3, True), (NEW_LINK, 4, False), (DELETED_LINK, 5, False)]
    assert list(read_links(datagram)) == whole
    for size in range(len(datagram)):
        assert list(read_links(datagram[:size])) == whole[: size // (HEADER.size + LINK.size)]
    random = Random(4)
    for _ in range(300):
        damaged = bytearray(datagram)
        damaged[random.randrange(len(damaged))] = random.randrange(256)
        list(read_links(bytes(damaged)))


@NEEDS_ROOT
def test_what_the_switch_sends_does_not_come_back_to_it_and_a_tag_of_a_vlan_is_kept() -> None:
    with veth() as (name, tap), contextlib.closing(RawPort(name)) as port:
        assert port.send(frame(1, 2))
        assert tap.recv(2000) == frame(1, 2)
        tagged = bytes(12) + b"\x81\x00\x20\x05\x08\x00" + bytes(50)
        tap.send(tagged)
        got = iter(port.receive, None)
        assert next(got) == tagged  # the kernel has taken the tag out of it meanwhile
        assert port.receive() is None
        assert not port.send(bytes(MTU + 1000)), "longer than the interface takes"
        extension = native_extension(None)
        if extension is not None:
            native = extension.P4Ports()
            port.add_to(native, 3)
            tap.send(tagged)
            tap.send(frame(1, 2))
            frames: list[tuple[int, bytes]] = []
            while len(frames) < 2 and native.receive():
                frames += native.frames()
            assert frames == [(3, tagged), (3, frame(1, 2))]


@NEEDS_ROOT
def test_an_interface_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="port nosuch0: there is no such interface"):
        RawPort("nosuch0")


def test_every_packet_is_traced_where_that_is_asked_for(tmp_path: Path) -> None:
    lines: queue.Queue[list[str]] = queue.Queue()
    switch = StandaloneSwitch(options(tmp_path, {1: "udp:127.0.0.1:0"}, trace=lines.put))
    with contextlib.closing(switch), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        port = int(re.findall(r"1=udp:127.0.0.1:(\d+)", switch.describe()[1])[0])
        sender.sendto(b"x", ("127.0.0.1", port))
        traced = lines.get(timeout=WAIT_S)
        assert traced[0].startswith("packet of 43 bytes at port 1: 0200")
        assert traced[-1] == "nothing leaves"
        assert "Python interpreter" in switch.describe()[0]


def test_a_switch_without_a_program_waits_for_a_controller_to_load_one(tmp_path: Path) -> None:
    given = options(tmp_path, {}, artefacts=None, entries=None, device_id=4)
    with contextlib.closing(StandaloneSwitch(given)) as switch:
        assert "no program yet" in switch.describe()[0]
        with grpc.insecure_channel(f"127.0.0.1:{switch.p4runtime_port}") as channel:
            stub = p4runtime_pb2_grpc.P4RuntimeStub(channel)
            request = p4runtime_pb2.StreamMessageRequest()
            request.arbitration.device_id, request.arbitration.election_id.low = 4, 1
            messages: queue.Queue[object] = queue.Queue()
            messages.put(request)
            stream = stub.StreamChannel(iter(messages.get, None))
            assert next(iter(stream)).arbitration.status.code == 0
            artefacts = Artefacts.read(BUILD / "v1model-64.json.gz", BUILD / "v1model-64.p4info.txtpb")
            config = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=4, action=3)
            config.election_id.low = 1
            config.config.p4info.CopyFrom(read_p4info(artefacts.p4info))
            config.config.p4_device_config = artefacts.program
            stub.SetForwardingPipelineConfig(config)
            assert switch.device.switch is not None
            messages.put(None)
            stream.cancel()


def test_a_program_that_is_loaded_later_has_the_names_and_the_ports_of_the_switch(tmp_path: Path) -> None:
    (tmp_path / "names.json").write_text('{"Port": {"eth0": 1}}')
    given = options(tmp_path, {1: "udp:127.0.0.1:0"}, artefacts=None, entries=None, names=tmp_path / "names.json")
    with contextlib.closing(StandaloneSwitch(given)) as switch:
        assert switch.device.names == {"Port": {"eth0": 1}}
        assert switch.device.ports == {1, CPU_PORT}


@pytest.mark.parametrize("text", ["", "1", "x=veth0", "511=veth0", "510=veth0", "1=a,1=b", "-1=a", "1=", "1=a,"])
def test_ports_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="--port"):
        read_ports([text], CPU_PORT)


@pytest.mark.parametrize("where", ["udp:", "udp:127.0.0.1", "udp:127.0.0.1:x", "udp:127.0.0.1:70000", "a" * 16])
def test_places_that_are_none_are_refused(tmp_path: Path, where: str) -> None:
    with pytest.raises(ConfigurationError, match="port"):
        StandaloneSwitch(options(tmp_path, {1: where}))


def test_ports_come_in_one_piece_or_in_several() -> None:
    assert read_ports(["1=a,2=udp:127.0.0.1:5", "3=b"], CPU_PORT) == {1: "a", 2: "udp:127.0.0.1:5", 3: "b"}
