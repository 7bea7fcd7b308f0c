"""The order that a rank gives the switch process that it starts beside itself, and that process's report.

The order is one line of JSON on the child's standard input, the report one line on a descriptor of its own, whose
number is the child's argument: standard output belongs to whatever Python's site prints (a sitecustomize.py, a .pth
file, a wrapper of `python`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

MAX_LINE_BYTES = 1 << 20
"""Longest order or report: long enough for a process with a leaf of each of a thousand hosts' switches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchOrder:
    """Properties of the switch that the process opens, or of its leaves."""

    hosts: tuple[str, ...]
    """Names or addresses to listen on: of one switch, of several in this process, or of the leaf of each parent."""
    ports: tuple[int, int] | None = None
    """The least and the greatest port that it may take; None: any that are free."""
    scheme: str
    """Scheme of the transport that carries data."""
    flows: int | None = None
    """Number of flows. None: as many as suit the machine, or, for a leaf, as many as its parent has."""
    native: bool | None = None
    """True: the native engine or an error; False: the twin; None: native where it is built."""
    liveness_timeout_s: float | None = None
    """Liveness timeout of jobs; None: the switch's default."""
    parents: tuple[str, ...] = ()
    """Addresses of switches: the process has a leaf of each of them, one at each of `hosts`. Empty: switches on their
    own."""
    key: str = ""
    """Key of the jobs that it serves, in hexadecimal; empty: it serves any job."""

    def line(self) -> bytes:
        """The order as one line of JSON, which the child reads."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> SwitchOrder:
        """The order that `line` holds."""
        told = json.loads(line)
        ports = told["ports"] and tuple(told["ports"])
        return cls(**told | {"hosts": tuple(told["hosts"]), "parents": tuple(told["parents"]), "ports": ports})


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchReport:
    """Outcome of an order: the switch serves, or `error` says why not."""

    ports: tuple[int, ...] = ()
    """The port of the switch at each of `hosts`."""
    description: str = ""
    """Engine and transport, in words."""
    error: str = ""

    def line(self) -> bytes:
        """The report as one line of JSON, which the parent reads."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> SwitchReport:
        """The report that `line` holds. ValueError where it holds none."""
        told = json.loads(line)
        return cls(**told | {"ports": tuple(told["ports"])})
