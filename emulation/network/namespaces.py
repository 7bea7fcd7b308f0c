"""Opens sockets and TAP devices inside a namespace from this process, which keeps them."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import threading
from collections.abc import Callable
from typing import TypeVar

from fanin.emulation.network.ownership import NAMESPACES
from fanin.errors import FaninError, UnsupportedError

CLONE_NEWNET = 0x40000000  # linux/sched.h
TUNSETIFF = 0x400454CA  # linux/if_tun.h, as the next ones
TUNSETOFFLOAD = 0x400454D0
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4, TUN_F_TSO6, TUN_F_USO4, TUN_F_USO6 = 0x01, 0x02, 0x04, 0x20, 0x40
INTERFACE_REQUEST = struct.Struct("16sH22x")

Result = TypeVar("Result")


def inside(namespace: str, action: Callable[[], Result]) -> Result:
    """Call `action` in a thread that has entered the namespace, and return its result; sockets it opens stay there."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def enter() -> None:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            descriptor = os.open(NAMESPACES / namespace, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if libc.setns(descriptor, CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
            finally:
                os.close(descriptor)
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=enter, name="fanin namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def open_tap(name: str, *, trains: bool) -> int:
    """A new TAP device in the calling thread's namespace; returns its descriptor, non-blocking, with virtio headers.

    `trains`: the device takes frames of up to 64 KiB that stand for many (GSO), which costs less. Raises
    UnsupportedError where the system has no TAP devices.
    """
    try:
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UnsupportedError(
            f"delay, loss and reordering need TAP devices, and /dev/net/tun cannot be opened ({error.strerror}). "
            "Remedy: load the module tun (in a container: --device /dev/net/tun), or leave them out"
        ) from None
    try:
        fcntl.ioctl(descriptor, TUNSETIFF, INTERFACE_REQUEST.pack(name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
        if trains:
            tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6
            try:
                fcntl.ioctl(descriptor, TUNSETOFFLOAD, tcp | TUN_F_USO4 | TUN_F_USO6)
            except OSError:  # before Linux 6.2: TCP only
                fcntl.ioctl(descriptor, TUNSETOFFLOAD, tcp)
    except OSError as error:
        os.close(descriptor)
        raise FaninError(
            f"cannot make the TAP device {name}: {error.strerror}. "
            "Remedy: run it as root, on a kernel with TUN/TAP (`modprobe tun`)"
        ) from None
    return descriptor
