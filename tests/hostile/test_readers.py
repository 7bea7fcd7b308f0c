"""Inputs of the one strict reader, and the memory that a switch is allowed to ask for."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from fanin.errors import ConfigurationError
from fanin.host.session.joining import JoinTerms
from fanin.host.session.session import Session
from fanin.memory import memory_bytes
from fanin.options import Options, SwitchAddress
from fanin.protocol import strict
from fanin.protocol.strict import RecordError


@dataclass(frozen=True, kw_only=True)
class Inner:
    """One of a list."""

    share: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Outer:
    """With every kind of field."""

    workers: int
    wide: bool = False
    name: str = ""
    kind: Literal["one", "two"] = "one"
    parts: tuple[Inner, ...] = ()
    counters: dict[str, int] | None = None
    scalar: str | int | None = None


def test_what_fits_is_read() -> None:
    data = b'{"workers": 2, "parts": [{"share": 1}, {}], "counters": {"a": 1}, "scalar": 3}'
    assert strict.read(strict.load_json(data), Outer, "outer") == Outer(
        workers=2, parts=(Inner(share=1), Inner()), counters={"a": 1}, scalar=3
    )
    assert strict.read(strict.load_toml(b"workers = 2\r\n"), Outer, "outer") == Outer(workers=2)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"workers": NaN}', "NaN is no JSON number"),
        (b'{"workers": -Infinity}', "Infinity"),
        (b'{"parts": [{"share": 1e400}]}', "1e400 is no finite number"),
        (b'{"workers": ' + b"9" * 5000 + b"}", "5000 digits"),
        (b'{"name": "\xff"}', "byte 10 is not UTF-8"),
        ("{}".encode("utf-16"), "not UTF-8"),
        (b'{"workers": 1, "workers": 2}', "a key appears twice"),
        (b"", "not JSON"),
        (b'{"workers": true}', "outer.workers = True; expected a whole number"),
        (b'{"workers": 1.0}', "outer.workers = 1.0; expected a whole number"),
        (b'{"workers": 1, "wide": 1}', "outer.wide = 1; expected true or false"),
        (b'{"workers": 1, "kind": "three"}', "expected one of one, two"),
        (b'{"workers": 1, "kind": []}', "expected one of one, two"),
        (b'{"workers": 1, "parts": {}}', "outer.parts = {}; expected a list"),
        (b'{"workers": 1, "parts": [{"share": false}]}', r"outer.parts[0].share = False; expected a number"),
        (b'{"workers": 1, "counters": {"a": null}}', "outer.counters.a = None"),
        (b'{"workers": 1, "scalar": 1.5}', "outer.scalar = 1.5; expected a text or a whole number"),
        (b'{"worker": 1}', "unknown field 'worker'; 'workers' is one"),
        (b"{}", "field 'workers' is missing"),
        (b"[]", "outer: [] is no object"),
        (b'{"workers": 99999999999999999999}', "expected a whole number"),
    ],
    ids=lambda value: value[:30].decode("ascii", "replace") if isinstance(value, bytes) else "",
)
def test_what_does_not_is_refused_with_its_place(data: bytes, said: str) -> None:
    with pytest.raises(RecordError) as caught:
        strict.read(strict.load_json(data), Outer, "outer")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"a = " + b"[" * 100_000, "nested too deeply"),
        (b"a = nan", "no finite number"),
        (b"a = 1e400", "no finite number"),
        (b"a = \xff", "not UTF-8"),
        (b"a = 1\na = 2", "not TOML"),
        (b"a", "not TOML"),
    ],
    ids=lambda value: value[:12].decode("ascii", "replace") if isinstance(value, bytes) else "",
)
def test_toml_is_read_as_strictly(data: bytes, said: str) -> None:
    with pytest.raises(RecordError) as caught:
        strict.load_toml(data)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("membership", "limits", "expected"),
    [
        ("0::/a/b\n", {"a/memory.max": "4096\n", "a/b/memory.max": "max\n"}, 4096),
        ("0::/a/b\n", {"memory.max": "8192\n"}, 8192),
        ("5:memory:/job\n0::/\n", {"memory/job/memory.limit_in_bytes": "1024\n"}, 1024),
        ("1:cpu:/job\n", {"memory/job/memory.limit_in_bytes": "1024\n"}, None),
        ("", {}, None),
    ],
)
def test_the_memory_of_a_container_counts_where_it_is_less_than_the_machines(
    membership: str, limits: dict[str, str], expected: int | None, tmp_path: Path
) -> None:
    for name, text in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "membership").write_text(membership)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_bytes(tmp_path, tmp_path / "membership") == (machine if expected is None else expected)


@pytest.mark.parametrize("option", ["pcap", "trace", "timeline"])
def test_a_workers_file_that_cannot_be_written_is_refused_before_it_joins(option: str, tmp_path: Path) -> None:
    """Nothing listens at that address: whoever asked there first would say so."""
    path = str(tmp_path / "missing" / "rank%r")
    options = Options(**{option: path}, connect_timeout_s=0.1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as caught:
        Session.join(
            JoinTerms(options=options, switch=SwitchAddress("udp", "127.0.0.1", 1), job_name="j", rank=3, size=4)
        )
    assert f"rank 3: FANIN_{option.upper()}={path}: there is no folder" in str(caught.value)
