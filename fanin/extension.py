"""Whether the native extension is there, and the one place that decides between it and the Python twins."""

from __future__ import annotations

from types import ModuleType

from fanin.errors import ConfigurationError
from fanin.protocol.tag_algorithm import SIPHASH, TagAlgorithm

REMEDY = "build it with `pip install -e .` (needs a C++20 compiler), or leave native unset to run the Python twin"


def native_extension(asked: bool | None) -> ModuleType | None:
    """The extension, or None for the twins. `asked`: True insists on it, False refuses it, None takes it if built.

    Raises ConfigurationError, with the remedy, when it is insisted on and cannot be imported.
    """
    if asked is False:
        return None
    try:
        from fanin import _native
    except ImportError as error:
        if asked is None:
            return None
        raise ConfigurationError(f"native=True, but the native extension does not load ({error}); {REMEDY}") from error
    return _native


def tag_algorithms(asked: bool | None) -> tuple[TagAlgorithm, ...]:
    """Algorithms of keyed tags that jobs may have here, the preferred one first.

    The native machines can compute them on this processor. The twins compute each of them, but GCM-SIV too slowly for
    long packets.

    `asked` as for `native_extension`.
    """
    extension = native_extension(asked)
    return (SIPHASH,) if extension is None else tuple(extension.tag_algorithms())
