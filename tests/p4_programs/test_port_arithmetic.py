"""The table of what ports carry follows from the packet's layout."""

from __future__ import annotations

from pathlib import Path

from tools.p4_port_arithmetic import table

README = Path(__file__).resolve().parents[2] / "p4" / "README.md"


def test_the_table_of_ports_is_what_the_packets_lengths_say() -> None:
    assert table() in README.read_text(encoding="utf-8")
