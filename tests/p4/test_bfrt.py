"""Our controller behind BfRt, against a server that checks what it is told (tests/p4/bfrt.py)."""

from __future__ import annotations

import contextlib
import json
import queue
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")
pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[p4]'")

from fanin import cli
from fanin.errors import ConfigurationError, FaninError, ProgramError, SwitchLostError, SwitchUnreachableError
from fanin.formats.frames import Frame, read_frame
from fanin.numerics.reduction import Element
from fanin.switch.p4runtime.bfrt.client import BfrtAddress, BfrtClient
from fanin.switch.p4runtime.bfrt.cpu_port import ControllerHeaders, InterfacePort
from fanin.switch.p4runtime.bfrt.deployment import Deployment, read_conf
from fanin.switch.p4runtime.bfrt.link import BfrtLink
from fanin.switch.p4runtime.bfrt.ports import DevicePorts, PortPlan, one_pipe, read_plan
from fanin.switch.p4runtime.controller.adoption import adopt
from fanin.switch.p4runtime.controller.job_control import JobControl, Placement
from fanin.switch.p4runtime.controller.links import RefusedError
from fanin.switch.p4runtime.controller.vocabulary import DELETE, INSERT, MODIFY, Vocabulary
from fanin.switch.p4runtime.opening import BUILD, Artefacts, emulated_device, endpoint
from fanin.switch.p4runtime.server.status import Code
from fanin.switch.p4runtime.server.udp_port import UdpPort
from tests.p4.bfrt import BfrtServer, serving
from tests.p4.bfrt_info import PROGRAM
from tests.p4.cables import NEEDS_ROOT, WAIT_S, frame, veth
from tests.p4.emulated import NETWORK, SWITCH, ControlledMachine, endpoint_of, port_of
from tests.p4.tofino import LEAF, artefacts
from tests.support.bench import Bench, make_spec
from tests.support.cluster import SWITCH_MACHINES, Cluster, expected, job
from tests.support.leaf import PARENT, UPLINK, Leaf
from tests.support.processes import join_all, options, reduce_together
from tests.support.services import a_service, address_of

WORDS = 8
ONE_AND_TWO = "tna-model", "tna-model-pairs"
"""Programs by how often a result passes."""
ARTEFACTS = BUILD / "tna-model.json.gz", BUILD / "tna-model.p4info.txtpb"
CPU_PORT = 510
PLANS = (
    PortPlan(name="1/0", number=None, speed="100G", fec="rs", negotiation="off"),
    PortPlan(name=None, number=136, speed="25G", fec="none", negotiation="default"),
)


class Loop:
    """The device's port to its processor, in this process."""

    description = "a queue"

    def __init__(self, server: BfrtServer) -> None:
        self._server = server

    def send(self, frame: bytes) -> bool:
        self._server.receive(CPU_PORT, frame)
        return True

    def receive(self, timeout_s: float) -> bytes | None:
        with contextlib.suppress(queue.Empty):
            return self._server.cpu_out.get(timeout=timeout_s) if timeout_s else self._server.cpu_out.get_nowait()
        return None

    def wake(self) -> None:
        self._server.cpu_out.put(b"")

    def close(self) -> None:
        pass


class BfrtMachine(ControlledMachine):
    """A device behind BfRt, programmed by our controller, with the verbs of a switch machine."""

    def __init__(self, server: BfrtServer, link: BfrtLink) -> None:
        self.server, self.link = server, link
        super().__init__(JobControl(link, Vocabulary(link.p4info()), Placement((SWITCH,))), endpoint_of)

    def receive_datagram(self, data: bytes, source: int, now: float) -> None:
        self.server.receive(port_of(source), Frame(endpoint_of(source), SWITCH, data).to_bytes())
        while (packet := self.link.next_packet(0)) is not None:
            self.control.receive(packet, now)

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, int]]:
        self.control.speak(now)
        sent, self.server.out = self.server.out, []
        frames = [read_frame(data) for _, data in sent]
        return [(frame.payload, frame.destination.address - NETWORK) for frame in frames if frame is not None]


@pytest.fixture
def server() -> BfrtServer:
    return BfrtServer(emulated_device(Artefacts.read(*ARTEFACTS)))


@pytest.fixture
def address(server: BfrtServer) -> Iterator[BfrtAddress]:
    with serving(server) as target:
        yield BfrtAddress(target)


