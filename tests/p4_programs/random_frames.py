"""Random frames for any compiled program: bytes that lead through its parser, and bytes that do not."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.p4_programs.random_values import value

Json = dict[str, Any]
MAX_STATES = 24
"""States of a way through the parser, at most."""
MAX_PAYLOAD = 80
MAX_VARIABLE_BYTES = 8
MIN_FRAME = 14
"""Ethernet has no shorter ones."""
MAX_FRAME = 1400


class FrameMaker:
    """Frames for the program that a JSON document describes."""

    def __init__(self, document: Json, random: Random) -> None:
        self._random = random
        types = {each["name"]: each["fields"] for each in document["header_types"]}
        unions = {each["name"]: each["headers"] for each in document.get("header_union_types", [])}
        self._headers = {
            each["name"]: types[each["header_type"]]
            for each in document["headers"]
            if each["header_type"] not in unions
        }
        for each in document["headers"]:  # p4c writes some unions so (switch/p4/layout.py)
            for member, kind in unions.get(each["header_type"], []):
                self._headers[f"{each['name']}.{member}"] = types[kind]
        names = {each["id"]: each["name"] for each in document["headers"]}
        self._stacks = {
            each["name"]: [names[number] for number in each["header_ids"]] for each in document.get("header_stacks", [])
        }
        parser = document["parsers"][0]
        self._states = {each["name"]: each for each in parser["parse_states"]}
        self._start = parser["init_state"]

    def frame(self) -> bytes:
        """Draw the next frame."""
        made = _Way(self).bytes() if self._random.random() < 0.9 else self._random.randbytes(60)
        if made and self._random.random() < 0.15:
            made = made[: self._random.randrange(1, len(made) + 1)]
        if made and self._random.random() < 0.1:
            at = self._random.randrange(len(made))
            made = made[:at] + bytes([self._random.randrange(256)]) + made[at + 1 :]
        return made[:MAX_FRAME] + self._random.randbytes(max(0, MIN_FRAME - len(made)))


class _Way:
    """One way through the parser, and the bits that lead along it."""

    def __init__(self, maker: FrameMaker) -> None:
        self._maker = maker
        self._random = maker._random
        self._bits: list[int] = []
        self._at = 0
        """Bits that the parser has read: those behind it were looked at ahead."""
        self._places: dict[tuple[str, str], tuple[int, int]] = {}
        self._filled: dict[str, int] = {}

    def bytes(self) -> bytes:
        """All of the frame."""
        name = self._maker._start
        for _ in range(MAX_STATES):
            if name is None or len(self._bits) > MAX_FRAME * 8:
                break
            state = self._maker._states[name]
            for each in state["parser_ops"]:
                self._operation(each["op"], each["parameters"])
            name = self._next(state)
        self._need(-(-len(self._bits) // 8) * 8)
        head = int("".join(map(str, self._bits)) or "0", 2).to_bytes(len(self._bits) // 8, "big")
        return head + self._random.randbytes(self._random.randrange(MAX_PAYLOAD))

    def _need(self, end: int) -> None:
        while len(self._bits) < end:
            self._bits.append(self._random.getrandbits(1))

    def _operation(self, kind: str, parameters: list[Any]) -> None:
        if kind in ("extract", "extract_VL"):
            given = parameters[0]
            if given["type"] in ("regular", "stack"):
                self._extract(given["type"], given["value"])
        elif kind == "advance" and parameters[0]["type"] == "hexstr":
            self._at += int(parameters[0]["value"], 16)
            self._need(self._at)

    def _extract(self, kind: str, name: str) -> None:
        header = name
        if kind == "stack":
            members, at = self._maker._stacks[name], self._filled.get(name, 0)
            if at >= len(members):
                return
            self._filled[name], header = at + 1, members[at]
        for each in self._maker._headers[header]:
            bits = each[1] if each[1] != "*" else 8 * self._random.randrange(MAX_VARIABLE_BYTES)
            place = self._at, bits
            if bits and self._at >= len(self._bits):
                self._put(place, value(self._random, bits))
            self._at += bits
            self._need(self._at)
            self._places[header, each[0]] = self._places[name, each[0]] = place

    def _put(self, place: tuple[int, int], number: int) -> None:
        first, bits = place
        self._need(first + bits)
        self._bits[first : first + bits] = [number >> left & 1 for left in reversed(range(bits))]

    def _get(self, place: tuple[int, int]) -> int:
        first, bits = place
        return int("".join(map(str, self._bits[first : first + bits])) or "0", 2)

    def _next(self, state: Json) -> str | None:
        """The state that one of the transitions leads to; the bits that it is chosen by are made to fit."""
        chosen = self._random.choice(state["transitions"])
        # Documents before version 2.4 have no types of transitions.
        if chosen.get("type", "hexstr") == "hexstr" and chosen["value"] not in (None, "default"):
            keys = [self._key(each) for each in state["transition_key"]]
            number = int(chosen["value"], 16)
            mask = -1 if chosen.get("mask") is None else int(chosen["mask"], 16)
            for place in reversed(keys):
                if place is None:  # nothing is known of its width
                    break
                left = -(-place[1] // 8) * 8  # each key is as long as whole bytes
                if place[0] >= 0:
                    now = 0 if place[0] >= len(self._bits) else self._get(place)
                    self._put(place, (now & ~mask | number & mask) & (1 << place[1]) - 1)
                number, mask = number >> left, mask >> left
        following: str | None = chosen["next_state"]
        return following

    def _key(self, node: Json) -> tuple[int, int] | None:
        if node["type"] == "lookahead":
            return self._at + node["value"][0], node["value"][1]
        if node["type"] in ("field", "stack_field"):
            header, name = node["value"]
            if (header, name) in self._places:
                return self._places[header, name]
            for each in self._maker._headers.get(header, ()):
                if each[0] == name and each[1] != "*":
                    return -1, each[1]
        return None
