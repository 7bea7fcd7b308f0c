"""The P4Runtime server, talked to by two controllers made of finsy as it is published.

finsy wants another protobuf than the rest of the tests: FANIN_FINSY_PYTHON names an interpreter that has it.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")
pytest.importorskip("grpc", reason="needs grpcio: pip install 'fanin[p4]'")

from fanin.switch.p4runtime.opening import BUILD
from fanin.switch.p4runtime.server.device import Device
from fanin.switch.p4runtime.server.server import GrpcServer, Service
from tests.p4.router import CPU_PORT, P4INFO, document

PYTHON = os.environ.get("FANIN_FINSY_PYTHON")
CONTROLLER = Path(__file__).with_name("finsy_controller.py")
DEVICE = 7
TIMEOUT_S = 120.0
ENTRIES = [
    "group 1 2",
    "session 3 1",
    "t {'a': (1, 255)} P4TableAction(name='send', args={'port': 4})",
    "t {'a': (2, 255)} P4TableAction(name='flood', args={'group': 1})",
]


@pytest.mark.processes
@pytest.mark.skipif(PYTHON is None, reason="needs finsy: FANIN_FINSY_PYTHON names an interpreter that has it")
def test_two_controllers_of_finsy_meet_and_the_second_takes_over_what_the_first_wrote(tmp_path: Path) -> None:
    program, p4info = tmp_path / "router.json", tmp_path / "router.p4info.txtpb"
    program.write_text(document())
    p4info.write_text(P4INFO)
    server = GrpcServer(Service(Device(CPU_PORT, lambda limit: 0), DEVICE, lambda port, data: None), "127.0.0.1", 0)
    try:
        paths = [program, p4info, BUILD / "v1model-64.p4info.txtpb"]
        command = [str(PYTHON), str(CONTROLLER), f"127.0.0.1:{server.port}", str(DEVICE), *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    finally:
        server.close()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "primaries": [True, False],
        "backup writes": "PERMISSION_DENIED",
        "backup reads": [],
        "again": "ALREADY_EXISTS",
        "missing": "NOT_FOUND",
        "everything": ENTRIES,
        "left": ENTRIES,
        "deleted": [],
        "registers and profiles": [f"P4RegisterEntry(register_id='r', index={at}, data=0)" for at in range(4)],
        "another P4Info": "refused",
    }
