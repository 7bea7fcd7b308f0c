"""The doctor's findings; each that is not well comes with a remedy."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fanin.cli import stats as stats_command
from fanin.errors import AdmissionError, WorkerLostError
from fanin.host import diagnosis
from fanin.host.diagnosis import Check, examine_environment, examine_machine, examine_options, examine_switch
from fanin.host.session import port_probes
from fanin.host.session.joining import JoinTerms
from fanin.host.session.path import PathFacts, Reached
from fanin.host.session.session import Session
from fanin.key_file import default_path, load_or_create
from fanin.options import Options, SwitchAddress
from fanin.processor_prices import hosts_price
from fanin.protocol import control
from fanin.protocol.control import DataReport
from fanin.protocol.window import DEFAULT_RECEIVE_BUFFER_BYTES
from fanin.protocol.wire import HEADER_BYTES, OFFSET_KIND, Kind, datagram_bytes
from fanin.switch.controller import parent_watch
from fanin.switch.controller.leaf import LeafController
from fanin.transports.path_mtu import LARGEST_MTU
from tests.support.controllers import World, join
from tests.support.processes import DEADLINE_S, in_thread, until
from tests.support.services import a_service, address_of, refusing_port


def by_name(checks: Iterator[Check]) -> dict[str, Check]:
    """Findings; every one that is not well says what to do."""
    found = {check.name: check for check in checks}
    assert all(check.remedy for check in found.values() if check.state != "ok")
    return found


@contextlib.contextmanager
def an_echo(longest: int) -> Iterator[int]:
    """A UDP port that answers probes of up to `longest` bytes, like a switch behind a narrow path."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as port:
        port.bind(("127.0.0.1", 0))

        def answer() -> None:
            while data := port.recvfrom(65_536):
                if not data[0]:
                    return
                if len(data[0]) <= longest:
                    echo = bytearray(data[0])
                    echo[OFFSET_KIND] = Kind.ECHO
                    port.sendto(echo, data[1])

        answering = threading.Thread(target=answer)
        answering.start()
        try:
            yield port.getsockname()[1]
        finally:  # or a test that fails would leave a thread for which the interpreter waits for ever
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", port.getsockname())
            answering.join()


def examine_port(port: int, wanted: bool = True) -> Check:
    data = DataReport(scheme="udp", description="", ports=(port,), counters={})
    (check,) = diagnosis._examine_data(data, Reached("127.0.0.1", LARGEST_MTU), Options(), wanted)
    return check


def test_the_machine_is_described_whichever_engine_runs() -> None:
    assert by_name(examine_machine(Options()))["engine"].result.startswith(("native", "Python twin"))
    assert by_name(examine_machine(Options(native=False)))["engine"].state == "warning"


def test_a_misspelt_variable_is_a_warning() -> None:
    (check,) = examine_environment({"FANIN_LANE": "8", "FANIN_LANES": "8"})
    assert check.state == "warning"
    assert "FANIN_LANE has no effect" in check.result
    assert check.remedy


def test_options_that_would_end_a_job_as_its_group_begins_are_failures(tmp_path: Path) -> None:
    assert not list(examine_options(Options(codec="lanes:8", timeline="-", trace=str(tmp_path / "t"))))
    nowhere = str(tmp_path / "nowhere" / "t")
    found = by_name(examine_options(Options(codec="junk", timeline=nowhere, flight_recorder=nowhere, metrics="junk")))
    assert [(check.name, check.state) for check in found.values()] == [
        (name, "failure") for name in ("output files", "flight recorder", "codec", "metrics")
    ]
    assert "there is no folder" in found["output files"].result
    assert "there is no 'junk'" in found["codec"].result
    assert all("Remedy" not in check.result for check in found.values())


def test_small_buffers_come_with_what_raising_them_would_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = PathFacts(path_mtu=1500, receive_buffer_bytes=DEFAULT_RECEIVE_BUFFER_BYTES, local=False)
    monkeypatch.setattr(diagnosis, "discover", lambda *_: ordinary)
    check = diagnosis._buffers()
    assert "425,984 bytes" in check.result
    assert "if raised" in check.result
    assert "sysctl -w net.core.rmem_max=" in check.remedy


