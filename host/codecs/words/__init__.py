"""The table of word codecs: every module of this folder that defines one is in it, found by its name.

To add one: a module here with a subclass of `WordCodec` (codec.py has the rules), and native/codecs/codec_NAME.cpp with
its twin, which enters itself into the native table. Nothing else names it: the engines, shards and the fallback ask the
codec for what they need, and tests/codecs checks every codec of the table against the contract.
"""

from __future__ import annotations

import functools
import importlib
import logging
import pkgutil
from collections.abc import Mapping
from typing import Any

from fanin import plugins
from fanin.errors import ConfigurationError
from fanin.host.codecs.words.codec import WordCodec
from fanin.numerics.lanes import WORD_BITS
from fanin.numerics.reduction import WIDE_SUMS, Element, Operator
from fanin.protocol.job import JobSpec

GROUP = "fanin.word_codecs"
log = logging.getLogger("fanin")


@functools.cache
def table() -> Mapping[str, type[WordCodec]]:
    """Every word codec by its name; those of other packages behind fanin's own (fanin/plugins.py)."""
    found: dict[str, type[WordCodec]] = {}
    for module in pkgutil.iter_modules(__path__):
        for each in vars(importlib.import_module(f"{__name__}.{module.name}")).values():
            if isinstance(each, type) and issubclass(each, WordCodec) and each.name:
                assert found.setdefault(each.name, each) is each, f"two word codecs are called {each.name!r}"
    taken = {number for each in found.values() for number in each.numbers}
    for name in plugins.names(GROUP):
        try:
            loaded: Any = plugins.load(GROUP, name, _is_word_codec)
        except ConfigurationError as error:
            log.warning("%s", error)
            continue
        if taken & set(loaded.numbers) or name in found:
            log.warning("word codec %r of another package is not used: its name or number is taken", name)
            continue
        found[name] = loaded
        taken |= set(loaded.numbers)
    return found


def _is_word_codec(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, WordCodec)


def number_for(element: Element, lanes: int) -> int:
    """Return the codec number to look up: 32 for int32 and narrower, and for float64, where `lanes` asks for wide sums.

    Those elements travel in whole words whatever lanes are asked for. All others: `lanes` as it is.
    """
    narrow = element.floating and element is not Element.FLOAT64
    return WORD_BITS if lanes in WIDE_SUMS and not narrow and element is not Element.INT64 else lanes


@functools.cache
def codec_class(element: Element, lanes: int) -> type[WordCodec]:
    """The codec for elements of that type and this number; ConfigurationError where no codec has it."""
    lanes = number_for(element, lanes)
    for each in table().values():
        if lanes in each.numbers and element in each.elements:
            return each
    legal = sorted({number for each in table().values() if element in each.elements for number in each.numbers})
    raise ConfigurationError(
        f"no codec {lanes} for {element.name}; its codecs are {legal} (fanin.host.codecs.words)", "lanes"
    )


def codec_for(
    element: Element, lanes: int, count: int, spec: JobSpec, *, operator: Operator = Operator.SUM, place: int = 0
) -> WordCodec:
    """The codec of one reduction of `count` elements in that job.

    Raises ConfigurationError for what the codec cannot carry: an element type, an operator, so many workers.
    """
    number = number_for(element, lanes)
    return codec_class(element, number)(element, number, count, spec, operator, place)
