"""Flags at addresses of the host's memory: 32-bit words that a device and the host see. Values count up and around.

By native code where it is built, which waits without the GIL and orders memory on any processor; otherwise by ctypes,
whose stores are in order on x86.
"""

from __future__ import annotations

import ctypes
import time

from fanin.extension import native_extension

VALUES = 1 << 32
"""How many values a flag has."""
_SLEEP_S = 50e-6
_native = native_extension(None)


def reached(stands: int, value: int) -> bool:
    """Whether a flag whose present value is `stands` has reached `value`."""
    return (stands - value) % VALUES < VALUES // 2


def store(address: int, value: int) -> None:
    """Set the flag at that address; whoever sees it also sees what this thread wrote before."""
    if _native is not None:
        _native.store_flag(address, value)
    else:
        ctypes.c_uint32.from_address(address).value = value


def load(address: int) -> int:
    """Value of the flag at that address now."""
    if _native is not None:
        return int(_native.load_flag(address))
    return ctypes.c_uint32.from_address(address).value


def wait(address: int, value: int, timeout_s: float) -> bool:
    """Wait until the flag at that address reaches the value; False if it has not within `timeout_s`."""
    if _native is not None:
        return bool(_native.wait_flag(address, value, timeout_s))
    deadline = time.monotonic() + timeout_s
    while not reached(load(address), value):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_SLEEP_S)
    return True


class AddressFlags:
    """Flags given by their addresses, for the pipeline (`pipeline.Flags`)."""

    def wait(self, flag: int, value: int, timeout_s: float) -> bool:
        """Wait until the flag reaches the value; False if it has not within `timeout_s`."""
        return wait(flag, value, timeout_s)
