"""Python of docs/recipes.md, run as it is printed, in a world of one rank. test_documents.py looks at the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from fanin.errors import ConfigurationError
from tests.support.repository import ROOT

PAGE = (ROOT / "docs/recipes.md").read_text(encoding="utf-8")
RECIPES = dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
IN_PYTHON = {
    name: code for name, text in RECIPES.items() for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
}


@pytest.fixture
def world() -> Iterator[None]:
    dist.init_process_group("fanin", store=c10d.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_there_are_ten_recipes_that_begin_with_code_and_lead_on() -> None:
    assert len(RECIPES) == 10
    for text in RECIPES.values():
        assert text.startswith("\n```")
        assert "\nMore: [" in text
        assert text.count("\n") < 30


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("name", IN_PYTHON)
def test_a_recipe_runs_as_it_is_printed(name: str) -> None:
    names: dict[str, Any] = {"model": torch.nn.Linear(8, 2)}
    expected = {"A straggler and a quorum": pytest.raises(ConfigurationError, match="a group of at least two ranks")}
    with expected.get(name, nullcontext()):
        exec(IN_PYTHON[name], names)
