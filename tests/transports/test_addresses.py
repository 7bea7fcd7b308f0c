"""The address book: numbers are stable, never given twice, and bounded."""

from __future__ import annotations

import errno
import socket
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fanin.errors import ConfigurationError, SwitchUnreachableError
from fanin.host.session import path
from fanin.options import SwitchAddress
from fanin.switch.service.parent_link import chosen
from fanin.transports.numeric import host_of, socket_address
from fanin.transports.peer_numbers import AddressBook
from tests.support.frames import in_module


@given(st.lists(st.integers(0, 20), max_size=200), st.integers(1, 8))
def test_a_number_leads_back_to_its_key_or_nowhere_and_memory_is_bounded(keys: list[int], limit: int) -> None:
    book: AddressBook[int] = AddressBook(limit)
    given_to: dict[int, int] = {}
    for key in keys:
        number = book.number(key)
        assert given_to.setdefault(number, key) == key, "a number was given to two keys"
        assert book.number(key) == number
        assert book.key(number) == key
        assert len(book) <= limit
    assert all(book.key(number) in (key, None) for number, key in given_to.items())


def test_the_key_heard_longest_ago_is_forgotten_first() -> None:
    book: AddressBook[str] = AddressBook(2)
    worker, _ = book.number("worker"), book.number("stranger 1")
    book.number("worker")
    book.number("stranger 2")
    assert book.key(worker) == "worker"
    assert book.number("stranger 1") == 3


LOOPBACK = socket.if_nameindex()[0]
IPV4 = (socket.AF_INET, ("127.0.0.1", 1))
IPV6 = (socket.AF_INET6, ("::1", 1, 0, 0))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%" + LOOPBACK[1]])
def test_a_numeric_host_is_a_socket_address_and_back_with_its_interface(host: str) -> None:
    family, address = socket_address(host, 4919)
    assert family == (socket.AF_INET6 if ":" in host else socket.AF_INET)
    assert address[1] == 4919
    assert host_of(address) == host
    if "%" in host:
        assert address[3] == LOOPBACK[0], "without it the system refuses the address"


def test_an_address_of_a_link_keeps_its_interface_on_the_way_to_a_switch() -> None:
    address = SwitchAddress.parse(f"udp://[fe80::1%{LOOPBACK[1]}]:4919")
    assert path.resolve(address, 30.0) == [f"fe80::1%{LOOPBACK[1]}"]


def test_a_link_local_address_without_its_interface_is_explained() -> None:
    with pytest.raises(SwitchUnreachableError, match=r"Remedy: name it, as in udp://\[fe80::5%eth0\]:4711"):
        path.reach(SwitchAddress.parse("udp://[fe80::5]:4711"), 1.0, patient=True)
    assert "wants its interface" not in path.os_error_text(OSError(errno.EPIPE, "Broken pipe"))


def test_an_interface_that_is_not_here_is_named() -> None:
    with pytest.raises(SwitchUnreachableError, match="this machine has no interface 'absent'"):
        path.reach(SwitchAddress.parse("udp://[fe80::1%absent]:4919"), 1.0, patient=False)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("udp://fd00:51::3:4919", r"as in udp://\[fd00:51::3\]:4919"),
        ("udp://fd00:51::3", r"as in udp://\[fd00:51::3\]:4919"),
        ("udp://fd00:0:0:0:0:0:0:3", r"as in udp://\[fd00:0:0:0:0:0:0:3\]:4919"),
    ],
)
def test_an_address_without_brackets_is_shown_with_them(text: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        SwitchAddress.parse(text)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.ENETUNREACH, "no network of this machine leads there"),
        (errno.EHOSTUNREACH, "no host has that address on its network, or a firewall rejects it"),
        (errno.EACCES, "a firewall rejects it"),
    ],
)
def test_a_way_that_ends_is_told_from_one_that_a_firewall_closes(code: int, said: str) -> None:
    assert path.os_error_text(OSError(code, "no")) == f"no: {said}"


@pytest.mark.parametrize(("own", "at"), [("0.0.0.0", IPV4), ("127.0.0.1", IPV4), ("::1", IPV6), ("::", IPV6)])
def test_a_leaf_takes_an_address_of_its_parent_that_its_ports_can_send_to(own: str, at: object) -> None:
    address = SwitchAddress("udp", "localhost", 4919)
    assert chosen(address, [IPV6, IPV4], own) == at
    (other,) = [each for each in (IPV4, IPV6) if each != at]
    if own == "::":
        assert chosen(address, [other], own) == other, "IPv4 as well"
    else:
        with pytest.raises(ConfigurationError, match=r"--parent udp://localhost:4919 .*Remedy: --bind"):
            chosen(address, [other], own)


def test_a_leaf_takes_the_address_at_which_its_parent_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as parent:
        ports = parent.getsockname()[1], parent.getsockname()[1]
        found = [(socket.AF_INET6, ("::1", ports[0], 0, 0)), (socket.AF_INET, ("127.0.0.1", ports[1]))]
        assert chosen(SwitchAddress("udp", "localhost", ports[0]), found, "::") == found[1]


@pytest.mark.parametrize(
    ("host", "found", "hinted"),
    [
        ("::1", ["::1"], True),
        ("2001:db8::1", ["2001:db8::1"], True),
        ("127.0.0.2", ["127.0.0.2"], False),
        ("localhost", ["::1", "127.0.0.1"], False),
    ],
)
def test_a_rank_that_ipv6_refuses_is_told_how_a_switch_listens_to_it(
    host: str, found: list[str], hinted: bool, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A switch without --bind listens to IPv4 alone. A name with an address of IPv4 is refused by both."""
    if host == "::1":
        request.getfixturevalue("ipv6_loopback")

    @in_module("socket")
    def refused(*_: object) -> NoReturn:
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))  # and does not listen: IPv4 refuses, too
        port = listening.getsockname()[1]
        monkeypatch.setattr(path, "resolve", lambda *_: found)
        if host == "2001:db8::1":  # for documentation (RFC 3849), so that a machine without IPv6 tests this, too
            monkeypatch.setattr(socket, "create_connection", refused)
        with pytest.raises(SwitchUnreachableError) as caught:
            path.reach(SwitchAddress("udp", host, port), 1.0, patient=False)
    assert (f"`fanin switch --bind '[::]:{port}'`, since without --bind it" in str(caught.value)) is hinted
