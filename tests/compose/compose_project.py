"""A cluster of docker-compose.yml under a name of its own, with what the tests do to it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import ROOT

DEADLINE_S = 280.0
"""Longest that any one thing here may take; below pytest's own limit, so that the output is still shown."""
PROFILES = ("zmq", "p4", "racks", "hosts", "bench")
USER = "12345"
"""Owner of folders for results: neither root nor the image's user."""
MEMBER = re.compile(r"job:   rank (\d+) \((\S+), (\S+)\)")


def compose_command() -> list[str]:
    """`docker compose` where the plug-in is there, else `docker-compose`."""
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    return ["docker", "compose"] if plugin.returncode == 0 else ["docker-compose"]


def run(*command: str, env: dict[str, str] | None = None) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


class ComposeProject:
    """Made of the services that `up` names. A context manager: nothing of it is left behind."""

    def __init__(self, **settings: str) -> None:
        self.name = f"fanin-test-{uuid.uuid4().hex[:8]}"
        self._env = {**os.environ, **settings}
        self._compose = [*compose_command(), "--project-name", self.name]
        self.lines: list[str] = []
        """Lines that the job has printed so far."""

    def __enter__(self) -> ComposeProject:
        return self

    def __exit__(self, *_: object) -> None:
        profiles = [argument for profile in PROFILES for argument in ("--profile", profile)]
        command = [*self._compose, *profiles, "down", "--volumes", "--timeout", "2"]
        subprocess.run(command, cwd=ROOT, env=self._env, capture_output=True, check=False, timeout=DEADLINE_S)

    def run_to_end(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`up` in the foreground."""
        command = [*self._compose, "up", "--no-build", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=self._env, capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )

    def start(self, workers: int) -> None:
        """`up` in the background."""
        env = {"WORKERS": str(workers), **self._env}
        run(*self._compose, "up", "--no-build", "--detach", "--scale", f"worker={workers}", env=env)

    def run_service(self, service: str, *arguments: str) -> str:
        """`run --rm`: what it printed."""
        return run(*self._compose, "run", "--rm", service, *arguments, env=self._env)

    def container(self, service: str) -> str:
        """The id of a service's first container."""
        return run(*self._compose, "ps", "--quiet", service, env=self._env).split()[0]

    def follow_job(self) -> Iterator[str]:
        """The job's lines from its start, each as it comes, until it ends."""
        command = ["docker", "logs", "--follow", self.container("job")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as logs:
            assert logs.stdout
            timer = threading.Timer(DEADLINE_S, logs.kill)
            timer.start()
            try:
                for line in logs.stdout:
                    self.lines.append(line.rstrip("\n"))
                    yield self.lines[-1]
            finally:
                timer.cancel()
                logs.kill()

    def job_status(self) -> int:
        """Its exit status, once it has ended."""
        return int(run("docker", "wait", self.container("job")))

    def members(self) -> dict[int, str]:
        """Container names by rank, as the job has said."""
        found = (MEMBER.fullmatch(line) for line in self.lines)
        return {int(match[1]): match[2] for match in found if match}

    def logs(self, container: str) -> str:
        """Everything that a container has printed."""
        done = subprocess.run(["docker", "logs", container], capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    def rounds(self) -> int:
        """Rounds that the switch has completed."""
        stats = json.loads(run("docker", "exec", self.container("switch"), "fanin", "stats", "--json"))
        return sum(int(data["counters"].get("rounds", 0)) for data in stats["data"])

    def wait_for_standstill(self) -> None:
        """Until the switch completes no more rounds: a poll takes some hundred steps' time."""
        before, now = -1, self.rounds()
        while before != now:
            before, now = now, self.rounds()

    @contextlib.contextmanager
    def cut_off(self, container: str) -> Iterator[None]:
        """Unplug a container: its cable leaves the bridge, silently, and comes back at the end if it is still there."""
        cable, bridge = cable_of(container)
        run("ip", "link", "set", cable, "nomaster")
        try:
            yield
        finally:
            if Path("/sys/class/net", cable).exists():
                run("ip", "link", "set", cable, "master", bridge)


def cable_of(container: str) -> tuple[str, str]:
    """The interface of this machine that a container's eth0 is connected to, and the bridge that it is part of."""
    index = run("docker", "exec", container, "cat", "/sys/class/net/eth0/iflink").strip()
    for interface in Path("/sys/class/net").iterdir():
        if (interface / "ifindex").read_text().strip() == index:
            return interface.name, (interface / "master").resolve().name
    raise AssertionError(f"no interface {index} on this machine: the engine runs elsewhere")


def results_folder(factory: pytest.TempPathFactory) -> Path:
    """One that USER may write to, and nobody else."""
    folder = factory.mktemp("results")
    os.chown(folder, int(USER), int(USER))
    return folder


def missing() -> str:
    """Why these tests cannot run here, or nothing."""
    if "FANIN_COMPOSE_CHECK" not in os.environ:
        return "tools/compose_check.sh provides a container engine and the image, and runs these"
    for tool in ("docker", "ip"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    return "" if os.geteuid() == 0 else "only root can unplug a container"
