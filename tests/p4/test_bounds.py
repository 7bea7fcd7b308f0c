"""Programs that declare more than a loader has room for are refused by name, before memory is asked for."""

from __future__ import annotations

import copy
import json
import random
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fanin.errors import FaninError, ProgramError, UnsupportedError
from fanin.switch.p4 import V1Switch, bounds
from tests.p4.bmv2 import action, call, extract, field, named, number, operation, program, state, table, to_port
from tests.p4.damaged import damaged, paths
from tests.p4.router import document as router

MEMORY_BYTES = 1 << 31
MUTATIONS = 400
DEPTH = 20_000


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """Let whoever asks for gigabytes fail here, and not the machine."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    lines = Path("/proc/self/status").read_text().splitlines()
    used = int(next(line.split()[1] for line in lines if line.startswith("VmData"))) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY_BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


def whole(*primitives: Any, bits: Any = 32, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "types": {"h_t": [["a", bits]]},
        "headers": {"h": "h_t", "s0": "h_t", "s1": "h_t"},
        "states": [state("start", [extract("h")])],
        "actions": [action("send", *primitives, to_port(1))],
        "ingress": [table("t", ["send"], [("exact", "h", "a")], default=(0, ()))],
        "emitted": ["h"],
    }
    return program(**(body | more))


def twice(document: dict[str, Any], member: str) -> dict[str, Any]:
    document[member].append(copy.deepcopy(document[member][0]))
    return document


def repeated(what: str, count: int) -> dict[str, Any]:
    document = whole()
    if what == "headers":
        document["header_types"][1]["fields"] = [[f"f{at}", 8] for at in range(bounds.MAX_TYPE_FIELDS)]
        first = document["headers"][1]
        document["headers"] += [{**first, "name": f"n{at}", "id": 100 + at} for at in range(count)]
    else:
        document["header_types"][1]["fields"] = [[f"f{at}", 8] for at in range(count)]
    return document


REGISTERS = {"name": "r", "id": 0, "size": 4, "bitwidth": 8}
WIDE = number((1 << bounds.MAX_FIELD_BITS + 8) - 1)
STACK = {"stacks": {"s": ("h_t", ["s0", "s1"])}}
A = field("h", "a")


@pytest.mark.parametrize(
    ("says", "document"),
    [
        ("a field of 67,108,864 bits", whole(bits=1 << 26)),
        ("a number 0, 1, 2", whole(bits=1 << 34)),
        ("a number 0, 1, 2", whole(bits=10**30)),
        ("4,097 fields of a header type", repeated("fields", bounds.MAX_TYPE_FIELDS + 1)),
        ("at most 65,536 and 1,048,576", repeated("headers", 32)),
        ("cells of 67108864 bits", whole(register_arrays=[{**REGISTERS, "bitwidth": 1 << 26}])),
        ("1,073,741,824 bytes", whole(register_arrays=[{**REGISTERS, "size": 1 << 26, "bitwidth": 1 << 16}])),
        (
            "67108865 counters",
            whole(counter_arrays=[{"name": "c", "id": 0, "is_direct": False, "size": (1 << 26) + 1}]),
        ),
        ("hexadecimal number of 16,388 digits", whole(call("assign", A, WIDE))),
        ("constant width of 1..65,536", whole(call("assign", A, operation("usat_cast", A, number(1 << 26))))),
        ("bits of a parameter", whole(actions=[action("send", to_port(1), widths=[1 << 26])])),
        ("parameters of an action", whole(actions=[action("send", to_port(1), widths=[1] * 2000)])),
        (
            "bits of a look-ahead",
            whole(states=[state("start", [call("set", A, {"type": "lookahead", "value": [0, 1 << 26]})])]),
        ),
        ("bits ahead", whole(states=[state("start", [call("set", A, {"type": "lookahead", "value": [1 << 26, 1]})])])),
        ("bits of a parse value set", whole(parse_vsets=[{"name": "v", "id": 0, "compressed_bitwidth": 1 << 26}])),
        (
            "bits of a constant",
            whole(
                calculations=[
                    {
                        "name": "c",
                        "id": 0,
                        "algo": "crc32",
                        "input": [{"type": "hexstr", "value": "0x1", "bitwidth": 1 << 26}],
                    }
                ]
            ),
        ),
        ("a key of more than", whole(ingress=[table("t", ["send"], [("exact", "h", "a")] * 3000, default=(0, ()))])),
        ("'s' is declared twice", twice(whole(**STACK), "header_stacks")),
        ("'r' is declared twice", twice(whole(register_arrays=[REGISTERS]), "register_arrays")),
        ("action id 0 is given twice", twice(whole(), "actions")),
    ],
)
def test_a_width_or_a_count_that_is_too_large_is_refused_by_name(says: str, document: dict[str, Any]) -> None:
    for native in (None, False):
        with pytest.raises(ProgramError, match=says):
            V1Switch.from_json(json.dumps(document), native=native)


def test_source_that_would_fill_the_memory_is_refused_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_SOURCE_BYTES", 1 << 20)
    many = [f"e{at}" for at in range(bounds.MAX_STACK_ELEMENTS)]
    copied = call("assign_header_stack", named("header_stack", "s"), named("header_stack", "s"))
    document = whole(*[copied] * 5000, headers={"h": "h_t", **dict.fromkeys(many, "h_t")}, stacks={"s": ("h_t", many)})
    with pytest.raises(UnsupportedError, match=f"more than {bounds.MAX_SOURCE_BYTES:,} bytes"):
        V1Switch.from_json(json.dumps(document))


def test_expressions_that_are_nested_too_deeply_are_refused() -> None:
    text = json.dumps(whole(call("assign", A, named("string", "inner"))))
    inner = json.dumps(A)
    nested = '{"type": "expression", "value": ' * DEPTH + inner + "}" * DEPTH
    with pytest.raises(FaninError, match=r"nested|JSON"):
        V1Switch.from_json(text.replace(json.dumps(named("string", "inner")), nested))


def test_numbers_as_wide_as_a_field_may_be_are_computed_alike() -> None:
    bits = bounds.MAX_FIELD_BITS
    document = whole(call("assign", A, operation("^", A, number((1 << bits) - 1))), bits=bits)
    for native in (None, False):
        switch = V1Switch.from_json(json.dumps(document), native=native)
        assert switch.process(0, b"\x0f" * (bits // 8), 0.0) == [(1, b"\xf0" * (bits // 8))]


@pytest.mark.parametrize("seed", range(4))
def test_any_damage_to_a_program_is_refused_or_harmless(seed: int) -> None:
    original = json.loads(router())
    ways, refused = paths(original), 0
    for at in range(MUTATIONS // 4):
        draw = random.Random(f"damage {seed} {at}")
        try:
            switch = V1Switch.from_json(json.dumps(damaged(original, ways, draw)))
            switch.process(draw.randrange(511), draw.randbytes(draw.randrange(80)), 0.0)
        except FaninError:
            refused += 1
    assert MUTATIONS // 16 < refused < MUTATIONS // 4


def test_packets_go_on_while_a_program_is_loaded() -> None:
    """The loader holds no lock of the packets'."""
    pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")
    from fanin.switch.p4runtime.server.device import Device
    from fanin.switch.p4runtime.server.server import Service

    loading, go_on, held = threading.Event(), threading.Event(), []

    def slow(*given: Any, **more: Any) -> V1Switch:
        loading.set()
        assert go_on.wait(10)
        return V1Switch.from_json(*given, **more)

    device = Device(510, random.randrange, make=slow)
    service = Service(device, 7, lambda port, data: None)
    loader = threading.Thread(target=load_over, args=(service,))
    loader.start()
    assert loading.wait(10)
    held.append(service.lock.acquire(timeout=5))
    service.lock.release()
    go_on.set()
    loader.join()
    assert held == [True]
    assert device.switch is not None


def load_over(service: Any) -> None:
    """Load the router, as a controller that is primary does."""
    from p4.v1 import p4runtime_pb2

    from fanin.switch.p4runtime.server.p4info import read_p4info
    from tests.p4.router import P4INFO

    class Context:
        def abort(self, code: Any, text: str) -> None:
            raise AssertionError(f"{code}: {text}")

    stream = object()
    with service.lock:
        service._arbitration.advertise(stream, 1)
    request = p4runtime_pb2.SetForwardingPipelineConfigRequest(device_id=7, action="VERIFY_AND_COMMIT")
    request.election_id.low = 1
    request.config.p4info.CopyFrom(read_p4info(P4INFO))
    request.config.p4_device_config = router().encode()
    service.SetForwardingPipelineConfig(request, Context())
