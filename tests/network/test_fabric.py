"""Namespaces, links and wires: made, metered, cut, and gone afterwards. Needs root."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pytest

from fanin.emulation.network import commands, ownership
from fanin.emulation.network.cross_traffic import CrossTraffic
from fanin.emulation.network.fabric import BRIDGE_FILTERS, Fabric
from fanin.emulation.network.namespaces import inside
from fanin.emulation.network.switch_place import SwitchPlace
from fanin.emulation.network.topology import Link, Topology
from fanin.emulation.network.traffic import Meters
from fanin.errors import ConfigurationError
from tests.support.processes import until

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("namespaces")]

PORT = 9999
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
"""Options of asm-generic/socket.h: a buffer of that length, whatever the system allows others."""
UDP_SEGMENT = 103
"""Option of linux/udp.h: a datagram is cut into segments of that length, and travels as one train where it can."""
INTERACTIVE = 6
"""TC_PRIO_INTERACTIVE of linux/pkt_sched.h: pfifo_fast's first band."""
LIMIT_S = 30.0
"""Only a test that fails waits so long."""


def bound(address: str) -> socket.socket:
    """A UDP socket of the calling thread's namespace."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.settimeout(LIMIT_S)
    opened.bind((address, PORT))
    return opened


def ends(fabric: Fabric) -> tuple[socket.socket, socket.socket]:
    """A socket of worker 0 that sends, and one in the switch's namespace that receives."""
    topology = fabric.topology
    sender = inside(fabric.worker_namespace(0), lambda: bound(topology.worker_address(0)))
    return sender, inside(fabric.switch_namespace(), lambda: bound(topology.root_address))


def unsent(sender: socket.socket) -> int:
    """Bytes that have not left the sender's machine."""
    (waiting,) = struct.unpack("i", fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4)))
    return int(waiting)


def exchange(fabric: Fabric, datagrams: int, at_least: int = 0) -> int:
    """How many of so many datagrams of 1,000 bytes from worker 0 arrive at the switch's namespace.

    A short one behind them marks the end; `at_least` so many are waited for, those that it has overtaken among them.
    """
    far = (fabric.topology.root_address, PORT)
    sender, receiver = ends(fabric)
    with sender, receiver:
        for _ in range(datagrams):
            sender.sendto(bytes(1000), far)
        sender.sendto(b"end", far)
        arrived, ended = 0, False
        while not ended or arrived < at_least:
            if receiver.recv(2000) == b"end":
                ended = True
            else:
                arrived += 1
        return arrived


def test_datagrams_cross_a_link_and_are_metered_with_their_headers() -> None:
    with Fabric(Topology(workers=2, link=Link(rate_bit_s=1e9))) as fabric:
        meters = Meters(fabric)
        assert exchange(fabric, 20) == 20
        samples = meters.sample(1.0)
        meters.close()
    assert samples["worker 0"].up_bytes >= 20 * (1000 + 42)
    assert samples["worker 1"].up_bytes < 1000


@pytest.mark.parametrize("bands", [False, True])
def test_a_host_has_bands_where_it_is_asked_to(bands: bool) -> None:
    """Packets of a socket of higher priority pass those that wait for the rate, or come last."""
    datagrams = 60  # as many as the buffers of two sockets hold
    with Fabric(Topology(workers=1, link=Link(rate_bit_s=1e5, bands=bands))) as fabric:  # so they wait for seconds
        far = (fabric.topology.root_address, PORT)
        sender, receiver = ends(fabric)
        with sender, receiver:
            sender.sendto(b"first", far)  # what waits for an address may be dropped
            assert receiver.recv(2000) == b"first"
            for _ in range(datagrams):
                sender.sendto(bytes(1000), far)
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, INTERACTIVE)
            sender.sendto(b"urgent", far)
            fabric.set_rate(fabric.cables[0], 4e6)
            before = 0
            while receiver.recv(2000) != b"urgent":
                before += 1
    assert (before < datagrams) == bands


def test_frames_do_not_go_through_the_packet_filter_of_the_machine() -> None:
    with Fabric(Topology(workers=2, racks=2)) as fabric:
        for rack in (None, 0, 1):
            asked = ["sysctl", "-en", *BRIDGE_FILTERS]  # says nothing where br_netfilter is not loaded
            found = commands.run(commands.in_namespace(fabric.switch_namespace(rack), asked)).split()
            assert set(found) <= {"0"}