@contextlib.contextmanager
def linked(server: BfrtServer, address: BfrtAddress) -> Iterator[BfrtLink]:
    client = BfrtClient(address)
    link = BfrtLink(client, client.bind(PROGRAM), server.p4info, Loop(server))
    with contextlib.closing(link):
        yield link


def test_job_after_job_in_the_same_slots_adds_up_to_the_bit(
    server: BfrtServer, address: BfrtAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(7)
    with linked(server, address) as link:
        machine = BfrtMachine(server, link)
        monkeypatch.setitem(SWITCH_MACHINES, "bfrt", lambda memory_bytes: machine)
        for generation in range(2):
            spec = job(workers=3, words_per_packet=WORDS, generation=0xA0 + generation)
            cluster = Cluster.joined("twin", spec=spec, switch="bfrt", seed=generation)
            inputs = [random.normal(size=100).astype(np.float32) for _ in range(3)]
            for result in cluster.all_reduce(inputs, lanes=32):
                assert result.tobytes() == expected(spec, inputs, Element.FLOAT32, 32).tobytes()
            counts = machine.counters()
            assert counts["rounds"] > 0
            assert counts["contributions"] == 3 * counts["rounds"]
            assert len(server.groups) == 1
            machine.remove(spec.job)
            assert (server.groups, server.nodes) == ({}, {}), "nothing is left of the job"


def test_a_leaf_has_its_entries_and_leaves_none() -> None:
    server = BfrtServer(emulated_device(artefacts(LEAF)))
    with serving(server) as target, linked(server, BfrtAddress(target)) as link:
        machine = BfrtMachine(server, link)
        leaf = Leaf(lambda memory_bytes: machine)
        leaf.gives(0, 0, (1, 2))
        ((up, destination),) = leaf.gives(1, 0, (10, 20))
        assert (destination, up.job, up.words.tolist()) == (PARENT, UPLINK.job, [11, 22])
        assert [packet.words.tolist() for packet, _ in leaf.result(0, 3, 4)] == [[3, 4]] * 2
        machine.remove(leaf.spec.job)
        words = Vocabulary(link.p4info())
        for table in ("parents", "descents", "uplinks"):
            entries = link.read([words.all_entries(table)])
            assert [each for each in entries if not each.table_entry.is_default_action] == []


def test_a_successor_finds_the_jobs_and_their_groups(server: BfrtServer, address: BfrtAddress) -> None:
    with linked(server, address) as link:
        first = BfrtMachine(server, link)
        bench = Bench(lambda memory_bytes: first, make_spec(words=WORDS))
        assert bench.gives(0, 0) == []
    groups = {number: list(nodes) for number, nodes in server.groups.items()}
    with linked(server, BfrtAddress(address.target, client_id=1)) as link:
        words = Vocabulary(link.p4info())
        successor = JobControl(link, words, Placement((SWITCH,)))
        successor.serve()
        assert adopt(successor, link, words, liveness_timeout_s=5.0, now=0.0) == [bench.spec.job]
        placed = successor.jobs[bench.spec.job]
        assert (placed.registered, placed.groups) == (0b11, set(groups))
        assert [worker and worker.end for worker in placed.workers] == [endpoint_of(100), endpoint_of(101)]
        successor.evict(bench.spec.job, 1)
        assert [node["$MULTICAST_RID"] for node in server.nodes.values()] == [1], "the node of the worker that stays"


def test_a_group_keeps_the_nodes_that_stay_as_they_are(server: BfrtServer, address: BfrtAddress) -> None:
    with linked(server, address) as link:
        words = Vocabulary(link.p4info())
        link.write([words.group(INSERT, 7, [(1, 1), (2, 2), (3, 2)])])
        assert [(node["$MULTICAST_RID"], node["$DEV_PORT"]) for node in server.nodes.values()] == [
            (1, [1]),
            (2, [2, 3]),
        ]
        kept = server.groups[7][0]
        link.write([words.group(MODIFY, 7, [(1, 1), (2, 2)])])
        assert server.groups[7][0] == kept
        assert [(node["$MULTICAST_RID"], node["$DEV_PORT"]) for node in server.nodes.values()] == [(1, [1]), (2, [2])]
        for kind, number, code in ((INSERT, 7, Code.ALREADY_EXISTS), (MODIFY, 8, Code.NOT_FOUND)):
            with pytest.raises(RefusedError) as refused:
                link.write([words.group(kind, number, [(1, 1)])])
            assert refused.value.code is code
        link.write([words.group(DELETE, 7)])
        assert (server.groups, server.nodes) == ({}, {})


@pytest.mark.parametrize("room", [{"most_nodes": 1}, {"most_groups": 0}], ids=["nodes", "groups"])
def test_a_group_that_is_refused_leaves_no_nodes_behind(
    room: dict[str, int], server: BfrtServer, address: BfrtAddress
) -> None:
    with linked(server, address) as link:
        words = Vocabulary(link.p4info())
        before = {name: getattr(server, name) for name in room}
        vars(server).update(room)
        for _ in range(2):
            with pytest.raises(RefusedError) as refused:
                link.write([words.group(INSERT, 7, [(1, 1), (2, 2)])])
            assert refused.value.code is Code.RESOURCE_EXHAUSTED
            assert (server.groups, server.nodes) == ({}, {})
        vars(server).update(before)
        link.write([words.group(INSERT, 7, [(1, 1), (2, 2)])])
        assert len(server.nodes) == 2


def test_a_refused_update_is_told_and_the_others_are_carried_out(server: BfrtServer, address: BfrtAddress) -> None:
    with linked(server, address) as link:
        words = Vocabulary(link.p4info())
        updates = [words.entry(INSERT, "services", {"address": each, "port": 5}, "ours") for each in (1, 1, 2)]
        with pytest.raises(RefusedError) as refused:
            link.write(updates)
        assert refused.value.code is Code.ALREADY_EXISTS
        there = [words.read_entry("services", each.table_entry) for each in link.read([words.all_entries("services")])]
        assert [match["address"] for match, _, _ in there] == [1, 2]
        assert {action for _, action, _ in there} == {"ours"}


def test_values_that_do_not_fit_never_leave(server: BfrtServer, address: BfrtAddress) -> None:
    with linked(server, address) as link:
        update = Vocabulary(link.p4info()).entry(INSERT, "services", {"address": 1, "port": 1 << 16}, "ours")
        with pytest.raises(ProgramError, match="does not fit in 16 bits"):
            link.write([update])


def test_a_program_of_another_p4info_is_refused(server: BfrtServer, address: BfrtAddress) -> None:
    other = Artefacts.read(BUILD / "v1model-64.json.gz", BUILD / "v1model-64.p4info.txtpb")
    client = BfrtClient(address)
    with contextlib.closing(client), pytest.raises(ProgramError, match="another program"):
        BfrtLink(client, client.bind(""), emulated_device(other).config.p4info, Loop(server))


def test_who_is_not_there_or_not_allowed_is_said(server: BfrtServer, address: BfrtAddress) -> None:
    with contextlib.closing(BfrtClient(address)) as client:
        with pytest.raises(ConfigurationError, match="client 0: client id in use"):
            BfrtClient(address)
        with pytest.raises(ConfigurationError, match="runs fanin, not other"):
            client.bind("other")
    with pytest.raises(SwitchUnreachableError, match=r"no BfRt device answers at 127\.0\.0\.1:1"):
        BfrtClient(BfrtAddress("127.0.0.1:1"))


def test_a_device_that_goes_is_told_of(server: BfrtServer) -> None:
    with contextlib.ExitStack() as stack:
        with serving(server) as target:
            link = stack.enter_context(linked(server, BfrtAddress(target)))
        with pytest.raises(SwitchLostError, match="is gone"):
            next(each for each in iter(lambda: link.next_packet(0.01), b"") if each is not None)


def test_controller_headers_are_the_programs_bit_by_bit(server: BfrtServer) -> None:
    headers, words = ControllerHeaders(server.p4info), Vocabulary(server.p4info)
    assert headers.put(words.packet_out(b"frame", egress_port=136, clean=1)) == bytes([0x44, 0x40]) + b"frame"
    packet = headers.take(bytes([0x44, 0x00]) + b"frame")
    payload, metadata = words.packet_in(packet)
    assert (payload, metadata["ingress_port"]) == (b"frame", 136)
    assert headers.take(b"\x01") is None


@NEEDS_ROOT
def test_an_interface_is_the_way_to_the_cpu_port_and_who_waits_there_is_woken() -> None:
    with veth() as (name, device), contextlib.closing(InterfacePort(name)) as port:
        assert port.send(frame(0x44, 0x40))
        assert device.recv(2000) == frame(0x44, 0x40)
        device.send(frame(0x44, 0x00))
        assert port.receive(WAIT_S) == frame(0x44, 0x00)
        assert port.receive(0.0) is None
        port.wake()
        assert port.receive(WAIT_S) is None
    assert port.receive(WAIT_S) is None, "closed"


# --- ports ---


def test_ports_come_up_with_speed_and_fec_and_are_left_alone_when_they_are_there(
    server: BfrtServer, address: BfrtAddress
) -> None:
    with contextlib.closing(BfrtClient(address)) as client:
        ports = DevicePorts(client, client.bind(PROGRAM))
        for _ in range(2):
            assert ports.bring_up(PLANS) == [128, 136]
            assert server.ports[128] == {
                "$SPEED": "BF_SPEED_100G",
                "$FEC": "BF_FEC_TYP_REED_SOLOMON",
                "$AUTO_NEGOTIATION": "PM_AN_FORCE_DISABLE",
                "$PORT_ENABLE": True,
            }
        assert ports.wait_until_up([128, 136]) == []
        server.dark.add(136)
        clock = iter(range(100))
        assert ports.wait_until_up([128, 136], 5.0, lambda: float(next(clock)), lambda seconds: None) == [136]
        with pytest.raises(FaninError, match=r"port 1/0 is there with BF_SPEED_100G .*port-del"):
            ports.bring_up([PortPlan(name="1/0", number=None, speed="40G", fec="rs", negotiation="off")])
        with pytest.raises(ConfigurationError, match="no port 9/0"):
            ports.bring_up([PortPlan(name="9/0", number=None, speed="40G", fec="rs", negotiation="off")])


def test_workers_meet_in_one_pipe() -> None:
    assert one_pipe([128, 136, 255], (0, 1)) == 1
    with pytest.raises(ConfigurationError, match="pipes 1, 3"):
        one_pipe([128, 400], ())
    with pytest.raises(ConfigurationError, match="in pipe 1, but the program runs in 0"):
        one_pipe([128], (0,))


@pytest.mark.parametrize(
    ("ports", "said"),
    [
        ("nothing", "expected"),
        ([], "expected"),
        ([{"port": "1/0", "device_port": 4, "speed": "10G"}], "either"),
        ([{"port": "1-0", "speed": "10G"}], "no name like 1/0"),
        ([{"device_port": 512, "speed": "10G"}], r"0\.\.511"),
        ([{"device_port": True, "speed": "10G"}], r"0\.\.511"),
        ([{"port": "1/0", "speed": "11G"}], "speed '11G'"),
        ([{"port": "1/0"}], "speed None"),
        ([{"port": "1/0", "speed": "10G", "fec": "yes"}], "fec 'yes'"),
        ([{"port": "1/0", "speed": "10G", "colour": 1}], "'colour' is unknown"),
        ([{"port": "1/0", "speed": "10G"}] * 2, "1/0 is there twice"),
    ],
)
def test_a_file_of_ports_that_is_none_is_refused_with_the_place(tmp_path: Path, ports: Any, said: str) -> None:
    path = tmp_path / "ports.json"
    path.write_text(json.dumps({"ports": ports}), encoding="utf-8")
    with pytest.raises(ConfigurationError, match=said):
        read_plan(path)


# --- deployment ---


def compiled(folder: Path, info: bytes = b"{}") -> Path:
    """Files of the SDE's compiler, with paths relative to elsewhere."""
    (folder / "pipe").mkdir()
    (folder / "bf-rt.json").write_bytes(info)
    (folder / "pipe" / "context.json").write_text("{}", encoding="utf-8")
    (folder / "pipe" / "tofino.bin").write_bytes(b"binary")
    pipeline = {
        "p4_pipeline_name": "pipe",
        "context": "share/fanin/pipe/context.json",
        "config": "share/fanin/pipe/tofino.bin",
        "pipe_scope": [0, 1],
    }
    program = {"program-name": PROGRAM, "bfrt-config": "bf-rt.json", "p4_pipelines": [pipeline]}
    conf = folder / "fanin.conf"
    conf.write_text(json.dumps({"p4_devices": [{"device-id": 0, "p4_programs": [program]}]}), encoding="utf-8")
    return conf


@pytest.mark.processes
@pytest.mark.parametrize("runs", [True, False], ids=["runs", "loaded"])
def test_from_a_compiled_program_to_a_job(server: BfrtServer, address: BfrtAddress, tmp_path: Path, runs: bool) -> None:
    """The program runs already, or another build of it does."""
    conf = compiled(tmp_path, server.info if runs else b"{}")
    said: list[str] = []
    udp = UdpPort("127.0.0.1", 0)
    server.transmit = udp.transmit

    def receive(packets: Sequence[tuple[int, bytes]]) -> None:
        for port, data in packets:
            server.receive(port, data)

    udp.start(receive)
    deployment = Deployment(
        address=address,
        program=read_conf(conf),
        program_name=PROGRAM,
        p4info=server.p4info,
        ports=PLANS,
        end=endpoint(f"127.0.0.1:{udp.port}", None),
        flooded=None,
        liveness_timeout_s=5.0,
    )
    with (
        contextlib.closing(udp),
        a_service(schemes=("udp",), data=lambda host, port: deployment.carry_out(Loop(server), said.append)) as service,
    ):
        sessions = join_all(address_of(service), "job", 2, options("native-udp"))
        reduce_together(sessions)
        for session in sessions:
            session.close()
    assert said[1:] == [
        f"{PROGRAM} {'runs already' if runs else 'was loaded'}",
        "ports are up, in pipe 1: 1/0 is 128, device port 136 is 136",
    ]
    assert [each["$SPEED"] for each in server.ports.values()] == ["BF_SPEED_100G", "BF_SPEED_25G"]
    assert len(server.loaded) == (not runs)
    assert server.gone.get(timeout=WAIT_S) == 0, "it let go of the device"


def test_a_dry_run_says_what_would_be_done_and_does_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ports = {"ports": [{"device_port": 128, "speed": "100G", "fec": "rs"}, {"port": "2/0", "speed": "100G"}]}
    (tmp_path / "ports.json").write_text(json.dumps(ports), encoding="utf-8")
    command = ["p4", "deploy", str(compiled(tmp_path)), "--p4info", str(BUILD / "tofino-16.p4info.txtpb")]
    where = ["--ports", str(tmp_path / "ports.json"), "--switch-address", "10.77.0.1:4920", "--bfrt", "127.0.0.1:1"]
    assert cli.run([*command, *where]) == 0
    said = capsys.readouterr().out
    for words in (
        "16 words per packet",
        "load fanin (pipe in pipes 0, 1) unless it runs",
        "port device port 128: 100G, FEC rs, autonegotiation default",
        "port 2/0: 100G, FEC none",
        "FANIN_SWITCH=udp://SWITCH:4919",
        "nothing was done",
    ):
        assert words in said


def test_the_port_of_second_passes_is_no_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deploy = ["p4", "deploy", str(compiled(tmp_path)), "--switch-address", "10.77.0.1:4920", "--ports"]
    ports = tmp_path / "ports.json"
    for device_port in (128, 128 + 68):
        ports.write_text(json.dumps({"ports": [{"device_port": device_port, "speed": "100G"}]}), encoding="utf-8")
        one, two = ([*deploy, str(ports), "--p4info", str(BUILD / f"{name}.p4info.txtpb")] for name in ONE_AND_TWO)
        assert cli.run(one) == 0
        assert "second passes" not in capsys.readouterr().out
        assert (cli.run(two) == 0) == (device_port == 128)
        said = capsys.readouterr()
        assert "by port 68 of the workers' pipe" in said.out or "device port 196 is where" in said.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no .conf"),
        ("[]", "is no .conf"),
        ('{"p4_devices": 3}', "its parts have other types"),
        ('{"p4_devices": [[]]}', "its parts have other types"),
        ('{"p4_devices": {"p4_programs": "x"}}', "its parts have other types"),
        ("{}", "it lacks 'p4_devices'"),
        ('{"p4_devices": []}', "has 0 programs"),
        (
            '{"p4_devices": [{"p4_programs": [{"program-name": "x", "bfrt-config": "b", "p4_pipelines": []}]}]}',
            "not there",
        ),
    ],
)
def test_a_conf_that_is_none_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.conf"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=said) as caught:
        read_conf(path)
    assert "Remedy: " in str(caught.value)
    assert "Error" not in str(caught.value)
