"""One table of all options that says which of them the ranks of a group share, and which are each rank's own.

A rank that was given another value than rank 0 is refused when the ranks meet, on every rank, before anything is
summed (host/torch/meeting/rendezvous.py): it would be ignored otherwise, or waited for until a timeout. Options that
may differ stand here with the reason. Secrets never leave their rank: a keyed hash is compared.
"""

from __future__ import annotations

import dataclasses
import hashlib
import operator
from collections.abc import Callable

from fanin.addresses import HOSTS
from fanin.options import ENVIRONMENT_PREFIX, Options
from fanin.protocol.job import Agreed

Shown = str | int | bool | None
"""An option's value as ranks compare it: JSON keeps it as it is."""

SHARED: dict[str, Callable[[Options], Shown]] = {
    "lanes": lambda options: options.lanes_number,
    "codec": lambda options: options.codec,
    "exact_elements": lambda options: options.exact_elements,
    "fallback": lambda options: options.fallback,
    "inside": lambda options: options.inside,
    **{each.name: operator.attrgetter(each.name) for each in dataclasses.fields(Agreed)},
    "on_nonfinite": lambda options: options.on_nonfinite,
    "ordered_futures": lambda options: options.ordered_futures,
    "authenticate": lambda options: options.authenticate,
    "tag": lambda options: options.tag,
}
"""The same value on every rank: sums, routes, ways into the job, or the order of collectives depend on it."""

SHARED_IN_PART: dict[str, str] = {
    "switch": "a rank with none uses rank 0's; one with some names as many as rank 0 (leaves of one tree), and hosts "
    "where rank 0 does",
    "rack": "given to all ranks or to none, with one value per host",
    "link": "one value per host",
    "interfaces": "one value per host",
    "secret": "given to all ranks, the same, or to none",
}
"""Options of which a part is shared, with that part in words; the rest of each is a rank's own."""

OWN: dict[str, str] = {
    "host": "says which ranks are on this host",
    "slots": "the job takes the least that a rank asks for",
    "words_per_packet": "the job takes the least that a rank asks for",
    "checksum": "a job has them if any rank asks for them",
    "flows": "of the switch that this rank starts; a rank that asks another switch for them is warned",
    "ports": "of the switches that this rank starts",
    "liveness_timeout_s": "of the switch that this rank starts; a rank that asks another switch for it is warned",
    "native": "both engines speak one protocol",
    "device_wait": "how the streams of this rank's device wait",
    "shared_memory": "between this rank and its switch alone",
    "connect_timeout_s": "how long this rank waits",
    "join_timeout_s": "how long this rank waits",
    "idle_return_s": "ranks vote, and a job is given back when all are for it",
    "faults": "injected at this rank",
    "timeline": "a file of this rank",
    "flight_recorder": "a file of this rank",
    "otel": "spans and log of this rank",
    "metrics": "a port of this rank",
    "pcap": "a file of this rank",
    "trace": "a file of this rank",
    "curve_server_key": "of the switch that this rank speaks to, which may be a leaf with a key of its own",
}
"""Options that may differ between ranks, each with the reason."""

VARIABLES: dict[str, str] = {
    "CURVE_CLIENT_KEYS": "of a switch",
    "JOB": "of a command",
    "KERNELS": "all kernels give the same bits",
    "KEY_FILE": "of a switch, and of a command",
    "LOG": "the log of this process",
}
"""Variables of the environment that are no options; none of them is shared by ranks."""


def shared_values(options: Options, key: str) -> dict[str, Shown]:
    """Values of rank 0's options that it tells the other ranks. `key`: the job's name, drawn anew for each job."""
    return {name: shown(options) for name, shown in SHARED.items()} | {
        "switch": options.switch,
        "rack": options.rack,
        "link": None if options.link is None else str(options.link),
        "interfaces": options.interfaces,
        "secret": _fingerprint(options.secret, key),
    }


def unlike(told: dict[str, Shown], options: Options, rank: int, key: str, *, one_host: bool) -> list[str]:
    """Differences between the options of `rank` and those of rank 0, which has `told` its own, each with the remedy.

    `one_host`: whether all ranks are on one host.
    """
    own = shared_values(options, key)
    differences = [
        f"rank {rank} was given {name}={own[name]!r} (rank 0: {told[name]!r}). Remedy: the same on every rank, in its "
        f"options or {ENVIRONMENT_PREFIX}{name.upper()}"
        for name in SHARED
        if own[name] != told[name]
    ]
    if options.switch is not None and _form(options.switch) != _form(told["switch"]):
        differences.append(
            f"rank {rank} was given switch={options.switch!r} (rank 0: {told['switch']!r}). Remedy: the same on all "
            f"ranks, or on rank 0 alone, in its options or {ENVIRONMENT_PREFIX}SWITCH"
        )
    for name in ("rack", "link", "interfaces"):
        partly = name == "rack" and (own[name] is None) != (told[name] is None)
        if partly or (one_host and own[name] != told[name]):
            which = "on all ranks of a host" + ", and on all hosts or none" * (name == "rack")
            differences.append(
                f"rank {rank} was given {name}={own[name]!r} (rank 0: {told[name]!r}). Remedy: the same {which}, in "
                f"its options or {ENVIRONMENT_PREFIX}{name.upper()}"
            )
    if own["secret"] != told["secret"]:
        given = "no" if own["secret"] is None else "a" if told["secret"] is None else "another"
        differences.append(
            f"rank {rank} was given {given} secret (rank 0: {'none' if told['secret'] is None else 'one'}). Remedy: "
            f"give all ranks the same {ENVIRONMENT_PREFIX}SECRET, or none of them"
        )
    return differences


def _form(switch: Shown) -> tuple[bool, int]:
    """Whether hosts have shards, and how many addresses are named."""
    if switch is None:
        return False, 0
    said = Options(switch=str(switch)).switch_list
    return said.word == HOSTS, len(said.addresses)


def _fingerprint(secret: str | None, key: str) -> str | None:
    """A keyed hash (RFC 7693): equal for equal secrets within one job, of which it tells nothing elsewhere."""
    if secret is None:
        return None
    return hashlib.blake2b(secret.encode(), key=key.encode()[-64:], digest_size=16).hexdigest()
