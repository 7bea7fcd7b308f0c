"""Codecs: how gradients become what a switch can add, and sums of it gradients again. docs/codecs.md has them all.

`words/`: how the elements of one sum become the 32-bit words of packets, in the engines.
The modules beside it: what becomes of a bucket of gradients before and after such sums (codec.py has the rules).
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from fanin.errors import ConfigurationError
from fanin.host.codecs.codec import Codec


@functools.cache
def table() -> Mapping[str, type[Codec]]:
    """Every gradient codec by its name."""
    found: dict[str, type[Codec]] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:
            continue
        for each in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(each, type) and issubclass(each, Codec) and each.name:
                assert found.setdefault(each.name, each) is each, f"two codecs are called {each.name!r}"
    return found


def make(text: str) -> Codec:
    """The codec that "rotated:8" or "low_rank:32:rank=2" names; ConfigurationError says what is wrong with it."""
    name, *given = text.split(":")
    if name not in table():
        raise ConfigurationError(f"codec {text!r}: there is no {name!r}, but {', '.join(sorted(table()))}")
    return table()[name].read(given)
