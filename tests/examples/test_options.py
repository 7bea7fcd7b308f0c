"""Options of the examples whose numbers nothing can begin with: the parser refuses them, before ranks meet."""

from __future__ import annotations

import importlib
import sys

import pytest

from tests.support.packages import require_package

REFUSED = {
    "ampnet": [
        "--microbatches 0", "--microbatches -1", "--microbatches 2.5", "--microbatches 99999999999999999999",
        "--in-flight 0", "--against-1f1b --microbatches 7",
    ],
    "cartpole": [
        "--staleness -1", "--staleness 1025", "--iterations 0", "--target nan", "--target high", "--seed -1",
        "--seed 4294967296",
    ],
    "daef": ["--split -1", "--split x"],
    "local_steps": ["--period 0", "--periods 0", "--fragments 0", "--overlap -1", "--seed -1"],
    "sharded": ["--epochs 0", "--seed -1"],
    "train": ["--epochs 0", "--epochs 1e3", "--seed -1"],
}  # fmt: skip
NEEDS = {"cartpole": "gymnasium", "daef": "sklearn"}


@pytest.mark.parametrize(("example", "options"), [(each, options) for each in REFUSED for options in REFUSED[each]])
def test_a_number_that_nothing_can_begin_with_is_refused(
    example: str, options: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if example in NEEDS:
        require_package(NEEDS[example], f"{NEEDS[example]} is not installed: pip install 'fanin[demo]'")
    main = importlib.import_module(f"fanin.examples.{example}").main
    monkeypatch.setattr(sys, "argv", [example, *options.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert options.split()[-2] in (said := capsys.readouterr().err.splitlines()[-1])
    assert "Remedy: " in said
