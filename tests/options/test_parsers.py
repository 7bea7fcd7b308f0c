"""Any content of a file or an option is read by its parser or raises the parser's own error: nothing else, and no hang.

Bytes from the network have such tests of their own (tests/wire, tests/control, and libFuzzer on the native parsers
where clang is there). Inputs here are damaged copies of legal ones, which get further than random text.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fanin.emulation.network import scenario as network_scenario
from fanin.emulation.simulator import scenario as simulator_scenario
from fanin.errors import ConfigurationError, FaninError, ProgramError, UnsupportedError
from fanin.faults import FaultSchedule
from fanin.formats.frames import read_frame
from fanin.options import SwitchAddress
from fanin.records import record
from fanin.switch.p4.program_file import read_program

ROOT = Path(__file__).parents[2]
SCENARIOS = [path.read_text(encoding="utf-8") for path in sorted(simulator_scenario.SCENARIO_FOLDER.glob("*.toml"))]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 40), 1 << 40),
    st.floats(),
    st.text(max_size=6),
    st.just([]),
    st.just({}),
    st.lists(st.integers(), max_size=2),
)


@st.composite
def damaged(draw: st.DrawFn, texts: list[str]) -> str:
    """A legal text with some characters replaced, left out, or put elsewhere."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        length = draw(st.integers(0, 8))
        text = text[:at] + draw(st.text('="[]0123456789.-einftrua\n_', max_size=6)) + text[at + length :]
    return text


def places(document: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    keys = document.keys() if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    return [each for key in keys for each in [(document, key), *places(document[key])]]


@given(damaged(SCENARIOS))
def test_a_simulators_scenario(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        scenario = simulator_scenario.parse(text)
        assert simulator_scenario.parse(simulator_scenario.to_toml(scenario), scenario.name) == scenario


@given(damaged([path.read_text(encoding="utf-8") for path in sorted(network_scenario.SHIPPED.glob("*.toml"))]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_clusters_scenario(tmp_path: Path, text: str) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(text, encoding="utf-8")
    with contextlib.suppress(ConfigurationError):
        network_scenario.load(str(file))


@given(damaged(["loss=1%,reorder=5%;kill worker 2@step 5", "pause worker 1@1.5s+2s;slow worker 0@step 3 x5"]))
def test_what_is_to_go_wrong(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        FaultSchedule.parse(text)


@given(damaged(["udp://127.0.0.1:4919", "zmq://[::1]:65535", "udp://host.example:1/"]))
def test_a_switchs_address(text: str) -> None:
    with contextlib.suppress(ConfigurationError):
        assert SwitchAddress.parse(str(SwitchAddress.parse(text)))


@given(st.dictionaries(st.sampled_from(["version", "kind", "title", "workers", "rows", "notes"]), VALUES), VALUES)
def test_the_record_of_a_run(body: dict[str, Any], value: Any) -> None:
    for document in (body, {**body, "version": record.VERSION}, value):
        with contextlib.suppress(ConfigurationError):
            record.parse(document)


@given(st.binary(max_size=80))
def test_a_frame(data: bytes) -> None:
    frame = read_frame(data)
    assert frame is None or len(frame.payload) <= len(data)


@pytest.fixture(scope="module")
def program() -> str:
    return read_program(ROOT / "p4/build/v1model-64.json.gz").decode()


@given(data=st.data())
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example], deadline=None)
def test_a_compiled_program(program: str, data: st.DataObject) -> None:
    from fanin.switch.p4.program import load

    document = json.loads(program)
    everywhere = places(document)
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = everywhere[data.draw(st.integers(0, len(everywhere) - 1))]
        container[key] = data.draw(VALUES)
    with contextlib.suppress(ProgramError, UnsupportedError):
        load(json.dumps(document), drop_port=511)


@given(data=st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example], deadline=None)
def test_the_description_of_a_program(data: st.DataObject) -> None:
    pytest.importorskip("p4.v1", reason="needs the P4Runtime messages: pip install p4runtime")
    from fanin.switch.p4runtime.server.p4info import read_p4info

    text = (ROOT / "p4/build/v1model-64.p4info.txtpb").read_text(encoding="utf-8")
    with contextlib.suppress(FaninError):
        read_p4info(data.draw(damaged([text])))


PORTS = '{"ports": [{"port": "1/0", "speed": "100G", "fec": "rs"}, {"device_port": 136, "speed": "25G"}]}'
CONF = (
    '{"p4_devices": [{"device-id": 0, "p4_programs": [{"program-name": "fanin", "bfrt-config": "there", '
    '"p4_pipelines": [{"p4_pipeline_name": "pipe", "context": "there", "config": "there", "pipe_scope": [0, 1]}]}]}]}'
)
TABLES = (
    '{"tables": [{"id": 1, "name": "t", "table_type": "x", "key": [{"id": 1, "name": "k", "type": {"type": "bool"}}]}]}'
)


@given(ports=damaged([PORTS]), conf=damaged([CONF]), tables=damaged([TABLES]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_a_tofino_is_deployed_from(tmp_path: Path, ports: str, conf: str, tables: str) -> None:
    pytest.importorskip("p4.v1", reason="needs the P4Runtime messages: pip install p4runtime")
    from fanin.switch.p4runtime.bfrt.deployment import read_conf
    from fanin.switch.p4runtime.bfrt.info import BfrtInfo
    from fanin.switch.p4runtime.bfrt.ports import read_plan

    for name, text in (("ports", ports), ("conf", conf), ("there", "")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    with contextlib.suppress(ConfigurationError):
        read_plan(tmp_path / "ports")
    with contextlib.suppress(ConfigurationError):
        read_conf(tmp_path / "conf")
    with contextlib.suppress(ProgramError):
        BfrtInfo([tables.encode()])
