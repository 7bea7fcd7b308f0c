"""Files that a user names: an output is written whole, or what was there before is left alone."""

from __future__ import annotations

import errno
import importlib
import os
import re
import select
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fanin import curve, files, key_file
from fanin.cli import run
from fanin.errors import ConfigurationError, FaninError
from fanin.formats.capture import pcap_header
from fanin.records.record import VERSION, RunRecord
from tests.support.disk import room_for

OLD, NEW = "old and whole\n", "x" * 100


def test_a_disk_that_is_full_for_a_test_holds_no_part_of_a_module_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python would take the part for the module from then on, in this run and in later ones."""
    (tmp_path / "imported_meanwhile.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    with room_for(50):
        assert importlib.import_module("imported_meanwhile").x == 1
    assert not (tmp_path / "__pycache__").exists()
    assert not sys.dont_write_bytecode


def test_a_full_disk_leaves_the_old_file_or_none(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text(OLD)
    for path in (old, new):
        with room_for(50), pytest.raises(FaninError, match=rf"the page {path} cannot be written: File too large\. Rem"):
            files.write(path, NEW, "the page")
    assert old.read_text() == OLD
    assert list(tmp_path.iterdir()) == [old]


def test_a_new_file_has_the_usual_permissions_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    old, new, usual = (tmp_path / name for name in ("old", "new", "usual"))
    old.touch(mode=0o640)
    usual.touch()
    old.chmod(0o604)
    if os.geteuid() == 0:
        os.chown(old, 1234, 1235)
    before = old.stat()
    for path in (old, new):
        files.write(path, NEW, "the page")
        assert path.read_text() == NEW
    after = old.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert new.stat().st_mode == usual.stat().st_mode


def test_what_is_no_file_stays_what_it_is(tmp_path: Path) -> None:
    real, link, pipe = (tmp_path / name for name in ("real", "link", "pipe"))
    link.symlink_to(real)
    files.write(link, NEW, "the page")
    assert (link.is_symlink(), real.read_text()) == (True, NEW)
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    files.write(pipe, NEW, "the page")
    reader.join()
    assert (found, stat.S_ISFIFO(pipe.stat().st_mode)) == ([NEW], True)
    with pytest.raises(FaninError, match=r"No space left on device\. Remedy: free space"):
        files.write(Path("/dev/full"), NEW, "the page")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EBUSY])
def test_a_file_that_no_other_can_stand_in_for_is_written_in_place(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container mounts such files, and some folders only let their files be written."""

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    path = tmp_path / "old"
    path.write_text(OLD)
    before = path.stat().st_ino
    monkeypatch.setattr(os, "replace", refused)
    files.write(path, NEW, "the page")
    assert (path.read_text(), path.stat().st_ino) == (NEW, before)
    assert list(tmp_path.iterdir()) == [path]


def test_a_record_that_finds_no_place_at_all_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    empty = RunRecord(
        version=VERSION, kind="bench", title="", command="", started="", duration_s=0.0, outcome="finished"
    )
    with room_for(50), pytest.raises(FaninError, match=r"It is lost.*File too large"):
        empty.write(tmp_path / "run.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [curve.load_or_create, key_file.load_or_create], ids=["curve", "operator"])
def test_a_full_disk_leaves_no_key_file_that_the_next_start_refuses(
    make: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    with room_for(8), pytest.raises(ConfigurationError, match="File too large"):
        make(path)
    assert list(tmp_path.iterdir()) == []
    assert make(path) == make(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_capture_of_a_run_is_kept_whole_or_not_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.pcap"
    with room_for(5000):
        assert run(["simulate", "--pcap", str(path)]) == 1
    assert re.search(r"run\.pcap: File too large\. Remedy: ", capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []
    assert run(["simulate", "--pcap", str(path)]) == 0
    once = path.read_bytes()
    with room_for(len(once) + 5000):
        assert run(["simulate", "--pcap", str(path)]) == 1
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (once, [path])
    assert run(["simulate", "--pcap", str(path)]) == 0
    assert path.read_bytes() == once + once[len(pcap_header()) :]


def test_a_pipe_whose_reader_leaves_is_named_and_not_taken_for_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def leave() -> None:
        select.select([reading], [], [])
        os.close(reading)

    reader = threading.Thread(target=leave)
    reader.start()
    assert run(["simulate", "--scenario", "churn", "--seed", "1", "--pcap", str(path)]) == 1
    reader.join()
    assert re.search(rf"^fanin: {path}: Broken pipe\. Remedy: let its reader read to the end", capsys.readouterr().err)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_capture_that_cannot_begin_leaves_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.pcap"
    with room_for(8):
        assert run(["simulate", "--pcap", str(path)]) == 2
    assert "cannot be written: File too large" in capsys.readouterr().err
    assert not path.exists()
