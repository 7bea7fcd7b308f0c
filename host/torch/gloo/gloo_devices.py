"""The gloo devices of a process: each has a thread and a port, and all groups of the process can share them.

By itself every group of gloo's makes devices of its own, on the interfaces that GLOO_SOCKET_IFNAME names or, without
it, at the address that the machine's name has. Debian gives that name a loopback address, at which no other machine
reaches it: then a device is at the address on the way to the other ranks.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import weakref
from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as c10d

from fanin.host.torch.meeting.network_interfaces import address_of
from fanin.host.torch.meeting.reachable import (
    GLOO_INTERFACES,
    is_loopback,
    one_machine,
    own_address_at_meeting,
    reachable_host,
)

WORK_THREADS = 1
"""Threads of a group that carry out its collectives, in the order of the calls."""

_gloo: Any = c10d.ProcessGroupGloo


class Devices:
    """The gloo devices of some groups, which live as long as any of these groups."""

    def __init__(self, interfaces: str) -> None:
        """`interfaces`: names, separated by commas."""
        self.groups: weakref.WeakSet[Any] = weakref.WeakSet()
        """Groups over these devices."""
        names = [name for name in interfaces.split(",") if name]
        if names:
            self._devices = [_gloo.create_device(**self._at(name)) for name in names]
        elif host := unlike_gloos_choice():
            self._devices = [_gloo.create_device(hostname=host)]
        else:
            self._devices = [_gloo.create_default_device()]

    @staticmethod
    def _at(name: str) -> dict[str, str]:
        """Arguments of a device at that interface. gloo by itself takes IPv4 where the interface has both families."""
        address = address_of(name, own_address_at_meeting())
        return {"hostname": address} if address is not None and ":" in address else {"interface": name}

    def group(self, store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        """Make a gloo group over these devices; returns once every rank has connected to every other.

        gloo itself returns once this rank has connected. If this rank then left the group at once, a rank that was
        still connecting would find its connection closed and fail. Hence a barrier: it ends on no rank before all have
        begun it, and fails as soon as a rank is gone.
        """
        options = _gloo._Options()
        options._devices = self._devices
        options._threads = WORK_THREADS * len(self._devices)
        options._timeout = timeout
        group = _gloo(store, rank, size, options)
        if size > 1:
            group.barrier(c10d.BarrierOptions()).wait(timeout)
        self.groups.add(group)
        return group


class SharedDevices:
    """The devices that groups made now share, unless GLOO_SOCKET_IFNAME or MASTER_ADDR has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakValueDictionary[tuple[str, str], Devices] = weakref.WeakValueDictionary()

    def open(self) -> Devices:
        """The devices for a group that is made now; the caller keeps them as long as the group lives."""
        place = os.environ.get(GLOO_INTERFACES, ""), os.environ.get("MASTER_ADDR", "")
        with self._lock:
            devices = self._open.get(place)
            if devices is None:
                devices = self._open[place] = Devices(place[0])
            return devices

    def forget(self) -> None:
        """Begin anew in a child of fork().

        A reference to each inherited group and device is leaked: freeing one, even at the interpreter's end, would wait
        for ever for threads that only the parent has.
        """
        self._lock = threading.Lock()
        for devices in self._open.values():
            for inherited in (devices, *devices.groups):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
        self._open = weakref.WeakValueDictionary()


def unlike_gloos_choice() -> str:
    """The name or address at which the other ranks reach this process, where gloo would take loopback; else empty."""
    try:
        by_name = {str(found[4][0]) for found in socket.getaddrinfo(socket.gethostname(), None)}
    except OSError:
        by_name = set()  # then gloo takes loopback, too
    return "" if one_machine() or not all(map(is_loopback, by_name)) else reachable_host()


DEVICES = SharedDevices()
os.register_at_fork(after_in_child=DEVICES.forget)