def test_a_wire_delivers_what_its_dice_let_through() -> None:
    """How many it holds back is a matter of dice, which ARP and others draw as well; it loses none of them."""
    link = Link(rate_bit_s=1e8, delay_s=0.001, reorder=0.2)
    with Fabric(Topology(workers=1, link=link, seed=3)) as fabric:
        assert exchange(fabric, 50, at_least=50) == 50
        assert fabric.wire_losses(fabric.cables[0]) == 0


def test_a_link_that_is_cut_carries_nothing_until_it_is_back() -> None:
    with Fabric(Topology(workers=1, link=Link(rate_bit_s=1e9, delay_s=0.0001))) as fabric:
        link, far = fabric.cables[0], (fabric.topology.root_address, PORT)
        assert exchange(fabric, 5) == 5
        sender, receiver = ends(fabric)
        with sender, receiver:
            fabric.cut(link, True)
            for _ in range(5):
                sender.sendto(b"lost", far)
            until(lambda: fabric.wire_losses(link) >= 5)
            fabric.cut(link, False)
            sender.sendto(b"back", far)
            assert receiver.recv(100) == b"back"


def test_a_link_that_is_slowed_down_passes_on_the_trains_that_wait() -> None:
    """A bucket smaller than the train at the head of its queue would never pass it on."""
    segment_bytes, segments, trains, fast = 1000, 60, 16, 6e7
    with Fabric(Topology(workers=1, link=Link(rate_bit_s=fast, queue_bytes=1 << 21))) as fabric:
        far = (fabric.topology.root_address, PORT)
        sender, receiver = ends(fabric)
        with sender, receiver:
            sender.sendto(b"first", far)  # what waits for an address may be dropped
            assert receiver.recv(2000) == b"first"
            sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 22)
            receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 25)
            sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, segment_bytes)
            waiting = 0
            while not waiting:  # a busy machine may change the rate when all have passed
                fabric.set_rate(fabric.cables[0], fast)
                for _ in range(trains):
                    sender.sendto(bytes(segment_bytes * segments), far)
                fabric.set_rate(fabric.cables[0], fast / 6)
                waiting = unsent(sender)
            sender.sendto(b"last", far)
            while receiver.recv(2000) != b"last":
                pass


def test_racks_reach_one_another_through_the_root() -> None:
    with Fabric(Topology(workers=4, racks=2)) as fabric:
        assert fabric.topology.rack_of(0) == 0
        assert fabric.topology.rack_of(3) == 1
        assert exchange(fabric, 3) == 3


def test_what_waits_at_a_lone_racks_uplink_is_no_longer_its_senders() -> None:
    """A real switch behaves like this: a bridge would leave datagrams to the socket they came from, TCP's to its small
    queues.
    """
    count, uplink = 300, Link(rate_bit_s=1e5, queue_bytes=1 << 17)  # so it takes 5 s to pass half of its queue on
    place = SwitchPlace.parse("spare-only:1")
    with Fabric(Topology(workers=2, switch_at=place, uplink=uplink, lone_rack=True)) as fabric:
        far = (fabric.topology.spare_address(0), PORT)
        sender = inside(fabric.worker_namespace(1), lambda: bound(fabric.topology.worker_address(1)))
        receiver = inside(fabric.spare_namespace(0), lambda: bound(far[0]))
        meters = Meters(fabric)
        with sender, receiver:
            sender.sendto(b"hello", far)  # and both ends know their way
            assert receiver.recv(100) == b"hello"
            for _ in range(count):
                sender.sendto(bytes(1000), far)
            waiting, deadline = count, time.monotonic() + LIMIT_S
            while waiting:
                assert time.monotonic() < deadline, waiting
                waiting = unsent(sender)
            samples = meters.sample(1.0)
        meters.close()
    assert samples["worker 1"].up_bytes > count * 1000
    assert samples["rack 0"].up_bytes < uplink.queue_bytes / 2, "the rest waits, or was dropped"
    assert samples["rack 0"].dropped > count / 4
    assert {name for name, sample in samples.items() if sample.dropped} == {"rack 0"}


def test_tcp_flows_go_from_host_to_host_over_their_links() -> None:
    payload, deadline = 200_000, time.monotonic() + LIMIT_S
    topology = Topology(workers=4, ranks_per_host=2, link=Link(rate_bit_s=2e7, queue_bytes=1 << 16))
    with Fabric(topology) as fabric:
        assert fabric.worker_namespace(0) == fabric.worker_namespace(1) != fabric.worker_namespace(2)
        meters = Meters(fabric)
        with CrossTraffic(fabric, 3) as traffic:
            while min(traffic.received()) < payload:
                assert time.monotonic() < deadline, traffic.received()
                select.select([], [], [], 0.01)
        samples = meters.sample(1.0)
        meters.close()
        assert not traffic._sockets
    assert set(samples) == {"host 0", "host 1"}
    assert samples["host 0"].up_bytes > 2 * payload, "flows 0 and 2"
    assert samples["host 1"].up_bytes > payload, "flow 1, back again"
    assert "3 TCP flows beside" in traffic.in_words()


