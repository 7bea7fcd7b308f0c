"""The Tofino program's controls (p4/tna/model.p4) in the emulator, with our controller, as machines of the tests."""

from __future__ import annotations

from fanin.switch.p4runtime.opening import BUILD, Artefacts
from tests.p4.emulated import P4Machine

LEAF = "tna-model-pairs-synchronous-leaf"


def artefacts(configuration: str) -> Artefacts:
    """The compiled program of that configuration."""
    return Artefacts.read(BUILD / f"{configuration}.json.gz", BUILD / f"{configuration}.p4info.txtpb")


def tofino(configuration: str, parent: int = 0) -> P4Machine:
    """A machine that runs it; `parent` is the address of the switch that leaves contribute to."""
    return P4Machine(1 << 24, artefacts(configuration), parent)


def tofino_leaf(memory_bytes: int) -> P4Machine:
    """The build that can be a leaf, of a parent with address 0."""
    return tofino(LEAF)