def test_a_healthy_switch_is_found_healthy_over_both_transports() -> None:
    with a_service() as service:
        found = by_name(examine_switch(address_of(service), Options()))
    assert all(check.state == "ok" for check in found.values()), found
    assert {"name", "tcp", "versions", f"udp port {service.port}", "tags", "jobs"} <= found.keys()


@pytest.mark.parametrize(
    ("given", "local", "words"),
    [
        ({}, True, "do not leave this machine"),
        ({}, False, "carry keyed tags"),
        ({"authenticate": True}, True, "carry keyed tags"),
        ({"authenticate": False}, False, "FANIN_AUTHENTICATE=0"),
    ],
)
def test_whether_packets_would_be_tagged_is_said(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, object], local: bool, words: str
) -> None:
    facts = PathFacts(path_mtu=1500, receive_buffer_bytes=DEFAULT_RECEIVE_BUFFER_BYTES, local=local)
    monkeypatch.setattr(diagnosis, "discover", lambda *_: facts)
    with a_service() as service:
        check = by_name(examine_switch(address_of(service), Options(**given)))["tags"]  # type: ignore[arg-type]
    assert words in check.result


def test_ranks_that_are_missing_are_named() -> None:
    with a_service(operator_key=load_or_create(default_path())) as service:
        address = address_of(service)
        terms = JoinTerms(options=Options(), switch=address, job_name="late", rank=1, size=4)
        waiting = in_thread(partial(Session.join, terms))
        until(lambda: service.controller.live_jobs > 0)
        check = by_name(examine_switch(address, Options()))["job late"]
        with pytest.raises(AdmissionError):
            Session.join(replace(terms, rank=0, size=3))  # another size, which ends the job for all
        assert isinstance(waiting.exception(DEADLINE_S), WorkerLostError)
    assert check.state == "warning"
    assert "waits for ranks 0, 2, 3" in check.result


def test_a_leaf_names_its_parent_and_a_parent_that_is_not_there_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent_watch, "ATTACH_INTERVAL_S", 0.05)
    monkeypatch.setattr(diagnosis, "SETTLING_INTERVAL_S", 0.1)
    with contextlib.ExitStack() as roots:
        parent = address_of(roots.enter_context(a_service()))
        with a_service(parent=parent, schemes=("udp",)) as leaf:
            until(lambda: isinstance(leaf.controller, LeafController) and leaf.controller.watch.attached)
            healthy = by_name(examine_switch(address_of(leaf), Options()))["parent"]
            roots.close()
            monkeypatch.setattr(diagnosis, "RECENTLY_S", 0.0)
            alone = by_name(examine_switch(address_of(leaf), Options()))["parent"]
    assert healthy.state == "ok"
    assert alone.state == "failure"
    assert str(parent) in healthy.result
    assert str(parent) in alone.result
    assert "--parent" in alone.remedy


def test_a_port_where_nothing_listens_ends_the_examination() -> None:
    with refusing_port() as port:
        found = list(examine_switch(SwitchAddress("udp", "127.0.0.1", port), Options()))
    assert [(check.name, check.state) for check in found] == [("name", "ok"), ("tcp", "failure")]
    assert f"TCP port {port}" in found[-1].remedy
    assert "fanin doctor" not in found[-1].result, "it is the command that was run"


def test_a_key_that_is_missing_is_suspected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = SwitchAddress("udp", "127.0.0.1", silent.getsockname()[1])
        found = by_name(examine_switch(address, Options(connect_timeout_s=0.2)))
    assert found["control"].state == "failure"
    assert "FANIN_CURVE_SERVER_KEY" in found["control"].remedy


def test_a_switch_of_another_version_is_told_from_a_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with a_service() as service:
        monkeypatch.setattr("fanin.host.diagnosis.WIRE_VERSION", 9)
        assert by_name(examine_switch(address_of(service), Options()))["versions"].state == "failure"


