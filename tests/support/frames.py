"""Functions of tests that stand in for others: what they raise must look as if the others had raised it."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any


def in_module(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the function's frames are those of the module of that name (fanin/interruptions.py looks at it)."""

    def moved(function: Callable[..., Any]) -> Callable[..., Any]:
        assert isinstance(function, types.FunctionType)
        within = {**function.__globals__, "__name__": name}
        made = types.FunctionType(function.__code__, within, function.__name__, closure=function.__closure__)
        made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
        return made

    return moved
