"""Both interpreters of the emulator, fed the same: our compiled programs, random histories, damaged frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fanin.errors import PacketError
from tests.p4_programs.job_histories import History, random_spec
from tests.p4_programs.subjects import CPU_PORT, PROGRAMS, Emulated, program
from tests.p4_programs.wiring import Place, frame_to_switch
from tests.support.bench import words_of
from tests.support.builders import job_spec

PACKETS = 150
Sent = list[tuple[int, bytes]]


class Both:
    """A subject that is two: what one sends, the other must send."""

    most_words_added = 256

    def __init__(self, configuration: str) -> None:
        self.sides = Emulated(configuration, native=True), Emulated(configuration, native=False)
        assert self.sides[0].switch.engine == "native interpreter"

    def entry(self, table: str, key: Sequence[int], action: str, data: Sequence[int], *, modify: bool = False) -> None:
        for side in self.sides:
            side.entry(table, key, action, data, modify=modify)

    def group(self, number: int, replicas: Sequence[tuple[int, int]]) -> None:
        for side in self.sides:
            side.group(number, replicas)

    def exchange(self, port: int, frame: bytes) -> Sent:
        return self._same(lambda side: side.exchange(port, frame))

    def command(self, verb: str, frame: bytes) -> Sent:
        return self._same(lambda side: side.command(verb, frame))

    def parameters(self, action: str) -> Sequence[str]:
        return self.sides[0].parameters(action)

    def counter(self, name: str, index: int) -> int:
        native, python = (side.counter(name, index) for side in self.sides)
        assert native == python
        return native

    def _same(self, ask: Callable[[Emulated], Sent]) -> Sent:
        native, python = (_outcome(ask, side) for side in self.sides)
        assert native == python
        return native or []

    def agree(self) -> None:
        """All that packets have left behind is the same."""
        native, python = (side.switch for side in self.sides)
        assert native.tally == python.tally
        for name, register in native.program.registers.items():
            assert list(register.cells) == list(python.program.registers[name].cells), name
        for name, counter in native.program.counters.items():
            other = python.program.counters[name]
            assert (counter.packets, counter.bytes) == (other.packets, other.bytes), name


def _outcome(ask: Callable[[Emulated], Sent], side: Emulated) -> Sent | None:
    try:
        return ask(side)
    except PacketError:
        return None


@pytest.mark.parametrize("configuration", PROGRAMS)
@pytest.mark.parametrize("seed", range(2))
def test_both_interpreters_do_the_same_with_a_random_history(configuration: str, seed: int) -> None:
    random, both = Random(f"native {seed}"), Both(configuration)
    if configuration.startswith("tna"):
        spec = job_spec(job=1, generation=5, workers=3, slots=4, words_per_packet=8)
    else:
        spec = random_spec(random, int(configuration.removeprefix("v1model-")))
    program(both, spec)
    history, sent = History(spec, random), 0
    for data, source in history.packets(PACKETS):
        frame = frame_to_switch(source, data)
        sent += len(both.exchange(source.port, frame))
        if random.random() < 0.1:
            both.command("poke", frame)
        if random.random() < 0.3:
            both.exchange(random.choice([source.port, CPU_PORT, 0]), damaged(frame, random))
    assert sent
    both.agree()


def damaged(frame: bytes, random: Random) -> bytes:
    """The frame with some bytes changed, cut off or added."""
    data = bytearray(frame)
    for _ in range(random.randrange(4)):
        data[random.randrange(len(data))] = random.randrange(256)
    return bytes(data[: random.randrange(len(data) + 1)] if random.random() < 0.3 else data + random.randbytes(3))


BOTH: dict[str, Both] = {}
"""One for each program: what random frames leave behind only makes the next ones more interesting."""


@pytest.mark.parametrize("configuration", ["v1model-64", "tna-model", "tna-model-pairs-synchronous"])
@settings(max_examples=60)
@given(frames=st.lists(st.binary(max_size=400), max_size=4), seed=st.integers(0, 1 << 30))
def test_both_interpreters_do_the_same_with_any_bytes(configuration: str, frames: list[bytes], seed: int) -> None:
    if configuration not in BOTH:
        BOTH[configuration] = Both(configuration)
        program(BOTH[configuration], job_spec(job=1, workers=3, words_per_packet=8))
    both, random = BOTH[configuration], Random(seed)
    for frame in frames:
        both.exchange(random.randrange(512), frame)
        both.exchange(1, damaged(frame_to_switch(Place(0), frame), random))
    native, python = (side.switch for side in both.sides)
    assert native.tally == python.tally


def test_entries_and_groups_that_change_while_it_runs_change_for_both() -> None:
    both = Both("v1model-64")
    native, python = (side.switch for side in both.sides)
    for change in range(3):
        for switch in (native, python):
            table = switch.program.tables["FaninIngress.forward.hosts"]
            table.set_default("FaninIngress.forward.to_port", (change + 2,)) if change else table.set_default(None)
        frame = frame_to_switch(Place(0), words_of(1).tobytes())
        assert [port for port, _ in both.exchange(1, frame)] == ([change + 2] if change else [])
