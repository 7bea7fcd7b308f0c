"""P4Runtime over TLS, with both sides' certificates checked."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("p4.v1.p4runtime_pb2", reason="needs p4runtime: pip install 'fanin[p4]'")

from fanin.errors import FaninError, SwitchUnreachableError
from fanin.switch.p4runtime.controller import links
from fanin.switch.p4runtime.controller.links import DeviceAddress, GrpcLink
from fanin.switch.p4runtime.opening import Artefacts, open_device
from fanin.switch.p4runtime.server.server import TlsFiles

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="openssl is not on PATH")


def certificate(folder: Path, name: str) -> TlsFiles:
    """A self-signed certificate for 127.0.0.1 that is its own authority."""
    files = TlsFiles(folder / f"{name}.crt", folder / f"{name}.key", folder / f"{name}.crt")
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["-keyout", str(files.key), "-out", str(files.certificate), *subject]
    subprocess.run(
        [str(OPENSSL), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *made],
        check=True,
        capture_output=True,
    )
    return files


def test_a_device_may_show_a_certificate_and_ask_for_none(tmp_path: Path) -> None:
    ours = certificate(tmp_path, "ours")
    shown = TlsFiles(ours.certificate, ours.key)
    with contextlib.closing(
        open_device(Artefacts.read(None, None), ("127.0.0.1", 0), ("127.0.0.1", 0), shown)
    ) as device:
        address = DeviceAddress(target=f"127.0.0.1:{device.p4runtime_port}", ca=ours.certificate.read_bytes())
        with contextlib.closing(GrpcLink(address)) as link:
            assert len(link.p4info().tables) > 0


def test_a_device_with_another_number_is_told_from_a_host_where_nothing_answers() -> None:
    with contextlib.closing(
        open_device(Artefacts.read(None, None), ("127.0.0.1", 0), ("127.0.0.1", 0), None, 3)
    ) as device:
        address = DeviceAddress(target=f"127.0.0.1:{device.p4runtime_port}", device_id=7)
        with pytest.raises(FaninError, match=r"refuses device 7: NOT_FOUND: .* Remedy: correct --device-id") as caught:
            GrpcLink(address)
    assert not isinstance(caught.value, SwitchUnreachableError)


def test_only_whom_the_authority_has_signed_is_heard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, stranger = certificate(tmp_path, "ours"), certificate(tmp_path, "stranger")
    device = open_device(Artefacts.read(None, None), ("127.0.0.1", 0), ("127.0.0.1", 0), ours)
    target = f"127.0.0.1:{device.p4runtime_port}"
    with contextlib.closing(device):
        with contextlib.closing(GrpcLink(DeviceAddress(target=target, tls=ours))) as link:
            assert len(link.p4info().tables) > 0
        monkeypatch.setattr(links, "CALL_TIMEOUT_S", 10.0)
        for wrong in (None, stranger, TlsFiles(stranger.certificate, stranger.key, ours.ca)):
            with pytest.raises(SwitchUnreachableError, match="no P4Runtime device answers"):
                GrpcLink(DeviceAddress(target=target, tls=wrong))
