"""Words of simple_switch_CLI's commands: numbers, addresses, key fields, rates, and abbreviated names.

switch/p4/commands.py has the commands, and describes each form.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import TypeVar

from fanin.errors import ConfigurationError
from fanin.p4_ports import DROP_PORT
from fanin.switch.p4.meters import MeterRates
from fanin.switch.p4.replication import Replica
from fanin.switch.p4.tables import KeyField, Match, MatchKind

Thing = TypeVar("Thing")
MAC = re.compile(r"[0-9a-fA-F]{1,2}(:[0-9a-fA-F]{1,2}){5}")
MARKS = {"lpm": "/LENGTH", "ternary": "&&&MASK", "range": "->HIGH"}
"""Notation behind the first value of a key field, by kind of match."""


class CommandError(ConfigurationError):
    """Raised for a line of a command file that cannot be carried out."""


def number(word: str) -> int:
    """The non-negative number that a word states. CommandError for any other word."""
    try:
        found = int(word, 0)
    except ValueError:
        found = -1
    if found < 0:
        raise CommandError(f"{word!r} is no number 0, 1, 2, ...")
    return found


def at_most(word: str, most: int, what: str) -> int:
    """The number that a word states, at most `most`. CommandError above, which calls it `what`."""
    if (found := number(word)) > most:
        raise CommandError(f"{what} {found}: expected 0..{most}")
    return found


def value(word: str, bits: int) -> int:
    """A field's value: a number or, for 32, 48 and 128 bits, an address. CommandError if it does not fit `bits`."""
    found = _address(word, bits)
    if found is None:
        found = number(word)
    if found >> bits:
        raise CommandError(f"{word} does not fit {bits} bits")
    return found


def _address(word: str, bits: int) -> int | None:
    if bits == 48 and MAC.fullmatch(word):
        return int("".join(part.rjust(2, "0") for part in word.split(":")), 16)
    try:
        if bits == 32 and "." in word:
            return int(ipaddress.IPv4Address(word))
        if bits == 128 and ":" in word:
            return int(ipaddress.IPv6Address(word))
    except ValueError as error:
        raise CommandError(str(error)) from None
    return None


def match(word: str, part: KeyField) -> Match:
    """Read the match on one field of a key."""
    whole = (1 << part.bits) - 1
    if part.kind in (MatchKind.EXACT, MatchKind.VALID):
        return Match(value(word, part.bits))
    first, mark, second = word.partition({"lpm": "/", "ternary": "&&&", "range": "->"}[part.kind.value])
    if not mark:
        raise CommandError(f"field {part.name} is {part.kind.value}, and {word!r} has no {MARKS[part.kind.value]}")
    if part.kind is MatchKind.LPM:
        length = at_most(second, part.bits, "prefix length")
        return Match(value(first, part.bits), whole - (whole >> length))
    low, high = value(first, part.bits), value(second, part.bits)
    if part.kind is MatchKind.TERNARY:
        return Match(low, high)
    if low > high:
        raise CommandError(f"{word}: the range ends before it begins")
    return Match(low=low, high=high)


def rates(words: list[str]) -> MeterRates:
    """Read two words RATE:BURST, the committed rate first."""
    made: list[int] = []
    for word in words:
        rate, colon, burst = word.partition(":")
        try:
            per_second = round(float(rate) * 1e6)
        except (ValueError, OverflowError):
            per_second = -1
        if not colon or not 0 <= per_second < 1 << 63:
            raise CommandError(f"{word!r}: expected RATE:BURST, in tokens per microsecond and tokens")
        made += [per_second, value(burst, 63)]
    if made[0] > made[2]:
        raise CommandError(f"{words[0]} is above {words[1]}: the committed rate comes first")
    return MeterRates(*made)


def node_of(instance: str, words: list[str]) -> tuple[Replica, ...]:
    """The replicas of a multicast node: one for each port; the program reads `instance` as egress_rid."""
    if "|" in words:
        if words.index("|") < len(words) - 1:
            raise CommandError("link aggregation groups are not implemented. Remedy: name the ports")
        words = words[: words.index("|")]
    return tuple(
        Replica(at_most(port, DROP_PORT - 1, "port"), at_most(instance, 0xFFFF, "instance"))
        for word in words
        for port in word.split(",")
    )


def find(name: str, things: Mapping[str, Thing], what: str) -> Thing:
    """The thing of that name, or the only one whose name ends with `.name`. CommandError without one."""
    if name in things:
        return things[name]
    found = [each for each in things if each.endswith(f".{name}")]
    if len(found) != 1:
        raise CommandError(f"{name!r} is no {what}" if not found else f"{name!r} may be {' or '.join(found)}")
    return things[found[0]]


def lowest_free_handle(taken: Mapping[int, object]) -> int:
    """The lowest free handle, the same as BMv2 assigns."""
    return next(handle for handle in range(len(taken) + 1) if handle not in taken)


def free_number(taken: Mapping[int, object]) -> int:
    """The lowest free number of a member or a group: its handle plus one, since 0 means all of them in P4Runtime."""
    return next(each for each in range(1, len(taken) + 2) if each not in taken)
