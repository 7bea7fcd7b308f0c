"""A history of the Tofino program as a packet test (STF), for the model's own harness: entries, frames in and out."""

from __future__ import annotations

from collections.abc import Sequence

from tests.p4_programs.subjects import Emulated


class Recorded(Emulated):
    """The program in the emulator, and the lines of a packet test that says the same."""

    def __init__(self, configuration: str) -> None:
        super().__init__(configuration)
        self.lines: list[str] = []
        self._nodes = 0

    def entry(self, table: str, key: Sequence[int], action: str, data: Sequence[int], *, modify: bool = False) -> None:
        """Insert an entry, and note it. A packet test writes its entries once: there is no line that modifies one."""
        super().entry(table, key, action, data, modify=modify)
        if modify:
            raise AssertionError("a packet test cannot modify an entry")
        fields = " ".join(
            f"{part.name}:{value:#x}" for part, value in zip(self.switch.program.tables[table].key, key, strict=True)
        )
        given = ", ".join(f"{name}:{value:#x}" for name, value in zip(self.parameters(action), data, strict=True))
        self.lines.append(f"add {table} {fields} {action}({given})")

    def group(self, number: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Make a multicast group, and note its commands (Subject.group)."""
        super().group(number, replicas)
        self.lines.append(f"mc_mgrp_create {number}")
        for port, instance in replicas:
            self.lines += [f"mc_node_create {instance} {port}", f"mc_node_associate {number} {self._nodes}"]
            self._nodes += 1

    def exchange(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Let a frame in, and note it with what comes out (Subject.exchange)."""
        sent = super().exchange(port, frame)
        self.lines.append(f"packet {port} {frame.hex()}")
        self.lines += [f"expect {to} {data.hex()}$" for to, data in sent]
        return sent
