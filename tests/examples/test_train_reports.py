"""Reports of the training examples: lines in a terminal, JSON for programs."""

from __future__ import annotations

import io
import json

import pytest

from fanin.examples.train import report

EPOCH = {"event": "epoch", "epoch": 2, "loss": 0.22986147801081339, "wire_bytes": 54230803, "replica": "d9d873" * 10}


class Terminal(io.StringIO):
    """An output in which a person reads."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("output", "said"), [(Terminal, ""), (io.StringIO, json.dumps(EPOCH) + "\n")])
def test_a_person_gets_a_line_and_a_program_an_object(
    output: type[io.StringIO], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = output()
    monkeypatch.setattr("sys.stdout", written)
    report(**EPOCH)
    assert written.getvalue() == (said or "epoch: epoch 2, loss 0.2299, wire bytes 54,230,803, replica d9d873d9d873\n")


def test_progress_is_for_programs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Terminal()
    monkeypatch.setattr("sys.stdout", written)
    report(event="progress", done=3, of=10)
    assert written.getvalue() == ""
