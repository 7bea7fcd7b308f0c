"""Codecs in the texts of a command line, and torch's hook among them, separated by commas.

Imports that need numpy are made when a function is called.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

from fanin.benchmarks import codecs_train_hooks as hooks
from fanin.settings import Text, commas


def split(texts: str) -> tuple[str, ...]:
    """Codecs that are separated by commas; a comma within a codec's text is not followed by a codec's name."""
    from fanin.host.codecs import table

    names = "|".join((*table(), hooks.NAME))
    return tuple(text for text in re.split(rf",(?=(?:{names})(?:[:,]|$))", texts) if text)


Codecs = Annotated[tuple[str, ...], Text(lambda _, text: split(text), commas)]
"""A field of codecs."""


def further_codecs() -> list[str]:
    """Every codec but lanes, with its defaults."""
    from fanin.host.codecs import table

    return sorted(set(table()) - {"lanes"})


def check_codecs(texts: Iterable[str], *workers: int) -> None:
    """ConfigurationError for a codec that is not there, or not for so many workers."""
    from fanin.host.codecs import make
    from fanin.host.codecs.codec import Place

    for text in texts:
        for each in workers:
            make(text).encoder(Place(0, each, ()))
