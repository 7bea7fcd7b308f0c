"""Watched ports of the members of a group, in P4Runtime messages (specification, sections 9.2.2 and 9.2.3)."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from fanin.switch.p4.actions import Watch
from fanin.switch.p4runtime.server.status import Code, StatusError
from fanin.switch.p4runtime.server.values import encoded


def read_watch(given: Any, ports: Container[int]) -> Watch | None:
    """The watched port of a member, or of an action of a set; None without one.

    An empty `watch_port` and a `watch` of 0 (SDN_PORT_UNKNOWN) name none. StatusError for a port that does not exist.
    """
    kind = given.WhichOneof("watch_kind")
    if kind == "watch":
        watch = Watch(given.watch, by_number=True) if given.watch else None
    else:
        watch = Watch(int.from_bytes(given.watch_port, "big")) if given.watch_port else None
    if watch is not None and watch.port not in ports:
        raise StatusError(Code.INVALID_ARGUMENT, f"there is no port {watch.port} that a member could watch")
    return watch


def fill_watch(message: Any, watch: Watch | None) -> None:
    """Write a member's watched port into the same field that it was read from."""
    if watch is None:
        return
    if watch.by_number:
        message.watch = watch.port
    else:
        message.watch_port = encoded(watch.port)
