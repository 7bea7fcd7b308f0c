"""Command files of BMv2's simple_switch_CLI, and fanin under BMv2's name."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from typer.testing import CliRunner

from fanin.cli.p4 import app
from fanin.cli.simple_switch import PROGRAM, read
from fanin.emulation.processes import free_port
from fanin.errors import ConfigurationError
from fanin.switch.p4 import V1Switch
from fanin.switch.p4.command_words import CommandError
from fanin.switch.p4.commands import MAX_PRIORITY, Commands
from fanin.switch.p4.meters import MeterRates
from fanin.switch.p4.replication import MirrorSession, Replica
from fanin.switch.p4.tables import Match
from tests.p4.bmv2 import action, call, data, extract, field, named, number, program, start, state, table
from tests.p4.cables import WAIT_S
from tests.p4.router import document as router

SPEC = field("standard_metadata", "egress_spec")
KINDS = {"exact": 48, "lpm": 32, "ternary": 16, "range": 16}


def document(**more: Any) -> dict[str, Any]:
    """A table of each kind, one with an action profile and a selector, and cells of every sort."""
    actions = [
        action("in.send", call("assign", SPEC, data(0)), widths=(9,)),
        action("in.mark", call("assign", field("h", "mac"), data(0)), widths=(48,)),
        action("in.drop", call("mark_to_drop", named("header", "standard_metadata"))),
        action("count", call("count", named("counter_array", "in.c"), number(1))),
    ]
    names = ["exact", "lpm", "ternary", "range", "shared"]
    fields = {"exact": "mac", "lpm": "ip", "ternary": "port", "range": "port", "shared": "port"}
    tables = []
    for name, following in zip(names, [*names[1:], None], strict=True):
        kind = "exact" if name == "shared" else name
        made = table(
            f"in.{name}",
            ["in.send", "in.mark", "in.drop"],
            [(kind, "h", fields[name])],
            then=None if following is None else f"in.{following}",
            default=None if name == "shared" else (3, ()),
        )
        made["actions"].append("count")
        made["next_tables"]["count"] = made["base_default_next"]
        if name == "shared":
            made |= {"type": "indirect_ws", "action_profile": "in.ap"}
        tables.append(made)
    body = program(
        types={"h_t": [["mac", 48], ["ip", 32], ["port", 16]]},
        headers={"h": "h_t"},
        states=[state("start", [extract("h")])],
        actions=actions,
        ingress=tables,
        emitted=["h"],
        register_arrays=[{"name": "in.r", "id": 0, "size": 4, "bitwidth": 8}],
        counter_arrays=[{"name": "in.c", "id": 0, "is_direct": False, "size": 4}],
        meter_arrays=[
            {"name": "in.m", "id": 0, "is_direct": False, "size": 3, "rate_count": 2, "type": "packets"},
        ],
        parse_vsets=[{"name": "in.v", "id": 0, "compressed_bitwidth": 16}],
        **more,
    )
    profile = {
        "name": "in.ap",
        "id": 0,
        "max_size": 8,
        "selector": {"algo": "identity", "input": [field("h", "port")]},
    }
    body["pipelines"][0]["action_profiles"] = [profile]
    return body


@pytest.fixture
def switch() -> V1Switch:
    return start(document())


def run(switch: V1Switch, *lines: str) -> Commands:
    commands = Commands(switch)
    commands.run("\n".join(lines))
    return commands


def entries(switch: V1Switch, name: str) -> list[tuple[tuple[Match, ...], int, str, tuple[int, ...]]]:
    return [(each.matches, each.rank, each.action, each.data) for each in switch.program.tables[name]]


def test_entries_of_every_kind_with_addresses_and_priorities(switch: V1Switch) -> None:
    run(
        switch,
        "# the router's",
        "table_add exact mark 02:00:0:0:0:01 => 00:aa:bb:cc:dd:ee  # a neighbour",
        "table_add in.lpm send 10.0.1.0/24 => 3",
        "table_add ternary in.send 0x0800&&&0xff00 => 4 10",
        "table_add ternary drop 0x0800&&&0xffff => 5",
        "table_add range send 1->0x10 => 7 1",
        "table_set_default lpm drop",
    )
    assert entries(switch, "in.exact") == [((Match(0x0200_0000_0001),), 0, "in.mark", (0x00AA_BBCC_DDEE,))]
    assert entries(switch, "in.lpm") == [((Match(0x0A00_0100, 0xFFFF_FF00),), -24, "in.send", (3,))]
    low, high = entries(switch, "in.ternary")
    assert (low[2], high[2]) == ("in.drop", "in.send"), "the lowest priority wins, as in BMv2"
    assert (-low[1], -high[1]) == (MAX_PRIORITY - 5, MAX_PRIORITY - 10)
    assert entries(switch, "in.range")[0][0] == (Match(low=1, high=16),)
    assert switch.program.tables["in.lpm"].miss.action == "in.drop"


def test_handles_are_the_lowest_that_are_free(switch: V1Switch) -> None:
    added = [f"table_add lpm send 10.0.{at}.0/24 => {at}" for at in range(3)]
    run(
        switch,
        *added,
        "table_delete lpm 1",
        "table_add lpm send 10.0.9.0/24 => 9",
        "table_modify lpm send 1 8",
        "table_modify lpm drop 2",
    )
    assert {each[3] for each in entries(switch, "in.lpm")} == {(0,), (8,), ()}
    assert [each[0][0].value for each in entries(switch, "in.lpm") if each[3] == (8,)] == [0x0A00_0900]


def test_members_and_groups_share_an_entrys_packets(switch: V1Switch) -> None:
    run(
        switch,
        "act_prof_create_member ap send 2",
        "act_prof_create_member ap send 3",
        "act_prof_create_group ap",
        "act_prof_add_member_to_group ap 0 0",
        "act_prof_add_member_to_group ap 1 0",
        "table_indirect_add shared 0x50 => 0",
        "table_indirect_add_with_group shared 0x51 => 0",
        "act_prof_modify_member ap send 0 5",
    )
    ports = [port for given in (0x50, 0x51) for port, _ in switch.process(1, bytes(10) + given.to_bytes(2, "big"), 0.0)]
    assert ports[0] == 5
    assert ports[1] in (5, 3)
    run_again = Commands(switch)
    with pytest.raises(CommandError, match="in use"):
        run_again.run("act_prof_delete_member ap 0")


def test_groups_nodes_and_sessions(switch: V1Switch) -> None:
    commands = run(
        switch,
        "mc_mgrp_create 1",
        "mc_node_create 7 1 2 |",
        "mc_node_create 8 3",
        "mc_node_associate 1 0",
        "mc_node_associate 1 1",
        "mirroring_add 5 4",
        "mirroring_add_mc 6 1",
    )
    everywhere = (Replica(1, 7), Replica(2, 7), Replica(3, 8))
    assert dict(switch.groups) == {1: everywhere}
    assert (switch.mirrors[5], switch.mirrors[6]) == (MirrorSession((Replica(4, 0),)), MirrorSession(everywhere))
    commands.run("mc_node_update 0 9\nmc_node_dissociate 1 1\nmirroring_delete 5")
    assert dict(switch.groups) == {1: (Replica(9, 7),)}
    assert dict(switch.mirrors) == {6: MirrorSession((Replica(9, 7),))}


def test_cells_and_value_sets(switch: V1Switch) -> None:
    run(
        switch,
        "register_write r 2 0x7f",
        "counter_write c 1 5 600",
        "meter_array_set_rates m 0.001:3 0.01:5",
        "meter_set_rates in.m 1 1:2 2:3",
        "pvs_add v 80",
        "pvs_add v 81",
        "pvs_remove v 80",
    )
    objects = switch.program
    assert list(objects.registers["in.r"].cells) == [0, 0, 0x7F, 0]
    assert (objects.counters["in.c"].packets[1], objects.counters["in.c"].bytes[1]) == (5, 600)
    assert objects.meters["in.m"][0].rates == MeterRates(1000, 3, 10_000, 5)
    assert objects.meters["in.m"][1].rates == MeterRates(1_000_000, 2, 2_000_000, 3)
    assert objects.value_sets["in.v"].values == {81}


@pytest.mark.parametrize("native", [True, False])
def test_switches_of_one_program_share_no_state(native: bool) -> None:
    text = json.dumps(document())
    kept, changed = (V1Switch.from_json(text, native=native) for _ in range(2))
    run(
        changed,
        "table_add lpm send 10.0.1.0/24 => 3",
        "table_set_default range send 4",
        "act_prof_create_member ap send 2",
        "act_prof_create_group ap",
        "table_indirect_add shared 0x50 => 0",
        "register_write r 2 0x7f",
        "counter_write c 1 5 600",
        "meter_array_set_rates m 0.001:3 0.01:5",
        "pvs_add v 80",
    )
    for switch in (kept, V1Switch.from_json(text, native=native)):
        objects = switch.program
        assert [len(each) for each in objects.tables.values()] == [0] * 5
        assert [objects.tables[name].miss.action for name in ("in.lpm", "in.range")] == ["count", "count"]
        assert (objects.profiles["in.ap"].members, objects.profiles["in.ap"].groups) == ({}, {})
        assert not any(objects.registers["in.r"].cells)
        assert not any(objects.counters["in.c"].packets)
        assert objects.meters["in.m"][0].rates is None
        assert objects.value_sets["in.v"].values == set()
        assert switch.process(1, bytes(12), 0.0) == [(0, bytes(12))], "to port 0, not to the other switch's default"
    assert changed.process(1, bytes(12), 0.0)[0][0] == 4


def test_commands_of_queues_and_those_that_show_are_passed_over_by_name(switch: V1Switch) -> None:
    commands = run(switch, "set_queue_rate 100 1", "show_tables", "set_queue_rate 200 2")
    assert commands.passed_over == ["set_queue_rate", "show_tables"]


@pytest.mark.parametrize(
    ("says", "line"),
    [
        ("no such command", "table_fly lpm"),
        ("'nothing' is no table", "table_add nothing send 1 => 1"),
        ("no action of table in.lpm", "table_add lpm jump 10.0.0.0/8 => 1"),
        ("has 1 key fields, not 2", "table_add lpm send 10.0.0.0/8 1 => 1"),
        ("takes 1 values, not 0", "table_add lpm send 10.0.0.0/8 =>"),
        ("no /LENGTH", "table_add lpm send 10.0.0.0 => 1"),
        ("prefix length 33", "table_add lpm send 10.0.0.0/33 => 1"),
        ("Octet 300", "table_add lpm send 10.0.0.300/8 => 1"),
        ("wants a priority", "table_add ternary send 1&&&1 => 1 20000000"),
        ("ends before it begins", "table_add range send 9->1 => 1 1"),
        ("does not fit 9 bits", "table_add lpm send 10.0.0.0/8 => 512"),
        ("has no entry with handle 4", "table_delete lpm 4"),
        ("2 words are expected", "mirroring_add 1"),
        ("mirror session 32768", "mirroring_add 32768 1"),
        ("port 511", "mirroring_add 1 511"),
        ("there is no multicast group 3", "mc_node_associate 3 0"),
        ("link aggregation", "mc_node_create 1 2 | 3"),
        ("RATE:BURST", "meter_array_set_rates m 1 2"),
        ("committed rate comes first", "meter_array_set_rates m 2:1 1:1"),
        ("index 4", "register_write r 4 1"),
        ("has no action profile", "table_indirect_add lpm 1/8 => 0"),
        ("one member or group is expected", "table_indirect_add shared 1 => 0 1"),
        ("has a member 9|no member", "act_prof_delete_member ap 8"),
        ("no idle timeout", "table_set_timeout lpm 0 5"),
    ],
)
def test_a_line_that_cannot_be_carried_out_is_told_with_its_number(switch: V1Switch, says: str, line: str) -> None:
    with pytest.raises(CommandError, match=rf"commands, line 2: {line.split()[0]}: .*(?:{says})"):
        run(switch, "table_clear lpm", line)


def test_names_that_two_things_end_with_are_told(switch: V1Switch) -> None:
    body = document()
    twice = start(json.loads(json.dumps(body).replace("in.range", "eg.lpm")))
    with pytest.raises(CommandError, match=r"in\.lpm or eg\.lpm"):
        run(twice, "table_clear lpm")


# --- the command line ---


def test_a_trace_follows_commands(tmp_path: Path) -> None:
    (tmp_path / "router.json").write_text(router())
    (tmp_path / "commands.txt").write_text(
        "table_add exact mark 0x1f => 9\ntable_add t send 0x10&&&0xf0 0->255 => 3 1\n"
    )
    arguments = [
        "trace",
        "1f07",
        "--program",
        str(tmp_path / "router.json"),
        "--commands",
        str(tmp_path / "commands.txt"),
    ]
    done = CliRunner().invoke(app, arguments)
    assert "leaves port 3 with 2 bytes: 1f09" in done.output, done.output
    (tmp_path / "commands.txt").write_text("table_add exact mark\n")
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, ConfigurationError)
    assert "line 1" in str(done.exception)


def test_the_command_line_of_mininets_switches_is_read(tmp_path: Path) -> None:
    (tmp_path / "router.json").write_text(router())
    found = read(
        f"-i 1@s1-eth1 -i 2@s1-eth2 --pcap {tmp_path} --nanolog ipc:///tmp/l --device-id 3 {tmp_path}/router.json "
        "--log-console --thrift-port 9090 -- --grpc-server-addr 0.0.0.0:50051 --cpu-port 255".split()
    )
    options = found.options
    assert options.ports == {1: "s1-eth1", 2: "s1-eth2"}
    assert (options.device_id, options.cpu_port, options.p4runtime) == (3, 255, ("0.0.0.0", 50051))
    assert (options.captures, options.trace) == (tmp_path, None)
    assert found.passed_over == ("--nanolog", "--thrift-port")
    traced = read([str(tmp_path / "router.json"), "--log-console", "--log-level", "trace"])
    assert traced.options.trace is not None
    bare = read(["--pcap", str(tmp_path / "router.json")]).options
    assert (bare.captures, bare.artefacts is None) == (Path(), False)
    empty = read(["--no-p4", "--", "--grpc-server-addr", "127.0.0.1:0"])
    assert empty.options.artefacts is None


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("--use-files is not implemented", "--use-files 1 --no-p4"),
        ("--priority-queues is not implemented", "--no-p4 -- --priority-queues 8"),
        ("--drop-port 5", "--no-p4 -- --drop-port 5"),
        ("either a program or --no-p4", "--device-id 1"),
        ("expected PORT@INTERFACE", "--no-p4 -i veth0"),
        ("unrecognized arguments: --fly", "--no-p4 --fly"),
    ],
)
def test_what_is_not_there_is_refused_by_name(says: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        read(words.split())


def test_a_switch_by_that_name_serves_until_it_is_ended(tmp_path: Path) -> None:
    (tmp_path / "router.json").write_text(router())
    done = CliRunner().invoke(app, ["bmv2", str(tmp_path / "bin")])
    script = tmp_path / "bin" / PROGRAM
    assert done.output.strip() == str(script)
    port = free_port()
    command = [
        str(script),
        str(tmp_path / "router.json"),
        "--thrift-port",
        "1",
        "--",
        "--grpc-server-addr",
        f"127.0.0.1:{port}",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        stopped = threading.Timer(WAIT_S * 4, process.kill)
        stopped.start()
        assert process.stdout is not None
        assert process.stderr is not None
        lines = iter(process.stdout.readline, "")
        assert next(line for line in lines if "listening" in line) == f"Server listening on 127.0.0.1:{port}\n"
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(StopIteration):
            assert "0 packets in" in next(lines)
        said = process.stderr.read()
        assert process.wait() == 0
        stopped.cancel()
    assert "--thrift-port means nothing here" in said
