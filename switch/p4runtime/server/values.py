"""Numbers as P4Runtime writes them: the shortest big-endian string that holds them (specification, section 8.4)."""

from __future__ import annotations

from fanin.switch.p4runtime.server.status import Code, StatusError


def encoded(value: int) -> bytes:
    """The canonical bytes of a number, at least one."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def decoded(data: bytes, bits: int, what: str) -> int:
    """The number that bytes encode, leading zeros allowed. StatusError if they are empty or it exceeds `bits` bits."""
    if not data:
        raise StatusError(Code.OUT_OF_RANGE, f"{what} is empty")
    value = int.from_bytes(data, "big")
    if bits and value >> bits:
        raise StatusError(Code.OUT_OF_RANGE, f"{what} = {value:#x} does not fit in {bits} bits")
    return value
