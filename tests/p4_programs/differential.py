"""One program and the same random writes and frames in switches side by side: what one does, the others must do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

import pytest
from google.protobuf import text_format
from p4.v1 import p4runtime_pb2

from fanin.errors import PacketError
from fanin.switch.p4.program_file import read_program
from fanin.switch.p4runtime.server.device import Actions, Device
from fanin.switch.p4runtime.server.p4info import read_p4info
from fanin.switch.p4runtime.server.status import StatusError
from tests.p4_programs.random_entries import PORTS, updates
from tests.p4_programs.random_frames import FrameMaker
from tests.p4_programs.subjects import BUILD, CPU_PORT, PROGRAMS

Sent = list[tuple[int, bytes]]
MOST_DIFFERENCES = 3
"""Shown of one program; then it is given up."""


ENDS = (".p4info.txtpb", ".proto.txt")


class RefusedProgramError(Exception):
    """A switch does not take the program; says why."""


@dataclass(frozen=True)
class Sample:
    """A compiled program and its P4Info."""

    name: str
    program: Path
    p4info: Path

    def document(self) -> dict[str, Any]:
        """The program as JSON."""
        document: dict[str, Any] = json.loads(read_program(self.program))
        return document

    def info(self) -> Any:
        """Parse the P4Info's file."""
        return read_p4info(self.p4info.read_text(encoding="utf-8"))


OURS = [Sample(name, BUILD / f"{name}.json.gz", BUILD / f"{name}.p4info.txtpb") for name in PROGRAMS]


def samples() -> list[Sample]:
    """Our programs, and those of the folder that the environment names."""
    found = list(OURS)
    if (folder := os.environ.get("FANIN_P4_SAMPLES")) is not None:
        others = [
            Sample(path.stem, path, path.with_suffix(end))
            for path in sorted(Path(folder).glob("*.json"))
            for end in ENDS
            if path.with_suffix(end).exists()
        ]
        assert others, f"FANIN_P4_SAMPLES: there is no compiled program with its P4Info in {folder}"
        found += others
    return found


def expected(explained: Mapping[str, str], *raised: type[Exception]) -> list[Any]:
    """All samples as parameters of a test; those that are explained must raise."""
    return [
        pytest.param(
            sample,
            id=sample.name,
            marks=(pytest.mark.xfail(reason=explained[sample.name], raises=raised, strict=True),)
            if sample.name in explained
            else (),
        )
        for sample in samples()
    ]


class Side(Protocol):
    """A switch with the program."""

    def write(self, update: Any) -> int:
        """Carry out one update; the canonical code of the answer."""

    def exchange(self, port: int, frame: bytes) -> Sent | None:
        """The packets that leave, with the ports, when a frame comes in; None where P4 leaves the result undefined."""


class EmulatedSide:
    """The emulator behind P4Runtime, without its server."""

    def __init__(self, sample: Sample, *, native: bool | None, seed: int) -> None:
        self._device = Device(CPU_PORT, Random(seed).randrange, native)
        config = p4runtime_pb2.ForwardingPipelineConfig(p4info=sample.info())
        config.p4_device_config = read_program(sample.program)
        try:
            self._device.set_pipeline(Actions.VERIFY_AND_COMMIT, config)
        except StatusError as error:
            raise RefusedProgramError(str(error)) from None

    @property
    def engine(self) -> str:
        """Name of the interpreter that runs the program."""
        assert self._device.switch is not None
        return self._device.switch.engine

    def write(self, update: Any) -> int:
        """Implements the protocol `Side` of this module."""
        try:
            self._device.write(update)
        except StatusError as error:
            return int(error.code)
        return 0

    def exchange(self, port: int, frame: bytes) -> Sent | None:
        """Implements the protocol `Side` of this module."""
        assert self._device.switch is not None
        try:
            return self._device.switch.process(port, frame, 0.0)
        except PacketError:
            return None


@dataclass
class Comparison:
    """The result of one program."""

    writes: int = 0
    refused: int = 0
    sent: int = 0
    differences: list[str] = field(default_factory=list)


def compare(
    sample: Sample,
    first: Side,
    second: Side,
    seed: int,
    frames: int,
    *,
    undefined_alike: bool = True,
    written: Callable[[Any], bool] = lambda update: True,
    codes_alike: frozenset[tuple[int, int]] = frozenset(),
) -> Comparison:
    """The same into both; without `undefined_alike`, what one leaves undefined is the other's choice.

    `written` says which updates both are given, and may change them; `codes_alike` has answers that mean the same.
    """
    random, found = Random(f"{sample.name} {seed}"), Comparison()
    for update in filter(written, updates(sample.info(), random)):
        codes = first.write(update), second.write(update)
        found.writes += 1
        found.refused += codes[0] != 0
        if codes[0] != codes[1] and codes not in codes_alike:
            shown = text_format.MessageToString(update, as_one_line=True)
            found.differences.append(f"the answers {codes[0]} and {codes[1]} to {shown}")
    maker = FrameMaker(sample.document(), random)
    for _ in range(frames):
        if len(found.differences) >= MOST_DIFFERENCES:
            break
        port, frame = random.choice(PORTS), maker.frame()
        one, other = first.exchange(port, frame), second.exchange(port, frame)
        found.sent += len(one or ())
        if not undefined_alike and (one is None or other is None):
            continue
        if one != other:
            found.differences.append(f"{frame.hex()} into port {port} leads to {_shown(one)}, and to {_shown(other)}")
    return found


def _shown(sent: Sent | None) -> str:
    if sent is None:
        return "what P4 leaves undefined"
    return " ".join(f"{port}:{data.hex()}" for port, data in sent) or "nothing"
