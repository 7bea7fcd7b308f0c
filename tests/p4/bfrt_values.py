"""Keys and data of BfRt entries as plain values, checked as strictly as a device does."""

from __future__ import annotations

from typing import Any

from fanin.switch.p4runtime.bfrt.info import BITS
from fanin.switch.p4runtime.server.status import Code


class RefusalError(Exception):
    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


def demand(condition: object, text: str, code: Code = Code.INVALID_ARGUMENT) -> None:
    if not condition:
        raise RefusalError(code, text)


def width_of(described: dict[str, Any]) -> int:
    kind = described["type"]
    bits: int = kind["width"] if kind["type"] == "bytes" else BITS[kind["type"]]
    return bits


def number_of(described: dict[str, Any], value: bytes) -> Any:
    if described["type"]["type"] == "string":
        return value.decode()
    bits = width_of(described)
    demand(len(value) == (bits + 7) // 8, f"{described['name']}: {len(value)} bytes for {bits} bits")
    found = int.from_bytes(value, "big")
    demand(not found >> bits, f"{described['name']}: {found} in {bits} bits")
    return found


def bytes_of(described: dict[str, Any], value: Any) -> bytes:
    if described["type"]["type"] == "string":
        return str(value).encode()
    return int(value).to_bytes((width_of(described) + 7) // 8, "big")


def value_of(described: dict[str, Any], given: Any) -> Any:
    kind, repeated = described["type"]["type"], described["repeated"]
    member = {"string": "str_val", "bool": "bool_arr_val" if repeated else "bool_val"}.get(
        kind, "int_arr_val" if repeated else "stream"
    )
    demand(given.WhichOneof("value") == member, f"{described['name']}: {given.WhichOneof('value')}, not {member}")
    value = getattr(given, member)
    if repeated:
        return list(value.val)
    return number_of(described, value) if member == "stream" else value


def put(described: dict[str, Any], into: Any, value: Any) -> None:
    kind, repeated = described["type"]["type"], described["repeated"]
    if repeated:
        getattr(into, "bool_arr_val" if kind == "bool" else "int_arr_val").val.extend(value)
    elif kind in ("string", "bool"):
        setattr(into, "str_val" if kind == "string" else "bool_val", value)
    else:
        into.stream = bytes_of(described, value)
