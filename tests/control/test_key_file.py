"""The operator's key: who has one, and what those who have none may do."""

from __future__ import annotations

import errno
import os
import pwd
from pathlib import Path
from typing import NoReturn

import pytest

from fanin.errors import ConfigurationError
from fanin.key_file import load_or_create, operator_credentials


@pytest.mark.parametrize("why", ["no home", "another's"])
def test_who_can_have_no_key_may_ask_what_anybody_may(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users of a container may have no name, and sudo leaves another user's HOME."""

    def refused(*_: object) -> NoReturn:
        raise KeyError if why == "no home" else PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    if why == "no home":
        monkeypatch.delenv("HOME", raising=False)
        monkeypatch.setattr(pwd, "getpwuid", refused)
    else:
        monkeypatch.setattr(os, "open", refused)
        with pytest.raises(ConfigurationError, match=r"Permission denied\. Remedy: "):
            operator_credentials(Path("/named"))
    assert operator_credentials(None) is None


@pytest.mark.parametrize("what", ["device", "text"])
def test_what_is_no_key_file_is_refused_with_the_way_to_make_one(what: str, tmp_path: Path) -> None:
    path = Path("/dev/null")
    if what == "text":
        path = tmp_path / "letter"
        path.touch(0o600)
        path.write_text("Dear all,")
    for take in (load_or_create, operator_credentials):
        with pytest.raises(ConfigurationError, match=rf"{path} is no .*Remedy: .*`fanin switch --key-file PATH` makes"):
            take(path)


def test_a_key_that_cannot_be_kept_is_told_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(ConfigurationError, match=r"No space left on device\. Remedy: free space there"):
        load_or_create(tmp_path / "key")
    assert not list(tmp_path.iterdir())
