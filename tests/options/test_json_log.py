"""FANIN_LOG=json: every record of fanin's log is one JSON object on one line."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fanin import json_log
from fanin.errors import ConfigurationError


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(json_log, "_lines", None)
    handlers, level, propagate = list(json_log.log.handlers), json_log.log.level, json_log.log.propagate
    yield
    for handler in set(json_log.log.handlers) - set(handlers):
        json_log.log.removeHandler(handler)
        if isinstance(handler.formatter, json_log.JsonLines):
            handler.close()
    json_log.log.setLevel(level)
    json_log.log.propagate = propagate


def test_a_record_is_one_object_with_its_event_values_and_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    json_log.configure({"FANIN_LOG": "json"})
    json_log.log.debug("not of this level")
    json_log.log.warning("rank %d was late by %g s at\n%s", 3, 0.5, Path("/there"))
    json_log.identify(2, "0", "world-1")
    try:
        raise ValueError("wrong")
    except ValueError:
        logging.getLogger("fanin.switch").exception("it failed")
    first, second = map(json.loads, out.getvalue().splitlines())
    assert first["event"] == "rank %d was late by %g s at\n%s"
    assert first["values"] == [3, 0.5, "/there"]
    assert first["message"] == "rank 3 was late by 0.5 s at\n/there"
    assert (first["level"], first["rank"], first["job"]) == ("WARNING", None, None)
    assert (second["rank"], second["group"], second["job"]) == (2, "0", "world-1")
    assert second["logger"] == "fanin.switch"
    assert "ValueError: wrong" in second["error"]
    assert first["time"].endswith("+00:00")


def test_a_full_disk_is_told_once_and_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    json_log.configure({"FANIN_LOG": "json:info:/dev/full"})
    for number in range(3):
        json_log.log.warning("line %d", number)
    assert capsys.readouterr().err == (
        "FANIN_LOG: /dev/full cannot be written: No space left on device. "
        "Remedy: free space there, or name another place\n"
    )
    (handler,) = (each for each in json_log.log.handlers if isinstance(each, logging.FileHandler))
    json_log.log.removeHandler(handler)
    with contextlib.suppress(OSError):
        handler.close()


def test_a_file_per_rank_has_the_lines_of_its_level(tmp_path: Path) -> None:
    json_log.configure({"FANIN_LOG": f"json:error:{tmp_path}/log-%r.jsonl", "RANK": "7"})
    json_log.log.warning("left out")
    json_log.log.error("kept")
    (line,) = (tmp_path / "log-7.jsonl").read_text().splitlines()
    assert json.loads(line)["message"] == "kept"


def test_a_rank_that_no_launcher_has_set_names_its_file(tmp_path: Path) -> None:
    json_log.configure({"FANIN_LOG": f"json:INFO:{tmp_path}/log-%r.jsonl"}, 3)
    assert (tmp_path / "log-3.jsonl").exists()


def test_numbers_that_json_has_not_are_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    json_log.configure({"FANIN_LOG": "json"})
    json_log.log.warning("losses %g and %g of %s", float("nan"), float("-inf"), True)
    line = json.loads(out.getvalue(), parse_constant=pytest.fail)
    assert line["values"] == ["nan", "-inf", True]
    assert line["message"] == "losses nan and -inf of True"


@pytest.mark.parametrize("text", ["yaml", "json:LOUD", "json:INFO:/nowhere/log.jsonl"])
def test_a_value_that_cannot_be_is_refused_and_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="FANIN_LOG"):
        json_log.configure({"FANIN_LOG": text})


def test_without_the_variable_nothing_changes() -> None:
    before = list(json_log.log.handlers)
    json_log.configure({})
    assert json_log.log.handlers == before
