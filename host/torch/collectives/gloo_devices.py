"""The gloo devices of a process: each has a thread and a port, and all groups of the process can share them.

By itself every group of gloo's makes devices of its own, on the interfaces that GLOO_SOCKET_IFNAME names.
"""

from __future__ import annotations

import os
import threading
import weakref
from datetime import timedelta
from typing import Any

from torch._C import _distributed_c10d as c10d

INTERFACES = "GLOO_SOCKET_IFNAME"
"""gloo's variable: names of interfaces, separated by commas."""
WORK_THREADS = 1
"""Threads of a group that carry out its collectives, in the order of the calls."""

_gloo: Any = c10d.ProcessGroupGloo


class Devices:
    """Devices for some groups, there for as long as any of these is."""

    def __init__(self, interfaces: str) -> None:
        names = [name for name in interfaces.split(",") if name]
        self._devices = [_gloo.create_device(interface=name) for name in names] or [_gloo.create_default_device()]

    def options(self, timeout: timedelta) -> Any:
        """What gloo makes a group with."""
        options = _gloo._Options()
        options._devices = self._devices
        options._threads = WORK_THREADS * len(self._devices)
        options._timeout = timeout
        return options


class SharedDevices:
    """The devices that groups made now share, unless GLOO_SOCKET_IFNAME has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakValueDictionary[str, Devices] = weakref.WeakValueDictionary()
        self._inherited: list[Devices] = []
        """Kept, in a child of fork(): their threads are its parent's."""

    def open(self) -> Devices:
        """For a group, which holds them for as long as it lives."""
        interfaces = os.environ.get(INTERFACES, "")
        with self._lock:
            devices = self._open.get(interfaces)
            if devices is None:
                devices = self._open[interfaces] = Devices(interfaces)
            return devices

    def forget(self) -> None:
        """In a child of fork(): begin anew."""
        self._lock = threading.Lock()
        self._inherited += self._open.values()
        self._open = weakref.WeakValueDictionary()


DEVICES = SharedDevices()
os.register_at_fork(after_in_child=DEVICES.forget)
