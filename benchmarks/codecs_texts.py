"""Parses codecs, and torch's hook among them, from the text of a command line, separated by commas.

Functions import what needs numpy when they are called.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from typing import Annotated

from fanin import plugins
from fanin.benchmarks import codecs_train_hooks as hooks
from fanin.errors import ConfigurationError
from fanin.settings import Text, commas


def split(texts: str) -> tuple[str, ...]:
    """Split codecs separated by commas; a comma that no codec's name follows is part of a codec's text."""
    from fanin.host.codecs import table

    names = "|".join(map(re.escape, (*table(), *plugins.names("fanin.codecs"), hooks.NAME)))
    return tuple(text for text in re.split(rf",(?=(?:{names})(?:[:,]|$))", texts) if text)


Codecs = Annotated[tuple[str, ...], Text(lambda _, text: split(text), commas)]
"""Type of a dataclass field of codecs, as text with commas."""


def further_codecs() -> list[str]:
    """Every codec but `lanes`, with its default settings."""
    from fanin.host.codecs import table

    return sorted(set(table()) - {"lanes"})


def check_codecs(texts: Iterable[str], *workers: int) -> None:
    """Raise ConfigurationError for a codec that does not exist, or not for one of these numbers of workers."""
    from fanin.host.codecs import make
    from fanin.host.codecs.codec import Place

    for text in texts:
        try:
            codec = make(text)
        except ConfigurationError:
            _check_end(text)
            raise
        for each in workers:
            codec.encoder(Place(0, each, ()))


def _check_end(text: str) -> None:
    """Raise ConfigurationError where the text is a codec, a comma, and what is no codec, which `split` left joined."""
    from fanin.host.codecs import make

    if "=>" in text:  # commas of rules are of one codec
        return
    parts = text.split(",")
    for end in range(1, len(parts)):
        with contextlib.suppress(ConfigurationError):
            make(",".join(parts[:end]))
            break
    else:
        return
    make(parts[end])