def test_spare_hosts_have_links_of_their_own() -> None:
    with Fabric(Topology(workers=2, switch_at=SwitchPlace.parse("spare:2"))) as fabric:
        assert [cable.name for cable in fabric.cables] == ["worker 0", "worker 1", "spare 0", "spare 1"]
        spare = inside(fabric.spare_namespace(1), lambda: bound(fabric.topology.spare_address(1)))
        worker = inside(fabric.worker_namespace(0), lambda: bound(fabric.topology.worker_address(0)))
        with spare, worker:
            worker.sendto(b"hello", (fabric.topology.spare_address(1), PORT))
            assert spare.recv(100) == b"hello"


def test_nothing_is_left_of_a_fabric_and_nothing_else_is_touched() -> None:
    before = {name for _, name in socket.if_nameindex()}
    with Fabric(Topology(workers=1)) as fabric:
        name = fabric.name
        command = ["ip", "netns", "exec", fabric.worker_namespace(0), "sh", "-c", "echo inside; exec sleep 60"]
        sleeper = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == b"inside\n"
        assert {name for _, name in socket.if_nameindex()} == before
    with sleeper:
        assert sleeper.wait(LIMIT_S) == -signal.SIGKILL
    assert not list(ownership.NAMESPACES.glob(f"fanin-{name}-*"))
    assert not (ownership.MARKS / f"{name}.json").exists()


HOLDER = """
import sys, time
from fanin.emulation.network.fabric import BRIDGE_FILTERS, Fabric
from fanin.emulation.network.topology import Topology
with Fabric(Topology(workers=1)) as fabric:
    print(fabric.name, flush=True)
    time.sleep(60)
"""


def folder_of(name: str) -> Path:
    """Folder for files of a run's processes."""
    return Path(tempfile.gettempdir()) / f"fanin-emulate-{name}"


def test_a_fabric_is_cleaned_up_when_its_process_is_killed() -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    name = holder.stdout.readline().strip()
    guardian = next(
        int(entry)
        for entry in os.listdir("/proc")
        if entry.isdecimal() and f"cleanup_guardian\0{name}\0".encode() in _command_line(entry)
    )
    watched = os.pidfd_open(guardian)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert select.select([watched], [], [], LIMIT_S)[0], "the guardian did not end"
    os.close(watched)
    assert not folder_of(name).exists()
    assert not list(ownership.NAMESPACES.glob(f"fanin-{name}-*"))
    assert name not in [run.name for run in ownership.runs()]


def test_what_is_left_when_the_guardian_is_killed_too_goes_by_command() -> None:
    before = {name for _, name in socket.if_nameindex()}
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        name = holder.stdout.readline().strip()
        for entry in filter(str.isdecimal, os.listdir("/proc")):
            if f"cleanup_guardian\0{name}\0".encode() in _command_line(entry):
                os.kill(int(entry), signal.SIGKILL)
        holder.kill()
    assert name in [run.name for run in ownership.leftovers()]
    assert folder_of(name).exists()
    subprocess.run([sys.executable, "-m", "fanin", "emulate", "--clean"], check=True, stdout=subprocess.DEVNULL)
    assert not list(ownership.NAMESPACES.glob(f"fanin-{name}-*"))
    assert not folder_of(name).exists()
    assert name not in [run.name for run in ownership.runs()]
    assert {name for _, name in socket.if_nameindex()} == before


def _command_line(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_only_what_is_marked_and_named_as_ours_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "MARKS", tmp_path)
    stranger = "stranger-of-fanin"
    subprocess.run(["ip", "netns", "add", stranger], check=True)
    try:
        run = ownership.Run("abcd", 1, -1, (stranger, "fanin-abcd-root"), tmp_path)
        (tmp_path / "abcd.json").write_text('{"pid": 1, "started": -1, "namespaces": ["stranger-of-fanin"]}')
        assert [found.name for found in ownership.leftovers()] == ["abcd"]
        assert ownership.clean(run) == []
        assert tmp_path.exists()
        assert (ownership.NAMESPACES / stranger).exists()
        assert ownership.leftovers() == []
    finally:
        subprocess.run(["ip", "netns", "delete", stranger], check=True)


def test_a_worker_that_is_not_there_has_no_link() -> None:
    with pytest.raises(ConfigurationError, match="no worker 4"):
        Topology(workers=4, links={4: Link()})
