"""CURVE with a list of clients: having the switch's public key is not enough."""

from __future__ import annotations

from pathlib import Path

import pytest
import zmq

from fanin.curve import CLIENT_VARIABLE, CurveKeys, load_or_create
from fanin.errors import AdmissionError, SwitchUnreachableError
from fanin.host.session.joining import JoinTerms
from fanin.host.session.session import Session
from fanin.options import Options
from tests.support.processes import join_all, reduce_together
from tests.support.services import a_service, address_of


@pytest.mark.parametrize("scheme", ["udp", "zmq"])
def test_only_clients_on_the_list_come_in(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    listed = load_or_create(tmp_path / "client.json").public
    with a_service(curve=CurveKeys(public, secret), curve_clients=(listed,)) as service:
        address = address_of(service, scheme)
        given = Options(curve_server_key=public, connect_timeout_s=1.0)
        with pytest.raises((SwitchUnreachableError, AdmissionError)):
            Session.join(JoinTerms(options=given, switch=address, job_name="not listed", rank=0, size=1))
        monkeypatch.setenv(CLIENT_VARIABLE, str(tmp_path / "client.json"))
        sessions = join_all(address, "listed", 2, Options(curve_server_key=public, connect_timeout_s=10.0))
        reduce_together(sessions)
        for session in sessions:
            session.close()
