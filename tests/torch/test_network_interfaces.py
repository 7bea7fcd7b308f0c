"""Ranks tell others an address of this machine that stays and is reached."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fanin.host.torch.meeting import network_interfaces
from fanin.host.torch.meeting.network_interfaces import address_of, interface_of, way_to

ADDRESSES = """\
fd000051000000000000000000000001 07 40 00 01      v6
fd000051000000000000000000000002 07 40 00 20      v6
fd000051000000000000000000000003 07 40 00 48      v6
fe800000000000000000000000000001 07 40 20 80      v6
fd000051000000000000000000000004 07 40 00 80      v6
fd000052000000000000000000000005 08 40 00 40   other
"""
"""The form of /proc/net/if_inet6: temporary, deprecated, duplicate, link-local, permanent, and one still checked."""


@pytest.fixture(autouse=True)
def addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interfaces that this machine does not have, and so no IPv4 addresses."""
    listed = tmp_path / "if_inet6"
    listed.write_text(ADDRESSES)
    monkeypatch.setattr(network_interfaces, "IPV6_ADDRESSES", listed)


def test_others_are_told_an_address_that_stays() -> None:
    assert address_of("v6") == address_of("v6", "fd00::9") == "fd00:51::4"
    assert address_of("other") is None, "nobody may use it before the system knows that it has no duplicate"


def test_every_address_of_an_interface_tells_it() -> None:
    assert [interface_of(f"fd00:51::{last}") for last in (1, 2, 4, 9)] == ["v6", "v6", "v6", None]


def test_the_way_to_a_name_is_that_to_the_first_address_with_a_route(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = (socket.AF_INET6, socket.SOCK_DGRAM, 0, "", ("fe80::1", 9, 0, 0))  # no interface leads there
    here = (socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("127.0.0.1", 9))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [nowhere, here])
    way = way_to("both")
    assert way is not None
    assert (way.own, way.target, way.is_link_local) == ("127.0.0.1", "127.0.0.1", False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [nowhere])
    assert way_to("both") is None
