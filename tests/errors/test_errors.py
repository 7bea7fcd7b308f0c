"""Errors cross processes with their facts: multiprocessing, process pools and Ray pickle what a rank raises."""

from __future__ import annotations

import copy
import inspect
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from fanin import errors
from fanin.errors import FaninError

FACTS = {
    "step": 7,
    "parameters": ("0.weight", None),
    "address": "udp://10.0.0.1:4919",
    "ranks": (1, 2),
    "missing": (3,),
    "text": "what happened",
    "code": "busy",
    "parameter": "0.weight",
}
ERRORS_PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, FaninError)]


def made(kind: type[FaninError]) -> FaninError:
    given = [FACTS[name] for name in inspect.signature(kind.__init__).parameters if name in FACTS]
    error = kind(*given) if given else kind(FACTS["text"])
    vars(error)["explained"] = True  # as Failures.explain marks them
    return error


@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickle", "copy"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_made_again_with_its_facts(
    kind: type[FaninError], again: Callable[[FaninError], FaninError]
) -> None:
    error = made(kind)
    other = again(error)
    assert type(other) is kind
    assert (str(other), vars(other)) == (FACTS["text"], vars(error))


def test_every_error_has_a_row_with_its_cause_and_remedy() -> None:
    rows = [line.split("|")[1] for line in ERRORS_PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert [kind.__name__ for kind in KINDS if not any(f"`{kind.__name__}`" in row for row in rows)] == []
