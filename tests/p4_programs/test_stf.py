"""Packet tests of others (STF files) beside their compiled programs, in both interpreters.

As test_differential.py, FANIN_P4_SAMPLES names the folder; `NAME.stf` belongs to `NAME.json`.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from fanin.switch.p4 import V1Switch
from fanin.switch.p4.program_file import read_program
from tests.p4.bmv2 import action, call, data, extract, field, program, state, table
from tests.p4_programs.differential import OURS, Sample, samples
from tests.p4_programs.stf import PacketTest

NATIVE = "native interpreter"


def stf_of(sample: Sample) -> Path:
    return sample.program.with_suffix(".stf")


def differences(text: bytes, stf: str, native: bool | None) -> list[str]:
    """Differences that an STF file finds at an interpreter."""
    switch = V1Switch.from_json(text, native=native, random=Random(1).randrange)
    if native is not False and switch.engine != NATIVE:
        pytest.skip(switch.engine)
    names = {each["name"]: [one["name"] for one in each["runtime_data"]] for each in json.loads(text)["actions"]}
    test = PacketTest(switch, names)
    test.run(stf)
    return test.differences()


@pytest.mark.parametrize("native", [False, None], ids=["python", "native"])
def test_frames_come_out_as_a_packet_test_says(native: bool | None) -> None:
    body = program(
        types={"x_t": [["a", 8], ["b", 8]]},
        headers={"x": "x_t"},
        states=[state("start", [extract("x")])],
        actions=[
            action("send", call("assign", field("standard_metadata", "egress_spec"), data(0)), widths=(9,)),
            action("none"),
        ],
        ingress=[table("in.t", ["send", "none"], [("ternary", "x", "a")], default=(1, ()))],
    )
    body["actions"][0]["runtime_data"][0]["name"] = "port"
    text = json.dumps(body).encode()
    rules = "add t 9 x.a:0x1* send(port:2) # the higher one wins\nadd t 5 a:0x12 send(port:3)\n"
    good = "packet 0 12 34 56\nexpect 2 12 3* $\npacket 0 20 00\nexpect 0 20 00 $"
    assert differences(text, rules + good.replace("3* $", "3*"), native) == []
    assert differences(text, rules + good, native) == ["port 2: 123*$ is expected, and 123456 came"]
    assert differences(text, rules + "packet 0 20 00\nexpect 1", native) == [
        "port 0: 0 frames are expected, and 1 came"
    ]


@pytest.mark.parametrize("native", [False, None], ids=["python", "native"])
@pytest.mark.parametrize(
    "sample", [each for each in samples() if each not in OURS and stf_of(each).exists()], ids=lambda each: each.name
)
def test_a_program_of_others_passes_its_own_packet_test(sample: Sample, native: bool | None) -> None:
    found = differences(read_program(sample.program), stf_of(sample).read_text(encoding="utf-8"), native)
    assert not found
