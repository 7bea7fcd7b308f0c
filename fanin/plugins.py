"""Entry points (https://packaging.python.org/specifications/entry-points/) by which other packages extend fanin.

A package names its codec, policy, carrier, target or rival in its own metadata, and fanin takes it by that name:

    [project.entry-points."fanin.codecs"]
    halves = "my_package:Halves"

GROUPS has the groups. Nothing of a package is imported before its name is asked for. One that cannot be used is named
with its package, in one line, where it is asked for; the others and fanin's own work on.
"""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from fanin import files
from fanin.errors import ConfigurationError, FaninError

if TYPE_CHECKING:
    from importlib import metadata

GROUPS: dict[str, str] = {
    "fanin.codecs": "a class of gradient codec (fanin.host.codecs.codec.Codec)",
    "fanin.weight_codecs": "a class of weight codec (fanin.host.codecs.weight_codec.WeightCodec)",
    "fanin.word_codecs": "a class of word codec with numbers of its own (fanin.host.codecs.words.codec.WordCodec)",
    "fanin.policies": "a class of round policy (fanin.host.stale.policies.policy.RoundPolicy)",
    "fanin.schemes": "a row for addresses (fanin.schemes.Scheme), whose name is the entry point's",
    "fanin.targets": "a function of host and port that opens a data plane "
    "(fanin.switch.controller.data_plane.DataPlane)",
    "fanin.rivals": "a module and the backend that it registers with torch.distributed, as `module:backend`",
}
"""Groups of entry points, with what each of their objects is."""

REMEDY = "Remedy: install a version of it that fits, or remove it"


def names(group: str) -> list[str]:
    """The names that packages have registered in a group, in order."""
    return sorted(_entries(group))


def written(group: str, name: str) -> str | None:
    """The text of an entry point, `module:name`, of which nothing is imported; None where there is none.

    ConfigurationError where two packages claim the name.
    """
    found = _entries(group).get(name)
    return None if found is None else _only(group, name, found).value


def load(group: str, name: str, fits: Callable[[object], bool]) -> object | None:
    """The object that a package has registered under that name; None where none has.

    ConfigurationError, which names the package, where it cannot be imported, or is not what the group is for, or where
    two packages claim the name.
    """
    found = _entries(group).get(name)
    if found is None:
        return None
    entry = _only(group, name, found)
    try:
        loaded: object = entry.load()
    except (Exception, SystemExit) as error:  # of the package, which may do anything
        raise ConfigurationError(
            f"{_who(group, entry)} cannot be used: {type(error).__name__}: {_one_line(error)}. {REMEDY}"
        ) from error
    if not fits(loaded):
        raise ConfigurationError(f"{_who(group, entry)} cannot be used: {entry.value} is not {GROUPS[group]}. {REMEDY}")
    return loaded


def refused(group: str, name: str, why: str) -> ConfigurationError:
    """The error for an object of another package that was loaded, and turned out unfit when it was used."""
    return ConfigurationError(
        f"{_who(group, _only(group, name, _entries(group)[name]))} cannot be used: {why}. {REMEDY}"
    )


@contextlib.contextmanager
def called(group: str, name: str) -> Iterator[None]:
    """Name the package in whatever its object raises when it is called.

    A FaninError passes unchanged, as does any error where no package has registered the name. FaninError, with the
    remedy, for an OSError; ConfigurationError for anything else.
    """
    try:
        yield
    except FaninError:
        raise
    except Exception as error:
        found = _entries(group).get(name)
        if found is None:
            raise
        if isinstance(error, OSError):
            raise FaninError(f"{_who(group, _only(group, name, found))} failed: {files.of_system(error)}") from error
        raise refused(group, name, f"{type(error).__name__}: {_one_line(error)}") from error


def blamed(error: BaseException) -> str | None:
    """The package in whose code an exception was raised, with what was raised, where, and a remedy; None: in none's."""
    registered = {
        entry.value.partition(":")[0].partition(".")[0]: _who(group, entry)
        for group in GROUPS
        for entries in _entries(group).values()
        for entry in entries
    }
    import traceback

    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        who = registered.get(str(frame.f_globals.get("__name__", "")).partition(".")[0])
        if who is not None:
            place = f"{files.name(frame.f_code.co_filename)}:{line}"
            said = files.of_system(error) if isinstance(error, OSError) else f"{_one_line(error)}. {REMEDY}"
            return f"{who} failed at {place}: {type(error).__name__}: {said}"
    return None


def rival_refused(value: str, why: str) -> ConfigurationError:
    """The error for a rival, `module:backend`, that a rank could not use; it names the package, where one has
    registered it.
    """
    for name, entries in _entries("fanin.rivals").items():
        if value in (entry.value for entry in entries):
            return refused("fanin.rivals", name, why)
    module, _, backend = value.partition(":")
    return ConfigurationError(
        f"rival {value!r} cannot be used: {why}. Remedy: install or correct {module}, so that importing it registers "
        f"the backend {backend} with torch.distributed"
    )


def forget() -> None:
    """Look at the installed packages again."""
    _entries.cache_clear()


@functools.cache
def _entries(group: str) -> Mapping[str, tuple[metadata.EntryPoint, ...]]:
    # Imported only where a name is not fanin's own: the import takes as long as the rest of a small command.
    from importlib import metadata

    assert group in GROUPS, group
    found: dict[str, list[metadata.EntryPoint]] = defaultdict(list)
    for entry in metadata.entry_points(group=group):
        if entry not in found[entry.name]:  # a folder may be on the path twice
            found[entry.name].append(entry)
    return {name: tuple(entries) for name, entries in found.items()}


def _only(group: str, name: str, entries: tuple[metadata.EntryPoint, ...]) -> metadata.EntryPoint:
    if len(entries) > 1:
        packages = " and ".join(map(_package, entries))
        raise ConfigurationError(f"{name!r} of group {group} is claimed by {packages}. Remedy: remove one of them")
    return entries[0]


def _who(group: str, entry: metadata.EntryPoint) -> str:
    return f"{entry.name!r} of {_package(entry)} (entry point of group {group})"


def _package(entry: metadata.EntryPoint) -> str:
    package = entry.dist
    return "a package without metadata" if package is None else f"package {package.name} {package.version}"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
