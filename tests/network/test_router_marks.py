"""Explicit congestion notification over links whose far ends mark what is ECN-capable. Needs root and nft."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from fanin.emulation.network.commands import in_namespace, run
from fanin.emulation.network.fabric import Fabric
from fanin.emulation.network.namespaces import inside
from fanin.emulation.network.topology import Topology
from fanin.extension import native_extension
from fanin.host.engines.engine import SwitchEndpoint, make_engine
from fanin.options import Options
from fanin.switch.server.server import make_server
from tests.support.builders import reduction
from tests.support.engines import DEADLINE_S, MEMORY_BYTES, make_spec

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("namespaces")]

ROUTER = """
add table inet congestion
add chain inet congestion arriving { type filter hook input priority 0; }
add rule inet congestion arriving ip ecn ect0 ip ecn set ce
"""


@pytest.mark.parametrize(("native", "way"), [(True, "up"), (True, "down"), (False, "up")])
def test_windows_shrink_where_a_router_marks(native: bool, way: str) -> None:
    """`way`: which direction's router is congested, as seen from the worker."""
    if shutil.which("nft") is None or (native and native_extension(None) is None):
        pytest.skip("needs nft, and for the native engine the native extension")
    spec = make_spec(1, slots=64)
    with Fabric(Topology(workers=1)) as fabric:
        switch, worker = fabric.switch_namespace(), fabric.worker_namespace(0)
        run(in_namespace(switch if way == "up" else worker, ["nft", "-f", "-"]), text=ROUTER)
        address = fabric.topology.root_address
        server = inside(
            switch, lambda: make_server("udp", address, 0, flows=1, memory_bytes=MEMORY_BYTES, native=native)
        )
        server.admit(spec)
        endpoint = SwitchEndpoint("udp", address, server.ports)
        engine = inside(worker, lambda: make_engine(Options(native=native), spec, 0, spec.tokens[0], endpoint))
        try:
            array = np.ones(64 * 500, np.int32)
            assert engine.wait(engine.submit(reduction(array)), DEADLINE_S)
            counters = engine.counters()
        finally:
            engine.close()
            server.close()
    assert counters["marks"] > 0, counters
    assert counters["cuts"] > 0, counters
