"""Modes of `fanin switch`, each with the options that mean nothing in it: these are refused, and not ignored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import typer

from fanin.cli import modes
from fanin.errors import ConfigurationError
from fanin.schemes import DEFAULT, SCHEMES, scheme_of, tree_scheme

SOCKETS = ("data", "flows", "native", "shared_memory")
"""Options about the sockets of the software switch, of which another target has none."""
CONTROLLER = (
    "memory",
    "slots",
    "curve_keys",
    "curve_clients",
    "key_file",
    "source_share",
    "liveness_timeout_s",
    "parent",
    "metrics",
)
"""Options of what admits jobs, which a device leaves to its controller."""


@dataclass(frozen=True, slots=True)
class Mode:
    """A mode, by the options that choose it."""

    chosen_by: str
    refused: tuple[str, ...]
    """Parameters of the options that mean nothing here."""
    harmless: Mapping[str, Any]
    """Values that say what is so in this mode."""
    why: str
    remedy: str

    def check(self, context: typer.Context) -> None:
        """Raise ConfigurationError for an option on the command line that has no effect here."""
        for parameter in self.refused:
            value = context.params[parameter]
            if parameter in self.harmless and value == self.harmless[parameter]:
                continue
            for option in modes.typed(context, parameter):
                written = option if isinstance(value, bool) else f"{option} {value}"
                raise ConfigurationError(
                    f"{written} has no effect with {self.chosen_by}: {self.why}. Remedy: {self.remedy}"
                )


ONE_PORT = {"data": DEFAULT, "flows": 1, "shared_memory": False}
P4 = Mode(
    "--target p4",
    SOCKETS,
    ONE_PORT,
    "the emulator has one flow, its UDP port, and chooses its interpreter",
    "leave it out",
)
DEVICE = Mode(
    "--p4runtime",
    CONTROLLER,
    {},
    "the device's controller admits the jobs",
    "give it to `fanin controller`, as far as that has it",
)
OTHER = Mode("this --target", SOCKETS[1:], ONE_PORT, "the target opens its own ports", "leave it out, or --target")
LEAF = Mode(
    "--parent",
    ("data",),
    {"data": tree_scheme()},
    f"leaves of trees carry data over {tree_scheme()}",
    "leave one of both out",
)
ONE_FLOW = Mode(
    "--data",
    ("flows", "shared_memory"),
    ONE_PORT,
    f"flows and shared memory are of {' and '.join(each.name for each in SCHEMES.values() if each.flows)}",
    "leave it out",
)


def check_options(context: typer.Context, schemes: Iterable[str]) -> None:
    """Raise ConfigurationError for an option of the command line that its mode would ignore."""
    given = context.params
    if given["target"] == "p4":
        P4.check(context)
        if given["p4runtime"] is not None:
            DEVICE.check(context)
    elif given["target"] != "software":
        OTHER.check(context)
    elif given["parent"] is not None:
        LEAF.check(context)
    elif not any(scheme_of(each).flows for each in schemes):
        ONE_FLOW.check(context)