def test_a_silent_udp_port_is_a_firewall_and_only_a_warning_where_zmq_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_probes, "TIMEOUT_S", 0.02)
    with an_echo(longest=0) as port:
        wanted, other = examine_port(port), examine_port(port, wanted=False)
    assert (wanted.state, other.state) == ("failure", "warning")
    assert f"open UDP port {port}" in wanted.remedy


def test_a_path_too_narrow_for_full_packets_comes_with_the_length_that_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_probes, "TIMEOUT_S", 0.2)
    with an_echo(longest=1460) as port:
        check = examine_port(port)
    assert check.state == "failure"
    assert "answers packets of 1452 bytes" in check.result
    words = int(check.remedy.partition("FANIN_WORDS_PER_PACKET=")[2].partition(",")[0])
    assert HEADER_BYTES + 4 + 4 * words <= 1452
    assert words % 8 == 0


@pytest.mark.parametrize(
    ("scheme", "local", "mtu", "told"),
    [("udp", False, 1500, True), ("udp", False, 9000, False), ("udp", True, 1500, False), ("zmq", False, 1500, False)],
)
def test_longer_packets_come_with_what_they_would_save_on_a_network_that_has_none(
    monkeypatch: pytest.MonkeyPatch, scheme: str, local: bool, mtu: int, told: bool
) -> None:
    facts = PathFacts(path_mtu=mtu, receive_buffer_bytes=DEFAULT_RECEIVE_BUFFER_BYTES, local=local)
    monkeypatch.setattr(diagnosis, "discover", lambda *_: facts)
    data = DataReport(scheme=scheme, description="", ports=(1,), counters={})
    checks = list(diagnosis._jumbo_frames(data, Reached("192.0.2.1", mtu)))
    assert [check.name for check in checks] == ["jumbo frames"] * told
    for check in checks:
        saved = 1 - hosts_price(32, 9000) / hosts_price(32, 1500)
        assert f"packets of 1,500 bytes; with 9,000, sums would take {saved:.0%} less" in check.result
        assert check.state == "ok", "nothing is wrong with the network"
        assert check.remedy.startswith("not needed")


def test_a_path_that_no_longer_takes_the_packets_of_a_job_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.run(*(join(rank, path_mtu=1500) for rank in range(2)))
    (job,) = world.controller.stats(0.0).jobs
    full = datagram_bytes(1, job.words_per_packet)
    narrow = PathFacts(path_mtu=900, receive_buffer_bytes=DEFAULT_RECEIVE_BUFFER_BYTES, local=True)
    monkeypatch.setattr(diagnosis, "discover", lambda *_: narrow)
    monkeypatch.setattr(port_probes, "TIMEOUT_S", 0.2)
    there = Reached("127.0.0.1", LARGEST_MTU)
    for longest, warned in ((full - 4, [f"job {job.name}"]), (full, [])):
        with an_echo(longest) as port:
            data = DataReport(scheme="udp", description="", ports=(port,), counters={})
            checks = list(diagnosis._packets_of_jobs(data, there, Options(), [job]))
        assert [check.name for check in checks] == warned
        assert all("do not pass from here" in check.result for check in checks)


def test_statistics_fit_a_terminal_and_name_members_that_are_not_there() -> None:
    from rich.console import Console

    world = World()
    world.run(join(0), join(1))
    world.join(join(0, 3, job="forming", nonce="f"))
    world.refused(join(0, 33, nonce="crowd"))
    answer = world.say("tool", control.Ask())
    assert isinstance(answer, control.Stats)
    for width in (60, 80, 120):
        console = Console(width=width, file=io.StringIO())
        with console.capture() as captured:
            console.print(stats_command.render(answer, SwitchAddress("udp", "host", 1)))
        text = captured.get()
        for words in ("2 of 2", "1 of 3", "rank 1 missing", "refused: too-many-workers 1", "bytes out", "rounds"):
            assert words in " ".join(text.split()), text
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
    assert stats_command.drops({"dropped_bad_magic": 1200, "dropped_kind": 0, "rounds": 3}) == "bad magic 1,200"
    assert stats_command.drops({}) == "-"
