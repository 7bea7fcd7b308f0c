"""The worked example of docs/protocol.md, made from real bytes: two worker twins and a switch twin, no network.

`python -m tests.transports.worked_example` writes it into the page; a test fails when the page says anything else.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fanin.formats.trace import describe
from fanin.host.machine.worker_machine import WorkerMachine
from fanin.numerics.reduction import Element, Reduction
from fanin.protocol import wire
from fanin.protocol.job import JobSpec
from fanin.protocol.wire import Kind, Packet, parse
from fanin.switch.machine.switch_machine import SwitchMachine
from fanin.transports.transport import SWITCH

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"
BEGIN, END = "<!-- worked example: begin -->\n", "<!-- worked example: end -->\n"

SPEC = JobSpec(
    job=1,
    generation=0x1234_5EED,
    workers=2,
    quorum=2,
    slots=2,
    words_per_packet=8,
    tokens=(0x0011_2233_4455_6677, 0x8899_AABB_CCDD_EEFF),
)
TENSORS = ([1.0, 0.5], [2.0, -0.25])
SIGNATURE = 0xC0FFEE01

FIELDS = (
    ("magic", wire.OFFSET_MAGIC, wire.OFFSET_VERSION),
    ("version", wire.OFFSET_VERSION, wire.OFFSET_KIND),
    ("kind", wire.OFFSET_KIND, wire.OFFSET_JOB),
    ("job", wire.OFFSET_JOB, wire.OFFSET_WORKER),
    ("worker", wire.OFFSET_WORKER, wire.OFFSET_FLAGS),
    ("flags", wire.OFFSET_FLAGS, wire.OFFSET_GENERATION),
    ("generation", wire.OFFSET_GENERATION, wire.OFFSET_SLOT),
    ("slot", wire.OFFSET_SLOT, wire.OFFSET_BASE),
    ("base", wire.OFFSET_BASE, wire.OFFSET_SIGNATURE),
    ("signature", wire.OFFSET_SIGNATURE, wire.OFFSET_BITMAP),
    ("bitmap", wire.OFFSET_BITMAP, wire.OFFSET_CONTRIBUTORS),
    ("contributors", wire.OFFSET_CONTRIBUTORS, wire.OFFSET_CODE_COUNT),
    ("code_count", wire.OFFSET_CODE_COUNT, wire.OFFSET_LANES),
    ("lanes", wire.OFFSET_LANES, wire.OFFSET_CHECKSUM),
    ("checksum", wire.OFFSET_CHECKSUM, wire.HEADER_BYTES),
)


def conversation() -> tuple[list[tuple[str, bytes]], list[np.ndarray]]:
    """(who to whom, datagram) of the whole example, and what the workers end with."""
    switch = SwitchMachine(1 << 20)
    switch.admit(SPEC)
    workers = [WorkerMachine(SPEC, worker, switch=SWITCH, token=SPEC.tokens[worker]) for worker in range(2)]
    sources = [np.array(values, np.float32) for values in TENSORS]
    results = [np.zeros_like(source) for source in sources]
    said: list[tuple[str, bytes]] = []

    def pump() -> None:
        """Let everybody talk until nobody has anything to say."""
        while True:
            heard = len(said)
            for worker, machine in enumerate(workers):
                for data, _ in machine.datagrams_to_send(0.0):
                    said.append((f"worker {worker} to switch", data))
                    switch.receive_datagram(data, worker, 0.0)
            for data, worker in switch.datagrams_to_send(0.0):
                said.append((f"switch to worker {worker}", data))
                workers[worker].receive_datagram(data, SWITCH, 0.0)
            if len(said) == heard:
                return

    pump()
    for machine, source, result in zip(workers, sources, results, strict=True):
        machine.submit(
            Reduction(
                source=source.ctypes.data,
                destination=result.ctypes.data,
                count=source.size,
                element=Element.FLOAT32,
                signature=SIGNATURE,
            )
        )
    pump()
    workers[0].leave(0.0)
    pump()
    return said, results


def render() -> str:
    """The example as it stands between the page's markers."""
    said, results = conversation()
    lines = ["```text"]
    for number, (who, data) in enumerate(said, 1):
        same = next((n for n, (_, other) in enumerate(said[: number - 1], 1) if other == data), None)
        lines.append(f"{number}. {who}: {describe(data)}")
        lines += [f"    the bytes of {same}, again"] if same else [f"    {row}" for row in _rows(data)]
    lines.append("```")
    number, data = next(
        (number, data)
        for number, (_, data) in enumerate(said, 1)
        if parse(data).kind is Kind.CONTRIBUTION and len(parse(data).words)
    )
    lines += ["", f"Number {number} again, field by field:", "", "```text", *_annotated(data), "```"]
    lines += ["", f"Both workers end with {results[0].tolist()}."]
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    return "\n".join(lines) + "\n"


def _rows(data: bytes) -> list[str]:
    """Sixteen bytes a row, with the offset; rows of zeros after the header are counted only."""
    rows = [(at, data[at : at + 16]) for at in range(0, len(data), 16)]
    shown = [f"{at:04x}  {row.hex(' ')}" for at, row in rows if any(row) or at < wire.HEADER_BYTES]
    zeros = sum(len(row) for at, row in rows if not any(row) and at >= wire.HEADER_BYTES)
    return shown + ([f"...   {zeros} bytes of zero"] if zeros else [])


def _annotated(data: bytes) -> list[str]:
    packet: Packet = parse(data)
    named = [(data[first:end], name) for name, first, end in FIELDS]
    at = wire.HEADER_BYTES
    for index in range(len(packet.codes)):
        named.append((data[at : at + wire.CODE_BYTES], f"codes[{index}]"))
        at += wire.CODE_BYTES
    words_at = wire.HEADER_BYTES + wire.codes_bytes(len(packet.codes))
    if words_at > at:
        named.append((data[at:words_at], "padding"))
    for index in range(len(packet.words)):
        first = words_at + index * wire.WORD_BYTES
        named.append((data[first : first + wire.WORD_BYTES], f"words[{index}]"))
    return [f"{part.hex():8}  {name}" for part, name in named]


def main() -> None:
    """Write the example into the page."""
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(before + BEGIN + render() + END + after)


if __name__ == "__main__":
    main()
