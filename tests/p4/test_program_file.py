"""Compiled programs are read from plain and from compressed files, and damaged ones are refused by name."""

import gzip
from pathlib import Path

import pytest

from fanin.errors import ConfigurationError
from fanin.switch.p4.document import MAX_DOCUMENT_BYTES
from fanin.switch.p4.program_file import read_program, write_program

TEXT = b'{"program": "some.p4"}' * 100


def test_a_compressed_program_reads_as_the_plain_one(tmp_path: Path) -> None:
    plain, packed = tmp_path / "some.json", tmp_path / "some.json.gz"
    plain.write_bytes(TEXT)
    write_program(packed, TEXT)
    assert read_program(plain) == read_program(packed) == TEXT
    assert packed.stat().st_size < plain.stat().st_size


def test_equal_programs_make_equal_files(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json.gz", tmp_path / "two.json.gz"
    write_program(one, TEXT)
    write_program(two, TEXT)
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize(
    "data",
    [TEXT, gzip.compress(TEXT)[:-9], gzip.compress(TEXT)[:-1] + b"?", b"\x1f\x8b" + TEXT],
    ids=["plain", "cut", "changed", "garbage"],
)
def test_a_damaged_file_is_refused_by_name(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "some.json.gz"
    path.write_bytes(data)
    with pytest.raises(ConfigurationError, match=r"some\.json\.gz is not gzip: .*Remedy"):
        read_program(path)


def test_a_small_file_that_holds_gigabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    write_program(path, bytes(MAX_DOCUMENT_BYTES + 2))
    with pytest.raises(ConfigurationError, match="holds more than"):
        read_program(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nothing\.json cannot be read: .*Remedy"):
        read_program(tmp_path / "nothing.json")
