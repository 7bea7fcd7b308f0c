"""Codecs: they turn gradients into words that a switch can add, and sums of words into gradients. See docs/codecs.md.

`words/`: word codecs, by which the engines encode the elements of one sum as the 32-bit words of packets.
The modules beside it: gradient codecs, which transform a bucket before and after its sums (codec.py has the rules), and
weight codecs, which encode a shard of weights for an all-gather (weight_codec.py).
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from fanin import plugins
from fanin.errors import ConfigurationError
from fanin.host.codecs.codec import Codec
from fanin.host.codecs.weight_codec import WeightCodec


@functools.cache
def table() -> Mapping[str, type[Codec]]:
    """Every gradient codec by its name."""
    return _named(Codec)


@functools.cache
def weights_table() -> Mapping[str, type[WeightCodec]]:
    """Every weight codec by its name."""
    return _named(WeightCodec)


def make(text: str) -> Codec:
    """The codec that "rotated:8" or "low_rank:32:rank=2" names; ConfigurationError says what is wrong with it."""
    name, *given = text.split(":")
    found = table().get(name) or _registered("fanin.codecs", name, Codec)
    if found is None:
        known = ", ".join(sorted({*table(), *plugins.names("fanin.codecs")}))
        raise ConfigurationError(f"codec {text!r}: there is no {name!r}, but {known}", "the codec")
    with plugins.called("fanin.codecs", name):
        return found.read(given)


def make_weights(text: str) -> WeightCodec:
    """The codec that "shifted:8" names, or "8", which is the same; ConfigurationError says what is wrong with it."""
    name, *given = ["shifted", text] if text.isascii() and text.isdigit() else text.split(":")
    found = weights_table().get(name) or _registered("fanin.weight_codecs", name, WeightCodec)
    if found is None:
        known = ", ".join(sorted({*weights_table(), *plugins.names("fanin.weight_codecs")}))
        raise ConfigurationError(f"weights = {text!r}: there is no codec {name!r} for weights, but {known}", "weights")
    with plugins.called("fanin.weight_codecs", name):
        return found.read(given)


def _registered(group: str, name: str, kind: type[Any]) -> Any:
    """The codec class that another package has registered under that name (fanin/plugins.py); None: none has."""
    return plugins.load(group, name, lambda found: isinstance(found, type) and issubclass(found, kind))


def _named(kind: type[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:
            continue
        members: list[Any] = list(vars(importlib.import_module(f"{__name__}.{module.name}")).values())
        for each in members:
            if isinstance(each, type) and issubclass(each, kind) and (name := getattr(each, "name", "")):
                assert found.setdefault(name, each) is each, f"two codecs are called {name!r}"
    return found
