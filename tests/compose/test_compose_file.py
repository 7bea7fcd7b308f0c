"""docker-compose.yml as docker-compose reads it, without an engine: tests/compose runs it on one."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.support.repository import ROOT

COMMAND = shutil.which("docker-compose")
pytestmark = pytest.mark.skipif(COMMAND is None, reason="docker-compose is not installed")


def services(*profiles: str, **environment: str) -> dict[str, str]:
    """The text of each service of these profiles, with everything filled in."""
    given = [word for profile in profiles for word in ("--profile", profile)]
    done = subprocess.run(
        [str(COMMAND), *given, "config"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    body = done.stdout.partition("services:\n")[2].partition("\nvolumes:")[0]
    parts = re.split(r"^  (\S+):\n", body, flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_hosts_have_a_link_each_at_rates_of_their_own_and_no_switch_is_started() -> None:
    found = services("hosts", RATE_2="10mbit", QUEUE="256kb")
    for number in range(1, 5):
        host, link = found[f"host-{number}"], found[f"link-{number}"]
        assert f"network_mode: service:link-{number}\n" in host
        assert f"FANIN_HOST: host-{number}\n" in host
        assert "FANIN_SWITCH: hosts\n" in host
        assert "FANIN_JOB: job-hosts\n" in host
        assert re.search(rf"depends_on:\n +job-hosts:.*?link-{number}:", host, re.DOTALL)
        assert f"RATE: {'10mbit' if number == 2 else '100mbit'}\n" in link
        assert "QUEUE: 256kb\n" in link
        assert re.search(r"cap_add:\n +- NET_ADMIN\n", link)
    assert "WORKERS: '4'" in found["job-hosts"]


def test_no_service_but_links_has_a_capability_or_runs_as_root() -> None:
    for name, text in services("zmq", "p4", "racks", "hosts", "bench").items():
        is_link = name.startswith("link-")
        assert ("cap_add" in text) == is_link, name
        assert ("user: '0'" in text) == is_link, name
        assert re.search(r"cap_drop:\n +- ALL\n", text), name
